"""The fitted model of the network as a table, and in one line."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from commbench.prediction.curves import Curve, Segment
from commbench.prediction.network import LEAST_SIZES, CurveKey, NetworkModel
from commbench.stats import Interval
from commbench.store import MODEL
from commbench.units import counted, format_size, format_time, three_digits, time_unit

_LEFT = ("operation", "backend", "dtype")
_RIGHT = ("ranks", "from", "to", "start-up", "95 %", "GB/s", "95 %", "worst\nresidual", "held-out\nerror")


def conclude_model(model: NetworkModel) -> str:
    """One line on how far the model can be trusted; nothing without curves."""
    if not model.curves:
        return ""
    held_out, worst = _percent(model.held_out_error), _percent(model.worst_residual)
    return (
        f"Fitted: {counted(len(model.curves), 'curve')}; median error at sizes left out {held_out}, lines off by "
        f"at most {worst} ({MODEL}; report --model)."
    )


def render_model(model: NetworkModel) -> RenderableType:
    """A line per segment of every curve: start-up time alpha, rate 1 / beta, their intervals, and its errors."""
    if not model.curves:
        return Text(
            f"No model: fitting one needs {LEAST_SIZES} message sizes of an operation, by ranks that do not share "
            "a GPU; measure more (--sizes)."
        )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=0)
    for heading in _LEFT:
        table.add_column(heading, no_wrap=True)
    for heading in _RIGHT:
        table.add_column(heading, justify="right", no_wrap=True)
    for key, curve in model.curves.items():
        for cells in _lines(key, curve):
            table.add_row(*cells)
    title = "Fitted: time = start-up + size / rate from one size to another"
    notes = (f"{key}: measured {variant}." for key, variant in model.variants.items())
    return Group(Text(title, style="bold"), table, *(Text(note) for note in notes))


def _lines(key: CurveKey, curve: Curve) -> Iterable[tuple[str, ...]]:
    pattern = "" if key.pattern == "flat" else f" {key.pattern}"
    names = (f"{key.operation}{pattern}", key.backend, key.dtype, str(key.world_size))
    errors = (_percent(max(map(abs, curve.residuals))), _percent(curve.held_out_error))
    for number, (segment, intervals) in enumerate(zip(curve.segments, curve.parameter_intervals, strict=True)):
        first = number == 0
        yield (*(names if first else [""] * 4), *_numbers(segment, *intervals), *(errors if first else [""] * 2))


def _numbers(segment: Segment, alpha: Interval | None, beta: Interval | None) -> tuple[str, ...]:
    """A segment's ends, start-up time and rate; intervals are in the unit of what they are of."""
    start_us = 1e6 * time_unit(segment.alpha_us / 1e6)[0]
    return (
        format_size(segment.from_bytes),
        format_size(segment.to_bytes),
        format_time(segment.alpha_us / 1e6),
        f"[{_number(alpha.low / start_us)}, {_number(alpha.high / start_us)}]" if alpha else "unknown",
        _rate(segment.beta_us_per_byte),
        f"[{_rate(beta.high)}, {_rate(beta.low)}]" if beta else "unknown",
    )


def _rate(beta_us_per_byte: float) -> str:
    return _number(1e-3 / beta_us_per_byte) if beta_us_per_byte else "-"


def _number(value: float) -> str:
    return three_digits(value) if value else "0"


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f} %"
