"""Tests of drawings: SVG for the page and PNG, with any texts; and of all figures together."""

import re
import subprocess
import sys
from html import escape
from typing import Any

import pytest
from builders import STEADY, make_launches
from drawings import texts_of
from fields import fields_of
from matplotlib.figure import Figure
from training_builders import launches_of, make_bucket, make_training_case, run_of

from commbench.report.figures import all_figures
from commbench.report.figures.drawing import (
    BAND_ALPHA,
    DASHES,
    MARKERS,
    PALETTE,
    SERIES,
    Drawing,
    plain_time,
    theme_variables,
)

EVIL = '</text><script>alert("$x_1$ & more")</script>'


def paint(figure: Figure) -> None:
    """Draw one series of each colour, with a band, an image and a hostile name."""
    axes = figure.subplots()
    for colour, marker, dash in zip(SERIES, MARKERS, DASHES, strict=True):
        axes.plot([1, 2], [1, 2], color=colour, marker=marker, linestyle=dash)
    axes.fill_between([1, 2], [1, 2], [2, 3], color=SERIES[0], alpha=BAND_ALPHA)
    axes.imshow([[1, 2], [3, 4]])
    axes.set_title(EVIL)


def drawn(**changes: Any) -> Drawing:
    """Return the drawing of `paint`."""
    fields = {
        "name": "some",
        "section": "training",
        "title": "Some",
        "caption": "",
        "alt": "Lines.",
    }
    return Drawing(paint=paint, **{**fields, **changes})


def test_the_same_figure_is_the_same_bytes():
    """Draw identical bytes twice."""
    first, second = drawn(), drawn()
    assert first.svg == second.svg
    assert first.png == second.png
    assert "202" not in re.sub(r"<image[^>]*>|[\d.]*\d", "", first.svg)


def test_colours_come_from_the_page():
    """Use palette colours and band opacity only as fallbacks of the page's variables."""
    svg = re.sub(r"<image[^>]*>", "", drawn().svg)
    bare = re.sub(r"var\(--[a-z0-9-]+, [^)]*\)", "", svg)
    assert [] == [colour.light for colour in PALETTE.values() if colour.light in bare]
    assert str(BAND_ALPHA) not in bare
    assert set(re.findall(r"var\(--(series-\d)", svg)) == {f"series-{n}" for n in range(1, 9)}


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_everything_shows_on_paper(theme):
    """Use distinct colours, as they identify themselves while drawing, with WCAG's contrast: 3 for
    lines, 4.5 for text.
    """
    colours = {name: getattr(colour, theme) for name, colour in PALETTE.items()}
    assert len(set(colours.values())) == len(colours)
    assert all(f"--{name}: {own}" in theme_variables(theme) for name, own in colours.items())
    least = dict.fromkeys(colours, 1.0) | {"ink": 4.5, "muted": 4.5, "bad": 4.5}
    least |= {name: 3.0 for name in colours if name.startswith("series")}
    paper = luminance(colours["paper"])
    for name, colour in colours.items():
        own = luminance(colour)
        assert (max(own, paper) + 0.05) / (min(own, paper) + 0.05) >= least[name], name


def test_texts_are_plain_and_escaped():
    """Draw markup and dollar signs literally, and replace what XML does not allow."""
    svg = drawn(title=EVIL, alt="a\x00b\x1b").svg
    assert EVIL in texts_of(svg)
    assert "<script" not in svg
    assert escape(EVIL) in svg
    assert "a\N{REPLACEMENT CHARACTER}b" in svg
    assert "\x1b" not in svg


def test_ids_are_of_the_drawing_alone():
    """Share no id with another drawing, and refer to own ids only."""
    svg, other = drawn().svg, drawn(name="other").svg
    ids, theirs = (re.findall(r'\bid="([^"]*)"', text) for text in (svg, other))
    assert len(set(ids)) == len(ids)
    assert not set(ids) & set(theirs)
    assert set(re.findall(r'(?:url\(|")#([^")]+)', svg)) <= set(ids)


def test_it_is_an_image_in_the_style_of_the_page():
    """Declare an image role, use the page's font, and bring no style sheet and metadata."""
    svg = drawn().svg
    for part in ("<svg ", 'role="img"', 'width="100%"', 'viewBox="0 0 360', "var(--font", "<desc"):
        assert part in svg
    for part in ("<style", "<metadata", "<?xml", "<!DOCTYPE", "DejaVu"):
        assert part not in svg


@pytest.mark.usefixtures("with_png")
def test_the_png_is_the_light_version():
    """Draw the PNG at 5 inches and 150 dpi in light colours."""
    png = drawn(height_in=2.0).png
    assert b"\x89PNG" == png[:4]
    assert 750 == int.from_bytes(png[16:20], "big")
    assert 300 == int.from_bytes(png[20:24], "big")


def test_times_on_axes_are_short():
    """Write times in a fitting unit."""
    assert ["0.5 us", "2 ms", "50 s"] == [plain_time(time_us) for time_us in (0.5, 2e3, 5e7)]


def test_figures_come_in_a_fixed_order_with_names_of_their_own():
    """Draw figures of two runs in a fixed order, decisions first, with distinct names and texts."""
    training = []
    for step_ms, case in ((20.0, make_training_case()), (10.0, make_training_case("fp16", "25"))):
        training += launches_of(step_ms, case, losses=[2.0, 1.0], buckets=[make_bucket()])
    collectives = make_launches(STEADY)
    runs = [run_of(collectives, name, training=training) for name in ("old", "new")]
    drawings = all_figures(runs)
    names = fields_of(drawings, "name")
    assert len(set(names)) == len(names)
    assert "buckets" == names[0]
    assert all(drawing.title and drawing.alt and drawing.caption for drawing in drawings)


def test_nothing_measured_is_no_figure():
    """Draw nothing for an empty run, or without runs."""
    assert [] == all_figures([run_of([])])
    assert [] == all_figures([])


@pytest.mark.programs
def test_figures_need_no_ranks():
    """Draw without torch, MPI and numba, and without matplotlib's global state."""
    code = (
        "import sys, commbench.report.figures as f\nheavy = {'torch', 'mpi4py', 'numba',"
        " 'matplotlib'} & set(sys.modules)\nassert not heavy, heavy\ntexts = dict(title='',"
        " caption='', alt='')\nf.drawing.Drawing(paint=lambda figure: figure.subplots(), name='a',"
        " section='energy', **texts).png\nassert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
