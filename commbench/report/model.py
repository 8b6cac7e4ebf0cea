"""The fitted network model as tables for the terminal and the page, and its errors in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from commbench.analysis.prediction.curves import Curve
from commbench.analysis.prediction.fits import Segment
from commbench.analysis.prediction.network import LEAST_SIZES, CurveKey, NetworkModel
from commbench.analysis.runs import network_model
from commbench.report.columns import (
    Column,
    Ends,
    Field,
    Table,
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
        return Text(
            f"No model: fitting one needs {LEAST_SIZES} message sizes of an operation, by ranks"
            " that do not share a GPU; measure more (--sizes)."
        )
    title = "Fitted: time = start-up + size / rate from one size to another"
    notes = (f"{key}: measured {variant}." for key, variant in model.variants.items())
    table = printed(tabulate(_lines(model), _PRINTED), padding=0)
    return Group(Text(title, style="bold"), table, *(Text(note) for note in notes))


def _start_interval(line: _Line) -> str:
    """Return the interval of the start-up time, in the unit of the start-up time."""
    low, high = line.start_us
    unit_us = 1e6 * time_unit(line.segment.alpha_us / 1e6)[0]
    return (
        "unknown"
        if low is None or high is None
        else f"[{three_digits(low / unit_us)}, {three_digits(high / unit_us)}]"
    )


def _rate_text(rate: float | None) -> str:
    return "-" if rate is None else three_digits(rate)


def _rate_interval(line: _Line) -> str:
    is_known = line.curve.parameter_intervals[line.place][1] is not None
    return f"[{', '.join(map(_rate_text, line.rates))}]" if is_known else "unknown"


def _once(heading: str, of: Field[_Line], *, is_number: bool = False) -> Column[_Line]:
    """Return a column about the curve, which is empty below its first segment."""
    column = Column(heading, of, is_number=is_number)
    return replace(column, value_of=lambda line: None if line.place else column.cell(line))


_PRINTED: tuple[Column[_Line], ...] = (
    _once(
        "operation",
        lambda line: (
            f"{line.key.operation}{'' if line.key.pattern == 'flat' else f' {line.key.pattern}'}"
        ),
    ),
    _once("backend", "key.backend"),
    _once("dtype", "key.dtype"),
    _once("ranks", "key.world_size", is_number=True),
    number("from", "segment.from_bytes", text_of=format_size),
    number("to", "segment.to_bytes", text_of=format_size),
    number("start-up", "segment.alpha_us", text_of=microseconds),
    Column("95 %", _start_interval, is_number=True),
    Column("GB/s", lambda line: _rate_text(line.rate), is_number=True),
    Column("95 %", _rate_interval, is_number=True),
    _once(
        "worst\nresidual", lambda line: _error(max(map(abs, line.curve.residuals))), is_number=True
    ),
    _once("held-out\nerror", lambda line: _error(line.held_out), is_number=True),
)


# ----------------------------------------------------------------------------------------- the page


def model_tables(runs: Sequence[Run]) -> list[Table]:
    """Tabulate fitted start-up times and rates, a line for each segment of a curve."""
    title = "The network as fitted: time = start-up + size / rate, from one size to another"
    return make_tables(title, runs, lambda run: _lines(network_model(run)), _COLUMNS, rest_in=MODEL)


def _start_ends(line: _Line) -> Ends:
    """Return the interval of the start-up time; none if the fit holds it at 0."""
    return (None, None) if line.start_us == (0, 0) else line.start_us


def _two_digits(value: float) -> str:
    return digits(value, 2)


_COLUMNS: tuple[Column[_Line], ...] = (
    Column("operation", "key.operation"),
    Column("pattern", "key.pattern", should_vary=True),
    Column("backend", "key.backend"),
    Column("dtype", "key.dtype", should_vary=True),
    number("ranks", "key.world_size", text_of=str),
    number("from", "segment.from_bytes", text_of=format_size),
    number("to", "segment.to_bytes", text_of=format_size),
    number("start-up", "segment.alpha_us", unit="us"),
    ends(_start_ends, unit="us", about="of the start-up; empty where it is held at 0"),
    number(
        "rate",
        "rate",
        unit="GB/s",
        about=(
            "algorithm bandwidth without the start-up; bus bandwidth is that times the operation's"
            " factor"
        ),
    ),
    ends(lambda line: line.rates, unit="GB/s", about="of the rate"),
    number(
        "worst residual",
        "residual",
        scale=100,
        text_of=_two_digits,
        unit="%",
        about="largest deviation from the measured times",
    ),
    number(
        "held-out error",
        "held_out",
        scale=100,
        text_of=_two_digits,
        unit="%",
        about="median error at sizes that were left out of the fit, of all segments together",
    ),
)
