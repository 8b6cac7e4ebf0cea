"""The operations as calls of torch.distributed, for Gloo and for NCCL through torch."""

from __future__ import annotations

import re
import socket
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from commbench.collectives.datatypes import DataType, Raw
from commbench.collectives.patterns import Group
from commbench.collectives.primitives import Ends
from commbench.engine.communicator import Communicator
from commbench.engine.timing.loops import Call
from commbench.errors import InputError
from commbench.findings import UnsupportedError


class TorchMemory(Protocol):
    """The method of a buffer that the calls need beside its tensor."""

    def shares_memory(self, other: Any, /) -> bool:  # noqa: ANN401 - of the same kind
        """Return whether both buffers overlap: the operation is in place."""


BufferT = TypeVar("BufferT", bound=TorchMemory)
Tensors = Sequence[tuple[torch.Tensor, int]]
"""Tensors, each with the rank of the launch that it is sent to or received from."""

_REDOPS = {
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "prod": dist.ReduceOp.PRODUCT,
    "avg": dist.ReduceOp.AVG,
}


def _first_available(*names: str) -> Callable[..., Any]:
    """Return torch.distributed's function of the first name that exists: 2.13 renamed ``*_tensor``
    to ``*_single``.
    """
    function: Callable[..., Any] = next(
        getattr(dist, name) for name in names if hasattr(dist, name)
    )
    return function


all_gather_single = _first_available("all_gather_single", "all_gather_into_tensor")
_reduce_scatter = _first_available("reduce_scatter_single", "reduce_scatter_tensor")


class TorchCommunicator(Communicator, Generic[BufferT]):
    """A process group for measured messages only.

    torch names roots and peers in every group by their rank in the launch; ``_members`` translates.

    Every operation is started with ``async_op`` and awaited, as in DDP. Over NCCL it then runs on a
    stream of the group, and the current stream waits, not the host. Without ``async_op``, torch
    from 2.8 on runs collectives on the current stream, but not sends.
    """

    _group: dist.ProcessGroup
    _members: Group

    @abstractmethod
    def tensor_of(self, buffer: BufferT) -> torch.Tensor:
        """Return the memory of a buffer as a tensor, shape (count,)."""

    def post(self, receives: Tensors, sends: Tensors) -> list[Any]:
        """Start to receive and to send; return the handles to wait for."""
        works = [dist.irecv(tensor, other, self._group) for tensor, other in receives]
        return [*works, *(dist.isend(tensor, other, self._group) for tensor, other in sends)]

    # Collectives

    def all_reduce(self, send: BufferT, receive: BufferT, redop: str) -> Call:
        """Prepare dist.all_reduce, which is in place."""
        _check_in_place(send, receive)
        tensor, op = self.tensor_of(receive), _REDOPS[redop]
        return _started_and_awaited(dist.all_reduce, tensor, op, self._group)

    def all_gather(self, send: BufferT, receive: BufferT) -> Call:
        """Prepare dist.all_gather_into_tensor."""
        output, block = self.tensor_of(receive), self.tensor_of(send)
        return _started_and_awaited(all_gather_single, output, block, group=self._group)

    def reduce_scatter(self, send: BufferT, receive: BufferT, redop: str) -> Call:
        """Prepare dist.reduce_scatter_tensor."""
        block, tensor, op = self.tensor_of(receive), self.tensor_of(send), _REDOPS[redop]
        return _started_and_awaited(_reduce_scatter, block, tensor, op, group=self._group)

    def all_to_all(self, send: BufferT, receive: BufferT) -> Call:
        """Prepare dist.all_to_all_single."""
        if send.shares_memory(receive):
            raise UnsupportedError(
                "missing", backend="torch.distributed", what="in-place all_to_all"
            )
        output, blocks = self.tensor_of(receive), self.tensor_of(send)
        return _started_and_awaited(dist.all_to_all_single, output, blocks, group=self._group)

    def broadcast(self, buffer: BufferT, root: int) -> Call:
        """Prepare dist.broadcast."""
        tensor, source = self.tensor_of(buffer), self._members[root]
        return _started_and_awaited(dist.broadcast, tensor, source, self._group)

    def reduce(self, send: BufferT, receive: BufferT | None, redop: str, root: int) -> Call:
        """Prepare dist.reduce, which is in place at the root."""
        if receive is not None:
            _check_in_place(send, receive)
        tensor, op, target = self.tensor_of(send), _REDOPS[redop], self._members[root]
        return _started_and_awaited(dist.reduce, tensor, target, op, self._group)

    def gather(self, send: BufferT, receive: BufferT | None, root: int) -> Call:
        """Prepare dist.gather into views of one buffer."""
        block, target = self.tensor_of(send), self._members[root]
        blocks = None if receive is None else list(self.tensor_of(receive).chunk(self.size))
        return _started_and_awaited(dist.gather, block, blocks, target, self._group)

    def scatter(self, send: BufferT | None, receive: BufferT, root: int) -> Call:
        """Prepare dist.scatter from views of one buffer."""
        block, source = self.tensor_of(receive), self._members[root]
        blocks = None if send is None else list(self.tensor_of(send).chunk(self.size))
        return _started_and_awaited(dist.scatter, block, blocks, source, self._group)

    # Point to point

    def send(self, buffer: BufferT, peer: int) -> Call:
        """Prepare dist.send."""
        tensor, target = self.tensor_of(buffer), self._members[peer]
        return Call(run=lambda: dist.send(tensor, target, self._group))

    def receive(self, buffer: BufferT, peer: int) -> Call:
        """Prepare dist.recv."""
        tensor, source = self.tensor_of(buffer), self._members[peer]
        return Call(run=lambda: dist.recv(tensor, source, self._group))

    def send_receive(self, send: BufferT, target: int, receive: BufferT, source: int) -> Call:
        """Prepare a send and a receive that run at the same time."""
        return self.exchange_window([(send, target)], [(receive, source)], 1)

    def exchange_window(self, sends: Ends[BufferT], receives: Ends[BufferT], window: int) -> Call:
        """Prepare ``window`` receives and sends with each peer, then a wait for all; see `post`."""
        into = [
            (self.tensor_of(buffer), self._members[peer])
            for buffer, peer in receives
            for _ in range(window)
        ]
        out = [
            (self.tensor_of(buffer), self._members[peer])
            for buffer, peer in sends
            for _ in range(window)
        ]

        def run() -> None:
            for work in self.post(into, out):
                work.wait()

        return Call(run=run)


