"""The pages docs/commands.md, from the command line, and docs/python.md, from docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import typer
from markup import docstrings_of_fields, first_paragraph, listing

import commbench
from commbench import hooks
from commbench.cli import app
from commbench.cli.examples import EXAMPLES
from commbench.errors import EXIT_CODES
from commbench.results import Run

COMMANDS_HEAD = """# Commands, options and exit codes

<!-- Written by docs/generate.py from the command line; change it there. -->

`commbench COMMAND --help` prints the options of a command in full. An option that several commands share has one
description here.
"""

SHARED_HEAD = """## Options of every measuring command

Of `bench`, `run`, `train`, `tune --workload` and `check` without a run.
"""

PYTHON_HEAD = """# From Python

<!-- Written by docs/generate.py from docstrings; change them there. -->

`import commbench` loads neither torch nor MPI; a name is loaded when it is first used.

```python
from commbench import compare, load_run

run = load_run("results/mine")
print(run.collectives[["operation", "message_bytes", "time_us"]])
print(compare("results/monday", "results/friday").counts)
```

Fields of the records: [columns.md](columns.md) and the [schema of a sample](schema/sample.json).
"""

#: Commands that measure; the options that all of them have are described once.
MEASURING = ("bench", "run", "train", "tune", "check")
#: Of `commbench.results.Run`, what a person reads.
ATTRIBUTES = (
    "collectives",
    "ddp",
    "pairs",
    "buckets",
    "overlap",
    "rows",
    "training_rows",
    "losses",
)
#: Classes of which the page names no fields: samples.jsonl has them.
RECORDS = ("Case", "Record")
#: Methods of a hook that a training calls.
METHODS = ("register", "state_dict", "load_state_dict", "close")
#: The longest line of a signature.
WIDTH = 80
#: An option on the page: its spellings and its text.
Option = tuple[str, str]


def commands_page() -> str:
    """Return docs/commands.md."""
    options = {}
    commands = {}
    for words, command in leaves(typer.main.get_command(app)):
        name = " ".join(words)
        commands[name] = command
        options[name] = _options_of(name, command)
    shared = [
        option
        for option in options[MEASURING[0]]
        if all(option in options[name] for name in MEASURING)
    ]
    lines = [COMMANDS_HEAD, SHARED_HEAD, listing(_cells(shared))]
    described = dict.fromkeys(shared, "")
    for name, command in commands.items():
        lines += _command(name, command, options[name], described)
    codes = [(str(code), meaning) for code, meaning in EXIT_CODES.items()]
    lines += ["## Exit codes\n", listing(codes)]
    lines.append(
        "`tune -- COMMAND`, `watch -- COMMAND`, `lab run` and `lab exec` end with the exit code of"
        " their command.\nWhat launchers make of these codes: [faults.md](faults.md#exit-codes)."
    )
    return "\n".join(lines) + "\n"


def leaves(group: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command with the words by which it is called."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, *words, name)
        else:
            yield (*words, name), command


def _options_of(name: str, command: Any) -> list[Option]:
    context = command.make_context(name, [], resilient_parsing=True)
    return [parameter.get_help_record(context) for parameter in command.params]


def _command(
    name: str,
    command: Any,
    options: Sequence[Option],
    described: dict[Option, str],
) -> list[str]:
    """Return the section of a command; its options that have no description yet are added to
    those that have, with this command.
    """
    lines = [f"## {name}\n", _paragraphs(command.help)]
    examples = [(f"`{line}`", purpose) for line, purpose in EXAMPLES.get(name, ())]
    if examples:
        lines += ["Examples:\n", listing(examples)]
    own = []
    elsewhere: dict[str, list[str]] = {}
    for option in options:
        if option in described:
            elsewhere.setdefault(described[option], []).append(f"`{option[0]}`")
        else:
            own.append(option)
            described[option] = name
    if own:
        lines += ["Options:\n", listing(_cells(own))]
    for other, spellings in elsewhere.items():
        if other:
            lines.append(f"As for `{other}`: {', '.join(spellings)}.\n")
        else:
            lines.append(
                "And the [options of every measuring command](#options-of-every-measuring-command).\n"
            )
    return lines


def _cells(options: Sequence[Option]) -> list[Option]:
    return [(f"`{heads}`", text) for heads, text in options]


def _paragraphs(text: str) -> str:
    """Return a help text with a line for each paragraph."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(each.split()) for each in paragraphs).replace("``", "`") + "\n"


def python_page() -> str:
    """Return docs/python.md."""
    lines = [PYTHON_HEAD]
    for name in commbench.__all__:
        entry = getattr(commbench, name)
        lines += [f"## commbench.{name}\n", *_object(f"commbench.{name}", entry)]
    lines.append("## The run that load_run returns\n")
    attributes = [(f"`{name}`", _attribute(name)) for name in ATTRIBUTES]
    lines.append(listing(attributes))
    lines.append("## commbench.hooks\n")
    lines.append(
        "Options of each hook: [names.md](names.md#hooks). A class with a `messages` method states"
        " what it sends.\nMethods of every hook:\n"
    )
    methods = []
    for name in METHODS:
        function = getattr(hooks.Hook, name)
        methods.append((f"`{name}{_arguments(function)}`", first_paragraph(function)))
    lines.append(listing(methods))
    for name in sorted(hooks.__all__):
        entry = getattr(hooks, name)
        if inspect.isclass(entry) or inspect.isfunction(entry):
            lines += [f"### {name}\n", *_object(name, entry)]
    return "\n".join(lines).rstrip() + "\n"


def _attribute(name: str) -> str:
    entry = inspect.getattr_static(Run, name, None)
    if entry is not None and inspect.getdoc(entry):
        return first_paragraph(entry)
    raise ValueError(f"commbench.results.Run.{name} has no docstring; write one.")


def _object(name: str, entry: Any) -> list[str]:
    """Return the signature and the docstring of a class or function, and a table of fields.

    Options of the command line and of hooks are described elsewhere.
    """
    lines = []
    is_class = inspect.isclass(entry)
    is_hook = is_class and issubclass(entry, hooks.HookSpec)
    fields = []
    cls: type[Any] = entry
    is_described = is_class and not is_hook and entry.__name__ not in RECORDS
    if is_described and dataclasses.is_dataclass(entry):
        texts = docstrings_of_fields(cls)
        for each in dataclasses.fields(entry):
            if "spellings" in each.metadata:  # an option, see commbench.fields
                spelling = max(each.metadata["spellings"], key=len)
                fields.append((each.name, f"as `{spelling}`"))
            elif each.name in texts:
                fields.append((each.name, texts[each.name].replace("``", "`")))
    has_signature = not dataclasses.is_dataclass(entry) or is_hook
    if has_signature:
        lines.append(f"```python\n{name}{_signature(entry)}\n```\n")
    lines.append(_docstring(inspect.getdoc(entry) or ""))
    if fields:
        lines.append(listing((f"`{key}`", text) for key, text in fields))
    return lines


