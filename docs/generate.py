"""Writes docs/columns.md from the code, so that the page cannot disagree with it: python docs/generate.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from commbench.budgets import BUDGETS
from commbench.collectives import OPERATIONS, Layout, Operation, Shape
from commbench.records import FLAGS, SCHEMA, OverlapRow, Row
from commbench.report.table import MARKS

PAGE = Path(__file__).parent / "columns.md"

#: Numbers of ranks at which factors and sizes are looked at, to tell which of the known formulas they follow.
RANKS = (2, 3, 4, 8)
FACTORS: Mapping[str, Callable[[int], float]] = {
    "1": lambda _n: 1.0,
    "(n-1)/n": lambda n: (n - 1) / n,
    "2(n-1)/n": lambda n: 2 * (n - 1) / n,
}
MESSAGE, ROOT = 240, 1

HEAD = f"""# The files of a run, column by column

<!-- Written by docs/generate.py from the code; change it there. -->

A run is one directory, schema {SCHEMA}:

| file | what |
|---|---|
| `run.json` | schema, command line, seed, conditions of every host, launches and how each ended, `status` of the run |
| `samples.jsonl` | one line per case per launch: the case, every valid repetition's time, mean over ranks and arrival \
skew, medians per rank, warm-ups, late starts, verification; appended and synced after every case: the source of truth |
| `collectives.csv` | one line per case, summarised over launches; made from the two files above |
| `overlap.csv` | one line per non-blocking collective, if the run has any; made likewise |

CSV has a header line, commas, `.` decimals and UTF-8; an empty cell means that the column does not apply. Units are in
the names: `us` is microseconds, `GBps` is 1e9 bytes per second.
"""

OPERATIONS_HEAD = """## Operations

S is `message_bytes` and n the number of ranks that take part. Sizes are of one rank's buffer; where only some ranks
have one, they are named. busbw is algbw times the factor (nccl-tests, `doc/PERFORMANCE.md`).
"""

FLAGS_HEAD = """## Flags

A flag is a doubt about a row, never a reason to drop it. The mark is what tables show.
"""


def render() -> str:
    """The whole page, as text that ends in a newline."""
    parts = [
        HEAD,
        "## collectives.csv\n",
        _columns(Row),
        "## overlap.csv\n",
        _columns(OverlapRow),
        OPERATIONS_HEAD,
        _table(
            ("operation", "what is timed", "send", "receive", "`osu_bytes`", "busbw factor", "in place"),
            (_operation(entry) for entry in OPERATIONS.values()),
        ),
        FLAGS_HEAD,
        _table(("flag", "mark", "what it means"), ((f"`{f}`", MARKS.get(f, ""), text) for f, text in FLAGS.items())),
        "## Budgets\n",
        _table(
            ("`--budget`", "launches", "half-width aimed at", "longest time for a case in a launch"),
            (
                (f"`{b.name}`", str(b.launches), f"{100 * b.relative_half_width:g} %", f"{b.slice_s:g} s")
                for b in BUDGETS.values()
            ),
        ),
    ]
    return "\n".join(parts)


def _columns(row: type[Row | OverlapRow]) -> str:
    """The columns of one kind of row, in their order."""
    described = ((f"`{f.name}`", f.metadata.get("about", "schema number")) for f in dataclasses.fields(row))
    return _table(("column", "what"), described)


def _operation(entry: Operation) -> tuple[str, ...]:
    """One line of the table of operations."""
    return (
        f"`{entry.name}`",
        entry.summary,
        _buffer(entry.send),
        _buffer(entry.receive),
        ("S/n" if entry.osu_per_rank else "S") if entry.moves_data else "",
        _factor(entry) if entry.moves_data else "",
        ("default" if entry.default_in_place else "offered") if entry.has_in_place else "",
    )


def _factor(entry: Operation) -> str:
    """The formula that the entry's busbw factor follows."""
    for text, formula in FACTORS.items():
        if all(abs(entry.busbw_factor(n) - formula(n)) < 1e-12 for n in RANKS):  # noqa: PLR2004 - rounding
            return text
    raise ValueError(f"{entry.name}'s busbw factor follows no formula in FACTORS; add it there.")


def _buffer(layout: Layout) -> str:
    """How large a buffer is and on which ranks, in words."""
    size = RANKS[-1]
    lengths = [layout(Shape(rank=rank, size=size, elements=MESSAGE, root=ROOT)) for rank in range(size)]
    holders = [rank for rank, length in enumerate(lengths) if length]
    if not holders:
        return ""
    amount = {MESSAGE: "S", MESSAGE // size: "S/n"}[lengths[holders[0]]]
    where = {
        tuple(range(size)): "",
        (ROOT,): " at the root",
        (0,): " at the first rank",
        (size - 1,): " at the last rank",
        (0, size - 1): " at both ends",
    }[tuple(holders)]
    return amount + where


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"Wrote {PAGE}")
