"""The GPUs of this host by NVML, and the links between them."""

from __future__ import annotations

import contextlib
import importlib
import re
from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from typing import Any, TypedDict

from commbench.system.files import parse_fields, read_text, system_path


class Gpu(TypedDict):
    """A GPU of a host."""

    name: str | None
    """Model of the GPU; None: unknown."""
    driver_version: str | None
    """Version of the driver."""
    uuid: str | None
    """NVIDIA's identifier."""
    memory_total_bytes: int | None
    """Memory of the GPU."""


class GpuPort(TypedDict):
    """The name, the highest clock and the links of a GPU.

    An idle GPU may lower ``pcie_generation`` and ``pcie_width`` (lanes) below their maximum.
    ``nvlink_version`` is the version of the first active link.
    """

    name: str | None
    """Model of the GPU; None: unknown."""
    sm_clock_max_MHz: float | None
    """The highest clock of the multiprocessors."""
    pcie_generation: int | None
    """PCIe generation of the link now."""
    pcie_generation_max: int | None
    """PCIe generation at most."""
    pcie_width: int | None
    """PCIe lanes of the link now."""
    pcie_width_max: int | None
    """PCIe lanes at most."""
    nvlink_version: str | None
    """Version of the first active NVLink; None: no NVLink."""


class Nvml:
    """NVIDIA's management library (NVML), initialised; without it every query returns None."""

    def __init__(self) -> None:
        self._library: Any = None
        with contextlib.suppress(Exception):  # NVML's errors have no common type
            library = importlib.import_module("pynvml")
            library.nvmlInit()
            self._library = library

    @property
    def has_started(self) -> bool:
        """Whether the library and the driver are there."""
        return self._library is not None

    def ask(self, name: str, *arguments: object) -> Any:
        """Call a function of the library and return its result, bytes as text.

        None if it raises or is missing.
        """
        try:
            answer = getattr(self._library, name)(*arguments)
        # As above; a function that one GPU or an old driver lacks must not hide the others.
        except Exception:  # noqa: BLE001
            return None
        return answer.decode() if isinstance(answer, bytes) else answer

    def devices(self) -> list[Any]:
        """Return the handles of all GPUs; None for a GPU that does not answer."""
        indices = range(self.ask("nvmlDeviceGetCount") or 0)
        return [self.ask("nvmlDeviceGetHandleByIndex", index) for index in indices]

    def device(self, address: str) -> Any:
        """Return the handle of the GPU at a PCI address, ``0000:17:00.0``.

        None without such a GPU.
        """
        return self.ask("nvmlDeviceGetHandleByPciBusId", address.encode())

    def nvlinks(self, handle: Any) -> list[int]:
        """Return the numbers of a GPU's active NVLinks."""
        links = range(MOST_LINKS)
        return [link for link in links if self.ask("nvmlDeviceGetNvLinkState", handle, link)]


def _address(info: Any) -> str | None:
    """Return the PCI address of NVML's facts about a device as Linux writes it, ``0000:17:00.0``:
    lower case, with four digits for the domain where NVML has eight. None if it is unknown.
    """
    bus_id = getattr(info, "busId", None) or ""
    if isinstance(bus_id, bytes):
        bus_id = bus_id.decode()
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if rest else None


# --------------------------------------------------------------------------------------- which GPUs


def list_gpus() -> list[Gpu]:
    """Return the GPUs of this host as NVML lists them, else as the NVIDIA kernel driver does."""
    nvml = Nvml()
    gpus: list[Gpu] = []
    for handle in nvml.devices():
        if handle is not None:
            memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
            gpus.append(
                {
                    "name": nvml.ask("nvmlDeviceGetName", handle),
                    "uuid": nvml.ask("nvmlDeviceGetUUID", handle),
                    "memory_total_bytes": getattr(memory, "total", None),
                    "driver_version": nvml.ask("nvmlSystemGetDriverVersion"),
                }
            )
    if gpus:
        return gpus
    driver = re.search(r"\d+\.\d+(\.\d+)*", read_text("proc/driver/nvidia/version") or "")
    for file in sorted(system_path("proc/driver/nvidia/gpus").glob("*/information")):
        information = parse_fields(read_text(file.parent, file.name), ":")
        gpus.append(
            {
                "name": information.get("Model"),
                "uuid": information.get("GPU UUID"),
                "memory_total_bytes": None,
                "driver_version": driver.group() if driver else None,
            }
        )
    return gpus


