"""The main curves of runs in a terminal: bandwidth over message size, step over bucket size, in braille."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from commbench.records import Row
from commbench.report.training import hook_label, trained_together, training_title
from commbench.store import Run
from commbench.training.cases import DEFAULT_CAP
from commbench.units import format_size

Point = tuple[float, float]
HEIGHT, MOST_WIDE, LABEL = 12, 72, 9
_STYLES = ("blue", "dark_orange3", "green", "magenta", "yellow", "cyan", "red", "white")
_LETTERS = "abcdefgh"
#: The bit of a braille character that is the dot in column x, row y of its 2 x 4.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BRAILLE = 0x2800


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves over a common x, drawn as wide as the console allows."""

    title: str
    curves: dict[str, list[Point]]
    """By name, at most eight."""
    x_labels: dict[float, str]
    """What stands below some places of x."""
    is_log: bool
    """Whether y is a logarithm of what its labels say."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield title, canvas with axes, and what each letter stands for."""
        width = max(20, min(MOST_WIDE, options.max_width) - LABEL - 2)
        yield Text(f"\n{self.title}", style="bold")
        yield from _lines(self, width)
        names = zip(_LETTERS, self.curves, _STYLES, strict=False)
        yield Text("  ").join(Text(f"{letter} {name}", style=style) for letter, name, style in names)


def sketch(runs: Sequence[Run]) -> list[RenderableType]:
    """A chart of each operation's busbw and of each model's step; a sentence where there is nothing to draw."""
    charts = [*_bandwidths(runs), *_steps(runs)]
    return list(charts) or [Text("Nothing to draw: no operation at two sizes, no training with two bucket sizes.")]


def _bandwidths(runs: Sequence[Run]) -> Iterable[Chart]:
    by_operation: dict[str, dict[str, list[Point]]] = {}
    for run in runs:
        for row in run.whole_rows:
            if _is_drawn(row) and row.busbw_GBps and row.message_bytes:
                words = (run.name if len(runs) > 1 else "", row.backend, "" if row.pattern == "flat" else row.pattern)
                name = " ".join(word for word in words if word)
                point = (math.log2(row.message_bytes), math.log10(row.busbw_GBps))
                by_operation.setdefault(row.operation, {}).setdefault(name, []).append(point)
    for operation, curves in by_operation.items():
        places = sorted({x for points in curves.values() for x, _ in points})
        if len(places) > 1:
            labels = {x: format_size(round(2**x)) for x in places}
            title = f"{operation}: busbw in GB/s over message size"
            yield Chart(title=title, curves=_first(curves), x_labels=labels, is_log=True)


def _is_drawn(row: Row) -> bool:
    """Whether it has a bandwidth worth looking at."""
    return row.status == "ok" and row.operation != "latency" and row.pattern != "matrix"


def _steps(runs: Sequence[Run]) -> Iterable[Chart]:
    for run in runs:
        for rows in trained_together(run.training_rows):
            caps = sorted({row.bucket_cap_mb for row in rows if "+" not in row.bucket_cap_mb}, key=_cap)
            curves: dict[str, list[Point]] = {}
            for row in rows:
                if row.status == "ok" and row.step_ms and row.bucket_cap_mb in caps:
                    curves.setdefault(hook_label(row), []).append((float(caps.index(row.bucket_cap_mb)), row.step_ms))
            if len(caps) > 1 and curves:
                title = f"{training_title(rows)}: step in ms over bucket size in MiB"
                labels = {float(place): cap for place, cap in enumerate(caps)}
                yield Chart(title=title, curves=_first(curves), x_labels=labels, is_log=False)


def _cap(text: str) -> float:
    return 0.0 if text == DEFAULT_CAP else float(text)


def _first(curves: dict[str, list[Point]]) -> dict[str, list[Point]]:
    return dict(itertools.islice(((name, sorted(points)) for name, points in curves.items()), len(_LETTERS)))


# ------------------------------------------------------------------------------------------------------ the canvas


def _lines(chart: Chart, width: int) -> Iterable[Text]:
    """The canvas from top to bottom with the labels of y before it, the axis and the labels of x."""
    points = list(itertools.chain(*chart.curves.values()))
    (left, right), (low, high) = (_ends(axis) for axis in zip(*points, strict=True))
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
    """Characters of 2 x 4 dots each."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._dots = [[0] * width for _ in range(HEIGHT)]
        self._styles = [[""] * width for _ in range(HEIGHT)]
        self._letters: dict[tuple[int, int], str] = {}

    def place(self, across: float, up: float) -> tuple[int, int]:
        """Column and row in dots from the top left of a point given in shares of width and height."""
        return round(across * (2 * self._width - 1)), round((1 - up) * (4 * HEIGHT - 1))

    def draw(self, places: Sequence[tuple[int, int]], letter: str, style: str) -> None:
        """A line through places, each marked with a letter."""
        for (x, y), (to_x, to_y) in itertools.pairwise(places):
            for step in range(count := max(abs(to_x - x), abs(to_y - y), 1)):
                column, row = x + (to_x - x) * step // count, y + (to_y - y) * step // count
                self._dots[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
                self._styles[row // 4][column // 2] = style
        for column, row in places:
            self._letters[row // 4, column // 2] = letter
            self._styles[row // 4][column // 2] = style

    def lines(self) -> Iterable[Text]:
        """From top to bottom."""
        for row, (dots, styles) in enumerate(zip(self._dots, self._styles, strict=True)):
            line = Text()
            for column, (dot, style) in enumerate(zip(dots, styles, strict=True)):
                line.append(self._letters.get((row, column)) or chr(_BRAILLE | dot), style)
            yield line


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """The least and the largest, a little apart where they are one."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits


def _below(labels: dict[float, str], left: float, right: float, width: int) -> str:
    """The labels of x, as many as do not touch; the last one ends with the axis."""
    text = ""
    for x, label in labels.items():
        start = min(round((x - left) / (right - left) * (width - 1)), width - len(label))
        if start >= len(text) + bool(text):
            text = f"{text:<{start}}{label}"
    return text
