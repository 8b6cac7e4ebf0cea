"""The fake backend, for tests: drawn times instead of communication.

Nothing is sent and no rank waits. A call takes 5 us and 10 GB/s, times the factor of its launch and
the noise of its repetition.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from commbench.collectives.datatypes import Content, DataType
from commbench.collectives.patterns import Group
from commbench.collectives.primitives import Request
from commbench.engine.communicator import Communicator, HostBuffer
from commbench.engine.control import Control
from commbench.engine.timing.loops import Call, Progress, Repetitions, Timer
from commbench.engine.timing.sync import Synchroniser, SyncPlan

#: Standard deviations of the logarithm of a launch's factor, and of a repetition's.
LAUNCH_EFFECT, NOISE = 0.03, 0.02


@dataclass(frozen=True, kw_only=True)
class FakeCall(Call):
    """A call with its operation and size."""

    primitive: str
    call_bytes: int


class FakeCommunicator(Communicator):
    """A backend whose times are drawn; the launch and the call determine every draw."""

    backend = "fake"
    device = "none"
    seed = 0
    skew_us = 0.05
    """Mean lateness of a rank's arrival."""

    def __init__(
        self, control: Control, launch: int = 0, members: Group = (), aside: int = 0
    ) -> None:
        self._control = control
        self.members = members or tuple(range(control.size))
        self.rank = self.members.index(control.rank)
        self.size = len(self.members)
        self.launch = launch
        self._aside = aside
        """Number of ranks of the launch that are in no group."""

    @classmethod
    def connect(cls, control: Control, launch: int = 0) -> FakeCommunicator:
        """Open the backend among all ranks of ``control``."""
        return cls(control, launch)

    def _split(self, groups: Sequence[Group]) -> FakeCommunicator | None:
        aside = self.size - sum(map(len, groups))
        for members in groups:
            if self.rank in members:
                return self.of_group(members, aside)
        return None

    def of_group(self, members: Group, aside: int) -> FakeCommunicator:
        """Return the communicator of a group of ranks, all but ``aside`` being in one."""
        return FakeCommunicator(self._control, self.launch, members, aside)

    def generator(self, *words: object) -> np.random.Generator:
        """Return the random numbers that belong to ``words`` in this launch."""
        return np.random.default_rng(zlib.crc32(repr((self.seed, self.launch, *words)).encode()))

    def true_us(self, call: FakeCall) -> float:
        """Return the true median of a call, in microseconds."""
        return 5.0 + call.call_bytes / 1e4

    def factors(self, identity: object, number: int, repetitions: int) -> NDArray[np.float64]:
        """Return the factor of each repetition's time, shape (repetitions,).

        Args:
            identity: of the calls.
            number: how often they have been repeated before.
            repetitions: to draw.
        """
        of_launch = self.generator(identity, -1).standard_normal()
        of_repetition = self.generator(identity, number).standard_normal(repetitions)
        return np.asarray(np.exp(LAUNCH_EFFECT * of_launch + NOISE * of_repetition))

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

    def count_wrong(self, buffer: HostBuffer, content: Content) -> int:  # noqa: ARG002 - there are none
        """Find nothing wrong."""
        return 0

    def call(self, request: Request) -> Call:
        """Return a call with a drawn time."""
        if request.name == "barrier":  # verified, it is a real barrier of all groups
            if self._aside:
                raise self._cannot("barrier while ranks stand aside")
            return FakeCall(run=self._control.barrier, primitive="barrier", call_bytes=0)
        primitive = request.name
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
        true_us = batch * sum(fake.true_us(call) for call in fakes if call.call_bytes >= 0)
        duration_us = true_us * fake.factors(identity, number, repetitions)
        lateness = fake.generator(identity, number, fake.rank)
        skew_ns = 1e3 * lateness.exponential(fake.skew_us, repetitions)
        self._progress.counters += repetitions
        start_ns = np.round(1_000_000 * np.arange(repetitions) + skew_ns).astype(np.int64)
        return Repetitions(
            start_ns=start_ns,
            end_ns=start_ns + np.round(1e3 * duration_us).astype(np.int64),
            late=np.zeros(repetitions, dtype=np.bool_),
        )


def _nothing() -> None:
    """Communicate nothing."""
