"""How a library carries a collective, as a person asks for it and as a row says what ran: ``ring/ll128/8ch``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from commbench.errors import InputError

#: NCCL's words, in lower case and without underscores, as its variables NCCL_ALGO and NCCL_PROTO take them.
ALGORITHMS = ("ring", "tree", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
#: The library's own choice.
AUTO = "auto"
#: What NCCL says beside: GPUs' copy engines, and kernels on symmetric memory, which are named after this.
COPY, SYMMETRIC = "copy", "symmetric/"

_CHANNELS = re.compile(r"(?P<number>[1-9]\d*)ch")
#: Ways in which NVSwitches reduce and multicast, which NCCL calls NVLS: two algorithms, and kernels of such names.
_BY_SWITCH = re.compile(rf"nvls|{SYMMETRIC}\w*mc")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What is asked for; empty or None: as the library likes."""

    algorithm: str = ""
    protocol: str = ""
    channels: int | None = None
    """How many channels (thread blocks) carry it."""

    @classmethod
    def parse(cls, text: str) -> Choice:
        """Read ``auto``, or an algorithm, a protocol and a number of channels, any of them, in this order.

        Raises:
            InputError: it is none of these.
        """
        found = cls()
        if text == AUTO:
            return found
        rest = text.lower().split("/")
        algorithm = rest.pop(0) if rest and rest[0] in ALGORITHMS else ""
        protocol = rest.pop(0) if rest and rest[0] in PROTOCOLS else ""
        channels = _CHANNELS.fullmatch(rest[0]) if rest else None
        if len(rest) > bool(channels):
            raise InputError(
                f"Algorithm {text!r} is not understood; write {AUTO}, or any of {', '.join(ALGORITHMS)}, then "
                f"{', '.join(PROTOCOLS)}, then a number of channels, with / between, e.g. tree, ring/ll128 or ring/8ch."
            )
        return cls(algorithm=algorithm, protocol=protocol, channels=int(channels["number"]) if channels else None)

    def __str__(self) -> str:
        """As `parse` reads it."""
        channels = f"{self.channels}ch" if self.channels else ""
        return "/".join(filter(None, (self.algorithm, self.protocol, channels))) or AUTO

    @property
    def variables(self) -> dict[str, str]:
        """NCCL's variables that ask for the algorithm and the protocol; a communicator reads them when it is made."""
        return {name: value for name, value in (("NCCL_ALGO", self.algorithm), ("NCCL_PROTO", self.protocol)) if value}


def transport_by(algorithm: str, transport: str) -> str:
    """What carried a row whose ranks are connected by ``transport``: NVLS, too, where the algorithm uses it."""
    if not _BY_SWITCH.match(algorithm):
        return transport
    return "+".join(sorted({"NVLS", *filter(None, transport.split("+"))}))
