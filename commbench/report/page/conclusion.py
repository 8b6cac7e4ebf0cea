"""The first screen of a page: conclusions in words, bandwidth and latency of each backend."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from commbench.analysis.prediction.links import limit_of
from commbench.analysis.runs import all_rank_rows, straggler_findings
from commbench.analysis.watched import watched_headline, watched_sentences
from commbench.collectives.composed import MATRIX
from commbench.collectives.operations import OPERATIONS
from commbench.collectives.patterns import makes_groups
from commbench.engine.flags import FLAGS, NOISE, join_flags, split_flags
from commbench.engine.records import Row
from commbench.report.columns import Flagged, Tone
from commbench.report.figures.charts import number_text
from commbench.report.figures.sizes import busbw_of
from commbench.report.matrix import conclude, name_range
from commbench.report.page.parts import Code, Finding
from commbench.report.soak import describe_soak
from commbench.report.state import undecided, unfinished
from commbench.report.table import ROWS, Things, format_time_us, precision_of, warned
from commbench.results import Run
from commbench.results.info import is_complete, is_watched, measures_interconnect, shares_gpu
from commbench.results.pairs import Matrix
from commbench.results.recommendation import (
    Recommendation,
    altering_sentences,
    headline,
    learning_cost,
    safe_sentences,
    snippets,
    warnings_sentence,
)
from commbench.system.environment import differing
from commbench.tuner.predictions import predictions
from commbench.units import counted, format_size

#: The definition of bus bandwidth, for the section that shows it.
BUSBW = (
    "Bus bandwidth is size over time, times a factor of the operation and the number of ranks: so"
    " operations compare with each other and with a link's rate (nccl-tests' busbw)."
)
#: Bits per second of 1 GB/s.
_GIGABYTE_BPS = 8e9


def bandwidths(run: Run) -> Iterable[Finding]:
    """Yield the best bandwidth of each backend in one operation, and its share of the link's rate
    if known.
    """
    rated = _by_backend(run, lambda row: row.busbw_GBps is not None)
    cases = {backend: _comparable(rows) for backend, rows in rated.items()}
    best = {
        backend: max(rows, key=lambda row: row.busbw_GBps or 0.0) for backend, rows in cases.items()
    }
    if not best:
        return
    case_names = {backend: _best_of(rows) for backend, rows in cases.items()}
    name_format = "{} " if len({_subject(row) for row in best.values()}) > 1 else ""
    measured_by = next(iter(case_names.values()))
    if len(set(case_names.values())) > 1:
        measured_by = "; ".join(f"{name}: {text}" for name, text in case_names.items())
    yield Finding(
        label="Bandwidth",
        texts=_lines(
            run,
            [
                f"{backend} {name_format.format(_subject(row))}{_rate(run, row)}"
                for backend, row in best.items()
            ],
        ),
        details=[f"Bus bandwidth of {measured_by}.", *_flag_sentences(best)],
        is_lead=_is_lead(run),
    )


def _lines(run: Run, texts: Sequence[str]) -> list[str]:
    """Return one line for each text if bandwidths lead the page, else one line for all texts."""
    return list(texts) if _is_lead(run) else ["; ".join(texts)]


def _is_lead(run: Run) -> bool:
    return not run.recommendation and not straggler_findings(run).stragglers


def _comparable(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that represent a backend: one operation and pattern, all-reduce over all
    ranks if timed.
    """
    order = list(OPERATIONS)
    first = min(
        rows,
        key=lambda row: (
            row.operation != order[0],
            row.pattern != "flat",
            order.index(row.operation),
        ),
    )
    return [row for row in rows if (row.operation, row.pattern) == (first.operation, first.pattern)]


