"""The GPUs of this host by NVML, and the links between them; NVLinks also from ``nvidia-smi topo -m``."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from typing import Any


class Nvml:
    """The library, started."""

    def __init__(self, library: Any) -> None:  # noqa: ANN401 - a module without types
        self._library = library

    @classmethod
    def start(cls) -> Nvml | None:
        """The library; None where it or the driver is missing."""
        try:
            library = importlib.import_module("pynvml")
            library.nvmlInit()
        except Exception:  # noqa: BLE001 - NVML's errors have no common type before it is imported
            return None
        return cls(library)

    def ask(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - whatever the function gives
        """What a function of the library says, bytes as text; None where it raises or this version has no such."""
        try:
            answer = getattr(self._library, name)(*arguments)
        except Exception:  # noqa: BLE001 - as above: what one GPU or an old driver lacks must not hide the rest
            return None
        return answer.decode() if isinstance(answer, bytes) else answer

    def devices(self) -> list[Any]:
        """The handles of all GPUs; None for one that does not answer."""
        return [self.ask("nvmlDeviceGetHandleByIndex", index) for index in range(self.ask("nvmlDeviceGetCount") or 0)]

    def addresses(self) -> list[str | None]:
        """Their PCI addresses as Linux writes them, ``0000:17:00.0``; None where one is not told."""
        answers = (self.ask("nvmlDeviceGetPciInfo", handle) for handle in self.devices())
        return [_address(getattr(answer, "busId", None)) for answer in answers]

    def device(self, address: str) -> Any:  # noqa: ANN401 - a handle
        """The handle of the GPU at a PCI address, ``0000:17:00.0``; None where there is none."""
        return self.ask("nvmlDeviceGetHandleByPciBusId", address.encode())


def _address(bus_id: bytes | str | None) -> str | None:
    """As Linux writes it: NVML gives the domain eight digits, Linux four, and in small letters."""
    domain, _, rest = (bus_id.decode() if isinstance(bus_id, bytes) else bus_id or "").lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if rest else None


#: A GPU has at most so many (NVML_NVLINK_MAX_LINKS).
MOST_LINKS = 18
_SECONDS = 20
#: nvmlNvlinkVersion_t, nvmlGpuP2PStatus_t and others by number (nvml.h): bindings have got single names wrong.
_NVLINK_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
_PEER_STATUS = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled",
    5: "not supported",
}
#: nvmlGpuTopologyLevel_t in the words of nvidia-smi; 0 is two GPUs of one board, behind its switch.
_PCI_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_READ, _SM_CLOCK = 0, 1
_PORTS = {
    "pcie_generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "pcie_generation_max": "nvmlDeviceGetMaxPcieLinkGeneration",
    "pcie_width": "nvmlDeviceGetCurrPcieLinkWidth",
    "pcie_width_max": "nvmlDeviceGetMaxPcieLinkWidth",
}

Links = dict[tuple[int, int], str]


def gpu_ports(addresses: Sequence[str]) -> list[dict[str, Any]]:
    """The name, the highest clock and the links of each GPU; all None where NVML does not tell.

    Args:
        addresses: the GPUs' PCI addresses, ``0000:17:00.0``.

    Returns:
        ``name``; ``sm_clock_max_MHz``; ``pcie_generation`` and ``pcie_width`` (lanes), which an idle GPU may lower, and
        what both can be at most; ``nvlink_version`` of its first active link, as text.
    """
    nvml = Nvml.start() if addresses else None
    if nvml is None:
        return [dict.fromkeys(("name", "sm_clock_max_MHz", *_PORTS, "nvlink_version"), None) for _ in addresses]
    handles = [nvml.device(address) for address in addresses]
    return [
        {
            "name": nvml.ask("nvmlDeviceGetName", handle),
            "sm_clock_max_MHz": nvml.ask("nvmlDeviceGetMaxClockInfo", handle, _SM_CLOCK),
            **{name: nvml.ask(function, handle) for name, function in _PORTS.items()},
            "nvlink_version": _nvlink_version(nvml, handle),
        }
        for handle in handles
    ]


def peer_access(addresses: Sequence[str]) -> list[list[str]]:
    """Whether each GPU (line) can read the memory of each other one: ok, or why not, ``X`` for itself.

    Empty where NVML does not tell.
    """
    nvml = Nvml.start() if addresses else None
    if nvml is None:
        return []
    gpus = list(enumerate(nvml.device(address) for address in addresses))
    return [
        [
            "X" if place == at else _PEER_STATUS.get(nvml.ask("nvmlDeviceGetP2PStatus", one, other, _READ), "unknown")
            for at, other in gpus
        ]
        for place, one in gpus
    ]


def pci_links(addresses: Sequence[str]) -> Links:
    """The PCI path of each pair of GPUs in nvidia-smi's words, both ways round, of those that NVML tells."""
    nvml = Nvml.start()
    if nvml is None:
        return {}
    handles = [nvml.device(address) for address in addresses]
    levels = {
        (one, other): nvml.ask("nvmlDeviceGetTopologyCommonAncestor", handles[one], handles[other])
        for one, other in permutations(range(len(handles)), 2)
    }
    return {pair: _PCI_LEVELS[level] for pair, level in levels.items() if level in _PCI_LEVELS}


