"""Figures of runs, each with a computed caption: an SVG that follows the page's theme, and a
PNG.
"""

from collections.abc import Callable, Sequence

from commbench.report.figures.buckets import bucket_figures
from commbench.report.figures.drawing import Drawing
from commbench.report.figures.energy import energy_figures
from commbench.report.figures.launches import launch_figures
from commbench.report.figures.learning import learning_figures
from commbench.report.figures.live import live_figures
from commbench.report.figures.matrix import matrix_figures
from commbench.report.figures.sizes import size_figures
from commbench.report.figures.soak import soak_figures
from commbench.report.figures.timeline import timeline_figures
from commbench.report.figures.traffic import traffic_figures
from commbench.results import Run

__all__ = ["Drawing", "all_figures"]

_KINDS: tuple[Callable[[Sequence[Run]], list[Drawing]], ...] = (
    *(bucket_figures, live_figures, timeline_figures, traffic_figures, learning_figures),
    *(soak_figures, size_figures, launch_figures, matrix_figures, energy_figures),
)


def all_figures(runs: Sequence[Run]) -> list[Drawing]:
    """Return every figure for which the runs have data, in page order.

    Several runs are overlaid.
    """
    return [drawing for figures in _KINDS for drawing in figures(runs)]
