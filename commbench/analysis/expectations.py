"""Expectations of a run, such as ``all_reduce@16M: busbw >= 0.8*link``: their grammar, and whether
a run meets them.

An expectation is met only if the whole interval of every row that it covers lies on the right side
of its bound. A row that is missing, or that has no time, is not tested. An expectation that is not
tested is never met.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from commbench.analysis.prediction.links import limit_of
from commbench.analysis.runs import straggler_findings
from commbench.collectives.operations import OPERATIONS
from commbench.ddp.plan.cases import DEFAULT_CAP
from commbench.ddp.plan.records import TrainingRow
from commbench.engine.records import Row
from commbench.errors import InputError
from commbench.results import Run
from commbench.schema import JsonObject
from commbench.units import format_link_rate, format_size, parse_link_rate, parse_size

TRAIN = "train"


class Outcome(str, Enum):
    """The answer to an expectation, the worst first."""

    NOT_MET = "not met"
    NOT_TESTED = "not tested"
    NOT_SHOWN = "not shown"
    MET = "met"

    def __str__(self) -> str:
        return self.value


#: Exit codes of ``commbench check``.
EXIT_CODES: Mapping[Outcome, int] = MappingProxyType(
    {Outcome.MET: 0, Outcome.NOT_MET: 5, Outcome.NOT_TESTED: 3, Outcome.NOT_SHOWN: 3}
)

_TIMES: Mapping[str, float] = MappingProxyType({"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6})
_STEPS: Mapping[str, float] = MappingProxyType(
    {unit: factor / 1e3 for unit, factor in _TIMES.items()}
)
_RATES: Mapping[str, float] = MappingProxyType(
    {
        "GB/s": 1.0,
        "MB/s": 1e-3,
        "gbit": 1 / 8,
        "mbit": 1 / 8000,
        "Gbit/s": 1 / 8,
        "Mbit/s": 1 / 8000,
    }
)
_PLAIN: Mapping[str, float] = MappingProxyType({"": 1.0})


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A figure of a row.

    Its interval is in ``*_ci_low`` and ``*_ci_high``, and a bandwidth takes that of time_us.
    """

    column: str = ""
    """Empty: the metric is of the whole run."""
    units: Mapping[str, float] = field(default_factory=dict)
    """Factors to the unit of the column; empty: the metric is a word."""
    of_training: bool = False
    is_rate: bool = False
    is_exact: bool = False
    """Whether it needs no interval, and takes ``=``."""

    @property
    def unit(self) -> str:
        """The unit of the column."""
        return next((unit for unit, factor in self.units.items() if factor == 1), "")


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "time": Metric(column="time_us", units=_TIMES),
        "busbw": Metric(column="busbw_GBps", units=_RATES, is_rate=True),
        "algbw": Metric(column="algbw_GBps", units=_RATES, is_rate=True),
        "wrong": Metric(column="wrong", units=_PLAIN, is_exact=True),
        "transport": Metric(column="transport", is_exact=True),
        "stragglers": Metric(is_exact=True),
        "step": Metric(column="step_ms", units=_STEPS, of_training=True),
        "speedup": Metric(column="speedup", units=_PLAIN, of_training=True),
    }
)
COMPARISONS = ("<=", ">=", "<", ">", "=")


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A parsed expectation."""

    text: str
    metric: str
    comparison: str
    bound: float = math.nan
    """In the unit of the metric's column, or the factor of the link's rate."""
    of_link: bool = False
    word: str = ""
    """The bound of a metric that is a word."""
    operation: str = ""
    """Empty: all rows."""
    sizes: Sequence[tuple[int, int]] = ()
    """Message sizes as (first, last): equal for a size that must be there; else all that were
    measured between them."""
    filters: Mapping[str, str] = field(default_factory=dict)
    """Columns and their values."""

    @property
    def sizes_text(self) -> str:
        """The sizes as ``--sizes`` takes them."""
        return ",".join(
            str(first) if first == last else f"{first}:{last}" for first, last in self.sizes
        )

    @property
    def kind(self) -> Metric:
        """The entry of its metric."""
        return METRICS[self.metric]

    def covers(self, row: Row | TrainingRow) -> bool:
        """Return whether a row is one of those that the expectation is about."""
        if isinstance(row, Row):
            size = row.message_bytes or 0
            if self.operation and row.operation != self.operation:
                return False
            if self.sizes and not any(first <= size <= last for first, last in self.sizes):
                return False
        return all(_is_value(getattr(row, name), text) for name, text in self.filters.items())


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A row held against an expectation."""

    name: str
    outcome: Outcome
    value: float | str | None = None
    low: float | None = None
    high: float | None = None
    bound: float | None = None
    """In the unit of the value; None for a word."""
    reason: str = ""
    """A sentence for a row that is not tested or not shown; empty otherwise."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An expectation with what was found."""

    expectation: Expectation
    findings: Sequence[Finding]

    @property
    def outcome(self) -> Outcome:
        """The worst outcome of its rows."""
        return worst(finding.outcome for finding in self.findings)

    def to_json(self) -> JsonObject:
        """Return the object of ``commbench check --json``."""
        return {
            "expectation": self.expectation.text,
            "outcome": str(self.outcome),
            "unit": self.expectation.kind.unit,
            "rows": [
                {
                    "case": finding.name,
                    "outcome": str(finding.outcome),
                    "value": finding.value,
                    "ci": None if finding.low is None else [finding.low, finding.high],
                    "bound": finding.bound,
                    "reason": finding.reason,
                }
                for finding in self.findings
            ],
        }


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the worst of the outcomes; not tested if there is none."""
    order = list(Outcome)
    return min(outcomes, key=order.index, default=Outcome.NOT_TESTED)


# -------------------------------------------------------------------------------------- the grammar


class _Scanner:
    """Reads an expectation from left to right; an error shows the place by a caret."""

    SPACE: ClassVar[re.Pattern[str]] = re.compile(r"\s*")

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0
        self.skip()

    def skip(self) -> None:
        match = self.SPACE.match(self.text, self.place)
        self.place = match.end() if match else self.place

    def take(self, pattern: str) -> str:
        """Return what matches here, and go on behind it and the space that follows.

        Empty if nothing matches.
        """
        match = re.compile(pattern).match(self.text, self.place)
        if not match:
            return ""
        self.place = match.end()
        self.skip()
        return match[0]

    def fail(self, what: str, place: int | None = None) -> InputError:
        """Return the error with the sentence and the caret."""
        at = self.place if place is None else place
        return InputError(f"--expect: {what}.\n  {self.text}\n  {' ' * at}^")


def parse_expectation(text: str) -> Expectation:
    """Parse ``[OPERATION[@SIZES][[COLUMN=VALUE,...]]:] METRIC COMPARISON BOUND``.

    Raises:
        InputError: it is not understood; the message has one sentence, the text, and a caret below
            the place.
    """
    scanner = _Scanner(text)
    operation, sizes, filters = _parse_case(scanner)
    start = scanner.place
    name = scanner.take(r"\w+")
    if name not in METRICS:
        raise scanner.fail(
            f"{name or 'the end'} is no metric; write one of {', '.join(METRICS)}", start
        )
    metric = METRICS[name]
    if metric.of_training and operation != TRAIN and operation:
        raise scanner.fail(f"{name} is of training; write {TRAIN}: {name}", start)
    if operation == TRAIN and not metric.of_training:
        training = ", ".join(each for each, entry in METRICS.items() if entry.of_training)
        raise scanner.fail(f"{name} is not of training; write one of {training}", start)
    start = scanner.place
    comparison = scanner.take("<=|>=|<|>|==?").replace("==", "=")
    if not comparison:
        raise scanner.fail(f"a comparison is missing; write one of {', '.join(COMPARISONS)}", start)
    if (comparison == "=") != metric.is_exact:
        usual = "=" if metric.is_exact else "<=, <, >= or >"
        raise scanner.fail(f"{name} takes {usual}", start)
    bound, of_link, word = _parse_bound(scanner, name, metric)
    if scanner.place < len(text):
        raise scanner.fail("the expectation should end here")
    return Expectation(
        text=text.strip(),
        metric=name,
        comparison=comparison,
        bound=bound,
        of_link=of_link,
        word=word,
        operation="" if operation == TRAIN else operation,
        sizes=sizes,
        filters=filters,
    )


def _parse_case(scanner: _Scanner) -> tuple[str, Sequence[tuple[int, int]], dict[str, str]]:
    """Return operation, sizes and filters; nothing is taken if there is no case."""
    begin = scanner.place
    name = scanner.take(r"\w+(?=\s*[@:\[])")
    if not name:
        return "", (), {}
    if name not in OPERATIONS and name != TRAIN:
        raise scanner.fail(
            f"{name} is no operation; write {TRAIN} or one of {', '.join(OPERATIONS)}", begin
        )
    sizes: Sequence[tuple[int, int]] = ()
    if name != TRAIN and scanner.take("@"):
        start = scanner.place
        text = scanner.take(r"[\w.][\w.,:]*?(?=\s*(?::\s*[a-z]|\[|:?\s*$))")
        if not text:
            raise scanner.fail(
                "sizes are missing; write 8, 1K,64K or 8:64M, and a colon behind them", start
            )
        sizes = _parse_sizes(scanner, text, start)
    columns = TrainingRow if name == TRAIN else Row
    filters = (
        _parse_filters(scanner, {each.name for each in fields(columns)})
        if scanner.take(r"\[")
        else {}
    )
    if not scanner.take(":"):
        raise scanner.fail(
            f"a colon is missing between the case and the metric; write {name}: time <= 3us"
        )
    return name, sizes, filters


def _parse_sizes(scanner: _Scanner, text: str, place: int) -> Sequence[tuple[int, int]]:
    try:
        ends = [[parse_size(end) for end in item.split(":")] for item in text.split(",")]
    except InputError as error:
        raise scanner.fail(str(error).rstrip("."), place) from error
    if any(len(each) > 2 or each[0] > each[-1] for each in ends):  # noqa: PLR2004 - first and last
        raise scanner.fail("a range of sizes is FIRST:LAST, such as 8:64M", place)
    return [(each[0], each[-1]) for each in ends]


def _parse_filters(scanner: _Scanner, columns: set[str]) -> dict[str, str]:
    filters = {}
    while True:
        start = scanner.place
        name = scanner.take(r"\w+")
        if name not in columns:
            raise scanner.fail(
                f"{name or 'the end'} is no column; docs/columns.md lists them", start
            )
        if not scanner.take("="):
            raise scanner.fail(f"= and a value are missing behind {name}")
        filters[name] = scanner.take(r"[^,\]]+").strip()
        if not filters[name]:
            raise scanner.fail(f"a value is missing for {name}")
        if scanner.take(r"\]"):
            return filters
        if not scanner.take(","):
            raise scanner.fail("] or a comma is missing")


def _parse_bound(scanner: _Scanner, name: str, metric: Metric) -> tuple[float, bool, str]:
    """Return the bound, whether it is a factor of the link's rate, and the word."""
    start = scanner.place
    if not metric.units:
        word = scanner.take(r"[\w/+.-]+")
        if not word:
            raise scanner.fail(
                f"a word is missing; write {name} = tcp" if name == "transport" else "write none",
                start,
            )
        if name == "stragglers" and word != "none":
            raise scanner.fail("stragglers can only be none", start)
        return math.nan, False, word
    text = scanner.take(r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
    if metric.is_rate and not text and scanner.take("link"):
        return 1.0, True, ""
    if not text:
        raise scanner.fail("a number is missing", start)
    number = float(text)
    if metric.is_rate and scanner.take(r"\*"):
        if not scanner.take("link"):
            raise scanner.fail("link is missing behind *")
        return number, True, ""
    start = scanner.place
    unit = scanner.take(r"[A-Za-z%/]+")
    if unit not in metric.units:
        units = ", ".join(metric.units)
        wanted = f"a unit of {name} is needed: {units}" if units else f"{name} has no unit"
        raise scanner.fail(f"{wanted}{' or *link' if metric.is_rate else ''}", start)
    return number * metric.units[unit], False, ""


def read_expectations(options: Sequence[str]) -> list[Expectation]:
    """Parse all expectations, each given as a text or as a file with one a line.

    Raises:
        InputError: there is none, a file cannot be read, or one is not understood.
    """
    texts = []
    for option in options:
        if any(character in option for character in "<>="):
            texts.append(option)
            continue
        try:
            lines = Path(option).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise InputError(
                f"--expect {option} is no expectation, and no file that can be read ({reason});"
                " write an expectation such as 'latency@8: time <= 3us', or a file with one a"
                " line."
            ) from error
        texts += [line for each in lines if (line := each.partition("#")[0].strip())]
    if not texts:
        raise InputError(
            "There is nothing to check; give --expect 'latency@8: time <= 3us', or a file with one"
            " a line."
        )
    return [parse_expectation(text) for text in texts]


# ------------------------------------------------------------------------------------ the judgement


def judge(run: Run, expectations: Sequence[Expectation], link: str = "") -> list[Answer]:
    """Hold each expectation against a run.

    Args:
        run: the run.
        expectations: parsed.
        link: the rate of a host's link, such as ``200gbit``; empty: the rate that the run states.

    Raises:
        InputError: ``link`` is no rate, or an expectation needs the link's rate and none is known.
    """
    rate = parse_link_rate(link) if link else None
    if link and not rate:
        raise InputError(f"--link {link} is not understood; write a rate such as 200gbit.")
    return [Answer(expectation=each, findings=_findings(run, each, rate)) for each in expectations]


def _findings(run: Run, expectation: Expectation, rate_bps: int | None) -> list[Finding]:
    if expectation.metric == "stragglers":
        return [_judge_stragglers(run)]
    rows: Sequence[Row | TrainingRow] = (
        run.training_rows if expectation.kind.of_training else run.rows
    )
    covered = [
        row for row in rows if expectation.covers(row) and not _is_baseline(row, expectation)
    ]
    findings = [_judge_row(run, expectation, row, rate_bps) for row in covered]
    measured = {row.message_bytes for row in covered if isinstance(row, Row)}
    for first, last in expectation.sizes:
        if not any(size is not None and first <= size <= last for size in measured):
            sizes = (
                format_size(first)
                if first == last
                else f"{format_size(first)} to {format_size(last)}"
            )
            name = f"{expectation.operation} {sizes}"
            findings.append(
                Finding(name=name, outcome=Outcome.NOT_TESTED, reason="The run has no such row.")
            )
    if not findings:
        name = expectation.operation or (TRAIN if expectation.kind.of_training else "any case")
        findings.append(
            Finding(name=name, outcome=Outcome.NOT_TESTED, reason="The run has no such row.")
        )
    return findings


def _is_baseline(row: Row | TrainingRow, expectation: Expectation) -> bool:
    """Return whether an expectation of a speedup meets the row that speedups are relative to."""
    return (
        isinstance(row, TrainingRow)
        and expectation.metric == "speedup"
        and row.speedup == 1
        and not row.speedup_ci_low
    )


def _judge_row(
    run: Run, expectation: Expectation, row: Row | TrainingRow, rate_bps: int | None
) -> Finding:
    name, metric = name_of(row), expectation.kind
    value = getattr(row, metric.column)
    if metric.column != "wrong" and row.status != "ok":
        reason = row.reason or f"The row's status is {row.status}."
        return Finding(name=name, outcome=Outcome.NOT_TESTED, reason=reason)
    if value is None or value == "":
        reason = (
            "The result was not verified."
            if metric.column == "wrong"
            else f"The row has no {metric.column}."
        )
        return Finding(name=name, outcome=Outcome.NOT_TESTED, reason=reason)
    if expectation.word:
        is_met = value.lower() == expectation.word.lower() or value.lower().startswith(
            f"{expectation.word.lower()}/"
        )
        return Finding(name=name, outcome=Outcome.MET if is_met else Outcome.NOT_MET, value=value)
    bound = expectation.bound * (_link_GBps(run, row, rate_bps) if expectation.of_link else 1.0)
    low, high = (value, value) if metric.is_exact else interval_of(row, metric)
    outcome = _outcome(expectation.comparison, bound, low, high)
    reason = ""
    if outcome is Outcome.NOT_SHOWN:
        reason = "The row has no interval." if low is None else "The interval holds the bound."
    if outcome is Outcome.MET and not metric.is_exact and "one_launch" in row.flags.split(";"):
        outcome, reason = Outcome.NOT_SHOWN, "One launch does not show how much launches differ."
    return Finding(
        name=name,
        outcome=outcome,
        value=value,
        low=None if metric.is_exact else low,
        high=None if metric.is_exact else high,
        bound=bound,
        reason=reason,
    )


def interval_of(row: Row | TrainingRow, metric: Metric) -> tuple[float, float] | tuple[None, None]:
    """Return the interval of a metric; a bandwidth is a constant over the time."""
    if not metric.is_rate:
        return getattr(row, f"{metric.column}_ci_low"), getattr(row, f"{metric.column}_ci_high")
    time, low, high = (
        getattr(row, name) for name in ("time_us", "time_us_ci_low", "time_us_ci_high")
    )
    if time is None or not low or not high:
        return None, None
    rate = getattr(row, metric.column)
    return rate * time / high, rate * time / low


def _outcome(comparison: str, bound: float, low: float | None, high: float | None) -> Outcome:
    """Return whether an interval lies on the right side of a bound, on the wrong side, or neither
    is shown.
    """
    if low is None or high is None:
        return Outcome.NOT_SHOWN
    if comparison == "=":
        return Outcome.MET if low == bound else Outcome.NOT_MET
    is_met = {"<=": high <= bound, "<": high < bound, ">=": low >= bound, ">": low > bound}[
        comparison
    ]
    is_missed = {"<=": low > bound, "<": low >= bound, ">=": high < bound, ">": high <= bound}[
        comparison
    ]
    return Outcome.MET if is_met else Outcome.NOT_MET if is_missed else Outcome.NOT_SHOWN


def _link_GBps(run: Run, row: Row | TrainingRow, rate_bps: int | None) -> float:  # noqa: N802 - a unit
    """Return the rate of the link that bounds a row, in GB/s.

    Raises:
        InputError: it is unknown.
    """
    assert isinstance(row, Row)  # noqa: S101 - only bandwidths are held against the link
    if rate_bps is not None:
        return OPERATIONS[row.operation].messages_at_once * rate_bps / 8e9
    limit = limit_of(row, run.info)
    if limit is None or limit.bound_bps is None:
        raise InputError(
            f"The link's rate is unknown for {name_of(row)}: the run states none that bounds it;"
            " give --link 200gbit."
        )
    return limit.bound_bps / 8e9


def _judge_stragglers(run: Run) -> Finding:
    findings = straggler_findings(run)
    if findings.stragglers:
        names = ", ".join(dict.fromkeys(straggler.name for straggler in findings.stragglers))
        return Finding(name="all ranks", outcome=Outcome.NOT_MET, value=names)
    if not findings.comparisons:
        reason = (
            " ".join(map(str, findings.remarks))
            or "The run compares no ranks; measure the suite matrix."
        )
        return Finding(name="all ranks", outcome=Outcome.NOT_TESTED, reason=reason)
    return Finding(name="all ranks", outcome=Outcome.MET, value="none")


def name_of(row: Row | TrainingRow) -> str:
    """Return the name of a row in the answers."""
    if isinstance(row, TrainingRow):
        caps = "default" if row.bucket_cap_mb == DEFAULT_CAP else f"{row.bucket_cap_mb} MiB"
        return " ".join(filter(None, [row.workload, row.hook, f"{caps} buckets", row.env]))
    size = format_size(row.message_bytes) if row.message_bytes else ""
    words = [
        row.backend,
        row.operation,
        size,
        "" if row.pattern == "flat" else row.pattern,
        row.env,
    ]
    state = f"({row.state} state)" if row.state else ""
    return " ".join(filter(None, [*words, state]))


def _is_value(value: object, text: str) -> bool:
    """Return whether a cell has the value that a filter writes."""
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    if isinstance(value, int | float):
        try:
            return float(text) == float(value)
        except ValueError:
            return False
    return str(value or "") == text


def describe_link(link: str, run: Run) -> str:
    """Return a clause on the link's rate that was used; empty if it is unknown."""
    if link:
        return f"link: {format_link_rate(parse_link_rate(link) or 0)} (--link)"
    for row in run.rows:
        limit = limit_of(row, run.info)
        if limit is not None:
            return f"link: {limit}"
    return ""
