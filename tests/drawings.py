"""Panels for tests, drawn so that their lines and texts can be looked at, and runs to draw."""

import re
from html import unescape
from typing import Any
from xml.etree import ElementTree as ET

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from commbench.report.figures.charts import Chart, Panel, draw
from commbench.results.recommendation import Recommendation


def axes_of(*panels: Panel) -> list[Axes]:
    """Return the axes into which the panels of a chart are drawn."""
    chart = Chart(name="some", section="energy", title="Some", reading="Read it.", panels=panels)
    figure = Figure()
    draw(chart, figure)
    return list(figure.axes)


def values_of(panel: Panel) -> dict[str, dict[float, float]]:
    """Return the values by x of each series that has some, by its name."""
    values = {}
    for series in panel.series:
        for x, point in series.points.items():
            values.setdefault(series.name, {})[x] = point.value
    return values


def marked(axes: Axes, gid: str) -> list[tuple[float, float]]:
    """Return the points of every line that is marked as this."""
    points = []
    for line in axes.get_lines():
        if line.get_gid() == gid:
            points += list(zip(line.get_xdata(), line.get_ydata(), strict=True))
    return points


def texts_of(svg: str) -> list[str]:
    """Return the texts of an SVG, in their order; it has to be sound XML."""
    ET.fromstring(svg)  # noqa: S314 - our own output, to see that it parses
    return [unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]


def recommendation_of(
    best: dict[str, Any], *, verdict: str = "change", **changes: Any
) -> Recommendation:
    """Return a recommendation with ``best`` twice as fast as the default."""
    plain = {
        "bucket_cap_mb": "default",
        "hook": "none",
        "density": None,
        "precision": "fp32",
        "accumulation": 1,
    }
    data = {
        "schema": 1,
        "workload": "mlp",
        "world_size": 2,
        "backend": "gloo",
        "batch_per_rank": 32,
        "baseline": {**plain, "step_ms": 20.0},
        "best": {**plain, **best, "step_ms": 10.0},
        "best_uncompressed": {**plain, "step_ms": 20.0},
        "speedup": 2.0,
        "speedup_ci": [1.9, 2.1],
        "verdict": verdict,
        "reason": "It was measured.",
        "safe": {**plain, "verdict": "keep", "snippet": ""},
        "snippet": "",
        "measured_steps": 100,
        "launches": 6,
        **changes,
    }
    return Recommendation.from_json(data)
