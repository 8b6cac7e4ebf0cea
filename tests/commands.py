"""Commands run within the test process, in an empty directory."""

import os
import shlex
import sys
from pathlib import Path

import pytest
import typer.main

from commbench import cli

#: Variables that would make this process a rank of somebody's launch.
RANK_PREFIXES = ("OMPI_COMM_", "PMI_", "PMIX_", "SLURM_", "TORCHELASTIC_", "PBS_")
#: All commands with their options.
COMMANDS = typer.main.get_command(cli.app)


class Outcome:
    """Exit code and output of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err


BENCHMARKS = Path(__file__).parent.parent / "benchmarks" / "evidence"


class Command:
    """Runs ``commbench`` within this process, in an empty directory."""

    def __init__(
        self, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.home = home
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, line: str) -> Outcome:
        """Run a command line; arguments are separated as in a shell."""
        self._monkeypatch.setattr(sys, "argv", ["commbench", *shlex.split(line)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = self._capsys.readouterr()
        return Outcome(int(ended.value.code or 0), captured.out, captured.err)

    def refuses(self, line: str, sentence: str) -> None:
        """Check that a command line ends with code 2 and a sentence on stderr, and writes
        nothing.
        """
        before = self.files()
        done = self(line)
        assert (2, "") == (done.code, done.out)
        assert done.err.startswith(("commbench: ", "Usage: ", "Error: "))
        assert sentence in " ".join(done.err.split())
        assert before == self.files()

    def files(self) -> dict[str, bytes]:
        """Return every file and directory below the directory, without compiled modules."""
        return {
            str(path.relative_to(self.home)): path.read_bytes() if path.is_file() else b""
            for path in self.home.rglob("*")
            if "__pycache__" not in path.parts
        }


def parse(words: list[str]) -> None:
    """Parse what follows ``commbench``, and a command of commbench that it starts."""
    command = COMMANDS
    context = command.make_context("commbench", list(words), resilient_parsing=True)
    rest = words
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(context, rest)
    command.make_context(name, list(rest))
    if "commbench" in rest:
        parse(rest[rest.index("commbench") + 1 :])


def clear_of_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables that make this process a launcher's rank."""
    for name in list(os.environ):
        if name.startswith(RANK_PREFIXES):
            monkeypatch.delenv(name)