def _signature(entry: Any) -> str:
    """Return the parameters with their defaults, without types, one a line if they are many."""
    parameters = []
    is_keyword_only = False
    for each in inspect.signature(entry).parameters.values():
        if each.kind is inspect.Parameter.KEYWORD_ONLY and not is_keyword_only:
            parameters.append("*")
            is_keyword_only = True
        text = str(each.replace(annotation=inspect.Parameter.empty))
        parameters.append(text.replace("mappingproxy({})", "{}"))
    text = ", ".join(parameters)
    if len(text) < WIDTH:
        return f"({text})"
    lines = "".join(f"    {each},\n" for each in parameters)
    return f"(\n{lines})"


def _arguments(function: Any) -> str:
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    return f"({', '.join(names)})"


#: A section of a docstring: its heading, and its lines, which are indented.
_SECTION = re.compile(r"^(Args|Raises|Returns|Yields):\n((?:    .*\n?|\n)+)", re.MULTILINE)
#: A literal block of a docstring, which is an example.
_LITERAL = re.compile(r"^::\n\n((?:    .*\n?|\n)+)", re.MULTILINE)


def _docstring(text: str) -> str:
    """Return a docstring as Markdown: its sections as lists, its literal blocks as code."""
    text = text.replace("``", "`") + "\n"
    text = _LITERAL.sub(_code, text)
    return _SECTION.sub(_list, text).rstrip() + "\n"


def _code(match: re.Match[str]) -> str:
    return f"```python\n{inspect.cleandoc(match[1])}\n```\n\n"


def _list(match: re.Match[str]) -> str:
    lines = [f"{match[1]}:\n"]
    for item in re.split(r"\n(?=\S)", textwrap.dedent(match[2]).strip()):
        name, _, text = item.partition(":")
        lines.append(f"- `{name}`: {' '.join(text.split())}")
    return "\n".join(lines) + "\n\n"
