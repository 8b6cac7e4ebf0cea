"""Runs dependent collectives of hooks in call order: on a thread with its own process group, or on
a CUDA stream.

NCCL uses a stream: the host queues collectives in the order of the buckets, which is the same on
all ranks. The device runs them in this order while it computes the rest of the backward pass.

Gloo uses a thread. Gloo pairs collectives by the order in which a rank issues them, and runs the
callbacks of its futures on two threads in an order that differs between ranks. A collective issued
from a callback can therefore be paired with another bucket's on another rank. This corrupts
gradients silently, aborts or deadlocks. Jobs of one thread cannot overtake each other. The thread
has a process group of its own, because DDP (when it looks for unused parameters) and SyncBN issue
collectives on the model's group.

The first collective of a job depends on no other. It may be issued before the job's turn, when DDP
calls the hook, on a third process group: DDP calls hooks in the same order on all ranks. It is then
under way while earlier jobs go on.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from commbench.errors import InputError, LaunchError
from commbench.hooks.feedback import FeedbackHook

#: torch 2.13 renamed all_gather_into_tensor.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


Job = Callable[[], Any]


@dataclass(frozen=True)
class Ending:
    """What a job may return: its last collective, which is still under way, so that the next job
    begins at once.
    """

    work: dist.Work
    value: Tensor
    """The result of the job when the collective has ended."""


class CommStream:
    """A stream on which each job waits for earlier jobs, and for the work that was queued on the
    device before it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def submit(self, job: Job) -> Future:
        """Run a job that queues its work, blocking collectives included.

        Return the future of the job's tensor.

        Waiting for the future makes the current stream wait, not the host.
        """
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        future = Future(devices=[self._device])
        with torch.cuda.stream(self._stream):
            result = job()
            if isinstance(result, Ending):
                result.work.wait()
                result = result.value
            future.set_result(result)
        return future


#: Seconds for which a collective may delay the end of a process.
LEAVE_S = 3.0
#: The exit status of a process that a collective delayed for longer (EX_SOFTWARE).
STUCK = 70


class CommThread:
    """A thread that runs jobs first in, first out.

    Each job may issue any number of blocking collectives.

    After a failed job the ranks would no longer issue the same collectives, so later jobs fail
    without running.
    """

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self._jobs: SimpleQueue[tuple[Job, Future] | None] = SimpleQueue()
        # A daemon: threading would join any other thread before our exit function can end it.
        self._thread = threading.Thread(target=self._work, name="commbench-comm", daemon=True)
        self._thread.start()
        atexit.register(self._leave)

    def submit(self, job: Job) -> Future:
        """Queue a job; return the future of its result or error."""
        if not self._thread.is_alive():
            raise InputError(
                "A communication thread was used after its close(): close hooks when training is"
                " over."
            )
        future = Future()
        self._jobs.put((job, future))
        return future

    def close(self) -> bool:
        """Finish the queued jobs and end the thread.

        Return False if it is still busy after `LEAVE_S`.
        """
        self._jobs.put(None)
        self._thread.join(LEAVE_S)
        ended = not self._thread.is_alive()
        if ended:
            atexit.unregister(self._leave)
        return ended

    def _work(self) -> None:
        with torch.no_grad():
            for job, future in iter(self._jobs.get, None):
                self._run(job, future)

    def _run(self, job: Job, future: Future) -> None:
        try:
            if self.failure is not None:
                # It ends the job as an error of the exchange itself does.
                sentence = f"An earlier bucket could not be exchanged: {self.failure}"
                raise LaunchError(sentence)  # noqa: TRY301
            result = job()
        except Exception as error:  # noqa: BLE001 - the future raises it
            self._fail(error, future)
        else:
            if isinstance(result, Ending):
                result.work.get_future().then(lambda done: self._end(done, result, future))
            else:
                future.set_result(result)

    def _end(self, done: Future, ending: Ending, future: Future) -> None:
        """Set the result of a job when its last collective has ended; on a thread of Gloo."""
        try:
            done.value()
        except Exception as error:  # noqa: BLE001 - the future raises it
            self._fail(error, future)
        else:
            future.set_result(ending.value)

    def _fail(self, error: Exception, future: Future) -> None:
        self.failure = self.failure or error
        future.set_exception(error)

    def _leave(self) -> None:
        """End the thread at exit, or the process if a collective hangs: Python aborts if it ends
        before the thread.
        """
        if not self.close():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(STUCK)


@dataclass
class _Lane:
    """The thread and process group that the hooks on one process group share."""

    group: ProcessGroup
    """A group of the same ranks for this thread; kept when the thread ends: torch cannot create
    such a group twice."""
    opening_group: ProcessGroup | None = None
    """A group of the same ranks for collectives that are issued before their job's turn; None
    until a hook needs it."""
    thread: CommThread | None = None
    users: int = 0


_lanes: weakref.WeakKeyDictionary[Any, _Lane] = weakref.WeakKeyDictionary()


