"""Formats numbers, times and intervals for the tables of a report; None becomes an empty text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from commbench.units import counted, format_time, three_digits, time_unit

#: The most names in a list; further names are counted.
_MOST_NAMED = 4


def microseconds(time_us: float | None) -> str:
    """Return a time in us, ms or s: ``1.20 ms``."""
    return "" if time_us is None else format_time(time_us * 1e-6)


def is_wide(value: float, low: float, high: float) -> bool:
    """Return whether an interval is wider than its value, which two launches can make it."""
    return high - low > value


def with_interval(
    value: float | None, low: float | None, high: float | None, places: int, unit: str = ""
) -> str:
    """Return ``1.31 [1.28, 1.34]``, or ``1.31 [wide]``; ``unit`` stands behind the value."""
    if value is None:
        return ""
    text = f"{value:.{places}f}{unit}"
    if low is None or high is None:
        return text
    if is_wide(value, low, high):
        return f"{text} [wide]"
    return f"{text} [{low:.{places}f}, {high:.{places}f}]"


def time_with_interval(time_us: float | None, low: float | None, high: float | None) -> str:
    """Return ``1.23 us [1.20, 1.31]``, in one unit; ``1.23 us [wide]`` as in `with_interval`."""
    if time_us is None or low is None or high is None:
        return microseconds(time_us)
    number, unit = microseconds(time_us).split()
    places = len(number.partition(".")[2])
    scale_us = 1e6 * time_unit(time_us * 1e-6)[0]
    return with_interval(time_us / scale_us, low / scale_us, high / scale_us, places, f" {unit}")


def digits(value: float | None) -> str:
    """Return a number with at least three digits, without an exponent."""
    if value is None or not math.isfinite(value):
        return ""
    if isinstance(value, int):
        return str(value)
    return three_digits(value)


def between(low: float | None, high: float | None, value: float | None = None) -> str:
    """Return ``1.20-1.31``, or ``wide`` if it is wider than the value."""
    if low is None or high is None:
        return ""
    if value is not None and is_wide(value, low, high):
        return "wide"
    return f"{digits(low)}-{digits(high)}"


def launches_of(rows: Iterable[Any]) -> str:
    """Return the numbers of launches of several rows: ``6 launches`` or ``2 to 6 launches``.

    Empty if none is known.
    """
    distinct = sorted({row.launches for row in rows if row.launches})
    if not distinct:
        return ""
    most = counted(distinct[-1], "launch")
    return most if len(distinct) == 1 else f"{distinct[0]} to {most}"


def ranks_on_hosts(ranks: int | None, hosts: int | None) -> str:
    """Return ``4 ranks on 2 hosts`` as far as it is known; empty without ranks."""
    if not ranks:
        return ""
    text = counted(ranks, "rank")
    if hosts:
        text = f"{text} on {counted(hosts, 'host')}"
    return text


def listed(names: Iterable[str], most: int = _MOST_NAMED) -> str:
    """Return ``a, b and c``, or for many names ``a, b, c, d and 3 more``."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - most
    if more > 0:
        distinct[most:] = [f"{more} more"]
    if len(distinct) < 2:  # one needs no conjunction
        return "".join(distinct)
    return f"{', '.join(distinct[:-1])} and {distinct[-1]}"
