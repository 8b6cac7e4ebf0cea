"""Figures of runs, each with a caption: an SVG that follows the page's theme, and a PNG."""

from collections.abc import Sequence

from commbench.report.figures.buckets import bucket_charts
from commbench.report.figures.charts import Chart
from commbench.report.figures.drawing import Drawing
from commbench.report.figures.learning import learning_charts
from commbench.report.figures.live import live_charts
from commbench.report.figures.matrix import matrix_figures
from commbench.report.figures.sizes import size_charts
from commbench.report.figures.soak import soak_charts
from commbench.report.figures.timeline import timeline_charts
from commbench.results import Run

__all__ = ["Drawing", "all_figures"]

_KINDS = (
    bucket_charts,
    live_charts,
    timeline_charts,
    learning_charts,
    soak_charts,
    size_charts,
    matrix_figures,
)


def all_figures(runs: Sequence[Run]) -> list[Drawing]:
    """Return every figure that the runs have data for, in page order; several runs are overlaid."""
    drawings = []
    for kind in _KINDS:
        for figure in kind(runs):
            drawings.append(figure.drawing if isinstance(figure, Chart) else figure)
    return drawings
