"""The network as measured: a curve for each operation, backend, data type, pattern and number of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from commbench.prediction.curves import Curve
from commbench.records import Record


class Network(Protocol):
    """What the prediction of a training step asks of a network: one backend, one number of ranks."""

    @property
    def world_size(self) -> int:
        """Ranks that take part."""

    @property
    def servers(self) -> int:
        """How many of a process group's collectives are under way at the same time: 2 for Gloo, 1 for NCCL."""

    def time_us(self, operation: str, dtype: str, message_bytes: float) -> float:
        """How long one operation alone takes, in microseconds; ``message_bytes`` as in ``collectives.csv``.

        Raises:
            InputError: nothing is known about that operation.
        """


@dataclass(frozen=True, kw_only=True, order=True)
class CurveKey:
    """What a curve holds for."""

    operation: str
    backend: str
    dtype: str
    pattern: str
    world_size: int


@dataclass(frozen=True, kw_only=True)
class NetworkModel:
    """All curves of a run."""

    curves: Mapping[CurveKey, Curve]

    @classmethod
    def fit(cls, records: Iterable[Record]) -> NetworkModel:
        """Fit every curve that has enough sizes."""
        raise NotImplementedError

    def at(self, backend: str, world_size: int, pattern: str = "flat") -> Network:
        """The network of one backend and number of ranks, as a training step sees it.

        Raises:
            InputError: nothing was measured there.
        """
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, numbers and texts."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NetworkModel:
        """Return what `to_json` wrote."""
        raise NotImplementedError
