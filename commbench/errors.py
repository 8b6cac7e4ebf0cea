"""The exceptions of commbench, each with the exit code the conductor ends with.

CommbenchError
├── InputError        2  what was asked cannot be done; nothing has been written
├── LaunchError       3  a rank crashed or hung; what had finished is kept
├── WrongDataError    4  an operation delivered wrong elements
└── UnsupportedError  -  a backend cannot do a case; becomes a row with the reason, never a crash
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator


class CommbenchError(Exception):
    """Base of every error that commbench raises on purpose; its text is one sentence for the user."""

    exit_code = 1


class InputError(CommbenchError):
    """What was asked cannot be done: the sentence says what was asked, what was found and what to do."""

    exit_code = 2


def check_choice(what: str, name: str, choices: Iterable[str]) -> None:
    """Raise `InputError` with the list of ``choices`` unless ``name`` is one of them; ``what`` is the kind of name."""
    choices = list(choices)
    if name not in choices:
        raise InputError(f"Unknown {what} {name!r}; choose from {', '.join(choices)}.")


@contextlib.contextmanager
def noting(note: Callable[[str], object]) -> Iterator[None]:
    """Hand over the text of an `InputError` instead of raising it."""
    try:
        yield
    except InputError as error:
        note(str(error))


class LaunchError(CommbenchError):
    """A rank crashed, raised or stopped making progress; everything measured before is kept."""

    exit_code = 3


class WrongDataError(CommbenchError):
    """At least one operation delivered wrong elements."""

    exit_code = 4


class UnsupportedError(CommbenchError):
    """A backend cannot run a case; the text becomes the row's ``reason``."""
