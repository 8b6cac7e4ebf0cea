"""Known laws of time over message size, and launches and records that follow them, for tests of
what is fitted.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from builders import KIB, MIB, make_case, make_launches

from commbench.analysis.prediction.curves import Curve, fit_curve
from commbench.collectives.cases import Case
from commbench.engine.records import Record
from commbench.stats import Floats, Interval

POWERS = [2**k for k in range(3, 25)]
COARSE = [8 * 4**k for k in range(11)]
#: Of a small sweep.
SIZES = (KIB, 8 * KIB, 64 * KIB, MIB)


def one(n: Floats) -> Floats:
    """Return times with a latency of 20 us and a rate of 1 GB/s."""
    return 20 + n * 1e-3


def two(n: Floats) -> Floats:
    """Return times with a jump at 32 KiB."""
    return np.where(n <= 32 * KIB, 5 + n * 2e-3, 120 + n * 2e-4)


def three(n: Floats) -> Floats:
    """Return times with jumps at 2 KiB and 512 KiB."""
    return np.where(
        n <= 2 * KIB, 1 + n * 2e-3, np.where(n <= 512 * KIB, 12 + n * 5e-4, 250 + n * 1.5e-3)
    )


def curve_of(sizes: Sequence[int], launches_us: Iterable[Iterable[float]]) -> Curve:
    """Return the curve of sizes with their launches."""
    rows = [dict(enumerate(row)) for row in launches_us]
    return fit_curve(dict(zip(sizes, rows, strict=True)))


def launches_of(
    law: Callable[[Floats], Floats],
    sizes: list[int],
    *,
    noise: float = 0.03,
    launches: int = 6,
    seed: int = 0,
) -> list[list[float]]:
    """Return launch medians around a law with the given relative noise."""
    times = law(np.array(sizes, dtype=float))
    return (
        times[:, None] * np.random.default_rng(seed).lognormal(0, noise, (len(sizes), launches))
    ).tolist()


def sweep(
    case: Case | None = None, *, factor: float = 1.0, sizes: Sequence[int] = SIZES, **changes: Any
) -> list[Record]:
    """Return six launches of sizes whose time is 20 us and 1 GB/s, times a factor."""
    case = case or make_case()
    return [
        record
        for size in sizes
        for record in make_launches(
            [factor * (20 + size / 1e3) * slow for slow in (0.98, 0.99, 1.0, 1.0, 1.01, 1.02)],
            replace(case, message_bytes=size),
            **changes,
        )
    ]


def covered(interval: Interval | None, truth: float) -> bool:
    """Return whether the interval exists and contains the truth."""
    return interval is not None and interval.low <= truth <= interval.high
