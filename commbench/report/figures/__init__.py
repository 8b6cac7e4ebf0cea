"""The figures of runs, each with a computed caption, as an SVG that follows the page's theme and as a PNG."""

from collections.abc import Callable, Sequence

from commbench.report.figures.drawing import Drawing
from commbench.store import Run

_KINDS: tuple[Callable[[Sequence[Run]], list[Drawing]], ...] = ()


def all_figures(runs: Sequence[Run]) -> list[Drawing]:
    """Every figure that the runs' data allow, in the order of a page; several runs overlay."""
    return [drawing for figures in _KINDS for drawing in figures(runs)]