def _best_of(rows: Sequence[Row]) -> str:
    """Describe the rows from which the maximum was taken: a maximum over many rows is partly
    chance.
    """
    sizes = {row.message_bytes for row in rows}
    if len(rows) == 1:
        return f"{_subject(rows[0])} of {_size(rows[0])}"
    cases = "groups" if makes_groups(rows[0].pattern) and len(sizes) == 1 else "cases"
    return (
        f"{_subject(rows[0])}, the best of its {len(rows)}"
        f" {'sizes' if len(sizes) == len(rows) else cases}"
    )


def _subject(row: Row) -> str:
    return row.operation if row.pattern == "flat" else f"{row.operation} {row.pattern}"


def _size(row: Row) -> str:
    return format_size(row.message_bytes or 0)


def _rate(run: Run, row: Row) -> str:
    """Return the bandwidth with its interval and size, and its share of the link's rate if the link
    bounds it.
    """
    rate = busbw_of(row)
    text = f"{number_text(rate, 'GB/s') if rate else ''} at {_size(row)}"
    limit = limit_of(row, run.info)
    if limit is None or not limit.bound_bps:
        return text
    owner = "the link's " if limit.directions == 1 else ""
    return (
        f"{text}, {_share((row.busbw_GBps or 0.0) * _GIGABYTE_BPS, limit.bound_bps)} of"
        f" {owner}{limit}"
    )


def _share(part: float | None, whole: float | None) -> str:
    return f"{100 * part / whole:.0f} %" if part is not None and whole else "an unknown share"


def _flag_sentences(row_of_backend: Mapping[str, Row]) -> list[str]:
    """Return one sentence for each backend whose row has flags."""
    briefs = {
        name: [
            flag.brief.format(
                overhead=_share(row.harness_us, row.time_us), and_framework=_and_framework(row)
            )
            for flag in split_flags(row.flags)
            if flag.brief
        ]
        for name, row in row_of_backend.items()
    }
    clauses = [f"{name}: {', '.join(texts)}" for name, texts in briefs.items() if texts]
    return [f"{'; '.join(clauses)}."] if clauses else []


def _and_framework(row: Row) -> str:
    """Return what ``harness_us`` contains besides the loop: earlier versions timed it around
    torch's call.
    """
    is_older = (
        row.framework_us is None and row.loop == "python" and row.library.startswith("torch ")
    )
    return " and torch's call" if is_older else ""


def latencies(run: Run) -> Iterable[Finding]:
    """Yield half the round trip of the smallest message, for each backend."""
    timed = _by_backend(
        run, lambda row: OPERATIONS[row.operation].is_round_trip and row.time_us is not None
    )
    least = {
        backend: min(rows, key=lambda row: row.message_bytes or 0)
        for backend, rows in timed.items()
    }
    if least:
        sizes = " and ".join(dict.fromkeys(map(_size, least.values())))
        yield Finding(
            label="Latency",
            texts=["; ".join(f"{backend} {format_time_us(row)}" for backend, row in least.items())],
            details=[" ".join([f"Half the round trip of {sizes}.", *_flag_sentences(least)])],
        )


def _by_backend(run: Run, is_wanted: Callable[[Row], bool]) -> dict[str, list[Row]]:
    """Return the rows over all ranks by backend, without matrices, whose rows pool different pairs.

    Ranks that share a GPU are left out: their times do not show the network.
    """
    by_backend: dict[str, list[Row]] = {}
    for row in all_rank_rows(run):
        if (
            row.status == "ok"
            and row.pattern != MATRIX
            and measures_interconnect(row)
            and is_wanted(row)
        ):
            by_backend.setdefault(row.backend, []).append(row)
    return by_backend


