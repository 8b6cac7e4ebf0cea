"""The conventions of nccl-tests, OSU and IMB, for ``commbench run --as``: cases, warm-up and
repetitions.

Sources: ``src/common.cu`` of nccl-tests 2.19.6 and the first example of its README;
``c/util/osu_util.h``, ``c/util/osu_util_mpi.c`` and ``c/mpi`` of OSU 7.4; ``src_c/IMB_settings.h``,
``src_c/IMB_mem_manager.c`` and ``src_c/IMB_warm_up.c`` of IMB 2021.11.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from commbench.collectives.cases import Axes, Case, Sweep
from commbench.collectives.operations import OPERATIONS, Operation, find_operation
from commbench.collectives.suites import Suite
from commbench.engine.records import FixedSettings
from commbench.errors import InputError
from commbench.units import parse_sizes

#: The operation that is measured if none is named.
USUAL_OPERATION = "all_reduce"
#: Above this size OSU makes fewer repetitions.
_OSU_LARGE = 8192
#: The most repetitions of IMB, and the most bytes that they move together.
_IMB_REPETITIONS, _IMB_BYTES = 1000, 40 * 2**20


@dataclass(frozen=True, kw_only=True)
class Convention:
    """How another tool measures."""

    tool: str
    """The tool's name in messages."""
    backend: str
    """The backend that it measures, by default."""
    sizes: Callable[[Operation], str]
    """Its sizes of the operation, as it counts them."""
    counts_shares: bool
    """Whether a size is one rank's share for the operations where OSU and IMB print that."""
    in_place: str
    """As ``--in-place`` takes it."""
    has: Callable[[Operation], bool]
    """Whether the tool has a test of the operation."""
    dtype: Callable[[Operation], str]
    """The element type of the operation, by default."""
    sync: Callable[[Operation], str]
    """How ranks start an operation together."""
    settings: Callable[[Operation, int], FixedSettings]
    """Warm-up and repetitions of an operation at a size in bytes, as the tool counts it."""

    def suite(self, axes: Axes, ranks: int) -> Suite:
        """Return what the tool measures on ``ranks`` ranks.

        Args:
            axes: values of `Sweep` that replace the tool's; ``sizes`` are counted as the tool
                counts them.
            ranks: number of ranks, by which a share of a message becomes the message.

        Raises:
            InputError: the tool has no such test, or an axis does not have the value.
        """
        operations = axes.get("operations", (USUAL_OPERATION,))
        sweeps = [self._sweep(find_operation(name), axes, ranks) for name in operations]
        return Suite(name=f"as-{self.tool.lower()}", sweeps=sweeps)

    def _sweep(self, operation: Operation, axes: Axes, ranks: int) -> Sweep:
        if not self.has(operation):
            tests = ", ".join(entry.name for entry in OPERATIONS.values() if self.has(entry))
            raise InputError(f"{self.tool} has no test of {operation.name}; choose from {tests}.")
        sizes = axes.get("sizes") or parse_sizes(self.sizes(operation))
        by_tool = {
            "backends": (self.backend,),
            "dtypes": (self.dtype(operation),),
            "in_place": self.in_place,
            "sync": self.sync(operation),
        }
        counted = [
            operation.message_bytes(size, ranks) if self.counts_shares else size for size in sizes
        ]
        return Sweep(
            **{**by_tool, **axes, "operations": (operation.name,), "sizes": tuple(counted)}
        )

    def fixed(self, cases: Iterable[Case], ranks: int) -> dict[str, FixedSettings]:
        """Return by case key the warm-up and the repetitions that the tool makes."""
        settings = {}
        for case in cases:
            operation = OPERATIONS[case.operation]
            size = (
                operation.osu_bytes(case.message_bytes, ranks)
                if self.counts_shares
                else case.message_bytes
            )
            # Other tools know no states of the machine: a size has one line.
            settings[case.key] = dataclasses.replace(
                self.settings(operation, size), visits=1, is_probed=False
            )
        return settings


def _osu_settings(operation: Operation, size: int) -> FixedSettings:
    is_large = size > _OSU_LARGE
    if operation.windowed:
        warmups, repetitions = (2, 20) if is_large else (10, 100)
    elif operation.kind == "collective":
        warmups, repetitions = (10, 100) if is_large else (100, 1000)
    else:
        warmups, repetitions = (10, 1000) if is_large else (100, 10_000)
    return FixedSettings(warmups=warmups, batch=1, repetitions=repetitions)


def _imb_settings(operation: Operation, size: int) -> FixedSettings:
    repetitions = max(1, min(_IMB_REPETITIONS, _IMB_BYTES // max(1, size)))
    # IMB first runs as many repetitions to see how long they take, then warms up.
    warmups = repetitions + max(10, repetitions // 10)
    if operation.kind == "collective":
        return FixedSettings(warmups=warmups, batch=1, repetitions=repetitions)
    return FixedSettings(
        warmups=warmups, batch=repetitions, repetitions=1
    )  # IMB reads the clock around its loop


def _barrier_before_collectives(operation: Operation) -> str:
    return "barrier" if operation.kind == "collective" else "none"


CONVENTIONS = {
    "nccl-tests": Convention(
        tool="nccl-tests",
        backend="nccl",
        sizes=lambda _: "8:128M",
        counts_shares=False,
        in_place="both",
        has=lambda operation: (
            operation.moves_data and operation.kind != "pair" and not operation.overlaps
        ),
        dtype=lambda _: "float32",
        sync=lambda _: "none",
        settings=lambda _operation, _size: FixedSettings(warmups=1, batch=20, repetitions=1),
    ),
    "osu": Convention(
        tool="OSU",
        backend="mpi",
        sizes=lambda operation: "1:1M" if operation.kind == "collective" else "1:4M",
        counts_shares=True,
        in_place="out",
        has=lambda operation: bool(operation.names.osu),
        dtype=lambda _: "int8",
        sync=_barrier_before_collectives,
        settings=_osu_settings,
    ),
    "imb": Convention(
        tool="IMB",
        backend="mpi",
        sizes=lambda operation: "4:4M" if operation.reduces else "1:4M",
        counts_shares=True,
        in_place="out",
        has=lambda operation: bool(operation.names.imb),
        dtype=lambda operation: "float32" if operation.reduces else "int8",
        sync=_barrier_before_collectives,
        settings=_imb_settings,
    ),
}
