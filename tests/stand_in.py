"""Stand-ins for ``torch.cuda`` without a GPU, and for a GPU in a training on the CPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from commbench.ddp.devices import Gpu
from commbench.engine.gpu_clocks import GpuClocks, Reading


class Event:
    """A ``torch.cuda.Event`` at the simulated device time ``cuda.now``, in ns.

    As with CUDA, its time can be read only after a wait for it.
    """

    def __init__(self, cuda: SimulatedCuda, *, enable_timing: bool) -> None:
        assert enable_timing
        self.cuda = cuda
        self.at_ns = None
        self.is_over = False

    def record(self, stream: str) -> None:
        """Queue the event on a stream."""
        assert stream == self.cuda.current_stream(self.cuda.current)
        self.at_ns = self.cuda.now()

    def synchronize(self) -> None:
        """Wait for the event."""
        assert self.at_ns is not None, "an event was waited for that nobody has recorded"
        self.cuda.note_wait()
        self.is_over = True

    def elapsed_time(self, other: Event) -> float:
        """Return milliseconds to another finished event, with float32 resolution."""
        if not (self.is_over and other.is_over):
            raise RuntimeError("device not ready")
        return float(torch.tensor((other.at_ns - self.at_ns) / 1e6, dtype=torch.float32))


class SimulatedCuda:
    """The part of ``torch.cuda`` that commbench uses.

    Args:
        devices: number of GPUs.
        buses: PCI bus number of each GPU; distinct by default.
        refusal: CUDA's error at its start.
        now: device time, in ns, at which all queued work is done.
    """

    def __init__(
        self,
        devices: int = 1,
        now: Callable[[], float] = time.perf_counter_ns,
        *,
        buses: Sequence[int] | None = None,
        refusal: str = "No CUDA GPUs are available",
    ) -> None:
        self.devices = devices
        self.buses = buses or range(devices)
        self.refusal = refusal
        self.now = now
        self.current = 0
        self.waits_inside = 0
        """How often something was waited for while `inside`."""
        self.waits = 0
        self.events = 0
        self.inside = False
        """Whether a step is being made."""
        self.peak_resets = 0
        self.nccl = SimpleNamespace(version=lambda: (2, 28, 9))
        self._lock = threading.Lock()

    def note_wait(self) -> None:
        """Count a wait."""
        with self._lock:
            self.waits += 1
            self.waits_inside += self.inside

    def Event(self, *, enable_timing: bool = False) -> Event:  # noqa: N802 - CUDA's name
        """Return an event."""
        with self._lock:
            self.events += 1
        return Event(self, enable_timing=enable_timing)

    def current_stream(self, number: int) -> str:
        """Return the only stream."""
        return f"stream of GPU {number}"

    def is_available(self) -> bool:
        """Return whether there is a GPU."""
        return self.devices > 0

    def init(self) -> None:
        """Start CUDA."""
        if not self.devices:
            raise RuntimeError(self.refusal)

    def get_device_properties(self, number: int) -> SimpleNamespace:
        """Return the properties that torch reports since 2.8."""
        return SimpleNamespace(
            pci_domain_id=0, pci_bus_id=self.buses[number], pci_device_id=0, uuid=f"{number}-0"
        )

    def device_count(self) -> int:
        """Return the number of GPUs."""
        return self.devices

    def set_device(self, number: int) -> None:
        """Make a GPU current."""
        assert 0 <= number < self.devices
        self.current = number

    def get_device_name(self, number: int) -> str:
        """Return a GPU's name."""
        return f"Simulated GPU {number}"

    def synchronize(self, number: int) -> None:
        """Wait for all queued work."""
        assert number == self.current
        self.note_wait()

    def reset_peak_memory_stats(self, number: int) -> None:
        """Reset the peak memory."""
        assert number == self.current
        self.peak_resets += 1

    def max_memory_allocated(self, number: int) -> int:
        """Return a fixed number of bytes."""
        assert number == self.current
        return 123_000_000

    def get_rng_state(self, number: int) -> torch.Tensor:
        """Return the GPU's random state."""
        assert number == self.current
        return torch.tensor([7], dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor, number: int) -> None:
        """Restore the GPU's random state."""
        assert (7, number) == (int(state[0]), self.current)


class SteadyClock(GpuClocks):
    """A constant GPU clock that no step reads."""

    def __init__(self, cuda: SimulatedCuda) -> None:
        self.cuda = cuda

    def read(self) -> Reading:
        """See `GpuClocks.read`."""
        assert not self.cuda.inside
        return Reading(sm_MHz=1980.0, reasons=0, held_ns={})


class StandIn(Gpu):
    """A GPU except for CUDA itself: tensors stay on the CPU, Gloo carries them, events read its
    clock.
    """

    backend = "gloo"

    def __init__(self, *, ranks_per_gpu: int = 2, cuda: Any = None) -> None:
        self.cuda = cuda or SimulatedCuda()
        super().__init__(
            0,
            ranks_per_gpu=ranks_per_gpu,
            cuda=self.cuda,
            find_clock=lambda _: SteadyClock(self.cuda),
        )
        self.torch_device = torch.device("cpu")
        self.copied = 0

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor itself."""
        self.copied += 1
        return tensor

    def asked(self) -> dict[str, int]:
        """Return the counts of events, waits (also inside steps), copies and peak resets."""
        cuda = self.cuda
        counts = {"events": cuda.events, "waits": cuda.waits, "inside": cuda.waits_inside}
        return {**counts, "copied": self.copied, "peak_resets": cuda.peak_resets}
