"""Metrics of a monitoring system and their samples, which every source of metrics makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from commbench.interop.exports.common import Labels, texts


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A gauge of a monitoring system."""

    name: str
    """Ends with the base unit."""
    help: str
    labels: tuple[str, ...] = ()
    """Names of the labels, in output order; each sample has all of them."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One value of a metric."""

    name: str
    """The name of the `Metric`."""
    labels: Labels
    value: float


def sample(name: str, labels: Mapping[str, object] | None = None, value: float = 1.0) -> Sample:
    """Return a sample with its labels as text.

    The value of a metric that only carries labels is 1.
    """
    return Sample(name=name, labels=texts(labels or {}), value=value)
