"""The base class of all communication hooks: registration, checked results, times per bucket, state
for checkpoints.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import Self

from commbench.errors import CommbenchError, InputError, LaunchError
from commbench.hooks.options import HookSpec
from commbench.hooks.step_clock import Clock, Mark, clock_of, elapsed_ns, host_clock

#: Turns the value of a collective's future into the averaged bucket, shape (numel,).
Finish = Callable[[Any], Tensor]
#: What a hook has begun for a bucket: the future of its communication, and what follows it.
Launched: TypeAlias = tuple[Future, Finish]

#: The state of a hook for a checkpoint, as in torch.
StateDict: TypeAlias = dict[str, Any]

#: The first words of torch's RuntimeError for an error in a callback; torch has no type for it and
#: drops the cause.
_IN_CALLBACK = "Got the following error when running the callback: "
#: Gloo's messages begin with a file and a line of Gloo's source.
_PLACE = re.compile(r"^\[\S+\] ")


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """The required result of a hook for its bucket: size, type and device."""

    index: int
    numel: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, bucket: GradBucket) -> Self:
        """Return the requirements of a bucket; raise InputError if its gradients are sparse."""
        buffer, index = bucket.buffer(), bucket.index()
        if buffer.layout != torch.strided:
            raise InputError(
                f"Bucket {index} holds sparse gradients, which hooks cannot average: make them"
                " dense."
            )
        return cls(
            index=index,
            numel=buffer.numel(),
            dtype=buffer.dtype,
            device=buffer.device,
        )

    def check(self, hook: str, result: object) -> Tensor:
        """Return the result if DDP can use it.

        Otherwise raise InputError with the hook, the bucket and the problem.

        DDP itself crashes on None, and silently copies from a result that is too long,
        two-dimensional, strided or of another type.
        """
        if isinstance(result, list) and len(result) == 1:  # the value of a Gloo all_reduce
            result = result[0]
        if isinstance(result, Tensor) and self._fits(result):
            return result
        raise InputError(
            f"Hook {hook} returned {_describe(result)} for bucket {self.index}; it must return a"
            f" Future of one contiguous tensor of shape ({self.numel},), {_plain(self.dtype)}, on"
            f" {self.device}."
        )

    def _fits(self, result: Tensor) -> bool:
        return bool(
            result.shape == (self.numel,)
            and result.dtype == self.dtype
            and result.device == self.device
            and result.is_contiguous()
        )

    def value_of(self, hook: str, done: Future) -> Any:
        """Return the value of a future.

        Raise InputError for a failed callback, LaunchError for a lost rank.
        """
        try:
            return done.value()
        except CommbenchError:
            raise
        except Exception as error:
            text = (str(error) or type(error).__name__).splitlines()[0]
            if text.startswith(_IN_CALLBACK):
                raised = text.removeprefix(_IN_CALLBACK)
                raise InputError(
                    f"A callback of hook {hook} raised {raised} on bucket {self.index}."
                ) from error
            reason = _PLACE.sub("", text.split(". ")[0])
            raise LaunchError(
                f"Hook {hook} could not exchange bucket {self.index} ({reason}): look at the other"
                " ranks' messages, one of them has probably ended."
            ) from error


class Stopwatch:
    """Takes the timestamps of one bucket as marks of a clock, which a GPU reaches later.

    A few clock reads are cheap enough to run always.
    """

    __slots__ = ("arrived_at", "between", "bucket", "clock", "done", "encoded_at", "ready", "start")

    bucket: Expected

    def __init__(self, clock: Clock = host_clock) -> None:
        self.clock = clock
        self.ready = self.start = self.arrived_at = self.done = clock()
        """DDP called the hook: every gradient of the bucket is ready."""
        self.encoded_at: Mark | None = None
        self.between: list[tuple[Mark, Mark]] = []
        """Begin and end of local work between collectives."""

    def started(self) -> None:
        """Mark the issue of the first collective."""
        self.start = self.clock()

    def encoded(self) -> None:
        """Mark the end of the local work on the autograd thread, if it is not the start."""
        self.encoded_at = self.clock()

    def worked(self, since: Mark) -> None:
        """Mark the end of local work between collectives that began at the mark ``since``."""
        self.between.append((since, self.clock()))

    def arrived(self) -> None:
        """Mark the end of the last collective; only local work follows."""
        self.arrived_at = self.clock()

    def stamps(self, since: Mark) -> tuple[int, int, int, int, int]:
        """Return when the bucket was ready, its first collective issued, and its average ready, in
        ns since a mark of the same clock; then ns of local work.

        The work on the autograd thread, which delays the rest of the backward pass, comes before
        the work after the first collective was issued. Waits until a GPU has reached all marks.
        """
        decode_ns = elapsed_ns(self.arrived_at, self.done)
        for begin, end in self.between:
            decode_ns += elapsed_ns(begin, end)
        return (
            elapsed_ns(since, self.ready),
            elapsed_ns(since, self.start),
            elapsed_ns(since, self.done),
            elapsed_ns(self.ready, self.encoded_at or self.start),
            decode_ns,
        )


class Hook(HookSpec):
    """A DDP communication hook: averages each bucket of gradients over the ranks of the model's
    process group.

    A subclass implements `launch`. It may issue one asynchronous collective with local work after
    it, or put all its collectives in one job for the communication thread. It must not issue a
    collective from a callback: Gloo pairs collectives by the order of issue, and runs callbacks in
    an order that differs between ranks. One object serves one model.
    """

    #: Called for every finished bucket, on the thread that finished it; a GPU may not have reached
    #: the marks yet.
    observer: Callable[[Stopwatch], None] | None = None
    #: Takes the marks; `register` chooses the clock of the model's device.
    clock: Clock = staticmethod(host_clock)
    #: The first error of this hook; after an error the model cannot be trained further.
    failure: Exception | None = None

    _group: dist.ProcessGroup = None
    _optimizer: torch.optim.Optimizer | None = None

    def register(
        self,
        ddp_model: DistributedDataParallel,
        *,
        scaler: torch.amp.GradScaler | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> Self:
        """Make this the hook of a DDP model, before its first backward pass, and return it.

        ``scaler`` is the GradScaler of mixed-precision training; hooks with a residual need it.
        ``optimizer`` updates the model: a residual follows changes of its learning rates. Raises
        InputError if this is no DDP model, the model has a hook, or the hook is in use.
        """
        if not isinstance(ddp_model, DistributedDataParallel):
            raise InputError(
                f"Hook {self.name} was registered on a {type(ddp_model).__name__}: wrap the model"
                " in torch.nn.parallel.DistributedDataParallel first."
            )
        if self._group is not None:
            raise InputError(
                f"This {self.name} hook serves another model already: make a new one for each"
                " model."
            )
        self._optimizer = optimizer
        self.attach(ddp_model, scaler)
        try:
            ddp_model.register_comm_hook(self, _named(self.name))
        except RuntimeError as error:
            raise InputError(f"DDP refused hook {self.name}: {error}") from error
        self._group = ddp_model.process_group
        self.clock = clock_of(ddp_model)
        self.join_group()
        return self

    def attach(
        self, ddp_model: DistributedDataParallel, scaler: torch.amp.GradScaler | None
    ) -> None:
        """Inspect the model before the hook is registered.

        Raise InputError if the hook cannot serve it.
        """

    def join_group(self) -> None:
        """Make what the hook needs to communicate, as all ranks of the process group do."""

    def prepare(self, device: torch.device) -> None:
        """Compile what the hook needs on a device, so that no step waits for it.

        Raises:
            InputError: it cannot be compiled; the message names what is missing.
        """

    @abstractmethod
    def launch(self, bucket: GradBucket, watch: Stopwatch) -> Launched:
        """Start the communication of one bucket.

        Return its future and the local work that follows it.
        """

    def reduce_whole(self, buffer: Tensor, watch: Stopwatch) -> Launched:
        """Start to sum a buffer over the ranks; the sum is in the buffer."""
        watch.started()
        work = dist.all_reduce(buffer, group=self._group, async_op=True)
        return work.get_future(), lambda _: buffer

    def begin_step(self) -> None:
        """Prepare a step, before its first bucket."""

    def state_dict(self) -> StateDict:
        """Return this rank's state for a checkpoint; training resumed with it continues exactly."""
        return {"hook": self.name, "version": 1}

    def load_state_dict(self, state: StateDict) -> None:
        """Resume from the `state_dict` of the same rank.

        Raise InputError for another hook's state.
        """
        if state.get("hook") != self.name or state.get("version") != 1:
            origin = f"hook {state.get('hook')}, version {state.get('version')}"
            raise InputError(
                f"The state to load is of {origin}: hook {self.name}, version 1, can only load its"
                " own."
            )

    def close(self) -> None:
        """End the hook's thread, if it has one; it ends at exit in any case."""

    @property
    def world_size(self) -> int:
        """Ranks in the model's process group."""
        return int(self._group.size())

    def run(self, bucket: GradBucket) -> Future:
        """Return the future of the averaged bucket, with the result checked.

        DDP calls this for each bucket.
        """
        watch = Stopwatch(
            self.clock if self.observer is not None else host_clock
        )  # unread events would cost time
        try:
            watch.bucket = Expected.of(bucket)
            if watch.bucket.index == 0:
                self.begin_step()
            future, finish = self.launch(bucket, watch)
        except Exception as error:
            self._fail(error)
            raise
        return future.then(lambda done: self._finished(done, finish, watch))

    def _finished(self, done: Future, finish: Finish, watch: Stopwatch) -> Tensor:
        """Decode and check the result of a bucket, and notify the observer.

        The callback of its future.
        """
        try:
            value = watch.bucket.value_of(self.name, done)
            watch.arrived()
            result = watch.bucket.check(self.name, finish(value))
        except Exception as error:
            self._fail(error)
            raise
        if self.observer is not None:
            watch.done = watch.clock()
            self.observer(watch)
        return result

    def _fail(self, error: Exception) -> None:
        """Keep the first error: DDP only says that a callback failed."""
        self.failure = self.failure or error


def _named(name: str) -> Callable[[Any, Any], Any]:
    """Return the function that DDP calls.

    DDP logs its name and checks annotations, so it has none.
    """

    def call(state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - see above
        return state.run(bucket)

    call.__name__ = call.__qualname__ = f"commbench_{name}"
    return call


def _describe(result: object) -> str:
    if not isinstance(result, Tensor):
        return f"a {type(result).__name__}"
    strided = "" if result.is_contiguous() else "strided "
    return (
        f"a {strided}tensor of shape {tuple(result.shape)}, {_plain(result.dtype)}, on"
        f" {result.device}"
    )


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
