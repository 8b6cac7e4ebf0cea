"""A `Drawing`: a figure as SVG with the page's colours and as PNG; palette, looks and axes."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from commbench.units import time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WIDTH_IN, HEIGHT_IN, PNG_DPI = 5.0, 3.2, 150


class Colour(NamedTuple):
    """A colour in the light and the dark theme, ``#rrggbb``."""

    light: str
    """Unique, because the SVG's colours are recognised by it."""
    dark: str


#: Colours by their CSS variable: Okabe and Ito's hues, the pale ones darkened to show on white.
PALETTE: Mapping[str, Colour] = {
    "ink": Colour("#1b1f24", "#e8eaed"),
    "muted": Colour("#5c6570", "#a3acb7"),
    "grid": Colour("#d9dde2", "#3a414a"),
    "paper": Colour("#fefefe", "#14171b"),
    "shade": Colour("#eef0f3", "#242a31"),
    "bad": Colour("#b3261e", "#ff8a80"),
    "series-1": Colour("#0072b2", "#56b4e9"),
    "series-2": Colour("#d55e00", "#ff9248"),
    "series-3": Colour("#009e73", "#2fd3a4"),
    "series-4": Colour("#b0578d", "#e79ac6"),
    "series-5": Colour("#a67c00", "#f0d045"),
    "series-6": Colour("#4b3f9e", "#a99cff"),
    "series-7": Colour("#3f9bd6", "#9fd8ff"),
    "series-8": Colour("#6b4a2f", "#cfae8e"),
}
INK = PALETTE["ink"].light
MUTED = PALETTE["muted"].light
GRID = PALETTE["grid"].light
PAPER = PALETTE["paper"].light
SHADE = PALETTE["shade"].light
BAD = PALETTE["bad"].light
SERIES = [colour.light for name, colour in PALETTE.items() if name.startswith("series-")]
#: Series differ in colour, marker and line style: they can be told apart without colour.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: Sequence[Any] = (
    "-",
    (0, (5, 2)),
    (0, (1, 1.5)),
    (0, (6, 2, 1, 2)),
    (0, (3, 1)),
    (0, (8, 3)),
    (0, (2, 2)),
    (0, (4, 4)),
)
#: Opacity of interval bands; unique, like the colours.
BAND_ALPHA = 0.181
_BAND_OPACITY_DARK = 0.28

_STYLE: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "text.color": INK,
    "text.parse_math": False,  # names of hosts and settings may hold dollar signs
    "text.usetex": False,
    "axes.facecolor": "none",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.formatter.use_mathtext": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",
    "figure.constrained_layout.use": True,
}
#: What the page's own style replaces in the tags of an SVG.
_VARIABLES = {
    "'DejaVu Sans'": "var(--font, system-ui, sans-serif)",
    f"opacity: {BAND_ALPHA}": f"opacity: var(--band-opacity, {BAND_ALPHA})",
    **{colour.light: f"var(--{name}, {colour.light})" for name, colour in PALETTE.items()},
}
_TAG = re.compile(r"<[^<>]*>")
_PROLOGUE = re.compile(r"^.*?<svg[^>]*>", re.DOTALL)
#: matplotlib's style sheet would apply to the whole page; its metadata contains a date
_SUPERFLUOUS = re.compile(r"<(metadata|style)\b[^>]*>.*?</\1>|<!--.*?-->", re.DOTALL)
_ID = re.compile(r' id="([^"<>]*)"(?=[^<>]*>)')
_USE = re.compile(r'(?:url\(|")#([^")]+)')
#: Characters that XML does not allow.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawing:
    """One figure, 5 inches wide, with its texts; it is drawn on first use, always the same."""

    paint: Callable[[Figure], None]
    """Adds axes to an empty figure, in the light colours of `PALETTE`."""
    name: str
    """Lower-case letters, digits and hyphens; unique on a page; the stem of the PNG's file name."""
    section: str
    """The id of the page's section."""
    title: str
    """The title; it is not part of the picture."""
    caption: str
    """How to read the figure; plain text."""
    alt: str
    """A description for readers who cannot see the figure; plain text."""
    height_in: float = HEIGHT_IN

    @property
    def svg(self) -> str:
        """The ``<svg>`` element for HTML, escaped; its ids are of this drawing alone."""
        return self._pictures[0]

    @property
    def png(self) -> bytes:
        """The light version, 150 dpi."""
        return self._pictures[1]

    @cached_property
    def _pictures(self) -> tuple[str, bytes]:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.text import Text

        # a user's own matplotlib style would change the bytes; setting a backend loads pyplot
        style = dict(mpl.rcParamsDefault)
        del style["backend"], style["backend_fallback"]
        style |= {**_STYLE, "svg.hashsalt": self.name}
        svg, png = io.StringIO(), io.BytesIO()
        with mpl.rc_context(rc=style), warnings.catch_warnings():
            # a character that the font lacks is a box in the PNG and correct in the SVG
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            figure = Figure(figsize=(WIDTH_IN, self.height_in))
            FigureCanvasAgg(figure)
            self.paint(figure)
            for text in figure.findobj(Text):
                text.set_text(_clean(text.get_text()))
            undated = {"Date": None, "Creator": None}
            figure.savefig(svg, format="svg", transparent=True, metadata=undated)
            plain = {"Software": None}
            figure.savefig(png, format="png", dpi=PNG_DPI, facecolor=PAPER, metadata=plain)
        return self._for_page(svg.getvalue()), png.getvalue()

    def _for_page(self, svg: str) -> str:
        """Turn matplotlib's SVG into a page element with CSS variables, and the page's font."""
        box = re.search(r'viewBox="[^"]*"', svg)
        body = _PROLOGUE.sub("", _SUPERFLUOUS.sub("", svg), count=1)
        used = set(_USE.findall(body))
        body = _ID.sub(lambda match: match[0] if match[1] in used else "", body)
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'{box[0] if box else ""} width="100%" role="img" '
            f'aria-labelledby="{self.name}-title {self.name}-desc" '
            'style="stroke-linejoin: round; stroke-linecap: butt">'
            f'<title id="{self.name}-title">{escape(_clean(self.title))}</title>'
            f'<desc id="{self.name}-desc">{escape(_clean(self.alt))}</desc>'
            f"{_TAG.sub(_themed, body).strip()}"
        )


