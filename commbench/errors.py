"""The exceptions of commbench, each with the exit code the conductor ends with.

CommbenchError
├── InputError        2  what was asked cannot be done; nothing has been written
├── LaunchError       3  a rank crashed or hung; what had finished is kept
├── WrongDataError    4  an operation delivered wrong elements
└── UnsupportedError  -  a backend cannot do a case; becomes a row with the reason, never a crash
                         (`commbench.findings`)
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

EntryT = TypeVar("EntryT")


class CommbenchError(Exception):
    """Base of every error that commbench raises on purpose.

    Its text is one sentence for the user.
    """

    exit_code = 1


class InputError(CommbenchError):
    """What was asked cannot be done: the sentence says what was asked, what was found and what to
    do.
    """

    exit_code = 2


def unknown_choice(
    what: str, name: str, choices: Iterable[str], alternative: str = ""
) -> InputError:
    """Return the error for a ``name`` that is none of ``choices``; ``what`` is the kind of name.

    It asks whether a choice that is spelt alike was meant.
    """
    known = list(choices)
    found = f"{what} {name!r}"
    alike = difflib.get_close_matches(name.lower(), known, n=1)
    if alike:
        found = f"{found} (did you mean {alike[0]}?)"
    return InputError(f"Unknown {found}; choose from {', '.join(known)}{alternative}.")


def check_choice(what: str, name: str, choices: Collection[str]) -> None:
    """Raise `InputError` with the list of ``choices`` unless ``name`` is one of them.

    ``what`` is the kind of name.
    """
    if name not in choices:
        raise unknown_choice(what, name, choices)


def find_entry(what: str, name: str, entries: Mapping[str, EntryT]) -> EntryT:
    """Return the entry called ``name``.

    Raises:
        InputError: there is none; the message lists the names.
    """
    check_choice(what, name, entries)
    return entries[name]


class LaunchError(CommbenchError):
    """A rank crashed, raised or stopped making progress; everything measured before is kept."""

    exit_code = 3


class WrongDataError(CommbenchError):
    """At least one operation delivered wrong elements."""

    exit_code = 4


#: The meaning of each exit code of commbench; `tune -- COMMAND` and `watch -- COMMAND` end with the
#: code of COMMAND.
EXIT_CODES: Mapping[int, str] = {
    0: "done; also a run cut by --time-limit after each case had a launch (status is cut)",
    CommbenchError.exit_code: "an internal error of commbench",
    InputError.exit_code: "bad input: one sentence on stderr, nothing written",
    LaunchError.exit_code: (
        "partial: cases failed, hung or had no launch; the others are kept, the same command "
        "tries the missing ones again; check: an expectation is not shown or not tested"
    ),
    WrongDataError.exit_code: "wrong data was found, also in a partial run",
    5: (
        "compare found a regression beyond --threshold; check found an expectation that is not met"
    ),
    129: "hung up; the same command resumes",
    130: "interrupted by Ctrl-C; the same command resumes",
    131: "ended by SIGQUIT; the same command resumes",
    138: "ended by SIGUSR1; the same command resumes",
    140: "ended by SIGUSR2; the same command resumes",
    141: "the reader of stdout closed the pipe",
    143: "terminated; the same command resumes",
}
