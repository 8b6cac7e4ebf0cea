"""What every communication hook is: one line to register, checked results, times per bucket, state for checkpoints."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commbench.errors import InputError
from commbench.hooks.message import BucketShape, Message, Shapes, sent_bytes
from commbench.hooks.results import Expected
from commbench.hooks.step_clock import Clock, Mark, clock_of, elapsed_ns, host_clock

if TYPE_CHECKING:
    from typing_extensions import Self

#: What a hook makes of the value of its collective's future: the averaged bucket, shape (numel,).
Finish = Callable[[Any], torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketTimes:
    """When one bucket was ready, on its way and done: instants since a mark of one's choice, and durations, in ns."""

    index: int
    numel: int
    is_last: bool
    ready_ns: int
    """The hook was entered: every gradient of the bucket is there."""
    start_ns: int
    """The first collective was issued."""
    done_ns: int
    """The averaged bucket is there."""
    encode_ns: int
    """Local work on the autograd thread, which delays the rest of the backward pass."""
    decode_ns: int
    """Local work after the first collective was issued."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketMarks:
    """The instants of one bucket as marks of its hook's clock: a GPU comes to them only after the hook has returned."""

    bucket: Expected
    ready: Mark
    encoded: Mark
    start: Mark
    arrived: Mark
    """The last collective is over; what is left is local work."""
    done: Mark
    between: Sequence[tuple[Mark, Mark]] = ()
    """Where local work between collectives began and ended."""

    def times(self, since: Mark) -> BucketTimes:
        """Read the clock, instants in ns since that mark of it; waits until a GPU has come to all of them."""
        return BucketTimes(
            index=self.bucket.index,
            numel=self.bucket.numel,
            is_last=self.bucket.is_last,
            ready_ns=elapsed_ns(since, self.ready),
            start_ns=elapsed_ns(since, self.start),
            done_ns=elapsed_ns(since, self.done),
            encode_ns=elapsed_ns(self.ready, self.encoded),
            decode_ns=elapsed_ns(self.arrived, self.done) + sum(elapsed_ns(*work) for work in self.between),
        )


class Stopwatch:
    """Marks the instants of one bucket on its way; a few clock reads, so that it always runs."""

    __slots__ = ("arrived_at", "between", "clock", "encoded_at", "ready", "start")

    def __init__(self, clock: Clock = host_clock) -> None:
        self.clock = clock
        self.ready = self.encoded_at = self.start = self.arrived_at = clock()
        self.between: Sequence[tuple[Mark, Mark]] = ()

    def encoded(self) -> None:
        """The autograd thread's part is done."""
        self.encoded_at = self.clock()

    def started(self) -> None:
        """The first collective is being issued."""
        self.start = self.clock()

    def worked(self, since: Mark) -> None:
        """Local work between collectives, begun at that mark of the clock, is done."""
        self.between = (*self.between, (since, self.clock()))

    def arrived(self) -> None:
        """The last collective is over."""
        self.arrived_at = self.clock()

    def marks(self, bucket: Expected) -> BucketMarks:
        """Say when all this was of the bucket whose average is there now."""
        return BucketMarks(
            bucket=bucket,
            ready=self.ready,
            encoded=self.encoded_at,
            start=self.start,
            arrived=self.arrived_at,
            done=self.clock(),
            between=self.between,
        )


