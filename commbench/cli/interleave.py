"""Measures two commands in turn until a verdict, for ``commbench compare --until-decided``."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from commbench.analysis.comparison import ComparisonTable, compare
from commbench.errors import InputError, LaunchError
from commbench.launch.ledger import SIGNAL_CODE
from commbench.launch.signals import PASSED_ON
from commbench.live.command import run_command
from commbench.stats import Verdict
from commbench.system.env import safe_path
from commbench.units import counted

#: Launches of each side after which the sides are compared. Each look has its share of the error
#: (Bonferroni), so that any number of them together errs as seldom as one comparison.
LOOKS = (6, 8, 12, 16, 24, 32, 40)
#: Commands that add launches to a run.
MEASURING = ("run", "train", "bench")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*")
SIDES = ("a", "b")


@dataclass(frozen=True, kw_only=True)
class Side:
    """A command to measure with, and the directory of its run."""

    name: str
    command: Sequence[str]
    environment: dict[str, str]
    folder: Path

    def launch(self, launches: int) -> None:
        """Add launches to the run until it has so many.

        Signals are passed on to the command. If one ends it, exit with its code.

        Raises:
            LaunchError: the command failed.
        """
        command = [*self.command, "--launches", str(launches), "--out", str(self.folder)]
        log = self.folder.with_suffix(".log")
        with log.open("a", encoding="utf-8") as stream:
            code = run_command(command, {**os.environ, **safe_path(), **self.environment}, stream)
        if code - SIGNAL_CODE in PASSED_ON:
            sys.exit(code)
        if code:
            raise LaunchError(
                f"Launch {launches} of {self.name.upper()} ended with code {code}; {log}"
                " has its output. The same command with the same --out goes on."
            )


def parse_side(text: str, name: str, folder: Path) -> Side:
    """Parse a command such as ``run -c all_reduce --sizes 1M``, after variables as in
    ``NCCL_ALGO=Ring run ...``.

    Raises:
        InputError: it names no program, or no command of commbench that measures, or options that
            are set here.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"Command {name.upper()} {text!r} is not understood: {error}.") from error
    environment = {}
    while words and ASSIGNMENT.fullmatch(words[0]):
        variable, _, value = words.pop(0).partition("=")
        environment[variable] = value
    if not words or not set(words) & set(MEASURING):
        raise InputError(
            f"Command {name.upper()} {text!r} does not measure; write one such as 'run -c"
            " all_reduce --sizes 1M', or with the program of another version before it:"
            " '/old/.venv/bin/commbench run -c all_reduce'."
        )
    if refused := {"--out", "--launches"} & {word.partition("=")[0] for word in words}:
        raise InputError(
            f"Command {name.upper()} has {min(refused)}, which is chosen here; leave it out."
        )
    if words[0] in {*MEASURING, "commbench"}:
        words = [
            sys.executable,
            "-m",
            "commbench",
            *(words[1:] if words[0] == "commbench" else words),
        ]
    elif not shutil.which(words[0]):
        raise InputError(
            f"Command {name.upper()} begins with {words[0]}, which is no program on the PATH."
        )
    return Side(name=name, command=words, environment=environment, folder=folder / name)


def measure_until_decided(
    sides: Sequence[Side],
    *,
    seconds: float,
    report: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> ComparisonTable:
    """Add a launch to both runs in turn until each case has a verdict, the time is over, or the
    launches are.

    Args:
        sides: A and B. The order of each pair of launches alternates, so that drift meets both
            alike.
        seconds: time limit; a pair of launches that would probably exceed it is not begun.
        report: takes a line of progress.
        clock: seconds.

    Raises:
        LaunchError: a launch failed.
    """
    begun, table = clock(), None
    for launches in range(1, LOOKS[-1] + 1):
        before = clock()
        for side in sides if launches % 2 else reversed(sides):
            side.launch(launches)
        now = clock()
        is_over = now - begun + (now - before) > seconds
        if launches in LOOKS or is_over:
            table = compare(sides[0].folder, sides[1].folder, force=True, looks=len(LOOKS))
            undecided = table.counts[Verdict.INCONCLUSIVE]
            cases = counted(len(table.cases), "case")
            report(
                f"{counted(launches, 'launch')} of each: {len(table.cases) - undecided} of {cases}"
                " decided"
            )
            if is_over or not undecided:
                break
        else:
            report(f"{counted(launches, 'launch')} of each")
    assert table is not None  # noqa: S101 - the last launch is a look
    return table
