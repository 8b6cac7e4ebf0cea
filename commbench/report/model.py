"""The fitted network model as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from commbench.analysis.prediction.network import NetworkModel, network_model
from commbench.findings import Finding
from commbench.report.columns import Column, Table, ends, make_tables, number
from commbench.results import MODEL, Run
from commbench.units import format_size


def _lines(model: NetworkModel) -> Iterator[SimpleNamespace]:
    """Yield the segments of all curves, with the ends of the 95 % intervals of their parameters;
    without resamples they are None.
    """
    for key, curve in model.curves.items():
        held_out: float | None = curve.held_out_error
        for segment, (alpha, beta) in zip(curve.segments, curve.parameter_intervals, strict=True):
            line = SimpleNamespace(key=key, segment=segment, held_out=held_out)
            line.rate = _rate(segment.beta_us_per_byte)
            line.start_ends = line.rate_ends = (None, None)
            if alpha and (alpha.low or alpha.high):  # else the fit holds it at 0
                line.start_ends = alpha.low, alpha.high
            if beta:
                line.rate_ends = _rate(beta.high), _rate(beta.low)
            line.residual = 0.0
            for size, residual in zip(curve.sizes, curve.residuals, strict=True):
                if segment.from_bytes <= size <= segment.to_bytes:
                    line.residual = max(line.residual, abs(residual))
            yield line
            held_out = None  # it is of all segments together


def _rate(beta_us_per_byte: float) -> float | None:
    """Return a rate in GB/s; None if it is unbounded."""
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


_COLUMNS: Sequence[Column[Any]] = (
    Column("operation", "key.operation"),
    Column("pattern", "key.pattern", should_vary=True),
    Column("backend", "key.backend"),
    Column("dtype", "key.dtype", should_vary=True),
    number("ranks", "key.world_size", text_of=str),
    number("from", "segment.from_bytes", text_of=format_size),
    number("to", "segment.to_bytes", text_of=format_size),
    number("start-up", "segment.alpha_us", unit="us"),
    ends(
        attrgetter("start_ends"),
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
    ends(attrgetter("rate_ends"), unit="GB/s", about="of the rate", drop_order=1),
    number(
        "worst residual",
        "residual",
        scale=100,
        unit="%",
        about="largest deviation from the measured times",
        drop_order=3,
    ),
    number(
        "held-out error",
        "held_out",
        scale=100,
        unit="%",
        about="median error at sizes that were left out of the fit, of all segments together",
    ),
)
