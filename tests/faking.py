"""Runs through the real engine on the fake backend with scripted times."""

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from fields import fields_of
from measuring import measure
from numpy.typing import NDArray
from threads import ThreadControl, run_threads

from commbench.collectives.cases import Case
from commbench.collectives.datatypes import Content, DataType
from commbench.collectives.patterns import Group
from commbench.collectives.primitives import Request
from commbench.engine.communicator import Communicator, HostBuffer
from commbench.engine.control import Control
from commbench.engine.records import FixedSettings, Record
from commbench.engine.sampling import settings_after
from commbench.engine.session import Session
from commbench.engine.timing.clocks import GlobalClock
from commbench.engine.timing.loops import Call, Progress, Repetitions, Timer
from commbench.engine.timing.sync import Synchroniser
from commbench.stats.budgets import BUDGETS, Budget

#: Repetitions decide by themselves when to stop; time does not, however busy the machine is.
ENDLESS_S = 60.0


#: Rate of the scripted link, in bytes per microsecond, and factors of slow times.
RATE, SLOW, TAIL, COLD = 10_000.0, 1.5, 10.0, 3.0


@dataclass(frozen=True, kw_only=True)
class Script:
    """The times that the scripted backend returns.

    ``seed``, the launch and the call determine every random draw.
    """

    alpha_us: float = 5.0
    """Time of an empty call."""
    noise: float = 0.02
    """Standard deviation of the logarithm of a repetition's time."""
    launch_effect: float = 0.03
    """Standard deviation of the logarithm of a whole launch's factor."""
    slow_launches: float = 0.0
    """Share of launches in a second mode, `SLOW` times slower."""
    tail: float = 0.01
    """Share of repetitions that take `TAIL` times as long."""
    skew_us: float = 0.05
    """Mean lateness of a rank's arrival."""
    slow_rank: int | None = None
    slow_rank_factor: float = 1.2
    warmup: int = 0
    """The first repetitions of a call, `COLD` times slower."""
    wrong: Callable[[int], int] = field(default=lambda _rank: 0)
    """Returns the number of wrong elements that a rank reports."""
    unsupported: Sequence[str] = ()
    """Primitives that the backend lacks."""
    seed: int = 0

    def time_us(self, call_bytes: int) -> float:
        """Return the true median of one call, in microseconds."""
        return self.alpha_us + call_bytes / RATE


@dataclass(frozen=True, kw_only=True)
class FakeCall(Call):
    """A call with its operation and size."""

    primitive: str
    call_bytes: int


class FakeCommunicator(Communicator):
    """A backend whose times a script draws.

    Nothing is sent and no rank waits; the script, the launch and the call determine every draw.
    """

    backend = "gloo"
    device = "none"

    def __init__(
        self,
        control: Control,
        launch: int = 0,
        script: Script | None = None,
        members: Group = (),
        aside: int = 0,
    ) -> None:
        self._control = control
        self.members = members or tuple(range(control.size))
        self.rank = self.members.index(control.rank)
        self.size = len(self.members)
        self.launch = launch
        self.script = script or Script()
        self._aside = aside
        """Number of ranks of the launch that are in no group."""

    def _split(self, groups: Sequence[Group], own: Group | None) -> "FakeCommunicator | None":
        if own is None:
            return None
        aside = self.size - sum(map(len, groups))
        return FakeCommunicator(self._control, self.launch, self.script, own, aside)

    def generator(self, *words: object) -> np.random.Generator:
        """Return the random numbers that belong to ``words`` in this launch."""
        seed = repr((self.script.seed, self.launch, *words))
        return np.random.default_rng(zlib.crc32(seed.encode()))

    def factors(self, identity: object, number: int, repetitions: int) -> NDArray[np.float64]:
        """Return the factor of each repetition's time, shape (repetitions,).

        Args:
            identity: of the calls.
            number: how often they have been repeated before.
            repetitions: to draw.
        """
        script = self.script
        draw = self.generator(identity, -1)
        of_launch = float(np.exp(script.launch_effect * draw.standard_normal()))
        if draw.random() < script.slow_launches:
            of_launch *= SLOW
        draw = self.generator(identity, number)
        noise = np.exp(script.noise * draw.standard_normal(repetitions))
        tail = np.where(draw.random(repetitions) < script.tail, TAIL, 1.0)
        factors = of_launch * noise * tail
        factors[: max(0, script.warmup - number)] *= COLD
        if self.rank == script.slow_rank:
            factors *= script.slow_rank_factor
        return factors

    def library(self) -> str:
        """See `Communicator.library`."""
        return "commbench fake"

    def transport(self) -> str:
        """See `Communicator.transport`."""
        return "script"

    def timer(self, loop: str, sync: Synchroniser, progress: Progress) -> Timer:
        """Return a loop that draws its timestamps."""
        return FakeTimer(self, sync, progress)

    def allocate(self, dtype: DataType, count: int) -> HostBuffer:
        """Return a buffer whose elements are one and the same."""
        return HostBuffer(np.broadcast_to(np.zeros(1, dtype.storage), count), dtype)

    def write(self, buffer: HostBuffer, content: Content) -> None:
        """Hold nothing."""

    def poison(self, buffer: HostBuffer) -> None:
        """Hold nothing."""

    def count_wrong(self, buffer: HostBuffer, content: Content) -> int:
        """Return the scripted number."""
        return self.script.wrong(self._control.rank)

    def call(self, request: Request) -> Call:
        """Return a call with a drawn time; refuse the primitives that the script lacks."""
        primitive = request.name
        if primitive in self.script.unsupported:
            raise self._cannot(primitive)
        if primitive == "barrier":  # verified, it is a real barrier of all groups
            if self._aside:
                raise self._cannot("barrier while ranks stand aside")
            return FakeCall(run=self._control.barrier, primitive="barrier", call_bytes=0)
        if primitive in {"send", "receive"}:  # both ends draw the same time
            primitive = "message"
        return FakeCall(run=_nothing, primitive=primitive, call_bytes=self._call_bytes(request))

    def begin(self, request: Request) -> list[Call]:
        """Return a start with a drawn time, and a completion that takes none."""
        name, call_bytes = f"i{request.name}", self._call_bytes(request)
        return [
            FakeCall(run=_nothing, primitive=name, call_bytes=call_bytes),
            FakeCall(run=_nothing, primitive="wait", call_bytes=-1),
        ]

    def _call_bytes(self, request: Request) -> int:
        """Return the bytes of the whole message on any rank, or of a window's busier direction."""
        messages = [buffer.nbytes for buffer, _ in (*request.sends, *request.receives)]
        if messages:
            streams = max(len(request.sends), len(request.receives))
            return max(messages) * request.window * streams
        sizes = fields_of(request.buffers, "nbytes")
        if request.name in {"gather", "scatter"}:  # a block on all ranks but one
            return min(sizes) * self.size
        return max(sizes, default=0)


