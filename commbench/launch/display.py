"""What a run shows while it goes on: the protocol that the command line implements, and a silent stand-in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from commbench.results.record_types import AnyRecord


class Display(Protocol):
    """Told what happens, in order, from one thread."""

    def launch_started(self, launch: int, launches: int, stage: str = "") -> None:
        """Launch number ``launch``, counted from 0, of ``launches`` is being started.

        ``stage`` names the part of a run that has several.
        """

    def case(self, done: int, total: int, text: str, eta_s: float) -> None:
        """The case named ``text`` begins.

        ``done`` of ``total`` cases are finished over all launches; about ``eta_s`` seconds are left.
        """

    def record(self, record: AnyRecord) -> None:
        """A case is finished in this launch, or has failed."""

    def warning(self, text: str) -> None:
        """Something the person should know: one sentence."""

    def output(self, lines: Sequence[str]) -> None:
        """What the ranks of a failed launch and their launcher wrote last on stderr."""

    def launch_finished(self, seconds: float) -> None:
        """The launch is over, however it ended."""


class SilentDisplay:
    """Shows nothing."""

    def launch_started(self, launch: int, launches: int, stage: str = "") -> None:
        """Do nothing."""

    def case(self, done: int, total: int, text: str, eta_s: float) -> None:
        """Do nothing."""

    def record(self, record: AnyRecord) -> None:
        """Do nothing."""

    def warning(self, text: str) -> None:
        """Do nothing."""

    def output(self, lines: Sequence[str]) -> None:
        """Do nothing."""

    def launch_finished(self, seconds: float) -> None:
        """Do nothing."""
