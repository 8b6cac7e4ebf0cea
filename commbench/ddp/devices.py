"""The device of a training rank: the CPUs of its host over Gloo, or one of its GPUs over NCCL."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from commbench.backends.gpu_assignment import assign_gpu
from commbench.backends.nccl_library import LOG, loaded_version
from commbench.backends.torch_calls import find_gpus, pci_address, torch_version
from commbench.collectives.backends import TRAINING_BACKENDS
from commbench.ddp.models import moved_by
from commbench.engine.control import Control, gather_everywhere
from commbench.engine.gpu_clocks import GpuClocks, Reading
from commbench.hooks.step_clock import Clock, event_clock, host_clock
from commbench.system.host import memory_bytes
from commbench.system.process import peak_memory_bytes, reset_peak_memory, settled_sent_bytes

#: At least this number of first steps is not timed: DDP uses one bucket in the first, rebuilds the
#: buckets before the second, and PowerSGD compresses from the third on.
EARLY_STEPS = 3


class Device:
    """The CPUs of this host, over Gloo."""

    name = "cpu"
    """As in the column ``device``."""
    backend = "gloo"
    """Backend of the process groups that train."""
    ranks_per_gpu: int | None = None
    """The most ranks of the launch on one GPU; None without GPUs."""
    is_serial = False
    """Whether a process group runs one collective after the other, see
    `commbench.ddp.step_times.serialise`."""
    unsteady_steps = 0
    """Steps of a new model in which DDP makes the host wait for the device."""
    settling_steps = 0
    """Untimed steps of a training that goes on after another one."""

    def early_steps(self, steps: int) -> int:
        """Return the untimed steps of a training of so many steps: `EARLY_STEPS`, or those in
        which DDP waits for the device, if at most half of all.
        """
        return max(EARLY_STEPS, min(self.unsteady_steps, steps // 2))

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.clock: Clock = host_clock

    @property
    def numbers(self) -> list[int] | None:
        """DDP's ``device_ids``."""
        if self.torch_device.index is None:
            return None
        return [self.torch_device.index]

    def library(self) -> str:
        """Return the communication library, e.g. ``torch 2.13.0 gloo``."""
        return f"torch {torch_version()} {self.backend}"

    def moved(self, value: Any) -> Any:
        """Move a model or a batch to the device and return it."""
        return value

    def wait(self) -> None:
        """Wait until all queued work has finished."""

    def close(self) -> None:
        """Clean up after the launch."""

    def reset_peak_memory(self) -> None:
        """Reset the memory peak to the memory in use now."""
        reset_peak_memory()

    def peak_memory_bytes(self) -> int | None:
        """Return the peak since the reset in bytes; None if the system does not report it."""
        return peak_memory_bytes()

    def free_bytes(self) -> int:
        """Return the free memory of the device in bytes; 0 if unknown."""
        return memory_bytes()[1] or 0

    def sent_bytes(self) -> int | None:
        """Return the bytes that this rank has sent so far; None if they cannot be counted."""
        return settled_sent_bytes()

    def read_clock(self) -> Reading | None:
        """Return the GPU's current clocks; None on CPUs, or if NVML cannot read them."""
        return None

    def random_state(self) -> tuple[Any, ...]:
        """Return the state of all random generators that training and data may use."""
        # Other code uses the global generator.
        return torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002

    def set_random_state(self, state: tuple[Any, ...]) -> None:
        """Restore the state of the random generators."""
        torch.set_rng_state(state[0])
        random.setstate(state[1])
        np.random.set_state(state[2])  # noqa: NPY002 - as above


class Gpu(Device):
    """An NVIDIA GPU over NCCL; the constructor makes it the only GPU of this process.

    Args:
        number: the GPU's number on its host.
        ranks_per_gpu: the most ranks of the launch on one GPU.
        cuda: ``torch.cuda``, or a substitute.
        find_clock: returns the clock reader of the GPU at a PCI address.
    """

    backend = "nccl"
    is_serial = True
    settling_steps = 1  # the host queues a step while the GPU runs the previous one
    unsteady_steps = (
        11  # DDP times its first 10 steps with events, and reads a step's events in the next step
    )

    def __init__(
        self,
        number: int,
        *,
        ranks_per_gpu: int = 1,
        cuda: Any = torch.cuda,
        find_clock: Callable[[str], GpuClocks | None] = GpuClocks,
    ) -> None:
        super().__init__()
        cuda.set_device(number)
        self.torch_device = torch.device("cuda", number)
        self.clock = event_clock(number, cuda)
        self.name = str(cuda.get_device_name(number))
        self.ranks_per_gpu = ranks_per_gpu
        self._number = number
        self._cuda = cuda
        address = pci_address(cuda.get_device_properties(number))
        self._clock = None
        if address:
            self._clock = find_clock(address)

    def library(self) -> str:
        """Return torch and the loaded NCCL, e.g.

        ``torch 2.13.0 NCCL 2.28.9``; torch may be built with another NCCL.
        """
        return f"torch {torch_version()} {loaded_version()}"

    def moved(self, value: Any) -> Any:
        """See `Device.moved`; a model is moved in place.

        Copies of tensors are queued, from pinned memory.
        """
        return moved_by(self._move, value)

    def _move(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.pinned(value).to(self.torch_device, non_blocking=True)
        return value.to(self.torch_device)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor in pinned memory, which the GPU copies asynchronously."""
        if tensor.device.type == "cpu":
            return tensor.pin_memory()
        return tensor

    def wait(self) -> None:
        """See `Device.wait`."""
        self._cuda.synchronize(self._number)

    def close(self) -> None:
        """Remove NCCL's log."""
        LOG.remove()

    def reset_peak_memory(self) -> None:
        """See `Device.reset_peak_memory`."""
        self._cuda.reset_peak_memory_stats(self._number)

    def peak_memory_bytes(self) -> int | None:
        """Return the peak of the memory that torch allocated on the GPU, in bytes."""
        return int(self._cuda.max_memory_allocated(self._number))

    def free_bytes(self) -> int:
        """See `Device.free_bytes`."""
        return int(self._cuda.mem_get_info(self._number)[0])

    def sent_bytes(self) -> int | None:
        """Return None: bytes over NVLink or RDMA are not counted."""
        return None

    def read_clock(self) -> Reading | None:
        """See `Device.read_clock`."""
        if self._clock is None:
            return None
        return self._clock.read()

    def random_state(self) -> tuple[Any, ...]:
        """See `Device.random_state`."""
        return *super().random_state(), self._cuda.get_rng_state(self._number)

    def set_random_state(self, state: tuple[Any, ...]) -> None:
        """See `Device.set_random_state`."""
        super().set_random_state(state)
        self._cuda.set_rng_state(state[-1], self._number)


def open_device(backend: str, control: Control, cuda: Any = torch.cuda) -> Device:
    """Return the device of this rank for a training backend; collective.

    Raises:
        InputError: the backend needs a GPU, or torch was built without NCCL.
    """
    if not TRAINING_BACKENDS[backend].uses_gpu:
        return Device()
    number, ranks_per_gpu = assign_gpu(control, gpus_to_train_on(cuda))
    gpu = Gpu(number, ranks_per_gpu=ranks_per_gpu, cuda=cuda)
    gpu.name = " | ".join(dict.fromkeys(gather_everywhere(control, gpu.name)))
    return gpu


def gpus_to_train_on(cuda: Any = torch.cuda) -> list[str]:
    """Return the identities of this host's GPUs; see `find_gpus`."""
    return find_gpus("nccl", cuda, instead="train with --backend gloo")
