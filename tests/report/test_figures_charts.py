"""Tests of charts: how panels of curves and of rows are drawn, and what their captions say."""

from typing import Any

import pytest
from drawings import axes_of, marked, texts_of
from matplotlib.axes import Axes

from commbench.report.figures.charts import (
    Chart,
    Limit,
    Panel,
    Series,
    Shade,
    Span,
    near,
)
from commbench.words import Estimate


def curve(*values: float, name: str = "one", **changes: Any) -> Series:
    """Return a series over 1, 2, ... with intervals of a tenth."""
    points = {}
    for x, value in enumerate(values, start=1):
        points[float(x)] = Estimate(value, 0.9 * value, 1.1 * value)
    return Series(name=name, points=points, **changes)


def panel_of(*series: Series, **changes: Any) -> Panel:
    """Return a panel, of curves over numbers unless changed."""
    return Panel(series=series, quantity="y", **{"x": "number", "x_label": "x", **changes})


def chart_of(*series: Series, x: str, **changes: Any) -> Chart:
    """Return a chart of one panel."""
    texts = {"name": "some", "section": "energy", "title": "", "reading": ""}
    return Chart(panels=[panel_of(*series, x=x)], **texts, **changes)


def drawn(*series: Series, **changes: Any) -> Axes:
    """Return the axes of a single panel."""
    (axes,) = axes_of(panel_of(*series, **changes))
    return axes


def ticks_of(axes: Axes, axis: str) -> list[str]:
    """Return the texts at the ticks of an axis."""
    return [label.get_text() for label in getattr(axes, f"get_{axis}ticklabels")()]


def test_a_line_has_a_band():
    """Draw values as a line, and intervals as a band."""
    axes = drawn(curve(10.0, 20.0), unit="ms")
    (line,) = axes.get_lines()
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert [1.0, 2.0] == list(line.get_xdata())
    assert [10.0, 20.0] == list(line.get_ydata())
    assert 9.0 == band.min()
    assert 22.0 == pytest.approx(band.max())
    assert ("x", "y, ms") == (axes.get_xlabel(), axes.get_ylabel())


def test_sizes_are_powers_of_two():
    """Name at most six sizes on an axis in powers of two, and draw every single point."""
    axes = drawn(curve(*range(1, 99), is_joined=False), x="size")
    (line,) = axes.get_lines()
    assert "log" == axes.get_xscale()
    assert "None" == line.get_linestyle()
    assert line.get_markevery() is None
    assert 6 == len(ticks_of(axes, "x"))


def test_places_are_named():
    """Name places, and draw series beside each other with bars instead of bands."""
    axes = drawn(curve(1.0), curve(1.0, name="two"), x="place", places={1.0: "here"})
    first, second = (line.get_xdata()[0] for line in axes.get_lines())
    assert ["here"] == ticks_of(axes, "x")
    assert first < 1.0 < second
    bars = [bar.get_paths()[0].vertices[:, 1].tolist() for bar in axes.collections]
    assert [[0.9, pytest.approx(1.1)]] * 2 == bars


def test_what_happened_is_shaded():
    """Shade a stretch of x."""
    series = Series(name="one", points={0.5: Estimate(1.0), 0.6: Estimate(1.0)})
    chart = chart_of(series, x="number", shades=[Shade(0.5, 0.55, "#ff0000")])
    assert "opacity: 0.35" in chart.drawing.svg


@pytest.mark.parametrize(
    ("changes", "values", "scale"),
    [
        ({"unit": "us"}, [1.0, 2.0], "log"),
        ({"has_zero": True}, [1.0, 90.0], "linear"),
        ({}, [1.0, 2.0], "linear"),
        ({}, [1.0, 90.0], "log"),
        ({}, [-1.0, 90.0], "linear"),
        ({"includes": [-0.5]}, [1.0, 90.0], "linear"),
    ],
)
def test_scales(changes, values, scale):
    """Draw times, and values that differ widely, on a logarithmic axis."""
    assert scale == drawn(curve(*values), **changes).get_yscale()


@pytest.mark.parametrize(("lowest", "scale"), [(80.0, "linear"), (2.0, "log")])
def test_from_zero_series_are_compared(lowest, scale):
    """Begin at zero, unless one series is far below another."""
    axes = drawn(curve(1.0, 90.0), curve(lowest, name="two"), has_zero=True)
    assert scale == axes.get_yscale()


def test_wide_intervals_leave_the_frame():
    """Show all values, and cut intervals that would make them unreadable."""
    least, most = near([Estimate(10.0, 0.0, 90.0), Estimate(11.0)])
    assert 8.0 < least < 10.0
    assert 11.0 < most < 13.0


def test_marks_of_a_curve():
    """Draw failures as crosses, a ring, and a limit with its name and within the range."""
    measured = Series(name="one", points={1.0: Estimate(1.0)}, failed=[2.0], ringed=1.0)
    axes = drawn(measured, limits=[Limit(3.0, "the most")], unit="J")
    assert [(2.0, 0.0)] == marked(axes, "crosses")
    assert [(1.0, 1.0)] == marked(axes, "ring")
    assert ["3.00 J: the most"] == [text.get_text() for text in axes.texts]
    assert axes.get_ylim()[1] > 3.0


def test_nothing_measured_is_said():
    """Write into an empty frame."""
    axes = drawn(Series(name="one", failed=[1.0]), x="size")
    assert ["nothing was measured"] == [text.get_text() for text in axes.texts]


def test_rows_have_names_and_spans():
    """Draw named rows, and spans of several colours in one row."""
    spans = drawn(Series(name="one", spans=[Span(1, 3), Span(3, 4, 5)]), x="rows")
    assert ["one"] == ticks_of(spans, "y")
    assert 2 == len({bars.get_facecolor().tobytes() for bars in spans.collections})
    boxes = [bars.get_paths()[0].vertices[[0, 2]].tolist() for bars in spans.collections]
    assert [[[1.0, -0.4], [3.0, 0.4]], [[3.0, -0.4], [4.0, 0.4]]] == boxes


def test_of_many_rows_some_are_named():
    """Thin the names of many rows."""
    rows = [Series(name=f"{number}", spans=[Span(0, 1)]) for number in range(40)]
    assert 14 == len(ticks_of(drawn(*rows, x="rows"), "y"))


@pytest.mark.parametrize(("x", "are_all_drawn"), [("number", False), ("rows", True)])
def test_a_ninth_series_is_named_in_the_caption(x, *, are_all_drawn):
    """Draw eight curves and name the others, but draw every row."""
    chart = chart_of(*(curve(1.0, 2.0, name=name) for name in "abcdefghi"), x=x)
    texts = texts_of(chart.drawing.svg)
    assert "h" in texts
    assert are_all_drawn == ("i" in texts) == (": i." not in chart.caption)
