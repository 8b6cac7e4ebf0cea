"""The GPUs of this host by NVML, and the links between them."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from pathlib import Path
from typing import Any, TypedDict

from commbench.system.files import ROOT, parse_fields, read_text


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
    """NVIDIA's management library (NVML), initialised."""

    def __init__(self, library: Any) -> None:  # noqa: ANN401 - a module without types
        self._library = library

    @classmethod
    def start(cls) -> Nvml | None:
        """Return the library; None if it or the driver is missing."""
        try:
            library = importlib.import_module("pynvml")
            library.nvmlInit()
        except Exception:  # noqa: BLE001 - NVML's errors have no common type before it is imported
            return None
        return cls(library)

    def ask(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - the function's result
        """Call a function of the library and return its result, bytes as text.

        None if it raises or is missing.
        """
        try:
            answer = getattr(self._library, name)(*arguments)
        except Exception:  # noqa: BLE001 - as above; a function that one GPU or an old driver lacks must not hide the others
            return None
        return answer.decode() if isinstance(answer, bytes) else answer

    def devices(self) -> list[Any]:
        """Return the handles of all GPUs; None for a GPU that does not answer."""
        return [
            self.ask("nvmlDeviceGetHandleByIndex", index)
            for index in range(self.ask("nvmlDeviceGetCount") or 0)
        ]

    def addresses(self) -> list[str | None]:
        """Return the PCI addresses of all GPUs as Linux writes them, ``0000:17:00.0``.

        None for an unknown one.
        """
        infos = (self.ask("nvmlDeviceGetPciInfo", handle) for handle in self.devices())
        return [_linux_address(getattr(info, "busId", None)) for info in infos]

    def device(self, address: str) -> Any:  # noqa: ANN401 - a handle
        """Return the handle of the GPU at a PCI address, ``0000:17:00.0``.

        None without such a GPU.
        """
        return self.ask("nvmlDeviceGetHandleByPciBusId", address.encode())


def _linux_address(bus_id: bytes | str | None) -> str | None:
    """Return a PCI address as Linux writes it: lower case, with four digits for the domain where
    NVML has eight.
    """
    if isinstance(bus_id, bytes):
        bus_id = bus_id.decode()
    domain, _, rest = (bus_id or "").lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if rest else None


# --------------------------------------------------------------------------------------- which GPUs


def list_gpus(root: Path = ROOT) -> list[Gpu]:
    """Return the GPUs of this host as NVML lists them, else as the NVIDIA kernel driver does."""
    return _nvml_gpus() or _driver_gpus(root)


def _nvml_gpus() -> list[Gpu]:
    """Return the GPUs by nvidia-ml-py; empty if it, the driver or a device is missing."""
    nvml = Nvml.start()
    if nvml is None:
        return []
    return [
        {
            "name": nvml.ask("nvmlDeviceGetName", handle),
            "uuid": nvml.ask("nvmlDeviceGetUUID", handle),
            "memory_total_bytes": getattr(
                nvml.ask("nvmlDeviceGetMemoryInfo", handle), "total", None
            ),
            "driver_version": nvml.ask("nvmlSystemGetDriverVersion"),
        }
        for handle in nvml.devices()
        if handle is not None
    ]


def _driver_gpus(root: Path) -> list[Gpu]:
    """Return the GPUs as the NVIDIA kernel driver lists them under /proc; no library is needed."""
    driver = re.search(r"\d+\.\d+(\.\d+)*", read_text(root, "proc/driver/nvidia/version") or "")
    files = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    return [
        {
            "name": information.get("Model"),
            "uuid": information.get("GPU UUID"),
            "memory_total_bytes": None,
            "driver_version": driver.group() if driver else None,
        }
        for information in (parse_fields(read_text(file.parent, file.name), ":") for file in files)
    ]


def gpu_addresses(root: Path = ROOT) -> list[str]:
    """Return the PCI addresses of NVIDIA's GPUs, ``0000:17:00.0``, sorted, which is nvidia-smi's
    order.

    If Linux shows no PCI devices, as in some containers, NVML lists them.
    """
    devices = (root / "sys/bus/pci/devices").glob("*")
    addresses = [device.name for device in devices if _is_nvidia_gpu(device)]
    nvml = None if addresses else Nvml.start()
    if nvml is not None:
        addresses = list(filter(None, nvml.addresses()))
    return sorted(addresses)


def _is_nvidia_gpu(device: Path) -> bool:
    nvidia, display = "0x10de", "0x03"
    return read_text(device, "vendor") == nvidia and (read_text(device, "class") or "").startswith(
        display
    )


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
    nvml = (Nvml.start() if addresses else None) or Nvml(
        None
    )  # without a library every query returns None
    return [_gpu_port(nvml, nvml.device(address)) for address in addresses]


def _gpu_port(nvml: Nvml, handle: Any) -> GpuPort:  # noqa: ANN401 - a handle
    return {
        "name": nvml.ask("nvmlDeviceGetName", handle),
        "sm_clock_max_MHz": nvml.ask("nvmlDeviceGetMaxClockInfo", handle, _SM_CLOCK),
        "pcie_generation": nvml.ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "pcie_generation_max": nvml.ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_width": nvml.ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        "pcie_width_max": nvml.ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        "nvlink_version": _nvlink_version(nvml, handle),
    }


def peer_access(addresses: Sequence[str]) -> list[list[str]]:
    """Return for each GPU (row) whether it can read each GPU's memory (column): ``ok``, a reason,
    or ``X`` for itself.

    Empty if NVML does not report it.
    """
    nvml = Nvml.start() if addresses else None
    if nvml is None:
        return []
    handles = [nvml.device(address) for address in addresses]

    def status(reader: int, owner: int) -> str:
        code = nvml.ask("nvmlDeviceGetP2PStatus", handles[reader], handles[owner], _READ)
        return _PEER_STATUS.get(code, "unknown")

    gpus = range(len(handles))
    return [
        ["X" if reader == owner else status(reader, owner) for owner in gpus] for reader in gpus
    ]


def pci_links(addresses: Sequence[str]) -> Links:
    """Return the PCI path of each pair of GPUs in nvidia-smi's words, in both directions, as far as
    NVML reports it.
    """
    nvml = Nvml.start()
    if nvml is None:
        return {}
    handles = [nvml.device(address) for address in addresses]
    levels = {
        (gpu, peer): nvml.ask("nvmlDeviceGetTopologyCommonAncestor", handles[gpu], handles[peer])
        for gpu, peer in permutations(range(len(handles)), 2)
    }
    return {pair: _PCI_LEVELS[level] for pair, level in levels.items() if level in _PCI_LEVELS}


def _nvlink_version(nvml: Nvml, handle: Any) -> str | None:  # noqa: ANN401 - a handle
    for link in range(MOST_LINKS):
        if nvml.ask("nvmlDeviceGetNvLinkState", handle, link):
            return _NVLINK_VERSIONS.get(nvml.ask("nvmlDeviceGetNvLinkVersion", handle, link))
    return None


def nvlinks(addresses: Sequence[str]) -> Links:
    """Return ``NV4`` for a pair of GPUs with four NVLinks between them, in both directions.

    Empty without NVLinks and without NVML.

    Args:
        addresses: the GPUs' PCI addresses, ``0000:17:00.0``; pairs hold their indices.
    """
    if len(addresses) < 2:  # noqa: PLR2004 - a pair
        return {}
    nvml = Nvml.start()
    if nvml is None:
        return {}
    partners = [_link_partners(nvml, address) for address in addresses]
    index_by_address = {_linux_address(address): index for index, address in enumerate(addresses)}
    return {
        pair: f"NV{count}"
        for gpu, peer in combinations(range(len(addresses)), 2)
        if (count := _links_between(partners, index_by_address, gpu, peer))
        for pair in ((gpu, peer), (peer, gpu))
    }


def _link_partners(nvml: Nvml, address: str) -> Counter[str | None]:
    """Return the number of active NVLinks of a GPU for each PCI address at their other end."""
    partners: Counter[str | None] = Counter()
    handle = nvml.device(address)
    for link in range(MOST_LINKS):
        if nvml.ask("nvmlDeviceGetNvLinkState", handle, link):
            remote = nvml.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            partners[_linux_address(getattr(remote, "busId", None))] += 1
    del partners[None]
    return partners


def _links_between(
    partners: Sequence[Counter[str | None]],
    index_by_address: Mapping[str | None, int],
    gpu: int,
    peer: int,
) -> int:
    """Return the number of NVLinks between two GPUs: direct ones, else those to switches, which
    connect all GPUs.
    """
    direct = sum(
        count for address, count in partners[gpu].items() if index_by_address.get(address) == peer
    )
    to_switches = [
        sum(count for address, count in partners[end].items() if address not in index_by_address)
        for end in (gpu, peer)
    ]
    return direct or min(to_switches)
