"""Runs through the real engine on the fake backend with scripted times."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from commbench.backends.fake import FakeCommunicator, FakeTimer, Script
from commbench.collectives.cases import Case
from commbench.engine.control import ThreadControl, run_threads
from commbench.engine.measure import measure
from commbench.engine.records import FixedSettings, Record
from commbench.engine.sampling import settings_after
from commbench.engine.session import Session
from commbench.engine.timing.clocks import GlobalClock
from commbench.engine.timing.loops import Progress, Repetitions
from commbench.stats.budgets import BUDGETS, Budget

#: Repetitions decide by themselves when to stop; time does not, however busy the machine is.
ENDLESS_S = 60.0
#: No noise at all: what is measured is what was scripted.
EXACT = Script(noise=0.0, launch_effect=0.0, tail=0.0, skew_us=0.0)


def fake_case(operation: str = "all_reduce", message_bytes: int = 1024, **changes: Any) -> Case:
    """Return a case of the fake backend."""
    fields: dict[str, Any] = {
        "backend": "fake",
        "dtype": "float32",
        "redop": "sum",
        "in_place": True,
    }
    if operation not in {"all_reduce", "reduce"}:
        fields |= {"redop": None, "in_place": False}
    return Case(operation=operation, message_bytes=message_bytes, **{**fields, **changes})


class Coarse(GlobalClock):
    """Clocks of several hosts that agree within 10 us, last compared long ago."""

    compared = 0

    def __init__(self) -> None:
        super().__init__()
        self.error_ns = 10_000.0

    @property
    def is_shared(self) -> bool:
        """Return False: ranks read several clocks."""
        return False

    def is_stale(self) -> bool:
        """Return True."""
        return True

    def refresh(self) -> None:
        """Count the comparison."""
        type(self).compared += 1


@dataclass(frozen=True, kw_only=True)
class FakeRun:
    """The settings of a run."""

    script: Script = EXACT
    ranks: int = 2
    hosts: Sequence[str] = ()
    clock: type[GlobalClock] = GlobalClock
    relative_half_width: float = 0.05
    slice_s: float = ENDLESS_S
    visits: int = 1

    @property
    def budget(self) -> Budget:
        """Return the budget of a launch."""
        return replace(
            BUDGETS["quick"], relative_half_width=self.relative_half_width, visits=self.visits
        )

    def launch(
        self,
        cases: Sequence[Case],
        number: int = 0,
        frozen: Sequence[FixedSettings | None] | None = None,
    ) -> list[Record]:
        """Measure cases in one launch; return the records of rank 0, the only rank with any."""
        kept = frozen or [None] * len(cases)

        def work(control: ThreadControl) -> list[Record | None]:
            session = Session(
                control=control,
                budget=self.budget,
                progress=Progress(),
                clock=self.clock(),
                hosts=self.hosts,
                slice_s=self.slice_s,
            )
            communicator = FakeCommunicator(control, self.script, launch=number)
            return [
                measure(case, communicator, session, launch=number, fixed=settings)
                for case, settings in zip(cases, kept, strict=True)
            ]

        first, *others = run_threads(self.ranks, work)
        assert all(record is None for records in others for record in records)
        return [record for record in first if record is not None]

    def launches(self, cases: Sequence[Case], count: int) -> list[Record]:
        """Measure cases in several launches; the first launch's settings are fixed."""
        records = self.launch(cases)
        frozen = [settings_after(record, self.budget) for record in records]
        for number in range(1, count):
            records += self.launch(cases, number, frozen)
        return records


def make_late(monkeypatch: pytest.MonkeyPatch, which: Callable[[int, int], Any]) -> list[int]:
    """Make repetitions of the fake backend late: those of ``which(rank, n)``, repeated.

    Return the slack of each chunk.
    """
    original, slack = FakeTimer.run, []

    def run(self: FakeTimer, calls: Sequence[Any], repetitions: int, batch: int) -> Repetitions:
        stamps = original(self, calls, repetitions, batch)
        slack.append(self.sync.plan.slack_ns)
        late = np.asarray(which(self._communicator.rank, repetitions), dtype=np.bool_)
        return replace(stamps, late=np.resize(late, repetitions))

    monkeypatch.setattr(FakeTimer, "run", run)
    return slack
