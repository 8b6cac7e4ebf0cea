"""The fitted network model as tables for the terminal and the page, and its errors in one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from commbench.analysis.prediction.curves import Curve
from commbench.analysis.prediction.fits import Segment
from commbench.analysis.prediction.network import (
    LEAST_SIZES,
    CurveKey,
    NetworkModel,
    network_model,
)
from commbench.findings import Finding
from commbench.report.columns import (
    Cell,
    Column,
    Ends,
    Table,
    TableSpec,
    ends,
    make_tables,
    number,
    printed,
    tabulate,
)
from commbench.report.formats import digits, microseconds, percent
from commbench.results import MODEL, Run
from commbench.units import format_size, three_digits, time_unit


class _Line(NamedTuple):
    """One segment of a curve of the model."""

    key: CurveKey
    curve: Curve
    place: int

    @property
    def segment(self) -> Segment:
        """The segment of this line."""
        return self.curve.segments[self.place]

    @property
    def start_us(self) -> Ends:
        """The 95 % interval of the start-up time in microseconds; None without resamples."""
        alpha, _ = self.curve.parameter_intervals[self.place]
        return (alpha.low, alpha.high) if alpha else (None, None)

    @property
    def rate(self) -> float | None:
        """The rate in GB/s; None if it is unbounded."""
        return _rate(self.segment.beta_us_per_byte)

    @property
    def rates(self) -> Ends:
        """The 95 % interval of the rate in GB/s; None without resamples.

        An unbounded end is None.
        """
        _, beta = self.curve.parameter_intervals[self.place]
        return (_rate(beta.high), _rate(beta.low)) if beta else (None, None)

    @property
    def residual(self) -> float:
        """The largest residual at the sizes of the segment."""
        segment, residuals = self.segment, zip(self.curve.sizes, self.curve.residuals, strict=True)
        return max(
            abs(residual)
            for size, residual in residuals
            if segment.from_bytes <= size <= segment.to_bytes
        )

    @property
    def held_out(self) -> float | None:
        """The held-out error of the curve; only on the line of its first segment."""
        return None if self.place else self.curve.held_out_error


def _lines(model: NetworkModel) -> list[_Line]:
    return [
        _Line(key, curve, place)
        for key, curve in model.curves.items()
        for place in range(len(curve.segments))
    ]


def _rate(beta_us_per_byte: float) -> float | None:
    return 1e-3 / beta_us_per_byte if beta_us_per_byte else None


def _error(share: float | None) -> str:
    return percent(share, 1, unknown="unknown")


# ------------------------------------------------------------------------------------- the terminal


def render_model(model: NetworkModel) -> RenderableType:
    """Return a line for each segment of every curve: start-up time alpha, rate 1 / beta, their
    intervals and errors.
    """
    if not model.curves:
        return Text(str(Finding("model_none", numbers={"sizes": LEAST_SIZES})))
    title = "Fitted: time = start-up + size / rate from one size to another"
    notes = []
    for key, variant in model.variants.items():
        notes.append(Text(str(Finding("model_variant", str(key), {"variant": variant}))))
    lines = _lines(model)
    table = tabulate(lines, _COLUMNS.on_terminal)
    of_curve = [place for place, column in enumerate(table.columns) if column.heading in _OF_CURVE]
    shown = [list(cells) for cells in table.lines]
    for line, cells in zip(lines, shown, strict=True):
        if line.place:
            for place in of_curve:
                cells[place] = Cell("")
    rich_table = printed(replace(table, lines=shown), padding=0)
    return Group(Text(title, style="bold"), rich_table, *notes)


# ---------------------------------------------------------------------------------------- the table


def model_tables(runs: Sequence[Run]) -> list[Table]:
    """Tabulate fitted start-up times and rates, a line for each segment of a curve."""
    title = "The network as fitted: time = start-up + size / rate, from one size to another"
    return make_tables(
        title,
        runs,
        lambda run: _lines(network_model(run)),
        _COLUMNS.on_page,
        rest_in=_COLUMNS.file,
    )


def _start_ends(line: _Line) -> Ends:
    """Return the interval of the start-up time; none if the fit holds it at 0."""
    low, high = line.start_us
    if low == high == 0:
        return None, None
    return low, high


def _start_interval(line: _Line) -> str:
    """Return the interval of the start-up time, in the unit of the start-up time."""
    low, high = line.start_us
    if low is None or high is None:
        return "unknown"
    unit_us = 1e6 * time_unit(line.segment.alpha_us / 1e6)[0]
    return f"[{three_digits(low / unit_us)}, {three_digits(high / unit_us)}]"


def _rate_text(rate: float | None) -> str:
    if rate is None:
        return "-"
    return three_digits(rate)


def _rate_interval(line: _Line) -> str:
    _, beta = line.curve.parameter_intervals[line.place]
    if beta is None:
        return "unknown"
    return f"[{', '.join(map(_rate_text, line.rates))}]"


def _operation(line: _Line) -> str:
    if line.key.pattern == "flat":
        return line.key.operation
    return f"{line.key.operation} {line.key.pattern}"


def _two_digits(value: float) -> str:
    return digits(value, 2)


def _on_terminal(heading: str, value_of: Callable[[_Line], str]) -> Column[_Line]:
    return Column(heading, value_of, is_number=True, shown="terminal")


#: Columns about a curve; on a terminal only the line of its first segment has them.
_OF_CURVE = frozenset(
    {"operation", "backend", "dtype", "ranks", "worst\nresidual", "held-out\nerror"}
)
_COLUMNS: TableSpec[_Line] = TableSpec(
    file=MODEL,
    columns=(
        Column("operation", "key.operation", shown="page"),
        Column("operation", _operation, shown="terminal"),
        Column("pattern", "key.pattern", should_vary=True, shown="page"),
        Column("backend", "key.backend"),
        Column("dtype", "key.dtype", should_vary=True),
        number("ranks", "key.world_size", text_of=str),
        number("from", "segment.from_bytes", text_of=format_size),
        number("to", "segment.to_bytes", text_of=format_size),
        number("start-up", "segment.alpha_us", unit="us", terminal_text=microseconds),
        ends(_start_ends, unit="us", about="of the start-up; empty where it is held at 0"),
        _on_terminal("95 %", _start_interval),
        number(
            "rate",
            "rate",
            unit="GB/s",
            about=(
                "algorithm bandwidth without the start-up; bus bandwidth is that times the"
                " operation's factor"
            ),
            shown="page",
        ),
        ends(lambda line: line.rates, unit="GB/s", about="of the rate"),
        _on_terminal("GB/s", lambda line: _rate_text(line.rate)),
        _on_terminal("95 %", _rate_interval),
        number(
            "worst residual",
            "residual",
            scale=100,
            text_of=_two_digits,
            unit="%",
            about="largest deviation from the measured times",
            shown="page",
        ),
        _on_terminal("worst\nresidual", lambda line: _error(max(map(abs, line.curve.residuals)))),
        number(
            "held-out error",
            "held_out",
            scale=100,
            text_of=_two_digits,
            unit="%",
            about="median error at sizes that were left out of the fit, of all segments together",
            shown="page",
        ),
        _on_terminal("held-out\nerror", lambda line: _error(line.held_out)),
    ),
)
