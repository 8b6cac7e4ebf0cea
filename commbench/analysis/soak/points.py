"""The points of a soak in the order of time."""

from __future__ import annotations

from collections.abc import Iterable

from commbench.engine.records import Point, Record


def points_of(records: Iterable[Record]) -> list[tuple[Record, Point]]:
    """Return each point with its record, in the order of time."""
    points = [(record, point) for record in records for point in record.points]
    return sorted(points, key=lambda pair: pair[1].at_s)
