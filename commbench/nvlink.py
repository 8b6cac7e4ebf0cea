"""NVLink between the GPUs of a host: asked of NVIDIA's management library, else read from ``nvidia-smi topo -m``."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

#: A GPU has at most so many (NVML_NVLINK_MAX_LINKS).
MOST_LINKS = 18
_SECONDS = 20

Links = dict[tuple[int, int], str]


def nvlinks(addresses: Sequence[str]) -> Links:
    """``NV4`` for a pair of GPUs with four links between them, both ways round; empty where there are none.

    Args:
        addresses: the GPUs' PCI addresses, ``0000:17:00.0``; pairs are of their places here.
    """
    if len(addresses) < 2:  # noqa: PLR2004 - a pair
        return {}
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 - NVML's errors have no common type before it is imported
        return _told_by_program(len(addresses))
    partners = [_partners(nvml, address) for address in addresses]
    places = {_plain(address): place for place, address in enumerate(addresses)}
    return {
        pair: f"NV{count}"
        for one, other in combinations(range(len(addresses)), 2)
        if (count := _between(partners, places, one, other))
        for pair in ((one, other), (other, one))
    }


def _partners(nvml: Any, address: str) -> Counter[str]:  # noqa: ANN401 - a module without types
    """How many active links of a GPU lead to which PCI address."""
    found: Counter[str] = Counter()
    try:
        handle = nvml.nvmlDeviceGetHandleByPciBusId(address.encode())
        for link in range(MOST_LINKS):
            if nvml.nvmlDeviceGetNvLinkState(handle, link):
                bus_id = nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId
                found[_plain(bus_id.decode() if isinstance(bus_id, bytes) else bus_id)] += 1
    except Exception:  # noqa: BLE001 - as above; a GPU without NVLink, or without so many, says so by an error
        return found
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
