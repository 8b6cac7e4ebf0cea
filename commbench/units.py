"""Sizes, times and rates as people write them, and back.

The conventions of every file and table:

- A *size* is a whole number of bytes. K, M, G (and KiB, MiB, GiB) are powers of 1024, as in
  nccl-tests and OSU.
- A *rate* is in GB/s with GB = 1e9 bytes, as in nccl-tests: sizes count in 1024, rates in 1000. A
  link's rate is a whole number of bits per second, written ``1gbit`` or ``200mbit``, as tc does.
- A *time* is kept in seconds inside the program; a name carries any other unit (``time_us``,
  ``step_ms``).
"""

import math
import re
from datetime import datetime, timezone
from fractions import Fraction

from commbench.errors import InputError

_FACTORS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*(?:([kmg])(?:i?b)?|b)?", re.IGNORECASE)
_LINK_RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([kmg])bit", re.IGNORECASE)
_BITS = {"g": 10**9, "m": 10**6, "k": 10**3}
_DURATION_HINT = "write e.g. 90, 90s, 20min, 2h or 1h30m"
_DURATION_PART = r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(h|min|m|s)\s*"
_PLAIN_SECONDS = r"[0-9]{1,9}(?:\.[0-9]{1,6})?"
_SECONDS = {"h": 3600.0, "min": 60.0, "m": 60.0, "s": 1.0}
_SIZE_LIMIT = 1 << 63  # MPI and NCCL count bytes in a signed 64-bit integer

_SIZE_UNITS = ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"), (1, "B"))
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_MINUTES_PER_HOUR = 60