def pairs(run: Run) -> Iterable[Finding]:
    """Yield the range of bandwidths or times over the pairs of ranks of each matrix."""
    matrices = [matrix for matrix in run.matrices if not shares_gpu(matrix.case.backend, run.info)]
    ranges = {matrix.name: _range(matrix) for matrix in matrices}
    texts = [f"{name}: {text}" for name, text in ranges.items() if text]
    if texts:
        launches = max(len(matrix.times_us) for matrix in matrices)
        yield Finding(
            label="Pairs of ranks",
            texts=texts,
            details=[
                (
                    "From the slowest to the fastest pair, each the median of"
                    f" {counted(launches, 'launch')}."
                )
            ],
            is_lead=_is_lead(run) and all(row.pattern == MATRIX for row in run.rows),
            more=None if conclude(straggler_findings(run)) else ("pairs", "Every pair of ranks"),
        )


def _range(matrix: Matrix) -> str:
    """Return the range of the pairs, separately between hosts and within hosts if both exist."""
    kinds = {"between hosts": matrix.is_inter, "within hosts": ~matrix.is_inter}
    ranges = {kind: text for kind, pairs in kinds.items() if (text := name_range(matrix, pairs))}
    if len(ranges) == 1:
        return next(iter(ranges.values()))
    return ", ".join(f"{text} {kind}" for kind, text in ranges.items())


MATRICES = Things("matrix", "matrices")
#: The most warnings on the first screen.
MOST_WARNINGS = 3
#: Tones in order of priority: a finding about several runs has the first that occurs.
_TONES: Sequence[Tone] = ("bad", "warning", "good", "quiet", "")


def find_conclusion(runs: Sequence[Run]) -> list[Finding]:
    """Return the conclusion in order: state of the runs, settings, stragglers, network speed,
    precision, warnings.
    """
    kinds = (_state, _settings, _watched, _soak, _slow, bandwidths, pairs, latencies, _precision)
    findings_by_kind = [[(run, finding) for run in runs for finding in kind(run)] for kind in kinds]
    warnings = list(_warnings(runs))
    if not any(findings_by_kind) and not warnings:
        return [Finding(label="Result", texts=["Nothing has been measured yet."], is_lead=True)]
    if len(runs) == 1:
        return [*(finding for of_kind in findings_by_kind for _, finding in of_kind), *warnings]
    return [
        *_conditions(runs),
        *(_together(of_kind) for of_kind in findings_by_kind if of_kind),
        *warnings,
    ]


def _together(findings: Sequence[tuple[Run, Finding]]) -> Finding:
    """Merge the findings of one kind over several runs.

    A detail that only some runs have names them.
    """
    tones = {finding.tone for _, finding in findings}
    return Finding(
        label=findings[0][1].label,
        texts=[
            f"{run.name}: {'; '.join(finding.texts).replace('.; ', '. ')}"
            for run, finding in findings
        ],
        details=_named((run.name, finding.details) for run, finding in findings),
        folded=_named((run.name, finding.folded) for run, finding in findings),
        tone=next(tone for tone in _TONES if tone in tones),
        more=next((finding.more for _, finding in findings if finding.more), None),
    )


