"""The link rate below which each hook is faster than dense gradients, over numbers of ranks, as
predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from commbench.analysis.prediction.breakeven import FASTEST_BPS, SLOWEST_BPS
from commbench.analysis.prediction.forecast import BreakEvenRateForecast
from commbench.report.figures.drawing import (
    Drawing,
    Estimate,
    legend,
    legend_height_in,
    log_axis,
    looks,
    plot_series,
    slug,
)
from commbench.report.figures.words import sentences
from commbench.report.prediction import rate_text
from commbench.results.tables import rows_by
from commbench.units import format_link_rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARGIN = 3.0
_HEIGHT_IN = 3.0


def rates_figure(rows: Sequence[BreakEvenRateForecast]) -> Drawing:
    """Return the drawing of the break-even rates of one workload.

    ``rows`` has at least one with status ``ok``.
    """
    predicted = [row for row in rows if row.status == "ok"]
    by_hook = rows_by(predicted, lambda row: row.hook)
    first = predicted[0]
    never_faster = [
        hook for hook, members in by_hook.items() if not any(row.rate_bps for row in members)
    ]
    always_faster = [
        hook
        for hook, members in by_hook.items()
        if any(row.rate_bps == FASTEST_BPS for row in members)
    ]
    return Drawing(
        paint=lambda figure: _paint(figure, by_hook),
        name=slug("break-even-rates", first.workload),
        section="training",
        title=f"Link rate below which a hook is faster than dense gradients: {first.workload}",
        caption=sentences(
            "Predicted, not measured. Below its line a hook's step is shorter than the one with"
            " dense FP32 gradients, each at its best bucket size; the band is the 95 % interval.",
            f"From {first.trained_on}; the local cost of a hook is as measured there.",
            f"{', '.join(never_faster)}: faster at no rate." if never_faster else "",
            (
                f"{', '.join(always_faster)}: faster at any rate where the line ends at the top."
                if always_faster
                else ""
            ),
        ),
        alt="Predicted break-even link rates over ranks: "
        + "; ".join(_alt(*each) for each in by_hook.items()),
        height_in=_HEIGHT_IN + legend_height_in(list(by_hook)),
    )


def _alt(hook: str, rows: Sequence[BreakEvenRateForecast]) -> str:
    points = [f"{row.world_size} ranks {rate_text(row.rate_bps)}" for row in (rows[0], rows[-1])]
    return f"{hook} {', '.join(points)}"


def _paint(figure: Figure, by_hook: dict[str, list[BreakEvenRateForecast]]) -> None:
    from matplotlib.ticker import FuncFormatter

    axes = figure.subplots()
    ends = [
        rate
        for rows in by_hook.values()
        for row in rows
        if (rate := row.rate_bps) and rate < FASTEST_BPS
    ]
    low, high = min(ends, default=SLOWEST_BPS) / _MARGIN, max(ends, default=FASTEST_BPS) * _MARGIN
    style = looks(by_hook)
    for hook, rows in by_hook.items():
        points = {
            float(row.world_size): Estimate(
                value=min(row.rate_bps, high),
                low=max(row.rate_bps_low or low, low),
                high=min(row.rate_bps_high or 0, high),
            )
            for row in rows
            if row.rate_bps
        }
        plot_series(axes, points, hook, style[hook])
    axes.set_xlabel("ranks")
    axes.set_ylabel("link rate of a host, bit/s")
    log_axis(axes.xaxis)
    axes.set_ylim(low, high)
    log_axis(axes.yaxis)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_link_rate(value)))
    legend(figure, axes)
