"""Ranks that share a GPU: the rows and records affected, which do not measure an interconnect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from commbench.collectives.backends import GPU_BACKENDS
from commbench.engine.records import Record
from commbench.results.info import RunInfo


class Placed(Protocol):
    """A row of any table that says where its ranks were."""

    @property
    def ranks_per_gpu(self) -> int | None:
        """The most ranks on one GPU; None where none was used."""


def ranks_per_gpu(backend: str, info: RunInfo) -> int | None:
    """Return the most ranks on one GPU from ``run.json``; None for a backend with buffers in host memory."""
    return info.get("ranks_per_gpu") if backend in GPU_BACKENDS else None


def shares_gpu(backend: str, info: RunInfo) -> bool:
    """Return whether ranks of a backend shared a GPU."""
    return (ranks_per_gpu(backend, info) or 0) > 1


def measures_interconnect(row: Placed) -> bool:
    """Return whether a row measures an interconnect: ranks that share a GPU wait for time slices and use TCP."""
    return (row.ranks_per_gpu or 0) <= 1


def of_interconnect(records: Iterable[Record], info: RunInfo) -> list[Record]:
    """Return the records for whose rows `measures_interconnect` is true."""
    return [record for record in records if not shares_gpu(record.case.backend, info)]
