"""The fake backend: scripted times instead of communication, so that statistics and sweeps can be
tested exactly.

Nothing is sent and no rank waits. A repetition's timestamps are drawn from a `Script` whose true
medians are known.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from commbench.collectives.datatypes import Content, DataType
from commbench.collectives.patterns import Group
from commbench.collectives.primitives import Request
from commbench.engine.communicator import Communicator, HostBuffer
from commbench.engine.control import Control
from commbench.engine.timing.loops import Call, Progress, Repetitions, Timer
from commbench.engine.timing.sync import Synchroniser, SyncPlan


@dataclass(frozen=True, kw_only=True)
class Regime:
    """Time of one call of at least ``from_bytes``: alpha + bytes / rate (Hockney's model)."""

    from_bytes: int = 0
    alpha_us: float = 5.0
    GBps: float = 10.0


@dataclass(frozen=True, kw_only=True)
class Script:
    """The times that the fake backend returns.

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
    """Primitives that the fake backend lacks."""
    seed: int = 0

    def time_us(self, call_bytes: int) -> float:
        """Return the true median of one call, in microseconds."""
        regime = [r for r in self.regimes if r.from_bytes <= call_bytes][-1]
        return regime.alpha_us + call_bytes / (1e3 * regime.GBps)


@dataclass(frozen=True, kw_only=True)
class FakeCall(Call):
    """A call with its operation and size."""

    primitive: str
    call_bytes: int
    factor: float = 1.0
    """Of the scripted time."""


class FakeCommunicator(Communicator):
    """A backend that follows a `Script`."""

    backend = "fake"
    device = "none"

    def __init__(
        self,
        control: Control,
        script: Script | None = None,
        launch: int = 0,
        members: Group = (),
        aside: int = 0,
    ) -> None:
        self._control = control
        self.script = script or Script()
        members = members or tuple(range(control.size))
        together = self.script.slow_together
        self._factor = (
            self.script.slow_together_factor if together and {*together} <= {*members} else 1.0
        )
        self.rank = members.index(control.rank)
        self.size = len(members)
        self.launch = launch
        self._aside = aside
        """Number of ranks of the launch that are in no group."""

    @classmethod
    def connect(cls, control: Control, launch: int = 0) -> FakeCommunicator:
        """Open the backend among all ranks of ``control``; ``launch`` is part of the seed."""
        return cls(control, launch=launch)

    def _split(self, groups: Sequence[Group]) -> FakeCommunicator | None:
        """Make the group's communicator with the same script; all groups are equally fast."""
        aside = self.size - sum(map(len, groups))
        members = next((group for group in groups if self.rank in group), None)
        return (
            FakeCommunicator(self._control, self.script, self.launch, members, aside)
            if members
            else None
        )

    def library(self) -> str:
        """See `Communicator.library`."""
        return "commbench fake"

    def transport(self) -> str:
        """See `Communicator.transport`."""
        return "script"

    def timer(self, loop: str, plan: SyncPlan, progress: Progress) -> Timer:  # noqa: ARG002 - there is one loop
        """Return a loop that draws its timestamps."""
        return FakeTimer(self, Synchroniser(self._control, plan), progress)

    def allocate(self, dtype: DataType, count: int) -> HostBuffer:
        """Return a buffer whose elements are one and the same."""
        return HostBuffer(np.broadcast_to(np.zeros(1, dtype.storage), count), dtype)

    def write(self, buffer: HostBuffer, content: Content) -> None:
        """Hold nothing."""

    def poison(self, buffer: HostBuffer) -> None:
        """Hold nothing."""

    def count_wrong(self, buffer: HostBuffer, content: Content) -> int:  # noqa: ARG002 - scripted
        """Return the scripted number."""
        return self.script.wrong(self._control.rank)

    def call(self, request: Request) -> Call:
        """Return a call with a scripted time."""
        return self._fake(request.name, self._call_bytes(request))

    def begin(self, request: Request) -> list[Call]:
        """Return a start with a scripted time, and a completion without."""
        start = self._fake(f"i{request.name}", self._call_bytes(request))
        return [start, FakeCall(run=_nothing, primitive="wait", call_bytes=-1)]

    def _fake(self, primitive: str, call_bytes: int) -> FakeCall:
        if primitive in self.script.unsupported:
            raise self._cannot(primitive)
        if primitive == "barrier":  # verified, it is a real barrier of all groups
            if self._aside:
                raise self._cannot("barrier while ranks stand aside")
            return FakeCall(run=self._control.barrier, primitive=primitive, call_bytes=0)
        drawn_as = primitive
        if primitive in {"send", "receive"}:  # both ends draw the same time
            drawn_as = "message"
        return FakeCall(
            run=_nothing, primitive=drawn_as, call_bytes=call_bytes, factor=self._factor
        )

    def _call_bytes(self, request: Request) -> int:
        """Return the bytes of the whole message on any rank, or of a window's busier direction."""
        messages: list[int] = [buffer.nbytes for buffer, _ in (*request.sends, *request.receives)]
        if messages:
            streams = max(len(request.sends), len(request.receives))
            return max(messages) * request.window * streams
        sizes = [buffer.nbytes for buffer in request.buffers]
        if request.name in {"gather", "scatter"}:  # a block on all ranks but one
            return min(sizes) * self.size
        return max(sizes, default=0)


class FakeTimer:
    """Draws timestamps instead of reading them: one operation time for all ranks, and an arrival
    time for each.
    """

    name = "python"

    def __init__(
        self, communicator: FakeCommunicator, sync: Synchroniser, progress: Progress
    ) -> None:
        self.sync = sync
        self._communicator = communicator
        self._progress = progress
        self._drawn: Counter[tuple[tuple[str, int], ...]] = Counter()
        self._clock_ns = 0

    def prepare(self) -> None:
        """Do nothing: there is nothing to compile or calibrate."""

    def reading_ns(self) -> float:
        """Return 0: reading this clock costs nothing."""
        return 0.0

    def run(self, calls: Sequence[Call], repetitions: int, batch: int) -> Repetitions:
        """See `commbench.engine.timing.loops.Timer.run`."""
        script, rank = self._communicator.script, self._communicator.rank
        scripted = [
            call for call in calls if isinstance(call, FakeCall)
        ]  # the computation between start and wait takes no scripted time
        identity = tuple((call.primitive, call.call_bytes) for call in scripted)
        number = self._drawn[identity]
        self._drawn[identity] += repetitions
        shared_rng = _generator(script.seed, self._communicator.launch, identity, number)
        rank_rng = _generator(script.seed, self._communicator.launch, identity, number, rank)
        times_us = [
            call.factor * script.time_us(call.call_bytes)
            for call in scripted
            if call.call_bytes >= 0
        ]
        true_us = sum(times_us) * batch
        duration_us = (
            true_us
            * self._launch_factor(identity)
            * _repetition_factors(script, shared_rng, repetitions)
        )
        duration_us[: max(0, script.warmup - number)] *= script.warmup_factor
        if rank == script.slow_rank:
            duration_us = duration_us * script.slow_rank_factor
        skew_ns = 1e3 * rank_rng.exponential(script.skew_us, repetitions)
        start = self._clock_ns + 1_000_000 * np.arange(repetitions) + skew_ns
        self._progress.counters += repetitions
        start_ns = np.round(start).astype(np.int64)
        return Repetitions(
            start_ns=start_ns,
            end_ns=start_ns + np.round(1e3 * duration_us).astype(np.int64),
            late=np.zeros(repetitions, dtype=np.bool_),
        )

    def _launch_factor(self, identity: object) -> float:
        """Return the factor of this launch, the same for every repetition of a call."""
        script = self._communicator.script
        draw = _generator(script.seed, self._communicator.launch, identity, -1)
        factor = float(np.exp(script.launch_effect * draw.standard_normal()))
        return factor * (script.slow_factor if draw.random() < script.slow_launches else 1.0)


def _repetition_factors(
    script: Script, draw: np.random.Generator, repetitions: int
) -> NDArray[np.float64]:
    noise = np.exp(script.noise * draw.standard_normal(repetitions))
    tail = np.where(draw.random(repetitions) < script.tail, script.tail_factor, 1.0)
    factors: NDArray[np.float64] = noise * tail
    return factors


def _generator(*words: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(words).encode()))


def _nothing() -> None:
    """Communicate nothing."""