def _nvlink_version(nvml: Nvml, handle: Any) -> str | None:  # noqa: ANN401 - a handle
    links = (link for link in range(MOST_LINKS) if nvml.ask("nvmlDeviceGetNvLinkState", handle, link))
    first = next(links, None)
    return None if first is None else _NVLINK_VERSIONS.get(nvml.ask("nvmlDeviceGetNvLinkVersion", handle, first))


def nvlinks(addresses: Sequence[str]) -> Links:
    """``NV4`` for a pair of GPUs with four links between them, both ways round; empty where there are none.

    Args:
        addresses: the GPUs' PCI addresses, ``0000:17:00.0``; pairs are of their places here.
    """
    if len(addresses) < 2:  # noqa: PLR2004 - a pair
        return {}
    nvml = Nvml.start()
    if nvml is None:
        return _told_by_program(len(addresses))
    partners = [_partners(nvml, address) for address in addresses]
    places = {_plain(address): place for place, address in enumerate(addresses)}
    return {
        pair: f"NV{count}"
        for one, other in combinations(range(len(addresses)), 2)
        if (count := _between(partners, places, one, other))
        for pair in ((one, other), (other, one))
    }


def _partners(nvml: Nvml, address: str) -> Counter[str]:
    """How many active links of a GPU lead to which PCI address."""
    found: Counter[str] = Counter()
    handle = nvml.device(address)
    for link in range(MOST_LINKS):
        if nvml.ask("nvmlDeviceGetNvLinkState", handle, link):
            bus_id = getattr(nvml.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link), "busId", None)
            if bus_id:
                found[_plain(bus_id.decode() if isinstance(bus_id, bytes) else bus_id)] += 1
    return found


def _between(partners: Sequence[Counter[str]], places: Mapping[str, int], one: int, other: int) -> int:
    """Links from one GPU to another: direct ones, else those of both to switches, which connect all with all."""
    direct = sum(count for address, count in partners[one].items() if places.get(address) == other)
    to_switches = [sum(n for address, n in partners[gpu].items() if address not in places) for gpu in (one, other)]
    return direct or min(to_switches)


def _plain(address: str) -> str:
    """An address as it is compared: NVML writes the domain in eight digits, Linux in four, either in either case."""
    domain, _, rest = address.lower().partition(":")
    return f"{int(domain, 16):x}:{rest}"


def _told_by_program(gpus: int) -> Links:
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    try:
        done = subprocess.run([program, "topo", "-m"], capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    devices, matrix = parse_matrix(done.stdout)
    names = {f"GPU{index}": index for index in range(gpus)}
    return {
        (names[one], names[other]): link
        for one, line in zip(devices, matrix, strict=True)
        for other, link in zip(devices, line, strict=True)
        if one in names and other in names and link.startswith("NV")
    }


def parse_matrix(text: str) -> tuple[list[str], list[list[str]]]:
    """The devices and the links between them from what ``nvidia-smi topo -m`` prints; both empty where it is not that.

    NICs come by the names in its legend.
    """
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]
    columns = next((line.split("\t") for line in lines if re.match(r"\s*GPU0\b", line)), [])
    names = [name.strip() for name in columns if re.fullmatch(r"\s*(GPU|NIC|mlx|ib|roce|bnxt|rocep|efa)\S*\s*", name)]
    rows = {cells[0].strip(): cells[1:] for cells in (line.split("\t") for line in lines) if len(cells) > len(names)}
    if not names or not set(names) <= rows.keys():
        return [], []
    legend = dict(re.findall(r"^\s*(NIC\d+):\s*(\S+)", "\n".join(lines), re.MULTILINE))
    matrix = [[cell.strip() for cell in rows[name][: len(names)]] for name in names]
    return [legend.get(name, name) for name in names], matrix
