"""Expectations of a run, such as ``all_reduce@16M: busbw >= 0.8*link``: their grammar, and whether
a run meets them.

An expectation is met only if the whole interval of every row that it covers lies on the right side
of its bound. A row that is missing, or that has no time, is not tested. An expectation that is not
tested is never met.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path

from commbench.analysis.prediction.links import limit_of
from commbench.analysis.stragglers import straggler_findings
from commbench.collectives.operations import OPERATIONS
from commbench.ddp.plan.cases import setting_name
from commbench.ddp.plan.records import TrainingRow
from commbench.engine.records import Row
from commbench.errors import InputError, check_choice
from commbench.findings import Finding
from commbench.results import Run
from commbench.schema import JsonObject
from commbench.system.files import decode
from commbench.units import format_size, parse_link_rate, parse_size

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
EXIT_CODES: Mapping[Outcome, int] = {
    Outcome.MET: 0,
    Outcome.NOT_MET: 5,
    Outcome.NOT_TESTED: 3,
    Outcome.NOT_SHOWN: 3,
}

_TIMES = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
_STEPS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
_RATES = {
    "GB/s": 1.0,
    "MB/s": 1e-3,
    "gbit": 1 / 8,
    "mbit": 1 / 8000,
    "Gbit/s": 1 / 8,
    "Mbit/s": 1 / 8000,
}
_PLAIN = {"": 1.0}


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


METRICS: Mapping[str, Metric] = {
    "time": Metric(column="time_us", units=_TIMES),
    "busbw": Metric(column="busbw_GBps", units=_RATES, is_rate=True),
    "algbw": Metric(column="algbw_GBps", units=_RATES, is_rate=True),
    "wrong": Metric(column="wrong", units=_PLAIN, is_exact=True),
    "transport": Metric(column="transport", is_exact=True),
    "stragglers": Metric(is_exact=True),
    "step": Metric(column="step_ms", units=_STEPS, of_training=True),
    "speedup": Metric(column="speedup", units=_PLAIN, of_training=True),
}
_HOLDS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}


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
    sizes_text: str = ""
    """The sizes as ``--sizes`` takes them."""
    filters: Mapping[str, str] = field(default_factory=dict)
    """Columns and their values."""

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
        elif self.metric == "speedup" and row.speedup == 1 and not row.speedup_ci_low:
            return False  # the row that speedups are relative to
        return all(_is_value(getattr(row, name), text) for name, text in self.filters.items())


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A row held against an expectation."""

    name: str
    outcome: Outcome
    value: float | str | None = None
    low: float | None = None
    high: float | None = None
    bound: float | None = None
    """In the unit of the value; None for a word."""
    reason: Finding | None = None
    """Why a row is not tested or not shown; None otherwise."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An expectation with what was found."""

    expectation: Expectation
    rows: Sequence[Judged]

    @property
    def outcome(self) -> Outcome:
        """The worst outcome of its rows."""
        return worst(row.outcome for row in self.rows)

    def to_json(self) -> JsonObject:
        """Return the object of ``commbench check --json``."""
        return {
            "expectation": self.expectation.text,
            "outcome": str(self.outcome),
            "unit": self.expectation.kind.unit,
            "rows": [
                {
                    "case": row.name,
                    "outcome": str(row.outcome),
                    "value": row.value,
                    "ci": None if row.low is None else [row.low, row.high],
                    "bound": row.bound,
                    "reason": "" if row.reason is None else str(row.reason),
                }
                for row in self.rows
            ],
        }


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the worst of the outcomes; not tested if there is none."""
    order = list(Outcome)
    return min(outcomes, key=order.index, default=Outcome.NOT_TESTED)


# -------------------------------------------------------------------------------------- the grammar


_EXPECTATION = re.compile(
    r"""
    (?:
        (?P<operation>\w+)\s*
        (?:@(?P<sizes>[^\[\]<=>]*?))?\s*
        (?:\[(?P<filters>[^\]]*)\])?\s*:
    )?
    \s*(?P<metric>\w+)\s*
    (?P<comparison><=|>=|<|>|==?)\s*
    (?P<bound>[^<=>]*)
    """,
    re.VERBOSE,
)
_BOUND = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?)\s*(?P<unit>.*)")
_FORM = "OPERATION@SIZES[COLUMN=VALUE,...]: METRIC COMPARISON BOUND"


def parse_expectation(text: str) -> Expectation:
    """Parse ``[OPERATION[@SIZES][[COLUMN=VALUE,...]]:] METRIC COMPARISON BOUND``.

    Raises:
        InputError: it is not understood.
    """
    text = text.strip()
    try:
        return _parse(text)
    except InputError as error:
        raise InputError(f"--expect {text!r}: {error}") from error


def _parse(text: str) -> Expectation:
    match = _EXPECTATION.fullmatch(text)
    if match is None:
        raise InputError(f"not of the form {_FORM}, such as latency@8: time <= 3us.")
    operation, sizes, filters, name = match.group("operation", "sizes", "filters", "metric")
    operation = operation or ""
    if operation:
        check_choice("operation", operation, (TRAIN, *OPERATIONS))
    is_training = operation == TRAIN
    if is_training and sizes is not None:
        raise InputError(f"{TRAIN} has no sizes.")
    check_choice("metric", name, METRICS)
    metric = METRICS[name]
    if operation and is_training != metric.of_training:
        raise InputError(f"{name} is no metric of {operation}.")
    comparison = match["comparison"].replace("==", "=")
    check_choice("comparison", comparison, ("=",) if metric.is_exact else _HOLDS)
    bound, of_link, word = math.nan, False, match["bound"].strip()
    if metric.units:
        bound, of_link = _parse_bound(name, word)
        word = ""
    elif not re.fullmatch(r"[\w/+.%-]+", word) or (name == "stragglers" and word != "none"):
        raise InputError("a word is missing; write transport = tcp or stragglers = none.")
    return Expectation(
        text=text,
        metric=name,
        comparison=comparison,
        bound=bound,
        of_link=of_link,
        word=word,
        operation="" if is_training else operation,
        sizes=_parse_sizes(sizes),
        sizes_text=(sizes or "").strip(),
        filters=_parse_filters(filters, TrainingRow if is_training else Row),
    )


def _parse_sizes(text: str | None) -> Sequence[tuple[int, int]]:
    """Return the sizes, as in `Expectation`."""
    sizes = []
    if text is not None:
        for item in text.strip().split(","):
            ends = [parse_size(end) for end in item.split(":")]
            if len(ends) > 2 or ends != sorted(ends):  # both ends
                raise InputError(f"{item} is no range of sizes FIRST:LAST, such as 8:64M.")
            sizes.append((ends[0], ends[-1]))
    return sizes


def _parse_filters(text: str | None, row_class: type[Row | TrainingRow]) -> dict[str, str]:
    """Return the columns and their values."""
    filters = {}
    if text is not None:
        columns = {each.name for each in fields(row_class)}
        for item in text.split(","):
            name, _, value = map(str.strip, item.partition("="))
            if name not in columns or not value:
                raise InputError(
                    f"{item!r} is no column with a value, such as backend=mpi; docs/columns.md"
                    " lists the columns."
                )
            filters[name] = value
    return filters


def _parse_bound(name: str, text: str) -> tuple[float, bool]:
    """Return the bound of a metric, and whether it is a factor of the link's rate."""
    metric = METRICS[name]
    match = _BOUND.fullmatch("1*link" if text == "link" else text)
    if match is None:
        raise InputError(f"{text!r} begins with no number.")
    number, unit = float(match["number"]), match["unit"].replace(" ", "")
    if metric.is_rate and unit == "*link":
        return number, True
    if unit not in metric.units:
        units = ", ".join(metric.units) or "none"
        link = " or *link" if metric.is_rate else ""
        raise InputError(f"{text!r} has no unit of {name}: {units}{link}.")
    return number * metric.units[unit], False