def gpu_addresses() -> list[str]:
    """Return the PCI addresses of NVIDIA's GPUs, ``0000:17:00.0``, sorted, which is nvidia-smi's
    order.

    If Linux shows no PCI devices, as in some containers, NVML lists them.
    """
    nvidia, display = "0x10de", "0x03"
    addresses: list[str | None] = []
    for device in system_path("sys/bus/pci/devices").glob("*"):
        is_display = (read_text(device, "class") or "").startswith(display)
        if is_display and read_text(device, "vendor") == nvidia:
            addresses.append(device.name)
    if not addresses:
        nvml = Nvml()
        for handle in nvml.devices():
            addresses.append(_address(nvml.ask("nvmlDeviceGetPciInfo", handle)))
    return sorted(filter(None, addresses))


# -------------------------------------------------------------------------------------------- links

#: The largest number of NVLinks of a GPU (NVML_NVLINK_MAX_LINKS).
MOST_LINKS = 18
#: nvmlNvlinkVersion_t, nvmlGpuP2PStatus_t and others by number (nvml.h); bindings have some names
#: wrong.
_NVLINK_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
_PEER_STATUS = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled",
    5: "not supported",
}
#: nvmlGpuTopologyLevel_t in the words of nvidia-smi; 0: two GPUs of one board, behind its switch.
_PCI_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_READ, _SM_CLOCK = 0, 1

Links = dict[tuple[int, int], str]
"""The link of each pair of GPUs, by their indices in a list of addresses."""


def gpu_ports(addresses: Sequence[str]) -> list[GpuPort]:
    """Return the name, the highest clock and the links of each GPU.

    A value that NVML does not report is None.

    Args:
        addresses: the GPUs' PCI addresses, ``0000:17:00.0``.
    """
    nvml = Nvml()
    ports: list[GpuPort] = []
    for handle in map(nvml.device, addresses):
        version = 0
        for link in nvml.nvlinks(handle)[:1]:
            version = nvml.ask("nvmlDeviceGetNvLinkVersion", handle, link)
        ports.append(
            {
                "name": nvml.ask("nvmlDeviceGetName", handle),
                "sm_clock_max_MHz": nvml.ask("nvmlDeviceGetMaxClockInfo", handle, _SM_CLOCK),
                "pcie_generation": nvml.ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
                "pcie_generation_max": nvml.ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
                "pcie_width": nvml.ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
                "pcie_width_max": nvml.ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
                "nvlink_version": _NVLINK_VERSIONS.get(version),
            }
        )
    return ports


def peer_access(addresses: Sequence[str]) -> list[list[str]]:
    """Return for each GPU (row) whether it can read each GPU's memory (column): ``ok``, a reason,
    or ``X`` for itself.

    Empty if NVML does not report it.
    """
    nvml = Nvml()
    if not nvml.has_started:
        return []
    handles = list(map(nvml.device, addresses))
    rows = []
    for reader in handles:
        codes = [nvml.ask("nvmlDeviceGetP2PStatus", reader, owner, _READ) for owner in handles]
        rows.append([_PEER_STATUS.get(code, "unknown") for code in codes])
    for place, row in enumerate(rows):
        row[place] = "X"
    return rows


def gpu_links(addresses: Sequence[str], *, by_pci: bool = False) -> Links:
    """Return the link of each pair of GPUs in nvidia-smi's words, in both directions, as far as
    NVML reports it.

    ``NV4`` is four NVLinks: direct ones, else those to switches, which connect all GPUs.

    Args:
        addresses: the GPUs' PCI addresses, ``0000:17:00.0``; pairs hold their indices.
        by_pci: whether pairs without NVLinks have their PCI path.
    """
    nvml = Nvml()
    handles = list(map(nvml.device, addresses))
    direct = []
    to_switches = []
    for handle in handles:
        remotes = []
        for link in nvml.nvlinks(handle):
            remotes.append(_address(nvml.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)))
        partners = Counter(filter(None, remotes))
        direct.append(Counter({each: partners[each] for each in addresses}))
        to_switches.append(partners.total() - direct[-1].total())
    links = {}
    for gpu, peer in permutations(range(len(addresses)), 2):
        count = direct[gpu][addresses[peer]] or min(to_switches[gpu], to_switches[peer])
        if count:
            links[gpu, peer] = f"NV{count}"
        elif by_pci:
            pair = handles[gpu], handles[peer]
            level = nvml.ask("nvmlDeviceGetTopologyCommonAncestor", *pair)
            if level in _PCI_LEVELS:
                links[gpu, peer] = _PCI_LEVELS[level]
    return links
