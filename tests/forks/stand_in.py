"""Stands for commbench and python in commands of the pages, and makes them short or only looks at
the command line.

``stand_in.py NAME ARGUMENT...`` runs ``NAME ARGUMENT...``. With the variable ``REHEARSAL``
commbench lists what it would measure (``--dry-run``) or parses its options, and writes nothing.
"""

import contextlib
import io
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Options that make a command short, by its first word; of an option that is given twice the last
#: counts.
SHORT = {
    "run": ("--launches", "1", "--visits", "1"),
    "bench": ("--launches", "1", "--no-train"),
    "train": ("--launches", "1", "--confirm-launches", "1", "--steps", "4"),
    "tune": ("--confirm-launches", "1", "--steps", "6"),
    "check": ("--budget", "quick"),
}
#: The same of commands that have another command behind ``--``.
SHORT_BEFORE_COMMAND = {
    "tune": ("--steps", "30", "--then", "stop"),
    "watch": ("--steps", "5", "--then", "stop"),
    "compare": ("--time-limit", "5"),
}
#: The same of the programs in benchmarks/.
SHORT_PROGRAMS = {
    "accuracy.py": ("--launches", "2", "--rounds", "5", "--chunk", "40"),
    "live_tuning.py": ("--pairs", "1", "--runs", "1", "--only", "watching"),
    "false_alarms.py": ("--launches", "2", "--sizes", "1M"),
    "selection.py": ("--rounds", "6", "--mib", "1"),
}
#: Options that list the cases of a command and load no torch, which takes seconds.
LISTED = {"run": ("--dry-run",), "bench": ("--no-train", "--dry-run"), "check": ("--dry-run",)}
#: Exit codes that answer a question: a regression, an expectation that is not met or not shown; a
#: check that fails.
ANSWERS = {"compare": (5,), "check": (3, 5)}
CHECK_FAILED = 1
#: What refuses a command for lack of a GPU.
NO_GPU = ("needs cupy", "needs a GPU")


def is_measuring(words: Sequence[str]) -> bool:
    """Return whether a command line of commbench measures: all in `SHORT` but the check of a run
    that exists.
    """
    has_run = words[0] == "check" and len(words) > 1 and not words[1].startswith("-")
    return words[0] in SHORT and not has_run and "--help" not in words


def shortened(words: Sequence[str]) -> list[str]:
    """Return a command line of commbench with the options that make it short."""
    name = words[0]
    if "--" in words and name in SHORT_BEFORE_COMMAND:
        place = words.index("--")
        command = (
            [f"{each} --sizes 1K" for each in words[place + 1 :]]
            if name == "compare"
            else words[place + 1 :]
        )
        return [*words[:place], *SHORT_BEFORE_COMMAND[name], "--", *command]
    if not is_measuring(words):
        return list(words)
    options = [*SHORT[name], *many_ranks(words)]
    if "--soak" in words:  # it chooses launches and visits
        return [*words, "--soak", "15s", *many_ranks(words)]
    if "--as" in words:  # it chooses visits
        options = ["--launches", "1", *many_ranks(words), "--sizes", "1K:4K"]
    elif name == "run":
        options += (
            ["-e", "16"]
            if {"-b", "-e"} & {*words}
            else ["-m", "8:16"]
            if "-m" in words
            else ["--sizes", "1K:4K"]
        )
    if name == "train" and not any("trace:" in word for word in words):  # a trace has its own batch
        options += ["--batch", "2"]
    return [*words, *options]


def many_ranks(words: Sequence[str]) -> tuple[str, ...]:
    """Return the option that lets this machine run as many ranks as a command line asks for."""
    return ("--oversubscribe",) if "-n" in words and "--hostfile" not in words else ()


def run(words: Sequence[str]) -> int:
    """Return the exit code of a command line of commbench."""
    sys.argv = ["commbench", *words]
    try:
        runpy.run_module("commbench", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def rehearse(words: Sequence[str]) -> int:
    """List the cases of a command line of commbench, or parse its options and look at the command
    behind ``--``.
    """
    if words[0] in LISTED and is_measuring(words):
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            code = run([*words, *many_ranks(words), *LISTED[words[0]]])
        sys.stderr.write(stderr.getvalue())
        return 0 if any(reason in stderr.getvalue() for reason in NO_GPU) else code
    import typer

    from commbench.cli import app

    command: Any = typer.main.get_command(app)
    rest, context = (
        list(words),
        command.make_context("commbench", list(words), resilient_parsing=True),
    )
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(context, rest)
    try:
        command.make_context(name, rest)
    except Exception as error:  # noqa: BLE001 - an error of click, or of the command's own checks
        sys.stderr.write(f"{error}\n")
        return 2
    if words[0] == "lab" and "--" in words:
        program = words[words.index("--") + 1 :]
        os.execvp(program[0], program)  # noqa: S606
    return 0


def main(name: str, words: list[str]) -> int:
    """Run commbench or Python."""
    if name == "commbench":
        if "REHEARSAL" in os.environ:
            return rehearse(words)
        code = run(shortened(words))
        return 0 if code in ANSWERS.get(words[0], ()) else code
    program = Path(words[0]).name
    if words[:2] == ["-m", "pytest"]:
        words += ["--collect-only", "-q"]
    if program not in SHORT_PROGRAMS:
        os.execv(sys.executable, [sys.executable, *words])  # noqa: S606
    sys.argv = [words[0], *words[1:], *SHORT_PROGRAMS[program]]
    sys.path[0] = str(Path(words[0]).parent)
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        return 0 if ended.code == CHECK_FAILED else int(ended.code or 0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
