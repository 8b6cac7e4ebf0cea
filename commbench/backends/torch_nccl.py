"""NCCL through torch.distributed, as DDP uses it: on tensors of the rank's GPU, timed by events on
torch's stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist

from commbench.backends.gpu_assignment import assign_gpu, room_for
from commbench.backends.nccl_library import (
    ANY_ALGORITHM,
    LOG,
    NcclBase,
    loaded_version,
    variables_set,
)
from commbench.backends.torch_calls import (
    Tensors,
    TorchCommunicator,
    as_tensor,
    find_gpus,
    pci_address,
    torch_version,
)
from commbench.backends.torch_control import TIMEOUT, join_world, leave_world
from commbench.collectives.algorithms import Choice
from commbench.collectives.cases import REGISTERED
from commbench.collectives.datatypes import Content, DataType
from commbench.collectives.patterns import Group
from commbench.collectives.primitives import Buffer
from commbench.engine.communicator import STALE
from commbench.engine.control import Control
from commbench.engine.timing.loops import Call
from commbench.findings import UnsupportedError


class TensorBuffer(Buffer):
    """Elements in a tensor."""

    @property
    def address(self) -> int:
        """Address of the first element."""
        return int(self.memory.data_ptr())


class TorchNcclCommunicator(NcclBase, TorchCommunicator):
    """An NCCL process group on this rank's GPU.

    Operations run on a stream of the group, as in DDP. The current stream waits for them: an event
    that is recorded there after a call occurs when the operation has ended.
    """

    backend = "torch-nccl"
    barrier_blocks = True
    carrier = "nccl"
    """The name of torch's backend for the process groups."""

    def __init__(
        self,
        control: Control,
        parent: TorchNcclCommunicator | None = None,
        *,
        members: Group = (),
        group: dist.ProcessGroup | None = None,
        choice: Choice = ANY_ALGORITHM,
    ) -> None:
        super().__init__(control, members, choice)
        self._pool: Any = None
        self._is_whole = parent is None
        if parent is None:
            join_world(control)
            self._torch_device = self.take_device()
        else:
            self._torch_device = parent._torch_device  # noqa: SLF001 - of the same class
        self.device, self.gpu, self._cache_bytes = self.describe_device()
        self._token = torch.zeros(1, dtype=torch.int8, device=self._torch_device)
        with variables_set(choice.variables):
            self._group = group or self._new_group(list(self._members))
            self._connect()

    def _connect(self) -> None:
        """Make torch create NCCL's communicator now, which reads the variables, not at the first
        operation.

        With a requested algorithm it is created without an operation, as the algorithm may not
        support an all-reduce.
        """
        backend = self._backend
        if self._choice.variables and hasattr(backend, "eager_connect_single_device"):
            backend.eager_connect_single_device(self._torch_device)
        else:
            self.rendezvous()

    @property
    def _backend(self) -> Any:
        """The torch backend of the group."""
        # Torch's documentation has it so.
        return self._group._get_backend(self._torch_device)  # noqa: SLF001

    # The device: tests replace these methods to run without a GPU

    def take_device(self) -> torch.device:
        """Select and return the GPU of this rank; collective."""
        number, self.ranks_per_gpu = assign_gpu(self._control, find_gpus(self.backend))
        torch.cuda.set_device(number)
        return torch.device("cuda", number)

    def describe_device(self) -> tuple[str, str, int]:
        """Return the GPU's name, its PCI address if torch reports it, and the size of its L2 cache
        in bytes.
        """
        properties = torch.cuda.get_device_properties(self._torch_device)
        return (
            str(properties.name),
            pci_address(properties),
            int(getattr(properties, "L2_cache_size", 0)),
        )

    def complete(self) -> None:
        """See `Communicator.complete`."""
        torch.cuda.current_stream().synchronize()

    def new_event(self) -> Any:
        """See `DeviceClock.new_event`."""
        return torch.cuda.Event(enable_timing=True)

    def spin(self, cycles: int) -> None:
        """See `DeviceClock.spin`."""
        torch.cuda._sleep(cycles)  # noqa: SLF001 - as torch's own tests keep a device busy

    def rendezvous(self) -> None:
        """See `DeviceClock.rendezvous`: an all-reduce of one byte."""
        dist.all_reduce(self._token, dist.ReduceOp.MAX, self._group, async_op=True).wait()

    # Columns of a row

    def library(self) -> str:
        """Return the loaded versions, e.g. ``torch 2.13.0 NCCL 2.28.9``."""
        return f"torch {torch_version()} {loaded_version()}"

    # Other communicators

    def by_choice(self, choice: Choice) -> TorchNcclCommunicator:
        """See `NcclBase.by_choice`."""
        return type(self)(self._control, self, choice=choice)

    def _split(self, groups: Sequence[Group], own: Group | None) -> TorchNcclCommunicator | None:
        """Make the process groups one after the other; collective."""
        made = {group: self._new_group(list(group)) for group in groups}
        if own is None:
            return None
        return type(self)(self._control, self, members=own, group=made[own], choice=self._choice)

    def _new_group(self, ranks: list[int]) -> Any:
        """Make a process group, with the requested number of NCCL's channels (its CTAs)."""
        options = None
        if self._choice.channels:
            options = dist.ProcessGroupNCCL.Options()
            options.config.min_ctas = options.config.max_ctas = self._choice.channels
        return dist.new_group(ranks, TIMEOUT, self.carrier, options)

    def close(self) -> None:
        """Destroy the groups, except a default group that is the control plane's."""
        super().close()
        self._release()
        dist.destroy_process_group(self._group)
        if self._is_whole:
            LOG.remove()
            leave_world(self._control)

    # Buffers

    def tensor_of(self, buffer: Buffer) -> torch.Tensor:
        """See `TorchCommunicator.tensor_of`."""
        tensor: torch.Tensor = buffer.memory
        return tensor

    def allocate(self, dtype: DataType, count: int) -> TensorBuffer:
        """See `Communicator.allocate`; torch aligns memory to 512 bytes."""
        with self.room_for(count * dtype.itemsize):
            return TensorBuffer(
                torch.zeros(count, dtype=getattr(torch, dtype.name), device=self._torch_device),
                dtype,
            )

    def room_for(self, nbytes: int) -> AbstractContextManager[None]:
        """See `Communicator.room_for`."""
        return room_for(nbytes, torch.cuda.OutOfMemoryError)

    @contextmanager
    def allocating(self, kind: str) -> Iterator[None]:
        """See `Communicator.allocating`: a pool of memory that NCCL allocates and registers, one
        pool at a time.
        """
        if kind not in REGISTERED:
            yield
            return
        self._release()
        backend = self._backend
        try:
            self._pool = torch.cuda.MemPool(backend.mem_allocator)
            with torch.cuda.use_mem_pool(self._pool):
                yield
            backend.register_mem_pool(self._pool, *([True] if kind == "symmetric" else []))
        except (AttributeError, TypeError, RuntimeError) as error:
            with suppress(AttributeError, RuntimeError):
                self._release()  # torch records a pool before it registers the pool's memory
            raise UnsupportedError(
                "buffers_not_made", version=torch_version(), kind=kind, error=str(error)
            ) from error

    def _release(self) -> None:
        """Deregister the memory of an earlier case."""
        pool, self._pool = self._pool, None
        if pool is not None:
            self._backend.deregister_mem_pool(pool)

    def poison(self, buffer: TensorBuffer) -> None:
        """See `Communicator.poison`."""
        buffer.memory.view(torch.uint8).fill_(STALE)

    def moved(self, content: Content) -> Content:
        """See `Communicator.moved`: its tiles are tensors on the device."""
        return content.moved(lambda tile: as_tensor(tile, content.dtype).to(self._torch_device))

    def cache_bytes(self) -> int:
        """Return the size of the GPU's L2 cache."""
        return self._cache_bytes

    # Graphs

    def capture(self, calls: Sequence[Call]) -> Call:
        """Capture the calls in a CUDA graph on torch's own stream.

        Return its replay on the current stream.
        """
        self.complete()
        graph = torch.cuda.CUDAGraph()
        own_stream = torch.cuda.stream(
            torch.cuda.current_stream()
        )  # torch does not restore the stream after a failed capture
        with own_stream, torch.cuda.graph(graph):
            for call in calls:
                call.run()
        return Call(run=graph.replay, keep=tuple(calls))

    def post(self, receives: Tensors, sends: Tensors) -> list[Any]:
        """Post all messages in one group of NCCL; without a group they run one after the other."""
        operations = []
        for function, tensors in ((dist.irecv, receives), (dist.isend, sends)):
            for tensor, other in tensors:
                operations.append(dist.P2POp(function, tensor, other, self._group))
        return list(dist.batch_isend_irecv(operations))
