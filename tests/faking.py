"""Runs through the real engine on the fake backend with scripted times."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from commbench.backends.fake import FakeCall, FakeCommunicator, FakeTimer
from commbench.collectives.cases import Case
from commbench.collectives.datatypes import Content
from commbench.collectives.patterns import Group
from commbench.collectives.primitives import Request
from commbench.engine.communicator import HostBuffer
from commbench.engine.control import Control, ThreadControl, run_threads
from commbench.engine.measure import measure
from commbench.engine.records import FixedSettings, Record
from commbench.engine.sampling import settings_after
from commbench.engine.session import Session
from commbench.engine.timing.clocks import GlobalClock
from commbench.engine.timing.loops import Call, Progress, Repetitions
from commbench.stats.budgets import BUDGETS, Budget

#: Repetitions decide by themselves when to stop; time does not, however busy the machine is.
ENDLESS_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Regime:
    """Time of one call of at least ``from_bytes``: alpha + bytes / rate (Hockney's model)."""

    from_bytes: int = 0
    alpha_us: float = 5.0
    GBps: float = 10.0


@dataclass(frozen=True, kw_only=True)
class Script:
    """The times that the scripted backend returns.

    ``seed``, the launch and the call determine every random draw.
    """

    regimes: Sequence[Regime] = (Regime(),)
    """Sorted by ``from_bytes``; each start is a breakpoint of the curve."""
    noise: float = 0.02
    """Standard deviation of the logarithm of a repetition's time."""
    launch_effect: float = 0.03
    """Standard deviation of the logarithm of a whole launch's factor."""
    slow_launches: float = 0.0
    """Share of launches in a second mode, ``slow_factor`` times slower."""
    slow_factor: float = 1.5
    tail: float = 0.01
    """Share of repetitions that take ``tail_factor`` times as long."""
    tail_factor: float = 10.0
    skew_us: float = 0.05
    """Mean lateness of a rank's arrival."""
    slow_rank: int | None = None
    slow_rank_factor: float = 1.2
    slow_together: Group = ()
    """Ranks; a call in a group that has all of them is ``slow_together_factor`` times slower."""
    slow_together_factor: float = 2.0
    warmup: int = 0
    """The first repetitions of a call, ``warmup_factor`` times slower."""
    warmup_factor: float = 3.0
    wrong: Callable[[int], int] = field(default=lambda _rank: 0)
    """Returns the number of wrong elements that a rank reports."""
    unsupported: Sequence[str] = ()
    """Primitives that the backend lacks."""
    seed: int = 0

    def time_us(self, call_bytes: int) -> float:
        """Return the true median of one call, in microseconds."""
        regime = [r for r in self.regimes if r.from_bytes <= call_bytes][-1]
        return regime.alpha_us + call_bytes / (1e3 * regime.GBps)


class ScriptedCommunicator(FakeCommunicator):
    """A fake backend that follows a script."""

    def __init__(
        self,
        control: Control,
        script: Script,
        launch: int = 0,
        members: Group = (),
        aside: int = 0,
    ) -> None:
        super().__init__(control, launch, members, aside)
        self.script = script
        self.seed, self.skew_us = script.seed, script.skew_us

    def of_group(self, members: Group, aside: int) -> FakeCommunicator:
        """Return the communicator of a group with the same script."""
        return ScriptedCommunicator(self._control, self.script, self.launch, members, aside)

    def true_us(self, call: FakeCall) -> float:
        """Return the scripted time of a call in this group."""
        time_us = self.script.time_us(call.call_bytes)
        together = self.script.slow_together
        if together and {*together} <= {*self.members}:
            time_us *= self.script.slow_together_factor
        return time_us

    def factors(self, identity: object, number: int, repetitions: int) -> NDArray[np.float64]:
        """Return the scripted factors."""
        script = self.script
        draw = self.generator(identity, -1)
        of_launch = float(np.exp(script.launch_effect * draw.standard_normal()))
        if draw.random() < script.slow_launches:
            of_launch *= script.slow_factor
        draw = self.generator(identity, number)
        noise = np.exp(script.noise * draw.standard_normal(repetitions))
        tail = np.where(draw.random(repetitions) < script.tail, script.tail_factor, 1.0)
        factors: NDArray[np.float64] = of_launch * noise * tail
        factors[: max(0, script.warmup - number)] *= script.warmup_factor
        if self.rank == script.slow_rank:
            factors *= script.slow_rank_factor
        return factors

    def count_wrong(self, buffer: HostBuffer, content: Content) -> int:  # noqa: ARG002 - scripted
        """Return the scripted number."""
        return self.script.wrong(self._control.rank)

    def call(self, request: Request) -> Call:
        """Refuse the primitives that the script lacks."""
        if request.name in self.script.unsupported:
            raise self._cannot(request.name)
        return super().call(request)


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
            communicator = ScriptedCommunicator(control, self.script, launch=number)
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
