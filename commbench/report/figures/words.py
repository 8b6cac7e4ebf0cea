"""The words of captions: names of runs, lists, numbers with their intervals, and how two estimates compare."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from commbench.report.figures.axes import Estimate
from commbench.store import Run
from commbench.units import format_time, three_digits

#: More names than these are counted.
_MOST_NAMED = 4
#: Words of a name and, between them, what divides them.
_WORDS = re.compile(r"([_/ -])")


def run_names(runs: Sequence[Run]) -> list[str]:
    """What to call each run beside others: its directory's name without the words that all of them share.

    ``bench_xeon_2026`` and ``quick_xeon_2026`` are ``bench`` and ``quick``; names that are the same get the parent's.
    """
    paths = [run.path.resolve() for run in runs]
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        names = [f"{path.parent.name}/{path.name}" for path in paths]
    names = _unshared(names)
    count = Counter(names)
    return [f"{name} ({place})" if count[name] > 1 else name for place, name in enumerate(names, start=1)]


def _unshared(names: Sequence[str]) -> list[str]:
    """Names without the words at their beginnings and ends that are the same in all; never less than a word."""
    words = [_WORDS.split(name) for name in names]
    while len(words) > 1 and min(map(len, words)) > 2 and len({tuple(line[:2]) for line in words}) == 1:  # noqa: PLR2004 - a word and what follows
        words = [line[2:] for line in words]
    while len(words) > 1 and min(map(len, words)) > 2 and len({tuple(line[-2:]) for line in words}) == 1:  # noqa: PLR2004 - as above
        words = [line[:-2] for line in words]
    return ["".join(line) for line in words]


def prefixes(runs: Sequence[Run]) -> list[str]:
    """What the series of each run begin with: nothing where there is one run alone."""
    return [f"{name}: " for name in run_names(runs)] if len(runs) > 1 else [""] * len(runs)


def varying(choices: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of what differs between choices, in the order of the first."""
    return [name for name in (choices[0] if choices else ()) if len({str(choice[name]) for choice in choices}) > 1]


def listed(names: Iterable[str], most: int = _MOST_NAMED) -> str:
    """``a, b and c``, or of many ``a, b, c, d and 3 more``."""
    known = list(dict.fromkeys(names))
    if len(known) > most:
        return f"{', '.join(known[:most])} and {len(known) - most} more"
    return " and ".join([*([", ".join(known[:-1])] if len(known) > 1 else []), *known[-1:]])


def sentences(*parts: str) -> str:
    """Sentences as a caption; empty ones are left out."""
    return " ".join(part for part in parts if part)


def time_text(point: Estimate) -> str:
    """A time in microseconds with its interval."""
    low, high = point.bounds
    interval = f" [{format_time(low * 1e-6)}, {format_time(high * 1e-6)}]" if _has_interval(point) else ""
    return format_time(point.value * 1e-6) + interval


def number_text(point: Estimate, unit: str) -> str:
    """A value with its unit and its interval."""
    interval = " [{}, {}]".format(*map(three_digits, point.bounds)) if _has_interval(point) else ""
    return f"{three_digits(point.value)} {unit}{interval}"


def _has_interval(point: Estimate) -> bool:
    return point.low is not None and point.high is not None


def shown_apart(one: Estimate, other: Estimate) -> bool:
    """Whether two intervals do not meet: then the difference is more than noise."""
    if not (_has_interval(one) and _has_interval(other)):
        return False
    (low, high), (other_low, other_high) = one.bounds, other.bounds
    return high < other_low or other_high < low


def left_out(names: Sequence[str], shown: int) -> str:
    """A sentence about the series that were too many to draw."""
    rest = names[shown:]
    return f"Not drawn, as more than {shown} lines cannot be told apart: {listed(rest, 8)}." if rest else ""
