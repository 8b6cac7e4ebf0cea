"""Charts of the main curves in a terminal, in braille: bandwidth over message size, step over
bucket size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from commbench.ddp.plan.cases import DEFAULT_CAP
from commbench.report.figures.buckets import Line, lines_of
from commbench.report.figures.drawing import LEAST_RATIO, MOST_SERIES
from commbench.report.figures.sizes import (
    RATE,
    Curve,
    Family,
    broken,
    families,
    not_drawn,
    panels_of,
)
from commbench.report.figures.words import Group, groups, left_out, sentences
from commbench.report.formats import listed
from commbench.results import Run
from commbench.units import format_size, three_digits

Point = tuple[float, float]
HEIGHT, MOST_WIDE, LABEL = 12, 72, 9
_STYLES = ("blue", "dark_orange3", "green", "magenta", "yellow", "cyan", "red", "white")
_LETTERS = "abcdefgh"
#: The bit of a braille character for the dot in column x, row y of its 2 x 4.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BRAILLE = 0x2800
_NOTHING = (
    "Nothing to draw: no operation at two sizes (those of ranks that share a GPU do not count), no"
    " training with two bucket sizes."
)
#: An axis of step times spans at least this share of the longest step.
_LEAST_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves over a common x, drawn as wide as the console."""

    title: str
    curves: dict[str, list[Point]]
    """At most eight curves by name; points from left to right."""
    limits: tuple[float, float]
    """The lowest and the highest y shown."""
    x_labels: dict[float, str]
    """Labels at some x positions."""
    is_log: bool
    """Whether y is the logarithm of its labels."""
    note: str
    """A note on the cases that are not drawn."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield title, canvas with axes, legend, and notes."""
        width = max(20, min(MOST_WIDE, options.max_width) - LABEL - 2)
        yield Text(f"\n{self.title}", style="bold")
        yield from _lines(self, width)
        names = zip(_LETTERS, self.curves, _STYLES, strict=False)
        yield Text("  ").join(
            Text(f"{letter} {name}", style=style) for letter, name, style in names
        )
        if self.note:
            yield Text(self.note, style="dim")


def sketch(runs: Sequence[Run]) -> list[RenderableType]:
    """Return charts of each operation's busbw and each workload's step.

    A sentence if there is no chart.
    """
    sizes = (
        _bandwidths(family) for family in families(runs) if RATE in panels_of(family.operation)
    )
    caps = (_steps(group) for group in groups(runs))
    charts = [chart for chart in (*sizes, *caps) if chart is not None]
    return list(charts) or [Text(_NOTHING)]


def _bandwidths(family: Family) -> Chart | None:
    """Return the chart of bus bandwidth over message size; None with fewer than two sizes."""
    drawable = [curve for curve in family.curves if not curve.is_unsupported]
    visible_curves = drawable[:MOST_SERIES]
    curves = {curve.name: points for curve in visible_curves if (points := _rates(curve))}
    places = {size for curve in visible_curves for size in curve.points(RATE)}
    if len(places) < 2:  # noqa: PLR2004 - a curve
        return None
    values = [y for points in curves.values() for _, y in points]
    return Chart(
        title=f"{family.operation}: busbw in GB/s over message size",
        curves=curves,
        limits=_apart(values, math.log10(LEAST_RATIO)),
        x_labels={math.log2(size): format_size(int(size)) for size in sorted(places)},
        is_log=True,
        note=sentences(
            f"No result: {broken(family)}." if any(curve.failed for curve in family.curves) else "",
            not_drawn(family),
            left_out([curve.name for curve in drawable], MOST_SERIES),
        ),
    )


def _apart(values: Sequence[float], least: float) -> tuple[float, float]:
    """Return the ends of an axis, at least a given distance apart: on a narrower axis noise looks
    like a trend.
    """
    low, high = min(values), max(values)
    room = max(0.0, least - (high - low)) / 2
    return low - room, high + room


def _rates(curve: Curve) -> list[Point]:
    rates = sorted(curve.points(RATE).items())
    return [
        (math.log2(size), math.log10(rate.value)) for size, rate in rates if size and rate.value > 0
    ]