def borrow(group: ProcessGroup) -> tuple[CommThread, ProcessGroup]:
    """Return the thread and the group for dependent collectives of ``group``'s ranks.

    All hooks share them.

    Collective: the first call makes the group.
    """
    if group not in _lanes:
        _lanes[group] = _Lane(group=_new_gloo_group(group))
    lane = _lanes[group]
    lane.thread = lane.thread or CommThread()
    lane.users += 1
    return lane.thread, lane.group


def opening_group(group: ProcessGroup) -> ProcessGroup:
    """Return the group of ``group``'s ranks for collectives that are issued before their job's
    turn.

    Collective: the first call makes the group. The thread was borrowed before.
    """
    lane = _lanes[group]
    lane.opening_group = lane.opening_group or _new_gloo_group(group)
    return lane.opening_group


def give_back(group: ProcessGroup) -> None:
    """End the thread of a group with its last user.

    Raise LaunchError if a collective does not end.
    """
    lane = _lanes[group]
    lane.users -= 1
    if lane.users or lane.thread is None:
        return
    thread, lane.thread = lane.thread, None
    if not thread.close():
        raise LaunchError(
            f"A hook is still in a collective after {LEAVE_S:g} s: has another rank ended?"
        )


def _new_gloo_group(group: ProcessGroup) -> ProcessGroup:
    """Create a Gloo group of the same ranks, with the same timeout."""
    _equalise_group_count(group)
    # Torch has no public function for this.
    options = getattr(group._get_backend(torch.device("cpu")), "options", None)  # noqa: SLF001
    return dist.new_group(
        dist.get_process_group_ranks(group),
        timeout=getattr(options, "_timeout", None),
        backend="gloo",
        use_local_synchronization=True,
    )


def _equalise_group_count(group: ProcessGroup) -> None:
    """Give all ranks of a group the same count of joined groups: torch names the next group by that
    count.
    """
    # Torch has no public function for this.
    joined = torch.tensor([len(dist.distributed_c10d._world.pg_names)])  # noqa: SLF001
    most = joined.clone()
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
    for _ in range(int(most - joined)):
        dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)


#: Issues a collective on a process group, without waiting for it.
Opening = Callable[[ProcessGroup], dist.Work]


class OrderedHook(FeedbackHook):
    """A hook that exchanges a bucket by several collectives, each of which needs the result of the
    previous one.

    They run on the communication thread of the model's process group, or on a GPU on a separate
    stream.
    """

    _lane: CommThread | CommStream
    _private: ProcessGroup = None
    """The process group of the jobs' collectives; None before `register` and after `close`."""
    _opening: ProcessGroup = None
    """The process group of openings, see `submit_opened`; None if the hook has none."""
    opens: ClassVar[bool] = False
    """Whether the hook's jobs have an opening."""

    def attach(
        self, ddp_model: DistributedDataParallel, scaler: torch.amp.GradScaler | None
    ) -> None:
        """See `FeedbackHook.attach`.

        Also raise InputError unless all gradients are on the host or on one GPU.
        """
        super().attach(ddp_model, scaler)
        devices = {
            str(parameter.device)
            for parameter in ddp_model.module.parameters()
            if parameter.requires_grad
        }
        if self.runs_in_order and (len(devices) != 1 or self._device.type not in {"cpu", "cuda"}):
            places = ", ".join(sorted(devices))
            raise InputError(
                f"Hook {self.name} works on models on the host or on one GPU, this one is on"
                f" {places}."
            )

    def join_group(self) -> None:
        """See `Hook.join_group`; over Gloo the ranks create a process group."""
        if not self.runs_in_order:
            return
        if self._device.type == "cuda":
            self._lane, self._private = CommStream(self._device), self._group
        else:
            self._lane, self._private = borrow(self._group)
            self._opening = opening_group(self._group) if self.opens else None

    def submit(self, job: Callable[[], Tensor | Ending]) -> Future:
        """Queue a job that may issue blocking collectives on ``self._private``.

        Return the future of its tensor.

        Raises:
            InputError: the hook was closed.
        """
        if self._private is None:
            raise InputError(
                f"Hook {self.name} was used after its close(): close hooks when training is over."
            )
        return self._lane.submit(job)

    def submit_opened(
        self, opening: Opening, job: Callable[[Callable[[], object]], Tensor | Ending]
    ) -> Future:
        """Queue a job whose first collective needs no earlier one.

        Over Gloo that begins before the job's turn.

        Args:
            opening: issues the first collective.
            job: as of `submit`; it gets a function that waits for the opening.
        """
        if self._opening is None or self._private is None:  # a closed hook refuses the job
            return self.submit(lambda: job(lambda: opening(self._private).wait()))
        work = opening(self._opening)
        return self.submit(lambda: job(work.wait))

    def close(self) -> None:
        """Release the thread, which ends with its last user.

        Raise LaunchError if a collective does not end.
        """
        if self._private is None:
            return
        self._private = None
        if isinstance(self._lane, CommThread):
            give_back(self._group)