def read_expectations(options: Sequence[str]) -> list[Expectation]:
    """Parse all expectations, each given as a text or as a file with one a line.

    Raises:
        InputError: there is none, a file cannot be read, or one is not understood.
    """
    texts = []
    for option in options:
        is_file = os.path.isfile(option)  # noqa: PTH113 - pathlib refuses a name that is too long
        if not is_file and any(character in option for character in "<>="):
            texts.append(option)
            continue
        try:
            lines = decode(Path(option).read_bytes()).splitlines()
        except OSError as error:
            raise InputError(
                f"--expect {option} is no expectation, and no file that can be read"
                f" ({error.strerror}); write an expectation such as 'latency@8: time <= 3us', or a"
                " file with one a line."
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
    return [Answer(expectation=each, rows=_judge(run, each, rate)) for each in expectations]


def _judge(run: Run, expectation: Expectation, rate_bps: int | None) -> list[Judged]:
    if expectation.metric == "stragglers":
        return [_judge_stragglers(run)]
    rows: Sequence[Row | TrainingRow] = run.rows
    if expectation.kind.of_training:
        rows = run.training_rows
    judged, measured = [], set()
    for row in rows:
        if expectation.covers(row):
            judged.append(_judge_row(run, expectation, row, rate_bps))
            if isinstance(row, Row):
                measured.add(row.message_bytes or -1)
    for first, last in expectation.sizes:
        if not any(first <= size <= last for size in measured):
            sizes = format_size(first)
            if last > first:
                sizes = f"{sizes} to {format_size(last)}"
            judged.append(_untested(f"{expectation.operation} {sizes}", "check_no_row"))
    if not judged:
        name = expectation.operation or (TRAIN if expectation.kind.of_training else "any case")
        judged.append(_untested(name, "check_no_row"))
    return judged


def _untested(name: str, code: str, **numbers: str) -> Judged:
    reason = Finding(code, numbers=numbers)
    return Judged(name=name, outcome=Outcome.NOT_TESTED, reason=reason)


def _judge_row(
    run: Run, expectation: Expectation, row: Row | TrainingRow, rate_bps: int | None
) -> Judged:
    name, metric = name_of(row), expectation.kind
    value = getattr(row, metric.column)
    if metric.column != "wrong" and row.status != "ok":
        return _untested(name, "stated", sentence=row.reason or row.status)
    if value is None or value == "":
        code = "check_unverified" if metric.column == "wrong" else "check_empty"
        return _untested(name, code, column=metric.column)
    bound = expectation.bound
    if metric.is_exact:
        is_met = value == bound
        if expectation.word:
            found, wanted = value.lower(), expectation.word.lower()
            is_met = found == wanted or found.startswith(f"{wanted}/")
        outcome = Outcome.MET if is_met else Outcome.NOT_MET
        shown = None if expectation.word else bound
        return Judged(name=name, outcome=outcome, value=value, bound=shown)
    if expectation.of_link:
        bound *= _link_GBps(run, row, rate_bps)
    low, high = interval_of(row, metric)
    outcome, reason = _outcome(expectation.comparison, bound, low, high)
    if low is not None and "one_launch" in row.flags.split(";"):
        outcome, reason = Outcome.NOT_SHOWN, Finding("check_one_launch")
    return Judged(
        name=name, outcome=outcome, value=value, low=low, high=high, bound=bound, reason=reason
    )


def interval_of(row: Row | TrainingRow, metric: Metric) -> tuple[float | None, float | None]:
    """Return the interval of a metric; a bandwidth is a constant over the time."""
    if not metric.is_rate:
        return getattr(row, f"{metric.column}_ci_low"), getattr(row, f"{metric.column}_ci_high")
    if not (isinstance(row, Row) and row.time_us_ci_low and row.time_us_ci_high):
        return None, None
    message = (getattr(row, metric.column) or 0.0) * (row.time_us or 0.0)
    return message / row.time_us_ci_high, message / row.time_us_ci_low


def _outcome(
    comparison: str, bound: float, low: float | None, high: float | None
) -> tuple[Outcome, Finding | None]:
    """Return whether an interval lies on the right side of a bound or on the wrong side; if neither
    is shown, the reason.
    """
    if low is None or high is None:
        return Outcome.NOT_SHOWN, Finding("check_no_interval")
    holds = _HOLDS[comparison]
    best, worst = low, high
    if comparison in {">", ">="}:
        best, worst = high, low
    if holds(worst, bound):
        return Outcome.MET, None
    if not holds(best, bound):
        return Outcome.NOT_MET, None
    return Outcome.NOT_SHOWN, Finding("check_holds_bound")


def _link_GBps(run: Run, row: Row | TrainingRow, rate_bps: int | None) -> float:
    """Return the rate of the link that bounds a row, in GB/s.

    Raises:
        InputError: it is unknown.
    """
    assert isinstance(row, Row)  # noqa: S101 - only bandwidths are held against the link
    if rate_bps is not None:
        return OPERATIONS[row.operation].messages_at_once * rate_bps / 8e9
    limit = limit_of(row, run.info)
    if limit is None:
        raise InputError(
            f"The link's rate is unknown for {name_of(row)}: the run states none that bounds it;"
            " give --link 200gbit."
        )
    return limit[0]


def _judge_stragglers(run: Run) -> Judged:
    search = straggler_findings(run)
    if not search.comparisons:
        reason = search.remarks[0] if search.remarks else Finding("check_no_ranks")
        return Judged(name="all ranks", outcome=Outcome.NOT_TESTED, reason=reason)
    names = dict.fromkeys(straggler.name for straggler in search.stragglers)
    if names:
        return Judged(name="all ranks", outcome=Outcome.NOT_MET, value=", ".join(names))
    return Judged(name="all ranks", outcome=Outcome.MET, value="none")


def name_of(row: Row | TrainingRow) -> str:
    """Return the name of a row in the answers."""
    if isinstance(row, TrainingRow):
        words = [row.workload, setting_name(row), row.env]
    else:
        words = [row.backend, row.operation]
        if row.message_bytes:
            words.append(format_size(row.message_bytes))
        if row.pattern != "flat":
            words.append(row.pattern)
        words.append(row.env)
        if row.state:
            words.append(f"({row.state} state)")
    return " ".join(filter(None, words))


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