def open_fake(name: str, control: Control) -> FakeCommunicator:  # noqa: ARG001 - as `open_backend`
    """Open a backend with scripted times in place of any other."""
    return FakeCommunicator(control)


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
        self._drawn = Counter()

    def prepare(self) -> None:
        """Do nothing: there is nothing to compile or calibrate."""

    def reading_ns(self) -> float:
        """Return 0: reading this clock costs nothing."""
        return 0.0

    def run(self, calls: Sequence[Call], repetitions: int, batch: int) -> Repetitions:
        """See `commbench.engine.timing.loops.Timer.run`; only fake calls take time."""
        fake = self._communicator
        fakes = [call for call in calls if isinstance(call, FakeCall)]
        identity = tuple((call.primitive, call.call_bytes) for call in fakes)
        number = self._drawn[identity]
        self._drawn[identity] += repetitions
        times_us = [fake.script.time_us(size) for _, size in identity if size >= 0]
        duration_us = batch * sum(times_us) * fake.factors(identity, number, repetitions)
        lateness = fake.generator(identity, number, fake.rank)
        skew_ns = 1e3 * lateness.exponential(fake.script.skew_us, repetitions)
        self._progress.counters += repetitions
        start_ns = np.round(1_000_000 * np.arange(repetitions) + skew_ns).astype(np.int64)
        return Repetitions(
            start_ns=start_ns,
            end_ns=start_ns + np.round(1e3 * duration_us).astype(np.int64),
            late=np.zeros(repetitions, dtype=np.bool_),
        )


def _nothing() -> None:
    """Communicate nothing."""


#: No noise at all: what is measured is what was scripted.
EXACT = Script(noise=0.0, launch_effect=0.0, tail=0.0, skew_us=0.0)


def fake_case(operation: str = "all_reduce", message_bytes: int = 1024, **changes: Any) -> Case:
    """Return a case of the fake backend."""
    fields = {
        "backend": "gloo",
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
    is_shared = False

    def __init__(self) -> None:
        super().__init__()
        self.error_ns = 10_000.0

    def is_stale(self) -> bool:
        """Return True."""
        return True

    def refresh(self) -> None:
        """Count the comparison."""
        type(self).compared += 1


def make_session(control: Control, *, slice_s: float = ENDLESS_S, visits: int = 1) -> Session:
    """Return the state of a launch."""
    budget = replace(BUDGETS["quick"], visits=visits, slice_s=slice_s)
    return Session(control=control, budget=budget, progress=Progress())


@dataclass(frozen=True, kw_only=True)
class FakeRun:
    """The settings of a run."""

    script: Script = EXACT
    ranks: int = 2
    hosts: Sequence[str] = ()
    clock: type[GlobalClock] = GlobalClock
    slice_s: float = ENDLESS_S
    visits: int = 1

    @property
    def budget(self) -> Budget:
        """Return the budget of a launch."""
        return replace(BUDGETS["quick"], visits=self.visits)

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
                budget=replace(self.budget, slice_s=self.slice_s),
                progress=Progress(),
                clock=self.clock(),
                hosts=self.hosts,
            )
            communicator = FakeCommunicator(control, number, self.script)
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
        slack.append(self.sync.slack_ns)
        late = np.asarray(which(self._communicator.rank, repetitions), dtype=np.bool_)
        return replace(stamps, late=np.resize(late, repetitions))

    monkeypatch.setattr(FakeTimer, "run", run)
    return slack