class Hook(ABC):
    """A DDP communication hook: averages each bucket of gradients over the ranks of the model's process group.

    A subclass implements `launch`. It may issue one native asynchronous collective and do local work when that is
    done, or put all its collectives in one job for the `comm_thread`; it never issues a collective from a callback,
    because Gloo runs callbacks in an order that differs between ranks and pairs collectives by the order of issue.
    One object serves one model.
    """

    name: ClassVar[str]
    #: Told about every bucket that is finished, or will be when a GPU gets to it, on whichever thread finished it.
    observer: Callable[[BucketMarks], None] | None = None
    #: What its marks are made by; `register` takes that of the device on which the model is.
    clock: Clock = staticmethod(host_clock)
    #: The first error this hook met; once there is one, the model cannot be trained further.
    failure: Exception | None = None

    _group: dist.ProcessGroup = None
    _model: Callable[[], DistributedDataParallel] = staticmethod(lambda: None)

    def register(self, ddp_model: DistributedDataParallel, *, scaler: torch.amp.GradScaler | None = None) -> Self:
        """Make this the hook of a DDP model, before its first backward pass, and return it.

        ``scaler`` is the GradScaler of a mixed-precision training, which hooks that keep a residual must know.
        Raises InputError for anything but a DDP model, a model with a hook, or a hook that is in use already.
        """
        self._check_model(ddp_model)
        if scaler is not None and not hasattr(scaler, "get_scale"):
            raise InputError(f"Hook {self.name} was given a scaler of type {type(scaler).__name__}: pass a GradScaler.")
        self.attach(ddp_model, scaler)
        try:
            ddp_model.register_comm_hook(self, _named(self.name))
        except RuntimeError as error:
            raise InputError(f"DDP refused hook {self.name}: {error}") from error
        self._group, self._model = ddp_model.process_group, weakref.ref(ddp_model)
        self.clock = clock_of(ddp_model)
        return self

    def _check_model(self, ddp_model: object) -> None:
        if not isinstance(ddp_model, DistributedDataParallel):
            raise InputError(
                f"Hook {self.name} was registered on a {type(ddp_model).__name__}: wrap the model in "
                "torch.nn.parallel.DistributedDataParallel first."
            )
        if self._group is not None:
            raise InputError(f"This {self.name} hook serves another model already: make a new one for each model.")
        if getattr(ddp_model, "_comm_hooks", None):
            raise InputError(
                f"The model has a communication hook already, and DDP takes one only: leave out {self.name}."
            )

    def attach(  # noqa: B027 - most hooks serve any model
        self, ddp_model: DistributedDataParallel, scaler: torch.amp.GradScaler | None
    ) -> None:
        """Look at the model before the hook is registered; raises InputError where the hook cannot serve it."""

    @abstractmethod
    def launch(self, bucket: dist.GradBucket, watch: Stopwatch) -> tuple[torch.futures.Future, Finish]:
        """Send one bucket on its way: the future of its communication, and the local work to do when that is done."""

    @abstractmethod
    def messages(self, bucket: BucketShape) -> tuple[Message, ...]:
        """Return the collectives that the hook issues for a bucket, in order, after any warm-up."""

    def wire_bytes(self, numel: int, world_size: int, *, shapes: Shapes | None = None) -> int:
        """Return the bytes that one rank sends by theory for a float32 bucket of ``numel`` elements, after any warm-up.

        ``shapes`` are the shapes of the bucket's tensors. Without them, a hook that treats tensors differently takes
        the bucket for one matrix.
        """
        bucket = BucketShape(elements=numel, world_size=world_size, shapes=shapes)
        return sent_bytes(self.messages(bucket), world_size)

    def begin_step(self) -> None:  # noqa: B027 - most hooks have nothing to do
        """Do what is due once per step, before the first bucket."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint of this rank must hold for training to go on as if it had not stopped."""
        return {"hook": self.name, "version": 1}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`, of the same rank; raises InputError for another hook's state."""
        if state.get("hook") != self.name or state.get("version") != 1:
            found = f"hook {state.get('hook')}, version {state.get('version')}"
            raise InputError(f"The state to load is of {found}: hook {self.name}, version 1, can only load its own.")

    def close(self) -> None:  # noqa: B027 - most hooks have no thread
        """End the thread the hook may have; it is ended at exit in any case."""

    @property
    def world_size(self) -> int:
        """Ranks in the model's process group."""
        return int(self._group.size())

    def run(self, bucket: dist.GradBucket) -> torch.futures.Future:
        """What DDP calls for each bucket: the future of the averaged bucket, with the result checked."""
        watch = Stopwatch(self.clock if self.observer is not None else host_clock)  # events nobody reads cost more
        try:
            expected = Expected.of(bucket)
            if expected.index == 0:
                self.begin_step()
            future, finish = self.launch(bucket, watch)
        except Exception as error:
            self._fail(error)
            raise
        return future.then(lambda done: self._finished(done, finish, expected, watch))

    def _finished(
        self, done: torch.futures.Future, finish: Finish, expected: Expected, watch: Stopwatch
    ) -> torch.Tensor:
        """The callback of a bucket: decode, check, tell the observer."""
        try:
            value = expected.value_of(self.name, done)
            watch.arrived()
            result = expected.check(self.name, finish(value))
        except Exception as error:
            self._fail(error)
            raise
        if self.observer is not None:
            self.observer(watch.marks(expected))
        return result

    def _fail(self, error: Exception) -> None:
        """Remember the first error, and let a later step say it instead of DDP's internal assertion."""
        if self.failure is not None:
            return
        self.failure = error
        model = self._model()
        if model is not None:
            model.register_forward_pre_hook(self._refuse)

    def _refuse(self, *_: object) -> None:
        raise InputError(
            f"Hook {self.name} failed in an earlier step and left DDP unusable; wrap the model in a new "
            f"DistributedDataParallel. What happened: {self.failure}"
        )


def _named(name: str) -> Callable[[Any, Any], Any]:
    """The function that DDP is given: it logs its name, and would compare annotations, which ours has none of."""

    def call(state, bucket):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - see above
        return state.run(bucket)

    call.__name__ = call.__qualname__ = f"commbench_{name}"
    return call
