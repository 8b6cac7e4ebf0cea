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
from operator import attrgetter

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
    has: Callable[[Operation], object]
    """Whether the tool has a test of the operation."""
    settings: Callable[[Operation, int], FixedSettings]
    """Warm-up and repetitions of an operation at a size in bytes, as the tool counts it."""
    backend: str = "mpi"
    """The backend that it measures, by default."""
    sizes: str
    """Its sizes of collectives, as it counts them."""
    reduced_sizes: str
    """Its sizes of reductions."""
    pair_sizes: str = "1:4M"
    """Its sizes of all else."""
    counts_shares: bool = True
    """Whether a size is one rank's share for the operations where OSU and IMB print that."""
    in_place: str = "out"
    """As ``--in-place`` takes it."""
    dtype: str = "int8"
    """The element type, by default."""
    reduced_dtype: str
    """The element type of reductions, by default."""
    sync: str = "barrier"
    """How ranks start a collective together."""

    def suite(self, axes: Axes, ranks: int) -> Suite:
        """Return what the tool measures on ``ranks`` ranks.

        Args:
            axes: values of `Sweep` that replace the tool's; ``sizes`` are counted as the tool
                counts them.
            ranks: number of ranks, by which a share of a message becomes the message.

        Raises:
            InputError: the tool has no such test, or an axis does not have the value.
        """
        sweeps = []
        for name in axes.get("operations", (USUAL_OPERATION,)):
            operation = find_operation(name)
            if not self.has(operation):
                tests = ", ".join(entry.name for entry in OPERATIONS.values() if self.has(entry))
                raise InputError(f"{self.tool} has no test of {name}; choose from {tests}.")
            dtype, text, sync = self.dtype, self.sizes, self.sync
            if operation.reduces:
                dtype, text = self.reduced_dtype, self.reduced_sizes
            elif operation.kind != "collective":
                text, sync = self.pair_sizes, "none"
            sizes = axes.get("sizes") or parse_sizes(text)
            if self.counts_shares:
                sizes = tuple(operation.message_bytes(size, ranks) for size in sizes)
            by_tool = {
                "backends": (self.backend,),
                "dtypes": (dtype,),
                "in_place": self.in_place,
                "sync": sync,
            }
            sweeps.append(Sweep(**{**by_tool, **axes, "operations": (name,), "sizes": sizes}))
        return Suite(name=f"as-{self.tool.lower()}", sweeps=sweeps)

    def fixed(self, cases: Iterable[Case], ranks: int) -> dict[str, FixedSettings]:
        """Return by case key the warm-up and the repetitions that the tool makes."""
        settings = {}
        for case in cases:
            operation = OPERATIONS[case.operation]
            size = case.message_bytes
            if self.counts_shares:
                size = operation.osu_bytes(size, ranks)
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


def _nccl_settings(_operation: Operation, _size: int) -> FixedSettings:
    return FixedSettings(warmups=1, batch=20, repetitions=1)


def _has_nccl_test(operation: Operation) -> bool:
    return operation.moves_data and operation.kind != "pair" and not operation.overlaps


CONVENTIONS = {
    "nccl-tests": Convention(
        tool="nccl-tests",
        has=_has_nccl_test,
        settings=_nccl_settings,
        backend="nccl",
        sizes="8:128M",
        reduced_sizes="8:128M",
        pair_sizes="8:128M",
        counts_shares=False,
        in_place="both",
        dtype="float32",
        reduced_dtype="float32",
        sync="none",
    ),
    "osu": Convention(
        tool="OSU",
        has=attrgetter("osu_title"),
        settings=_osu_settings,
        sizes="1:1M",
        reduced_sizes="1:1M",
        reduced_dtype="int8",
    ),
    "imb": Convention(
        tool="IMB",
        has=attrgetter("imb_name"),
        settings=_imb_settings,
        sizes="1:4M",
        reduced_sizes="4:4M",
        reduced_dtype="float32",
    ),
}