def _named(details_of_runs: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Return the details of all runs; one that only some of them have names these."""
    runs = list(details_of_runs)
    names_by_detail: dict[str, list[str]] = {}
    for name, details in runs:
        for detail in details:
            names_by_detail.setdefault(detail, []).append(name)
    return [
        detail if len(names) == len(runs) else f"{', '.join(names)}: {detail}"
        for detail, names in names_by_detail.items()
    ]


def _conditions(runs: Sequence[Run]) -> Iterable[Finding]:
    """Warn if the runs were measured under different conditions."""
    if names := list(differing([run.info.get("environment") or {} for run in runs])):
        more = ("runs", "What each of them states")
        sentence = (
            f"Unlike in {', '.join(names)}: these conditions can explain differences between the"
            " runs."
        )
        yield Finding(label="Conditions", texts=[sentence], tone="warning", more=more)


def _precision(run: Run) -> Iterable[Finding]:
    """Yield how narrow the intervals of collectives are."""
    timed = {} if predictions(run) else _by_backend(run, lambda row: row.time_us is not None)
    rows = itertools.chain.from_iterable(timed.values())
    if sentences := precision_of(rows, run.info, run.divided.states):
        yield Finding(label="Precision", texts=sentences)


def _state(run: Run) -> Iterable[Finding]:
    if sentence := unfinished(run):
        yield Finding(
            label="State", texts=[sentence], tone="warning" if is_complete(run.info) else "bad"
        )


def _settings(run: Run) -> Iterable[Finding]:
    """Yield the recommended DDP settings."""
    if not run.recommendation:
        return
    if sentence := undecided(run):
        yield Finding(label="DDP settings", texts=[sentence], tone="warning", is_lead=True)
        return
    advice = run.recommendation
    changes = advice.verdict == "change"
    yield Finding(
        label="DDP settings",
        texts=[headline(advice)],
        details=[text for text in (*safe_sentences(advice), advice.reason) if text],
        folded=[text for text in _further(advice) if text],
        codes=[_to_paste(advice)] if changes else [],
        tone="bad" if not advice.has_baseline else "good" if changes else "",
        is_lead=True,
        more=("training", "What it costs, and all that was tried"),
    )


def _to_paste(advice: Recommendation) -> Code:
    """Return the lines of the recommended change.

    A safe setting that is no change is not worth pasting.
    """
    choices = snippets(advice)
    title, text = choices[-1] if advice.safe and advice.safe.verdict != "change" else choices[0]
    return Code(title=title.rstrip(":") or "To paste", text=text.rstrip())


def _watched(run: Run) -> Iterable[Finding]:
    """Return the share of exposed communication in a watched training, and where its steps go."""
    if is_watched(run.info) and run.training_records:
        record = run.training_records[-1]
        details, more = (
            watched_sentences(record, run.info),
            ("training", "The parts of a step, and each rank"),
        )
        yield Finding(
            label="Steps",
            texts=[watched_headline(record)],
            details=details,
            is_lead=True,
            more=more,
        )


def _soak(run: Run) -> Iterable[Finding]:
    """Return the events and the drift of a soak."""
    headline, *details = describe_soak(run) or [""]
    if headline:
        more = ("soak", "The time line, and every event")
        yield Finding(label="Soak", texts=[headline], details=details, is_lead=True, more=more)


def _further(advice: Recommendation) -> list[str]:
    altering = [
        sentence for each in advice.altering for sentence in altering_sentences(each, advice)
    ]
    return [*altering, _cost_of(advice), advice.launch_advice, warnings_sentence(advice)]


def _cost_of(advice: Recommendation) -> str:
    """Return the effect of a recommended change on learning."""
    return learning_cost(advice) if advice.verdict == "change" else ""


def _slow(run: Run) -> Iterable[Finding]:
    if sentence := conclude(straggler_findings(run)):
        is_found = bool(straggler_findings(run).stragglers)
        text = sentence.removeprefix("Slow: ")
        yield Finding(
            label="Stragglers",
            texts=[text if is_found else _sentence(text)],  # a host name keeps its case
            tone="bad" if is_found else "",
            is_lead=is_found and not run.recommendation,
            more=("pairs", "Every pair of ranks") if run.matrices else None,
        )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


# ----------------------------------------------------------------------------------------- warnings


class _FlaggedRow(NamedTuple):
    """A row of any table with the flags that the first screen shows."""

    flags: str
    status: str
    reason: str
    reason_code: str


class _Warning(NamedTuple):
    """A warning about rows of one record type."""

    gravity: int
    """Sort key; the lowest comes first."""
    section: str
    """The section with all warnings about these rows and their remedies."""
    rows: str
    """The number and the record type of the rows, as text."""
    observation: str
    """The observation as the predicate of a sentence."""
    has_remedy: bool
    """Whether there is a remedy."""


def _warnings(runs: Sequence[Run]) -> Iterable[Finding]:
    """Yield the most severe warnings about each run, and the number of further ones."""
    warnings_of_runs = [(run, _warnings_about(run)) for run in runs]
    hidden = [warning for _, warnings in warnings_of_runs for warning in warnings[MOST_WARNINGS:]]
    first = next((warning for _, warnings in warnings_of_runs for warning in warnings), None)
    if first:
        texts_by_run = {
            run.name: list(map(_warning_sentence, warnings[:MOST_WARNINGS]))
            for run, warnings in warnings_of_runs
            if warnings
        }
        texts = next(iter(texts_by_run.values()))
        if len(runs) > 1:
            texts = [f"{name}: {' '.join(sentences)}" for name, sentences in texts_by_run.items()]
        link_words = [f"{counted(len(hidden), 'more warning')}"] if hidden else []
        link_words += (
            ["what to try"]
            if any(warning.has_remedy for _, warnings in warnings_of_runs for warning in warnings)
            else []
        )
        more = (
            ((hidden or [first])[0].section, _sentence(" and ".join(link_words)))
            if link_words
            else None
        )
        yield Finding(label="Warnings", texts=texts, tone="warning", more=more)


def _warning_sentence(warning: _Warning) -> str:
    return _sentence(f"{warning.rows} {warning.observation}.")


def _warnings_about(run: Run) -> list[_Warning]:
    """Return the warnings of a run: failures, then severe flags, then flags of most rows.

    Record types are judged separately: many rows of one type must not hide a few rows of another.
    """
    collectives = (
        [] if predictions(run) else [row for row in run.rows if row.pattern != MATRIX]
    )  # collectives are an input of the tuning
    of_training, of_collectives = ROWS, ROWS
    if run.training_rows and collectives:
        of_training = Things("row of training", "rows of training")
        of_collectives = Things("row of collectives", "rows of collectives")
    warnings = [
        *_grave(run, "training", run.training_rows, of_training),
        *_grave(
            run,
            "collectives",
            [_with_flags(row, _is_not_width) for row in collectives],
            of_collectives,
        ),
        *_grave(run, "pairs", matrix_rows(run), MATRICES),
    ]
    warning_by_observation: dict[str, _Warning] = {}
    for warning in sorted(warnings, key=lambda warning: warning.gravity):
        earlier = warning_by_observation.get(warning.observation)
        warning_by_observation[warning.observation] = (
            earlier._replace(rows=f"{earlier.rows} and {warning.rows}") if earlier else warning
        )
    return list(warning_by_observation.values())


def matrix_rows(run: Run) -> list[Flagged]:
    """Return the rows of matrices without flags about spread, which differences between pairs
    cause.
    """
    pooled = {"ci_wide", "bimodal", "bimodal_launches", "unsteady"}
    return [
        _with_flags(row, lambda flag: flag not in pooled)
        for row in run.rows
        if row.pattern == MATRIX
    ]


def _is_not_width(flag: str) -> bool:
    """Return whether a flag states more than the width of an interval."""
    return flag != NOISE.name


def _with_flags(row: Flagged, is_visible: Callable[[str], bool]) -> _FlaggedRow:
    flags = (flag.name for flag in split_flags(row.flags) if is_visible(flag.name))
    return _FlaggedRow(join_flags(flags), row.status, row.reason, row.reason_code)


def _grave(run: Run, section: str, rows: Sequence[Flagged], things: Things) -> list[_Warning]:
    """Return warnings about one record type: failures, flags of high severity, and flags that most
    rows have.
    """
    counts = Counter(flag.name for row in rows for flag in split_flags(row.flags))
    least = {"high": 0.0, "medium": len(rows) / 2, "low": math.inf}
    shown_flags = {name for name, flag in FLAGS.items() if counts[name] > least[flag.severity]}
    shown_rows = [_with_flags(row, shown_flags.__contains__) for row in rows]
    warnings = warned(shown_rows, run.info, things=things)
    return [
        _Warning(warning.priority, section, warning.rows, warning.observation, bool(warning.remedy))
        for warning in warnings
    ]
