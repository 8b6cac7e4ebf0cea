"""The operations as calls of torch.distributed, for Gloo and for NCCL through torch."""

from __future__ import annotations

import re
import socket
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from commbench.collectives.datatypes import DataType, Raw
from commbench.collectives.patterns import Group
from commbench.collectives.primitives import Buffer, Ends, Request
from commbench.engine.communicator import Communicator
from commbench.engine.timing.loops import Call
from commbench.errors import InputError
from commbench.findings import UnsupportedError

Tensors = Sequence[tuple[torch.Tensor, int]]
"""Tensors, each with the rank of the launch that it is sent to or received from."""

_REDOPS = {
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "prod": dist.ReduceOp.PRODUCT,
    "avg": dist.ReduceOp.AVG,
}


#: torch.distributed's function of each collective and its arguments in words.
_FUNCTIONS = {
    "all_reduce": "all_reduce receive op",
    "all_gather": "all_gather_single receive send",
    "reduce_scatter": "reduce_scatter_single receive send op",
    "all_to_all": "all_to_all_single receive send",
    "broadcast": "broadcast receive root",
    "reduce": "reduce send root op",
    "gather": "gather send receive_blocks root",
    "scatter": "scatter receive send_blocks root",
}
#: Names before torch 2.13.
_OLD_NAMES = {
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}


class TorchCommunicator(Communicator):
    """A process group for measured messages only.

    torch names roots and peers in every group by their rank in the launch; ``_members`` translates.

    Every operation is started with ``async_op`` and awaited, as in DDP. Over NCCL it then runs on a
    stream of the group, and the current stream waits, not the host. Without ``async_op``, torch
    from 2.8 on runs collectives on the current stream, but not sends.
    """

    barrier_blocks: bool = False
    """Whether the host waits in a barrier until the device has ended it."""
    _group: dist.ProcessGroup
    _members: Group

    @abstractmethod
    def tensor_of(self, buffer: Buffer) -> torch.Tensor:
        """Return the memory of a buffer as a tensor, shape (count,)."""

    def post(self, receives: Tensors, sends: Tensors) -> list[Any]:
        """Start to receive and to send; return the handles to wait for."""
        works = [dist.irecv(tensor, other, self._group) for tensor, other in receives]
        return [*works, *(dist.isend(tensor, other, self._group) for tensor, other in sends)]

    def call(self, request: Request) -> Call:
        """Prepare a function of torch.distributed, which a call starts and waits for."""
        if request.name == "barrier":
            return Call(run=lambda: dist.barrier(self._group), blocking=self.barrier_blocks)
        if request.name in _FUNCTIONS:
            start = self.start(request)
            return Call(run=lambda: start().wait())
        out = self._tensors(request.sends) * request.window
        into = self._tensors(request.receives) * request.window
        if request.name == "send":
            return Call(run=partial(dist.send, *out[0], self._group))
        if request.name == "receive":
            return Call(run=partial(dist.recv, *into[0], self._group))

        def run() -> None:
            for work in self.post(into, out):
                work.wait()

        return Call(run=run)

    def _tensors(self, ends: Ends) -> list[tuple[torch.Tensor, int]]:
        return [(self.tensor_of(buffer), self._members[peer]) for buffer, peer in ends]

    def start(self, request: Request) -> Callable[[], Any]:
        """Return the function that starts a collective and returns the handle to wait for.

        Raises:
            UnsupportedError: torch lacks this form of the collective.
        """
        name, *words = _FUNCTIONS[request.name].split()
        if name in {"all_reduce", "reduce"} and len(request.buffers) > 1 and not request.in_place:
            raise UnsupportedError("in_place_only")
        if name == "all_to_all_single" and request.in_place:
            what = "in-place all_to_all"
            raise UnsupportedError("missing", backend="torch.distributed", what=what)
        values: dict[str, Any] = {"op": _REDOPS.get(request.redop)}
        values["root"] = self._members[request.root]
        for word, buffer in (("send", request.send), ("receive", request.receive)):
            values[word] = values[f"{word}_blocks"] = None
            if buffer is not None:
                values[word] = self.tensor_of(buffer)
                values[f"{word}_blocks"] = list(values[word].chunk(self.size))
        function = getattr(dist, name, None) or getattr(dist, _OLD_NAMES[name])
        arguments = [values[word] for word in words]
        return partial(function, *arguments, group=self._group, async_op=True)


def as_tensor(memory: Raw, dtype: DataType) -> torch.Tensor:
    """Return host memory as a tensor that shares it.

    Numpy lacks bfloat16 and holds it as uint16.
    """
    if dtype.name == "bfloat16":
        return torch.from_numpy(memory.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(memory)


def find_gpus(backend: str, cuda: Any = torch.cuda, *, instead: str = "") -> list[str]:
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


def _cuda_error(cuda: Any) -> str:
    """Return CUDA's error at its start, in parentheses.

    ``is_available`` only warns of a driver that is too old.
    """
    try:
        cuda.init()
    except RuntimeError as error:
        sentence = re.split(r"\.(?:\s|$)", str(error), maxsplit=1)[0]
        return f' ("{sentence}")'
    return ""


def pci_address(properties: Any) -> str:
    """Return the PCI address of a GPU, ``0000:17:00.0``; empty before torch 2.8, which lacks it."""
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if None in numbers:
        return ""
    domain, bus, device = numbers
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def torch_version() -> str:
    """Return torch's version without the suffix of its build, e.g. ``2.13.0``."""
    return str(torch.__version__).partition("+")[0]