def _themed(match: re.Match[str]) -> str:
    tag = match[0]
    if tag.startswith("<image"):  # the data may contain any text
        return tag
    for fixed, variable in _VARIABLES.items():
        tag = tag.replace(fixed, variable)
    return tag


def _clean(text: str) -> str:
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def theme_variables(theme: Literal["light", "dark"]) -> str:
    """Return CSS declarations of the colours of an SVG; without them it shows the light theme."""
    colours = [f"--{name}: {getattr(colour, theme)}; " for name, colour in PALETTE.items()]
    band = BAND_ALPHA if theme == "light" else _BAND_OPACITY_DARK
    return f"{''.join(colours)}--band-opacity: {band};"


def slug(*parts: object) -> str:
    """Join texts to a name: ``slug("all_reduce", "2 hosts")`` is ``all-reduce-2-hosts``."""
    text = "-".join(map(str, parts)).lower()
    return re.sub(r"[^a-z0-9]+", "-", text).strip("-")


# ---------------------------------------------------------------------------------- looks and axes

#: The most series that can be told apart; the caption names the others.
MOST_SERIES = 8
#: The smallest ratio that a logarithmic axis spans: a smaller one makes noise look like a trend.
_LEAST_RATIO = 4.0
#: Below this ratio, decades alone give too few ticks.
_FEW_DECADES = 300.0
#: How numbers on an axis are written: ``0.05``, ``20``.
PLAIN = "{x:g}"
#: The letters of one line of a legend, and those that a line's picture takes.
_LETTERS, _PICTURE = 60, 4


class Look(NamedTuple):
    """The style of a series."""

    colour: str
    marker: str
    dash: Any
    """matplotlib's ``linestyle``."""


def look(number: int) -> Look:
    """Return the style of a series; those beyond the most that can be told apart are grey."""
    place = number % MOST_SERIES
    colour = SERIES[place] if number < MOST_SERIES else MUTED
    return Look(colour, MARKERS[place], DASHES[place])


def log_axis(axes: Axes, unit: str) -> None:
    """Make the vertical axis of drawn data logarithmic, with plain numbers at and between decades.

    Args:
        axes: its axes.
        unit: ``us`` for times in microseconds, which are shown in a fitting unit.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < _LEAST_RATIO * low:
        middle = math.sqrt(low * high)
        room = math.sqrt(_LEAST_RATIO)
        axes.set_ylim(middle / room, middle * room)
    ticks = (1.0, 2.0, 5.0) if high < _FEW_DECADES * low else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=ticks, numticks=12))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(plain_time if unit == "us" else PLAIN)


def plain_time(time_us: float, _place: float = 0) -> str:
    """Format a round time: ``50 us``, ``2 ms``."""
    scale_s, unit = time_unit(1e-6 * time_us)
    return f"{1e-6 * time_us / scale_s:g} {unit}"


def legend_columns(names: Iterable[str]) -> int:
    """Return the number of columns of a legend in which the longest name fits."""
    longest = max(map(len, names), default=0)
    return max(1, min(3, _LETTERS // (longest + _PICTURE)))


def nothing_here(axes: Axes, text: str) -> None:
    """Write the reason into an empty frame."""
    axes.text(
        0.5,
        0.5,
        text,
        transform=axes.transAxes,
        ha="center",
        va="center",
        color=MUTED,
        backgroundcolor=PAPER,
    )
