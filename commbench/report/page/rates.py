"""The first screen's figures of the network: bandwidth and latency of each backend, and what pairs of ranks move."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from commbench.arrangements import MATRIX
from commbench.collectives import OPERATIONS
from commbench.pairs import Matrix
from commbench.patterns import makes_groups
from commbench.prediction.links import limit_of
from commbench.records import Row
from commbench.report.figures.curves import busbw_of
from commbench.report.figures.words import number_text
from commbench.report.matrix import conclude, name_range
from commbench.report.page.parts import Finding
from commbench.report.table import flags_of, format_time_us
from commbench.sharing import measures_interconnect, shares_gpu
from commbench.store import Run
from commbench.units import counted, format_size

#: What bus bandwidth is, for the section that has it.
BUSBW = (
    "Bus bandwidth is size over time, times a factor of the operation and the number of ranks: so operations compare "
    "with each other and with a link's rate (nccl-tests' busbw)."
)
#: Bits per second of 1 GB/s.
_GIGABYTE_BPS = 8e9
#: Doubts about a figure that its interval does not show, by their flags; those about conditions stand with all doubts.
_BRIEF: Mapping[str, Callable[[Row], str]] = {
    "bimodal": lambda _: "times within a launch fall in two humps",
    "bimodal_launches": lambda _: "launches fall in two humps",
    "unsteady": lambda _: "times drifted within launches",
    "late": lambda _: "more than a fifth of the repetitions started late and were dropped",
    "harness": lambda row: f"{_share(row.harness_us, row.time_us)} is commbench's own cost",
}


def bandwidths(run: Run) -> Iterable[Finding]:
    """The best bandwidth of each backend in one operation, beside the rate of a link that one rank a host has alone."""
    rated = _by_backend(run, lambda row: row.busbw_GBps is not None)
    cases = {backend: _comparable(rows) for backend, rows in rated.items()}
    best = {backend: max(rows, key=lambda row: row.busbw_GBps or 0.0) for backend, rows in cases.items()}
    if not best:
        return
    told = {backend: _best_of(rows) for backend, rows in cases.items()}
    alike = len(set(told.values())) == 1
    named = "{} " if len({_what(row) for row in best.values()}) > 1 else ""
    judged_by = next(iter(told.values())) if alike else "; ".join(f"{name}: {text}" for name, text in told.items())
    yield Finding(
        label="Bandwidth",
        texts=_lines(run, [f"{backend} {named.format(_what(row))}{_rate(run, row)}" for backend, row in best.items()]),
        details=[f"Bus bandwidth of {judged_by}.", *_doubts(best)],
        is_lead=_is_lead(run),
    )


def _lines(run: Run, texts: Sequence[str]) -> list[str]:
    """A line for each text where they lead, else one for all."""
    return list(texts) if _is_lead(run) else ["; ".join(texts)]


def _is_lead(run: Run) -> bool:
    return not run.recommendation and not run.findings.suspects


def _comparable(rows: Sequence[Row]) -> list[Row]:
    """The rows to judge a backend by, of one operation and pattern: all-reduce of all ranks where it was timed."""
    order = list(OPERATIONS)
    first = min(
        rows, key=lambda row: (row.operation != "all_reduce", row.pattern != "flat", order.index(row.operation))
    )
    return [row for row in rows if (row.operation, row.pattern) == (first.operation, first.pattern)]


def _best_of(rows: Sequence[Row]) -> str:
    """Of what the largest bandwidth is the best: a maximum of many is large by luck, too."""
    sizes = {row.message_bytes for row in rows}
    if len(rows) == 1:
        return f"{_what(rows[0])} of {_size(rows[0])}"
    cases = "groups" if makes_groups(rows[0].pattern) and len(sizes) == 1 else "cases"
    return f"{_what(rows[0])}, the best of its {len(rows)} {'sizes' if len(sizes) == len(rows) else cases}"


def _what(row: Row) -> str:
    return row.operation if row.pattern == "flat" else f"{row.operation} {row.pattern}"


def _size(row: Row) -> str:
    return format_size(row.message_bytes or 0)


def _rate(run: Run, row: Row) -> str:
    """The bandwidth with its interval, where it was reached, and its share of the link's rate where that bounds it."""
    rate = busbw_of(row)
    text = f"{number_text(rate, 'GB/s') if rate else ''} at {_size(row)}"
    limit = limit_of(row, run.info)
    if limit is None or not limit.bound_bps:
        return text
    whose = "the link's " if limit.directions == 1 else ""
    return f"{text}, {_share((row.busbw_GBps or 0.0) * _GIGABYTE_BPS, limit.bound_bps)} of {whose}{limit}"


