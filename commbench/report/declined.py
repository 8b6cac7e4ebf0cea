"""Why something is not predicted: one sentence for all rows of which it is true."""

from __future__ import annotations

import re
from collections.abc import Iterable

from commbench.prediction.closed_forms import ALGORITHMS
from commbench.prediction.outlook import AnyOutlook
from commbench.units import counted

_NUMBER = re.compile(r"\d+(\.\d+)?( [KMG]?i?B\b)?")
_NAMES = sorted({name for forms in ALGORITHMS.values() for name in forms}, key=len, reverse=True)
_ALGORITHMS = re.compile(rf"({'|'.join(map(re.escape, _NAMES))})(( and |, )({'|'.join(map(re.escape, _NAMES))}))*")


def declined(rows: Iterable[AnyOutlook]) -> list[str]:
    """Each reason once: sentences that differ in ranks, sizes, operation or hook alone become one that counts them."""
    alike: dict[str, list[AnyOutlook]] = {}
    for row in rows:
        if row.reason:
            alike.setdefault(_masked(row), []).append(row)
    return [_sentence(group) for group in alike.values()]


def _masked(row: AnyOutlook) -> str:
    """The reason without what may differ."""
    return _NUMBER.sub("#", _ALGORITHMS.sub("#", row.reason.replace(row.subject, "#")))


def _sentence(rows: list[AnyOutlook]) -> str:
    first = rows[0]
    others = [row for row in rows if row.reason != first.reason]
    if not others:
        return first.reason
    subjects = ", ".join(sorted({row.subject for row in others}))
    ranks = sorted({row.world_size for row in others})
    span = f"{ranks[0]} ranks" if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]} ranks"
    return f"{first.reason} So it is with {counted(len(others), 'more row')}: {subjects}, on {span}."