def parse_size(text: str) -> int:
    """Return the bytes that ``text`` names: '8', '1K', '64KiB', '1.5M', '1g'.

    Raises:
        InputError: if it is not a size, is negative, is not a whole number of bytes, or needs more
            than 63 bits.
    """
    match = _SIZE.fullmatch(text.strip())
    size = Fraction(-1)
    if match is not None:
        size = Fraction(match[1]) * _FACTORS[(match[2] or "").lower()]
    if size.denominator != 1 or not 0 <= size < _SIZE_LIMIT:
        raise InputError(
            f"size {text!r} is not understood: write whole bytes, fewer than 8 EiB, such as 8, 64K,"
            " 1.5M or 1GiB."
        )
    return int(size)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return the bytes of a comma list of sizes and ranges, in the order given, each size once.

    A range ``min:max`` or ``min:max:factor`` is min, min*factor, min*factor^2, ... up to and
    including max, the factor being 2 unless given (nccl-tests' ``-b``, ``-e``, ``-f``); max itself
    appears only where a step meets it.

    Raises:
        InputError: if an item is empty or no size, or a range ends below its start, starts at 0 or
            has a factor that is not a whole number of 2 or more.
    """
    sizes = []
    for item in text.split(","):
        if not item.strip():
            raise InputError(f"sizes {text!r} hold an empty item: write 8,1K,64K or 8:64M.")
        sizes.extend(_parse_range(item.strip()) if ":" in item else [parse_size(item)])
    return tuple(dict.fromkeys(sizes))


def _parse_range(item: str) -> list[int]:
    """Expand one ``min:max`` or ``min:max:factor``."""
    size = maximum = factor = 0
    match = re.fullmatch(r"([^:]+):([^:]+)(?::([0-9]{1,18}))?", item)
    if match is not None:
        size, maximum, factor = parse_size(match[1]), parse_size(match[2]), int(match[3] or 2)
    if not 0 < size <= maximum or factor < 2:  # the smallest that grows
        raise InputError(
            f"range {item!r} is not understood: write min:max or min:max:factor, such as 8:64M or"
            " 8:64M:4, from above 0 and by a factor of 2 or more."
        )
    sizes = []
    while size <= maximum:
        sizes.append(size)
        size *= factor
    return sizes


def format_size(size_bytes: int) -> str:
    """Return '8 B', '1000 B', '1.5 KiB' or '16 MiB': the largest unit not above the size, at most
    three decimals.
    """
    scale, unit = next(
        (scale, unit) for scale, unit in _SIZE_UNITS if size_bytes >= scale or unit == "B"
    )
    return f"{round(size_bytes / scale, 3):g} {unit}"


def format_time(seconds: float) -> str:
    """Return a measured time in us, ms or s: '1.20 ms', '3.40 s' (three digits) and below 1 us
    '0.26 us' (two).
    """
    rounded = float(f"{seconds:.3g}")
    if rounded == 0:
        return "0 us"
    scale, unit = time_unit(seconds)
    value = rounded / scale
    if abs(value) < 1:  # only below 1 us, where no clock resolves a third digit
        return f"{seconds / scale:#.2g} {unit}"
    return f"{three_digits(value)} {unit}"


def three_digits(value: float) -> str:
    """Return '0.0117', '1.20', '34.0', '120' or '1200': three digits at least, never an exponent;
    '0' for 0.
    """
    if not value or not math.isfinite(value):
        return f"{value:g}"
    rounded = abs(float(f"{value:.3g}"))  # first round: 9.999 is 10.0
    decimals = max(0, 2 - math.floor(math.log10(rounded)))
    return f"{value:.{decimals}f}"


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit of a measured time, in seconds and by name: us, ms or s."""
    rounded = float(f"{seconds:.3g}")  # first round, then choose the unit: 999.9 us is 1.00 ms
    return next(
        (scale, unit) for scale, unit in _TIME_UNITS if abs(rounded) >= scale or unit == "us"
    )


def parse_duration(text: str) -> float:
    """Return the seconds that ``text`` names: '90', '90s', '20min', '2h', '1h30m'.

    Raises:
        InputError: if it is no duration, or is 0.
    """
    stripped = text.strip().lower()
    if re.fullmatch(_PLAIN_SECONDS, stripped):
        stripped += "s"
    parts = re.findall(_DURATION_PART, stripped)
    if not re.fullmatch(f"({_DURATION_PART})+", stripped):
        raise InputError(f"duration {text!r} is not understood: {_DURATION_HINT}.")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not seconds:
        raise InputError(f"duration {text!r} is 0: {_DURATION_HINT}.")
    return seconds


def format_duration(seconds: float) -> str:
    """Return how long a person waits: '45 s', '2 min 05 s' or '1 h 03 min'."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    if minutes < _MINUTES_PER_HOUR:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), _MINUTES_PER_HOUR)
    return f"{hours} h {minutes:02d} min"


def utc_text(seconds: float) -> str:
    """Return seconds since 1970 as UTC: '2026-11-25T04:31:07.123Z'."""
    moment = datetime.fromtimestamp(seconds, tz=timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc_now() -> str:
    """Return the present time as UTC in ISO 8601: '2026-11-25T04:31:07+00:00'."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def clock_time(time: str) -> str:
    """Return '2026-11-25 04:31:07.123' of a time that `utc_text` wrote."""
    return time.replace("T", " ").removesuffix("Z")


def format_seconds(seconds: float) -> str:
    """Return '0.052 s', '10.2 s' or '1 min 05 s'."""
    if seconds < _SECONDS["min"]:
        return f"{seconds:.3g} s"
    return format_duration(seconds)


def algbw_GBps(message_bytes: float, time_us: float) -> float:
    """Return nccl-tests' algorithm bandwidth, size over time, in GB/s (GB = 1e9 bytes).

    Raises:
        ZeroDivisionError: if ``time_us`` is 0, which no measured operation is.
    """
    return message_bytes / (time_us * 1e3)


def parse_link_rate(text: str) -> int | None:
    """Return the bits per second that ``text`` names: '1gbit', '2.5gbit', '64kbit'.

    None if it is no rate.
    """
    match = _LINK_RATE.fullmatch(text.strip())
    return int(Fraction(match[1]) * _BITS[match[2].lower()]) if match else None


def format_link_rate(rate_bps: float) -> str:
    """Write bits per second as `parse_link_rate` reads it, in the largest unit that leaves no
    fraction: '1500mbit'.
    """
    for unit, bits in _BITS.items():
        if rate_bps % bits == 0:
            return f"{rate_bps // bits:.0f}{unit}bit"
    return f"{rate_bps / _BITS['k']:g}kbit"


def percent(share: float, places: int = 0) -> str:
    """Return a share as ``12 %``."""
    return f"{100 * share:.{places}f} %"


def counted(number: object, noun: str) -> str:
    """Return a number with its noun in the regular plural: ``1 launch``, ``2 launches``."""
    if str(number) == "1":
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith(('ch', 'ss')) else 's'}"
