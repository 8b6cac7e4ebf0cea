"""Tests of the options that commands share: where they stand, what they make."""

from datetime import datetime, tzinfo
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from commbench.cli import request
from commbench.cli.options import Settings, takes_settings

#: What a command was called with.
SEEN: list[tuple[Settings, str, int]] = []


@takes_settings
def command(
    settings: Settings,
    suite: Annotated[str, typer.Argument()] = "quick",
    depth: Annotated[int, typer.Option("--depth")] = 1,
) -> int:
    """Record the call."""
    SEEN.append((settings, suite, depth))
    return 0


def called(line: str) -> tuple[Settings, str, int]:
    """Return the arguments that the command receives for a command line."""
    app = typer.Typer()
    app.command()(command)
    outcome = CliRunner().invoke(app, line.split())
    assert 0 == outcome.exit_code, outcome.output
    return SEEN.pop()


def test_without_options_a_command_gets_the_defaults() -> None:
    """Parse an empty command line into default `Settings`."""
    settings, suite, depth = called("")
    assert (Settings(), "quick", 1) == (settings, suite, depth)


def test_options_become_settings_beside_the_own() -> None:
    """Separate shared options from the command's own in any order."""
    line = (
        "-n 4 mine --out there --launcher-arg -x --depth 3 --launcher-arg -y --case-timeout 5"
        " --fail-fast"
    )
    settings, suite, depth = called(line)
    expected = Settings(
        ranks=4, out=Path("there"), launcher_arg=["-x", "-y"], case_timeout=5.0, fail_fast=True
    )
    assert (expected, "mine", 3) == (settings, suite, depth)


def test_a_default_directory_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Number the directory of a second run that begins within the same second."""

    class Clock(datetime):
        """A clock that stands still."""

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Clock":
            return cls(2026, 1, 2, 3, 4, 5, tzinfo=tz)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(request, "datetime", Clock)
    made = []
    for _ in range(3):
        path = request.default_out("import")
        path.mkdir(parents=True)
        made.append(path.name)
    assert made == [made[0], f"{made[0]}-2", f"{made[0]}-3"]
    assert made[0].startswith("20260102T030405Z-import-")
