"""NCCL's algorithms as options request them and rows name them, such as ``ring/ll128/8ch``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from commbench.errors import InputError

#: Values of NCCL_ALGO and NCCL_PROTO, in lower case and without underscores.
ALGORITHMS = ("ring", "tree", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
#: The library's own choice.
AUTO = "auto"
#: Further algorithms in NCCL's log: GPUs' copy engines, and the prefix of kernels on symmetric
#: memory.
COPY, SYMMETRIC = "copy", "symmetric/"

_CHOICE = re.compile(
    rf"(?=.)(?:(?P<algorithm>{'|'.join(ALGORITHMS)})(?:/(?!$)|$))?"
    rf"(?:(?P<protocol>{'|'.join(PROTOCOLS)})(?:/(?!$)|$))?(?:(?P<channels>[1-9]\d*)ch)?"
)
#: Algorithms and kernels that reduce and multicast in NVSwitches, which NCCL calls NVLS.
_BY_SWITCH = re.compile(rf"nvls|{SYMMETRIC}\w*mc")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A requested algorithm; an empty field or 0 leaves the choice to the library."""

    algorithm: str = ""
    protocol: str = ""
    channels: int = 0
    """Number of channels (thread blocks)."""

    @classmethod
    def parse(cls, text: str) -> Choice:
        """Read ``auto``, or any of algorithm, protocol and number of channels, in this order.

        Raises:
            InputError: the text has another form.
        """
        if text == AUTO:
            return cls()
        match = _CHOICE.fullmatch(text.lower())
        if match is None:
            raise InputError(
                f"Algorithm {text!r} is not understood; write {AUTO}, or any of"
                f" {', '.join(ALGORITHMS)}, then {', '.join(PROTOCOLS)}, then a number of channels,"
                " with / between, e.g. tree, ring/ll128 or ring/8ch."
            )
        algorithm, protocol, channels = match.groups(default="")
        return cls(algorithm=algorithm, protocol=protocol, channels=int(channels or 0))

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        channels = f"{self.channels}ch" if self.channels else ""
        return "/".join(filter(None, (self.algorithm, self.protocol, channels))) or AUTO

    @property
    def variables(self) -> dict[str, str]:
        """NCCL's environment variables for this choice.

        NCCL reads them when it creates a communicator.
        """
        variables = {"NCCL_ALGO": self.algorithm, "NCCL_PROTO": self.protocol}
        return {name: value for name, value in variables.items() if value}


def transport_by(algorithm: str, transport: str) -> str:
    """Return the transport of a row: ``transport``, and NVLS if the algorithm uses it."""
    if not _BY_SWITCH.match(algorithm):
        return transport
    return "+".join(sorted({"NVLS", *filter(None, transport.split("+"))}))