def start_all_reduce(tensor: torch.Tensor, redop: str, group: dist.ProcessGroup) -> list[Call]:
    """Prepare dist.all_reduce with async_op, and its wait."""
    return _start_and_wait(lambda: dist.all_reduce(tensor, _REDOPS[redop], group, async_op=True))


def start_all_gather(
    output: torch.Tensor, block: torch.Tensor, group: dist.ProcessGroup
) -> list[Call]:
    """Prepare dist.all_gather_into_tensor with async_op, and its wait."""
    return _start_and_wait(lambda: all_gather_single(output, block, group=group, async_op=True))


def as_tensor(memory: Raw, dtype: DataType) -> torch.Tensor:
    """Return host memory as a tensor that shares it.

    Numpy lacks bfloat16 and holds it as uint16.
    """
    if dtype.name == "bfloat16":
        return torch.from_numpy(memory.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(memory)


def find_gpus(backend: str, cuda: Any = torch.cuda, *, instead: str = "") -> list[str]:  # noqa: ANN401 - or a stand-in
    """Return identifiers of the GPUs that torch finds on this host, in its order: at least one.

    They are PCI addresses; UUIDs before torch 2.8, which lacks the addresses; numbers before torch
    2.4.

    Args:
        backend: the backend that needs them, for the message.
        cuda: ``torch.cuda``, or a stand-in.
        instead: an alternative for the user, as a clause of the message.

    Raises:
        InputError: torch finds no GPU, or was built without NCCL.
    """
    host, alternative = socket.gethostname(), f", or {instead}" if instead else ""
    if not cuda.is_available():
        if torch.backends.cuda.is_built():
            reason = (
                f"torch {torch.__version__} finds none on {host}{_cuda_error(cuda)}: start"
                " commbench where there is one"
            )
        else:
            reason = (
                f"torch {torch.__version__} on {host} is built without CUDA: install one that is"
                " built with it"
            )
        raise InputError(f"Backend {backend} needs a GPU, and {reason}{alternative}.")
    if not dist.is_nccl_available():
        raise InputError(
            f"Backend {backend} needs NCCL, and torch {torch.__version__} on {host} is built"
            f" without it: install one that is built with it{alternative}."
        )
    gpus = [cuda.get_device_properties(number) for number in range(cuda.device_count())]
    return [
        pci_address(gpu) or str(getattr(gpu, "uuid", number)) for number, gpu in enumerate(gpus)
    ]


def _cuda_error(cuda: Any) -> str:  # noqa: ANN401 - as above
    """Return CUDA's error at its start, in parentheses.

    ``is_available`` only warns of a driver that is too old.
    """
    try:
        cuda.init()
    except RuntimeError as error:
        sentence = re.split(r"\.(?:\s|$)", str(error), maxsplit=1)[0]
        return f' ("{sentence}")'
    return ""


def pci_address(properties: Any) -> str:  # noqa: ANN401 - torch's
    """Return the PCI address of a GPU, ``0000:17:00.0``; empty before torch 2.8, which lacks it."""
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if None in numbers:
        return ""
    domain, bus, device = numbers
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def torch_version() -> str:
    """Return torch's version without the suffix of its build, e.g. ``2.13.0``."""
    return str(torch.__version__).partition("+")[0]


def _check_in_place(send: TorchMemory, receive: TorchMemory) -> None:
    if not send.shares_memory(receive):
        raise UnsupportedError("in_place_only")


def _started_and_awaited(start: Callable[..., Any], *arguments: object, **keywords: object) -> Call:
    """Return the call that starts a collective and waits for it."""
    start_async = partial(start, *arguments, async_op=True, **keywords)
    return Call(run=lambda: start_async().wait())


def _start_and_wait(start: Callable[[], Any]) -> list[Call]:
    """Return the two calls of a non-blocking collective: start and wait."""
    pending: list[Any] = []
    return [Call(run=lambda: pending.append(start())), Call(run=lambda: pending.pop().wait())]
