"""The first screen of a page: conclusions in words, bandwidth and latency of each backend."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from commbench.analysis.prediction.links import limit_of
from commbench.analysis.runs import all_rank_rows, stragglers
from commbench.collectives.composed import MATRIX
from commbench.collectives.operations import OPERATIONS
from commbench.collectives.patterns import makes_groups
from commbench.engine.flags import FLAGS, join_flags, split_flags
from commbench.engine.records import Row
from commbench.report.figures.sizes import busbw_of
from commbench.report.figures.words import number_text
from commbench.report.matrix import conclude, name_range
from commbench.report.page.parts import Finding, Tone
from commbench.report.state import undecided, unfinished
from commbench.report.table import ROWS, Flagged, Things, format_time_us, warned
from commbench.results import Run
from commbench.results.pairs import Matrix
from commbench.results.recommendation import Recommendation, doubts_sentence, headline, learning_cost
from commbench.results.sharing import measures_interconnect, shares_gpu
from commbench.system.host import differing
from commbench.tuner.accuracy import predictions
from commbench.units import counted, format_size

#: What bus bandwidth is, for the section that has it.
BUSBW = (
    "Bus bandwidth is size over time, times a factor of the operation and the number of ranks: so operations compare "
    "with each other and with a link's rate (nccl-tests' busbw)."
)
#: Bits per second of 1 GB/s.
_GIGABYTE_BPS = 8e9


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
        details=[f"Bus bandwidth of {judged_by}.", *_flag_sentences(best)],
        is_lead=_is_lead(run),
    )


def _lines(run: Run, texts: Sequence[str]) -> list[str]:
    """A line for each text where they lead, else one for all."""
    return list(texts) if _is_lead(run) else ["; ".join(texts)]


def _is_lead(run: Run) -> bool:
    return not run.recommendation and not stragglers(run).suspects


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


def _flag_sentences(shown: Mapping[str, Row]) -> list[str]:
    """What is doubtful about the rows that are shown, by backend; nothing where nothing is."""
    briefs = {
        name: [
            flag.brief.format(overhead=_share(row.harness_us, row.time_us))
            for flag in split_flags(row.flags)
            if flag.brief
        ]
        for name, row in shown.items()
    }
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
            details=[" ".join([f"Half the round trip of {sizes}.", *_flag_sentences(least)])],
        )


def _by_backend(run: Run, is_wanted: Callable[[Row], bool]) -> dict[str, list[Row]]:
    """Rows of all ranks together; that of a matrix is of all its pairs, which is what no pair has.

    What ranks did that share a GPU says nothing of the network.
    """
    by_backend: dict[str, list[Row]] = {}
    for row in all_rank_rows(run):
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
            more=None if conclude(stragglers(run)) else ("pairs", "Every pair of ranks"),
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


MATRICES = Things("matrix", "matrices")
#: So many doubts stand on the first screen.
MOST_DOUBTS = 3
#: Which tone of several runs counts.
_TONES: Sequence[Tone] = ("bad", "doubt", "good", "quiet", "")


def find_conclusion(runs: Sequence[Run]) -> list[Finding]:
    """What to say first: how far the runs came, what to set, how fast the network is, who is slow, what is doubtful."""
    kinds = (_state, _settings, _slow, bandwidths, pairs, latencies)
    found = [[(run, finding) for run in runs for finding in kind(run)] for kind in kinds]
    doubts = list(_doubts(runs))
    if not any(found) and not doubts:
        return [Finding(label="Result", texts=["Nothing has been measured yet."], is_lead=True)]
    if len(runs) == 1:
        return [*(finding for of_kind in found for _, finding in of_kind), *doubts]
    return [*_conditions(runs), *(_together(of_kind) for of_kind in found if of_kind), *doubts]


def _together(found: Sequence[tuple[Run, Finding]]) -> Finding:
    """What was found of one kind in several runs, a line for each; details that not all of them have name their run."""
    tones = {finding.tone for _, finding in found}
    said: dict[str, list[str]] = {}
    for run, finding in found:
        for detail in finding.details:
            said.setdefault(detail, []).append(run.name)
    return Finding(
        label=found[0][1].label,
        texts=[f"{run.name}: {'; '.join(finding.texts).replace('.; ', '. ')}" for run, finding in found],
        details=[
            detail if len(names) == len(found) else f"{', '.join(names)}: {detail}" for detail, names in said.items()
        ],
        tone=next(tone for tone in _TONES if tone in tones),
        more=next((finding.more for _, finding in found if finding.more), None),
    )


def _conditions(runs: Sequence[Run]) -> Iterable[Finding]:
    """That runs were taken under unlike conditions, where they were."""
    if names := list(differing([run.info.get("environment") or {} for run in runs])):
        more = ("runs", "What each of them states")
        said = f"Unlike in {', '.join(names)}: differences between the runs can be due to these."
        yield Finding(label="Conditions", texts=[said], tone="doubt", more=more)


def _state(run: Run) -> Iterable[Finding]:
    if sentence := unfinished(run):
        yield Finding(label="State", texts=[sentence], tone="bad")


def _settings(run: Run) -> Iterable[Finding]:
    """What DDP should use."""
    if not run.recommendation:
        return
    if sentence := undecided(run):
        yield Finding(label="DDP settings", texts=[sentence], tone="doubt", is_lead=True)
        return
    found = Recommendation.from_json(run.recommendation)
    yield Finding(
        label="DDP settings",
        texts=[headline(found)],
        details=[text for text in (found.reason, _cost_of(found), found.surer, doubts_sentence(found)) if text],
        tone="bad" if not found.has_baseline else "good" if found.verdict == "change" else "",
        is_lead=True,
        more=("training", "What to paste, what it costs, and all that was tried"),
    )


def _cost_of(found: Recommendation) -> str:
    """What a change that is recommended does to learning: who pastes it must have read that."""
    return learning_cost(found) if found.verdict == "change" else ""


def _slow(run: Run) -> Iterable[Finding]:
    if sentence := conclude(stragglers(run)):
        is_found = bool(stragglers(run).suspects)
        text = sentence.removeprefix("Slow: ")
        yield Finding(
            label="Slow ones",
            texts=[text if is_found else _sentence(text)],  # a host is called as it calls itself
            tone="bad" if is_found else "",
            is_lead=is_found and not run.recommendation,
            more=("pairs", "Every pair of ranks") if run.matrices else None,
        )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


# --------------------------------------------------------------------------------------------------------- doubts


class _Doubted(NamedTuple):
    """A row of any table, with those of its flags that the first screen is about."""

    flags: str
    status: str
    reason: str


class _Doubt(NamedTuple):
    """A doubt about rows of one kind."""

    gravity: int
    """The lowest first."""
    section: str
    """Where all doubts about them stand, with what to try."""
    rows: str
    """How many of which."""
    seen: str
    """What was seen, as a sentence goes on."""
    has_remedy: bool
    """Whether there is something to try."""


def _doubts(runs: Sequence[Run]) -> Iterable[Finding]:
    """The gravest doubts about each run, and how many more there are."""
    found = [(run, _doubts_about(run)) for run in runs]
    hidden = [doubt for _, doubts in found for doubt in doubts[MOST_DOUBTS:]]
    first = next((doubt for _, doubts in found for doubt in doubts), None)
    if first:
        shown = [(run, [_said(doubt) for doubt in doubts[:MOST_DOUBTS]]) for run, doubts in found if doubts]
        texts = [f"{run.name}: {' '.join(texts)}" for run, texts in shown] if len(runs) > 1 else shown[0][1]
        rest = [f"{counted(len(hidden), 'more doubt')}"] if hidden else []
        rest += ["what to try"] if any(doubt.has_remedy for _, doubts in found for doubt in doubts) else []
        more = ((hidden or [first])[0].section, _sentence(" and ".join(rest))) if rest else None
        yield Finding(label="Doubts", texts=texts, tone="doubt", more=more)


def _said(doubt: _Doubt) -> str:
    return _sentence(f"{doubt.rows} {doubt.seen}.")


def _doubts_about(run: Run) -> list[_Doubt]:
    """What a reader must know before anything is believed: what failed, then grave doubts, then those of most rows.

    Each kind of rows is judged apart: a few rows of one must not be outvoted by many of another.
    """
    collectives = [] if predictions(run) else [row for row in run.rows if row.pattern != MATRIX]  # an ingredient
    of_training, of_collectives = ROWS, ROWS
    if run.training_rows and collectives:
        of_training = Things("row of training", "rows of training")
        of_collectives = Things("row of collectives", "rows of collectives")
    doubts = [
        *_grave(run, "training", run.training_rows, of_training),
        *_grave(run, "collectives", collectives, of_collectives),
        *_grave(run, "pairs", matrix_rows(run), MATRICES),
    ]
    alike: dict[str, _Doubt] = {}
    for doubt in sorted(doubts, key=lambda doubt: doubt.gravity):
        known = alike.get(doubt.seen)
        alike[doubt.seen] = known._replace(rows=f"{known.rows} and {doubt.rows}") if known else doubt
    return list(alike.values())


def matrix_rows(run: Run) -> list[Flagged]:
    """The rows of matrices with the doubts about their pairs: times of unlike pairs together scatter for no fault."""
    pooled = {"ci_wide", "bimodal", "bimodal_launches", "unsteady"}
    return [_with_flags(row, lambda flag: flag not in pooled) for row in run.rows if row.pattern == MATRIX]


def _with_flags(row: Flagged, is_kept: Callable[[str], bool]) -> _Doubted:
    kept = (flag.name for flag in split_flags(row.flags) if is_kept(flag.name))
    return _Doubted(join_flags(kept), row.status, row.reason)


def _grave(run: Run, section: str, rows: Sequence[Flagged], things: Things) -> list[_Doubt]:
    """The failures of one kind of rows, and the flags of high severity or that most rows have."""
    counts = Counter(flag.name for row in rows for flag in split_flags(row.flags))
    least = {"high": 0.0, "medium": len(rows) / 2, "low": math.inf}
    chosen = {name: flag.priority for name, flag in FLAGS.items() if counts[name] > least[flag.severity]}
    kept = [_with_flags(row, chosen.__contains__) for row in rows]
    found = warned(kept, run.info, things=things)
    gravity = [*[-1] * (len(found) - len(chosen)), *chosen.values()]
    return [
        _Doubt(rank, section, one.rows, one.seen, bool(one.remedy)) for rank, one in zip(gravity, found, strict=True)
    ]
