"""Tests of drawings: SVG for the page and PNG, with any texts."""

import re
from html import escape
from typing import Any

import pytest
from drawings import texts_of
from matplotlib.figure import Figure

from commbench.report.figures.drawing import (
    BAND_ALPHA,
    DASHES,
    MARKERS,
    PALETTE,
    SERIES,
    Drawing,
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
        "name": "some-figure",
        "section": "training",
        "title": "Some",
        "caption": "Read it.",
        "alt": "Lines.",
    }
    return Drawing(paint=paint, **{**fields, **changes})


def test_the_same_figure_is_the_same_bytes() -> None:
    """Draw identical bytes twice."""
    first, second = drawn(), drawn()
    assert (first.svg, first.png) == (second.svg, second.png)
    assert "202" not in re.sub(r"<image[^>]*>|[\d.]*\d", "", drawn().svg)


def test_colours_come_from_the_page() -> None:
    """Use palette colours and band opacity only as fallbacks of the page's variables."""
    svg = re.sub(r"<image[^>]*>", "", drawn().svg)
    bare = re.sub(r"var\(--[a-z0-9-]+, [^)]*\)", "", svg)

    assert [] == [colour.light for colour in PALETTE.values() if colour.light in bare]
    assert str(BAND_ALPHA) not in bare
    for name in (f"series-{number}" for number in range(1, 9)):
        assert f"var(--{name}, " in svg


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_palette_has_distinct_colours(theme: str) -> None:
    """Use distinct colours, as they identify themselves while drawing."""
    colours = {name: getattr(colour, theme) for name, colour in PALETTE.items()}
    assert len(set(colours.values())) == len(colours)
    variables = theme_variables(theme)
    assert all(f"--{name}: {colour}" in variables for name, colour in colours.items())


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_everything_shows_on_paper(theme: str) -> None:
    """Meet WCAG's contrast: 3 for lines, 4.5 for text."""
    paper = luminance(getattr(PALETTE["paper"], theme))
    for name, colour in PALETTE.items():
        own = luminance(getattr(colour, theme))
        contrast = (max(own, paper) + 0.05) / (min(own, paper) + 0.05)
        least = (
            4.5 if name in {"ink", "muted", "bad"} else 3.0 if name.startswith("series") else 1.0
        )
        assert contrast >= least, name


def test_texts_are_plain_and_escaped() -> None:
    """Draw markup and dollar signs literally."""
    svg = drawn(title=EVIL, alt=EVIL).svg

    assert EVIL in texts_of(svg)
    assert "<script" not in svg
    assert escape(EVIL) in svg


def test_what_xml_cannot_hold_is_replaced() -> None:
    """Replace characters that XML does not allow."""
    odd = drawn(title="a\x00b", alt="\x1b")
    assert "a\N{REPLACEMENT CHARACTER}b" in odd.svg
    assert "\x1b" not in odd.svg


def test_ids_are_of_the_drawing_alone() -> None:
    """Share no id with another drawing, and refer to own ids only."""
    svg, other = drawn().svg, drawn(name="other").svg
    ids, theirs = (re.findall(r'\bid="([^"]*)"', text) for text in (svg, other))
    used = re.findall(r'(?:url\(|")#([^")]+)', svg)
    assert len(set(ids)) == len(ids)
    assert not set(ids) & set(theirs)
    assert set(used) <= set(ids)


def test_it_is_an_image_in_the_style_of_the_page() -> None:
    """Declare an image role, use the page's font, and bring no style sheet and metadata."""
    svg = drawn().svg
    for part in ("<svg ", 'role="img"', 'width="100%"', 'viewBox="0 0 360', "var(--font", "<desc"):
        assert part in svg
    for part in ("<style", "<metadata", "<?xml", "<!DOCTYPE", "DejaVu"):
        assert part not in svg


@pytest.mark.usefixtures("with_png")
def test_the_png_is_the_light_version() -> None:
    """Draw the PNG at 5 inches and 150 dpi in light colours."""
    png = drawn(height_in=2.0).png

    assert b"\x89PNG" == png[:4]
    assert (750, 300) == (int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big"))


@pytest.mark.parametrize("name", ["", "Upper", "a b", '"><x', "1st"])
def test_names_are_ids(name: str) -> None:
    """Refuse names that are not valid ids."""
    with pytest.raises(ValueError, match="no name"):
        drawn(name=name)
