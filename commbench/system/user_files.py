"""A user's own Python file: importing it by its path, and its errors on one line."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from commbench.errors import InputError

#: Characters of an error's text that a message quotes.
QUOTED = 300
#: Directories of Python's library and of commbench.
_NOT_OWN = (Path(traceback.__file__).parent, Path(__file__).parent.parent)
#: How an error of a worker of a data loader states where it was raised.
_OF_WORKER = "Original Traceback (most recent call last):"
_PLACE = re.compile(r'File "(.+)", line (\d+)')


def is_callable_of_file(text: str) -> bool:
    """Return whether a text has the form ``FILE.py:CALLABLE``, even if the callable is missing."""
    return text.endswith((".py", ".py:")) or text.rpartition(":")[0].endswith(".py")


def callable_name(text: str) -> str:
    """Return the name of ``FILE.py:CALLABLE`` in results: the file without directories, and the
    callable.
    """
    return text.replace("\\", "/").rpartition("/")[2]


def split_callable(text: str, example: str) -> tuple[Path, str]:
    """Return the file and the name of ``FILE.py:CALLABLE``.

    Args:
        text: the value of the option, as typed.
        example: name of a callable, for the error.

    Raises:
        InputError: the name is missing, or there is no such file.
    """
    file, _, name = text.rpartition(":")
    if not name or name.endswith(".py"):
        path_text = text.rstrip(":")
        raise InputError(
            f"{text} names no function: write {path_text}:{example}, say, for a function {example}."
        )
    if not Path(file).is_file():
        raise InputError(
            f"There is no file {file}: give the path of your own file as file.py:callable."
        )
    return Path(file), name


def load_callable(text: str, example: str) -> Callable[..., Any]:
    """Import the file of ``FILE.py:CALLABLE`` and return the callable.

    Its directory becomes importable, and the working directory behind what is installed.

    Raises:
        InputError: there is no such file, it cannot be imported, or it has no callable of this
            name.
    """
    path, name = split_callable(text, example)
    member: object = getattr(_import_file(path), name, None)
    if member is None:
        raise InputError(
            f"{path} has no function {name}: define it, or name another as file.py:callable."
        )
    if callable(member):
        return member
    raise InputError(
        f"{name} in {path} is of type {type(member).__name__}, which cannot be called: name a"
        " function."
    )


def _import_file(path: Path) -> ModuleType:
    directory = str(path.resolve().parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
        sys.path.append(str(Path.cwd()))
    name = f"commbench_own_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} cannot be imported: give a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look up their module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(f"{path} cannot be imported ({failure(error)}): correct it.") from error
    return module


def failure(error: BaseException) -> str:
    """Return an error of a user's own code on one line: its type, text and location."""
    text, places = f"{type(error).__name__}: {error}", []
    for frame in traceback.extract_tb(error.__traceback__):
        places.append((frame.filename, str(frame.lineno)))
    if _OF_WORKER in text:  # torch raises it again in the process that trains
        places += _PLACE.findall(text)
        # the text follows the frames and may have several lines
        text = re.split(r"^(?:[ ].*\n)+(?=\S)", text, flags=re.MULTILINE)[-1]
    text = " ".join(text.split()).removesuffix(":").removesuffix(".")[:QUOTED]
    for name, line in reversed(places):
        file = Path(name)
        is_other = "site-packages" in file.parts or file.name.startswith("<")
        if not is_other and not any(map(file.is_relative_to, _NOT_OWN)):
            return f"{text}, {file.name} line {line}"
    return text
