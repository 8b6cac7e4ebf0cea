"""The fitted network model as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from commbench.analysis.prediction.curves import Curve
from commbench.analysis.prediction.fits import Segment
from commbench.analysis.prediction.network import CurveKey, NetworkModel, network_model
from commbench.findings import Finding
from commbench.report.columns import Column, Ends, Table, ends, make_tables, number
from commbench.report.formats import digits
from commbench.results import MODEL, Run
from commbench.units import format_size


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


def model_tables(runs: Sequence[Run]) -> list[Table]:
    """Tabulate fitted start-up times and rates, a line for each segment of a curve."""
    notes = []
    for run in runs:
        for key, variant in network_model(run).variants.items():
            notes.append(str(Finding("model_variant", str(key), {"variant": variant})))
    title = "The network as fitted: time = start-up + size / rate, from one size to another"
    return make_tables(
        title,
        runs,
        lambda run: _lines(network_model(run)),
        _COLUMNS,
        notes=notes,
        rest_in=MODEL,
    )


def _start_ends(line: _Line) -> Ends:
    """Return the interval of the start-up time; none if the fit holds it at 0."""
    low, high = line.start_us
    if low == high == 0:
        return None, None
    return low, high


def _two_digits(value: float) -> str:
    return digits(value, 2)


_COLUMNS: Sequence[Column[_Line]] = (
    Column("operation", "key.operation"),
    Column("pattern", "key.pattern", should_vary=True),
    Column("backend", "key.backend"),
    Column("dtype", "key.dtype", should_vary=True),
    number("ranks", "key.world_size", text_of=str),
    number("from", "segment.from_bytes", text_of=format_size),
    number("to", "segment.to_bytes", text_of=format_size),
    number("start-up", "segment.alpha_us", unit="us"),
    ends(
        _start_ends,
        unit="us",
        about="of the start-up; empty where it is held at 0",
        drop_order=2,
    ),
    number(
        "rate",
        "rate",
        unit="GB/s",
        about=(
            "algorithm bandwidth without the start-up; bus bandwidth is that times the"
            " operation's factor"
        ),
    ),
    ends(lambda line: line.rates, unit="GB/s", about="of the rate", drop_order=1),
    number(
        "worst residual",
        "residual",
        scale=100,
        text_of=_two_digits,
        unit="%",
        about="largest deviation from the measured times",
        drop_order=3,
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
