"""Figures for tests: painted without being drawn, so that their lines and texts can be looked at,
and runs to paint.
"""

import re
from collections.abc import Callable, Sequence
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from builders import make_info
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from training_builders import make_training_info

from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.records import Record
from commbench.results import Run
from commbench.results.recommendation import Recommendation


def painted(paint: Callable[..., None], *arguments: Any) -> Figure:
    """Return an empty figure into which ``paint`` has put its axes."""
    figure = Figure()
    paint(figure, *arguments)
    return figure


def points_of(axes: Axes, label: str) -> list[tuple[float, float]]:
    """Return the points of the line with this name."""
    line = next(line for line in axes.get_lines() if line.get_label() == label)
    return [(float(x), float(y)) for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]


def marked(axes: Axes, gid: str) -> list[tuple[float, float]]:
    """Return the points of everything marked as this."""
    lines = [line for line in axes.get_lines() if line.get_gid() == gid]
    return [
        (float(x), float(y))
        for line in lines
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]


def texts_of(svg: str) -> list[str]:
    """Return the texts of an SVG, in their order; it has to be sound XML."""
    ET.fromstring(svg)  # noqa: S314 - our own output, to see that it parses
    return [unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]


def run_of(records: Sequence[Record], name: str = "mine", **info: Any) -> Run:
    """Return a run of collectives in the directory ``name``."""
    return Run(
        path=Path("/runs") / name, info=make_info(run_id=name, **info), records=tuple(records)
    )


def training_run_of(
    records: Sequence[TrainingRecord],
    name: str = "mine",
    *,
    recommendation: Recommendation | None = None,
    collectives: Sequence[Record] = (),
    **info: Any,
) -> Run:
    """Return a run of training in the directory ``name``."""
    return Run(
        path=Path("/runs") / name,
        info=make_training_info(run_id=name, **info),
        records=tuple(collectives),
        training_records=tuple(records),
        recommendation=recommendation,
    )


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