def _steps(group: Group) -> Chart | None:
    """Return the chart of the step over bucket size, without lists of sizes.

    None with fewer than two sizes.
    """
    lines_with_times = [line for trial in group.trials for line in lines_of(trial)]
    visible_lines = lines_with_times[:MOST_SERIES]
    caps = sorted(
        {cap for line in visible_lines for cap in line.measured if "+" not in cap}, key=_cap
    )
    curves = {line.name: points for line in visible_lines if (points := _points(line, caps))}
    if len(caps) < 2:  # noqa: PLR2004 - a curve
        return None
    values = [y for points in curves.values() for _, y in points]
    failures = [
        f"{line.name} {cap} {status}"
        for line in lines_with_times
        for cap, status in line.failed.items()
    ]
    lists = dict.fromkeys(cap for line in lines_with_times for cap in line.measured if "+" in cap)
    return Chart(
        title=f"{group.name}: step in ms over bucket size in MiB",
        curves=curves,
        limits=_apart(values, _LEAST_SHARE * max(values)),
        x_labels={float(place): cap for place, cap in enumerate(caps)},
        is_log=False,
        note=sentences(
            f"No result: {listed(failures)}." if failures else "",
            f"Not drawn: {listed(lists)}." if lists else "",
            left_out([line.name for line in lines_with_times], MOST_SERIES),
        ),
    )


def _points(line: Line, caps: Sequence[str]) -> list[Point]:
    return [
        (float(place), line.measured[cap].value)
        for place, cap in enumerate(caps)
        if cap in line.measured
    ]


def _cap(text: str) -> float:
    return 0.0 if text == DEFAULT_CAP else float(text)


# --------------------------------------------------------------------------------------- the canvas


def _lines(chart: Chart, width: int) -> Iterable[Text]:
    """Yield the lines of the canvas from top to bottom, with y labels, the axis and x labels."""
    left, right = min(chart.x_labels), max(chart.x_labels)
    low, high = chart.limits
    canvas = _Canvas(width)
    for letter, style, curve in zip(_LETTERS, _STYLES, chart.curves.values(), strict=False):
        scaled = [((x - left) / (right - left), (y - low) / (high - low)) for x, y in curve]
        canvas.draw([canvas.place(*point) for point in scaled], letter, style)
    for row, line in enumerate(canvas.lines()):
        value = high - (high - low) * row / (HEIGHT - 1)
        is_named = row % 3 == 0 or row == HEIGHT - 1
        label = _number(10**value if chart.is_log else value) if is_named else ""
        yield Text(f"{label:>{LABEL}} │", style="dim") + line
    yield Text(f"{'':>{LABEL}} └{'─' * width}", style="dim")
    yield Text(f"{'':>{LABEL + 2}}{_below(chart.x_labels, left, right, width)}", style="dim")


class _Canvas:
    """A canvas of characters with 2 x 4 dots each."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._dots = [[0] * width for _ in range(HEIGHT)]
        self._styles = [[""] * width for _ in range(HEIGHT)]
        self._letters: dict[tuple[int, int], str] = {}

    def place(self, across: float, up: float) -> tuple[int, int]:
        """Return column and row in dots from the top left, for a point in shares of width and
        height.
        """
        return round(across * (2 * self._width - 1)), round((1 - up) * (4 * HEIGHT - 1))

    def draw(self, places: Sequence[tuple[int, int]], letter: str, style: str) -> None:
        """Draw a line through points, each marked with a letter."""
        for (x, y), (to_x, to_y) in itertools.pairwise(places):
            for step in range(count := max(abs(to_x - x), abs(to_y - y), 1)):
                column, row = x + (to_x - x) * step // count, y + (to_y - y) * step // count
                self._dots[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
                self._styles[row // 4][column // 2] = style
        for column, row in places:
            self._letters[row // 4, column // 2] = letter
            self._styles[row // 4][column // 2] = style

    def lines(self) -> Iterable[Text]:
        """Yield the lines from top to bottom."""
        for row, (dots, styles) in enumerate(zip(self._dots, self._styles, strict=True)):
            line = Text()
            for column, (dot, style) in enumerate(zip(dots, styles, strict=True)):
                line.append(self._letters.get((row, column)) or chr(_BRAILLE | dot), style)
            yield line


def _number(value: float) -> str:
    """Return three digits, with an exponent if they do not fit."""
    text = three_digits(value)
    return text if len(text) <= LABEL else f"{value:.2e}"


def _below(labels: dict[float, str], left: float, right: float, width: int) -> str:
    """Return the x labels that do not overlap; the last one ends with the axis."""
    text = ""
    for x, label in labels.items():
        start = min(round((x - left) / (right - left) * (width - 1)), width - len(label))
        if start >= len(text) + bool(text):
            text = f"{text:<{start}}{label}"
    return text