def _share(part: float | None, whole: float | None) -> str:
    return f"{100 * part / whole:.0f} %" if part is not None and whole else "an unknown share"


def _doubts(shown: Mapping[str, Row]) -> list[str]:
    """What is doubtful about the rows that are shown, by backend; nothing where nothing is."""
    briefs = {name: [_BRIEF[flag](row) for flag in flags_of(row) if flag in _BRIEF] for name, row in shown.items()}
    said = [f"{name}: {', '.join(texts)}" for name, texts in briefs.items() if texts]
    return [f"{'; '.join(said)}."] if said else []


def latencies(run: Run) -> Iterable[Finding]:
    """Half a round trip of the smallest message, of each backend."""
    timed = _by_backend(run, lambda row: row.operation == "latency" and row.time_us is not None)
    least = {backend: min(rows, key=lambda row: row.message_bytes or 0) for backend, rows in timed.items()}
    if least:
        sizes = " and ".join(dict.fromkeys(map(_size, least.values())))
        yield Finding(
            label="Latency",
            texts=["; ".join(f"{backend} {format_time_us(row)}" for backend, row in least.items())],
            details=[" ".join([f"Half the round trip of {sizes}.", *_doubts(least)])],
        )


def _by_backend(run: Run, is_wanted: Callable[[Row], bool]) -> dict[str, list[Row]]:
    """Rows of all ranks together; that of a matrix is of all its pairs, which is what no pair has.

    What ranks did that share a GPU says nothing of the network.
    """
    by_backend: dict[str, list[Row]] = {}
    for row in run.whole_rows:
        if row.status == "ok" and row.pattern != MATRIX and measures_interconnect(row) and is_wanted(row):
            by_backend.setdefault(row.backend, []).append(row)
    return by_backend


def pairs(run: Run) -> Iterable[Finding]:
    """What the pairs of ranks of each matrix move or take, from one end to the other."""
    matrices = [matrix for matrix in run.matrices if not shares_gpu(matrix.case.backend, run.info)]
    ranges = {_measured(matrix): _range(matrix) for matrix in matrices}
    texts = [f"{name}: {text}" for name, text in ranges.items() if text]
    if texts:
        launches = max(len(matrix.times_us) for matrix in matrices)
        yield Finding(
            label="Pairs of ranks",
            texts=texts,
            details=[f"From the slowest to the fastest pair, each the median of {counted(launches, 'launch')}."],
            is_lead=_is_lead(run) and all(row.pattern == MATRIX for row in run.rows),
            more=None if conclude(run.findings) else ("pairs", "Every pair of ranks"),
        )


def _measured(matrix: Matrix) -> str:
    return f"{matrix.case.backend} {matrix.case.operation} {format_size(matrix.case.message_bytes)}"


def _range(matrix: Matrix) -> str:
    """Of pairs between hosts and within them apart, where there are both."""
    kinds = {"between hosts": matrix.is_inter, "within hosts": ~matrix.is_inter}
    ranges = {kind: text for kind, chosen in kinds.items() if (text := name_range(matrix, chosen))}
    if len(ranges) == 1:
        return next(iter(ranges.values()))
    return ", ".join(f"{text} {kind}" for kind, text in ranges.items())
