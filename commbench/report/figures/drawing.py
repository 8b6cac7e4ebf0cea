"""A `Drawing`: one figure as SVG with the page's colours and as PNG.

Palette, styles of series, axes and legends.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from commbench.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


Section = Literal[
    "collectives",
    "launches",
    "matrix",
    "training",
    "timeline",
    "learning",
    "energy",
    "soak",
]

WIDTH_IN, HEIGHT_IN, PNG_DPI = 5.0, 3.2, 150


@dataclass(frozen=True, kw_only=True)
class Colour:
    """A colour in the light and the dark theme."""

    light: str
    """``#rrggbb``; unique, because the SVG's colours are recognised by it."""
    dark: str


#: Colours by the name of their CSS variable: Okabe and Ito's hues, the pale ones darkened to show
#: on white.
PALETTE: Mapping[str, Colour] = MappingProxyType(
    {
        "ink": Colour(light="#1b1f24", dark="#e8eaed"),
        "muted": Colour(light="#5c6570", dark="#a3acb7"),
        "grid": Colour(light="#d9dde2", dark="#3a414a"),
        "paper": Colour(light="#fefefe", dark="#14171b"),
        "shade": Colour(light="#eef0f3", dark="#242a31"),
        "bad": Colour(light="#b3261e", dark="#ff8a80"),
        "series-1": Colour(light="#0072b2", dark="#56b4e9"),
        "series-2": Colour(light="#d55e00", dark="#ff9248"),
        "series-3": Colour(light="#009e73", dark="#2fd3a4"),
        "series-4": Colour(light="#b0578d", dark="#e79ac6"),
        "series-5": Colour(light="#a67c00", dark="#f0d045"),
        "series-6": Colour(light="#4b3f9e", dark="#a99cff"),
        "series-7": Colour(light="#3f9bd6", dark="#9fd8ff"),
        "series-8": Colour(light="#6b4a2f", dark="#cfae8e"),
    }
)
INK, MUTED, GRID, PAPER, SHADE, BAD = (
    PALETTE[n].light for n in ("ink", "muted", "grid", "paper", "shade", "bad")
)
SERIES = tuple(colour.light for name, colour in PALETTE.items() if name.startswith("series-"))
#: Series differ in colour, marker and line style: they can be told apart without colour.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = (
    *("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2))),
    *((0, (3, 1)), (0, (8, 3)), (0, (2, 2)), (0, (4, 4))),
)
#: Opacity of interval bands; unique, like the colours.
BAND_ALPHA = 0.181
_BAND_OPACITY_DARK = 0.28

#: Keyword arguments of a drawing function of matplotlib.
Style: TypeAlias = Mapping[str, Any]

_STYLE: Style = MappingProxyType(
    {
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "axes.titlesize": 10,
        "axes.labelsize": 10,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
        "legend.fontsize": 9,
        "legend.frameon": False,
        "text.color": INK,
        "text.parse_math": (
            False
        ),  # names of hosts and settings are plain text and may hold dollar signs
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
)
_VARIABLES = {
    colour.light: f"var(--{name}, {colour.light})" for name, colour in PALETTE.items()
} | {f"opacity: {BAND_ALPHA}": f"opacity: var(--band-opacity, {BAND_ALPHA})"}
_SENTINELS = re.compile("|".join(map(re.escape, _VARIABLES)))
_TAG = re.compile(r"<[^<>]*>")
_PROLOGUE = re.compile(r"^.*?<svg[^>]*>", re.DOTALL)
#: matplotlib's style sheet would apply to the whole page; its metadata contains a date
_SUPERFLUOUS = re.compile(r"<(metadata|style)\b[^>]*>.*?</\1>|<!--.*?-->", re.DOTALL)
_ID = re.compile(r' id="([^"<>]*)"(?=[^<>]*>)')
_USE = re.compile(r'(?:url\(|")#([^")]+)')
_REFERENCE = re.compile(r'(\bid="|"#|url\(#)')
#: Characters that XML does not allow.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawing:
    """One figure, 5 inches wide, with its texts.

    It is drawn on first use, from the same data with the same bytes.
    """

    paint: Callable[[Figure], None]
    """Adds axes to an empty figure, in the light colours of `PALETTE`."""
    name: str
    """Lower-case letters, digits and hyphens; unique on a page; the stem of the PNG's file name."""
    section: Section
    """The section of the page."""
    title: str
    """The title; it is not part of the picture."""
    caption: str
    """How to read the figure, and the main result; plain text."""
    alt: str
    """A description for readers who cannot see the figure; plain text."""
    height_in: float = HEIGHT_IN

    def __post_init__(self) -> None:
        """Raise ValueError unless the name is a valid id."""
        if not re.fullmatch(r"[a-z][a-z0-9-]*", self.name):
            raise ValueError(f"{self.name!r} is no name of a drawing")

    @property
    def svg(self) -> str:
        """The ``<svg>`` element for HTML: escaped, and its ids begin with the name."""
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

        # a user's own matplotlib style would change the bytes; setting the backend loads pyplot
        plain = {
            key: value
            for key, value in mpl.rcParamsDefault.items()
            if key not in {"backend", "backend_fallback"}
        }
        with (
            mpl.rc_context(rc={**plain, **_STYLE, "svg.hashsalt": self.name}),
            warnings.catch_warnings(),
        ):
            # a character that the font lacks is a box in the PNG and correct in the SVG
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            figure = Figure(figsize=(WIDTH_IN, self.height_in))
            FigureCanvasAgg(figure)
            self.paint(figure)
            _clean_texts(figure)
            svg, png = io.StringIO(), io.BytesIO()
            figure.savefig(
                svg, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator"))
            )
            figure.savefig(
                png, format="png", dpi=PNG_DPI, facecolor=PAPER, metadata={"Software": None}
            )
        return _for_page(svg.getvalue(), self.name, self.title, self.alt), png.getvalue()


def theme_variables(theme: Literal["light", "dark"]) -> str:
    """Return CSS declarations of the colours that an SVG uses.

    Without them it shows the light theme.
    """
    band = BAND_ALPHA if theme == "light" else _BAND_OPACITY_DARK
    return (
        "".join(f"--{name}: {getattr(colour, theme)}; " for name, colour in PALETTE.items())
        + f"--band-opacity: {band};"
    )


def slug(*parts: object) -> str:
    """Join texts to a name of a drawing: ``slug("all_reduce", "2 hosts") ==
    "all-reduce-2-hosts"``.
    """
    return re.sub(r"[^a-z0-9]+", "-", "-".join(map(str, parts)).lower()).strip("-")


def _clean_texts(figure: Figure) -> None:
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if _CONTROL.search(text.get_text()):
            text.set_text(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.get_text()))


def _for_page(svg: str, name: str, title: str, alt: str) -> str:
    """Turn matplotlib's SVG into a page element: CSS variables for colours, own ids, the page's
    font and width.
    """
    body = _PROLOGUE.sub("", _SUPERFLUOUS.sub("", svg), count=1)
    referenced_ids = set(_USE.findall(body))
    body = _ID.sub(lambda match: match[0] if match[1] in referenced_ids else "", body)
    box = re.search(r'viewBox="[^"]*"', svg)
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        f' {box[0] if box else ""} width="100%" role="img" aria-labelledby="{name}-title'
        f' {name}-desc" style="stroke-linejoin: round; stroke-linecap: butt"><title'
        f' id="{name}-title">{_text(title)}</title><desc id="{name}-desc">{_text(alt)}</desc>'
    )
    return head + _TAG.sub(lambda tag: _themed(tag[0], name), body).strip()


def _themed(tag: str, name: str) -> str:
    if tag.startswith("<image"):  # the data may contain any text
        return _REFERENCE.sub(rf"\g<1>{name}-", tag, count=1)
    tag = _SENTINELS.sub(lambda match: _VARIABLES[match[0]], tag)
    return _REFERENCE.sub(
        rf"\g<1>{name}-", tag.replace("'DejaVu Sans'", "var(--font, system-ui, sans-serif)")
    )


def _text(text: str) -> str:
    return escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text))


# ---------------------------------------------------------------------------------- series and axes

#: The most series that can be told apart; the caption names the others.
MOST_SERIES = 8
#: The most sizes named on an axis.
_MOST_TICKS = 6
#: The smallest ratio that a logarithmic axis spans: a smaller one makes noise look like a trend.
_LEAST_RATIO = 4.0
#: Below this ratio, decades alone give too few ticks.
_FEW_DECADES = 300.0
#: Columns of a legend by the length of its longest name.
_LEGEND_COLUMNS = ((16, 3), (28, 2))
_SCALES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, kw_only=True)
class Look:
    """The style of a series."""

    colour: str
    marker: str
    dash: Any
    """matplotlib's ``linestyle``."""


def look(index: int) -> Look:
    """Return the style of series ``number``, from 0."""
    place = index % MOST_SERIES
    return Look(colour=SERIES[place], marker=MARKERS[place], dash=DASHES[place])


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return a style for each name, in order."""
    return {name: look(index) for index, name in enumerate(dict.fromkeys(names))}


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value with its interval."""

    value: float
    low: float | None = None
    """None without an interval."""
    high: float | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """The ends of the interval; the value itself without a finite interval."""
        ends = (self.low, self.high)
        low, high = (self.value if end is None or not math.isfinite(end) else end for end in ends)
        return low, high

    @property
    def errors(self) -> tuple[float, float]:
        """Distances of the ends below and above the value, for matplotlib's error bars."""
        low, high = self.bounds
        return max(0.0, self.value - low), max(0.0, high - self.value)


def estimate(
    value: float | None, low: float | None = None, high: float | None = None
) -> Estimate | None:
    """Return an estimate if the value is finite, else None."""
    return (
        Estimate(value=value, low=low, high=high)
        if value is not None and math.isfinite(value)
        else None
    )


def plot_series(axes: Axes, points: Mapping[float, Estimate], name: str, looks_as: Look) -> None:
    """Draw a line through values by x, with a band for their intervals."""
    if not points:
        return
    x = sorted(points)
    values, bounds = [points[at].value for at in x], [points[at].bounds for at in x]
    axes.plot(
        x,
        values,
        color=looks_as.colour,
        marker=looks_as.marker,
        linestyle=looks_as.dash,
        label=name,
    )
    low, high = zip(*bounds, strict=True)
    if len(x) > 1:
        axes.fill_between(x, low, high, color=looks_as.colour, alpha=BAND_ALPHA, linewidth=0)
    else:
        plot_interval(axes, x[0], points[x[0]], looks_as)


def plot_interval(axes: Axes, x: float, point: Estimate, looks_as: Look) -> None:
    """Draw the interval of one value as a bar."""
    errors = [[error] for error in point.errors]
    axes.errorbar(
        [x], [point.value], yerr=errors, color=looks_as.colour, linestyle="none", capsize=2.5
    )


def plot_crosses(axes: Axes, x: Sequence[float], looks_as: Look) -> None:
    """Mark failed cases by crosses on the x axis."""
    if not x:
        return
    style: Style = {
        "marker": "x",
        "linestyle": "none",
        "markersize": 7,
        "markeredgewidth": 1.8,
        "clip_on": False,
        "zorder": 5,
    }
    axes.plot(
        x,
        [0.0] * len(x),
        transform=axes.get_xaxis_transform(),
        color=looks_as.colour,
        gid="crosses",
        **style,
    )


def byte_axis(axes: Axes, sizes_bytes: Iterable[int]) -> None:
    """Make x an axis of sizes in powers of two, with at most six of them named."""
    sizes = sorted(set(sizes_bytes))
    axes.set_xscale("log", base=2)
    labelled_sizes = sizes[:: max(1, -(-len(sizes) // _MOST_TICKS))]
    axes.set_xticks(labelled_sizes, [format_size(size) for size in labelled_sizes])
    axes.set_xticks([], minor=True)
    axes.set_xlim(sizes[0] / 1.5, sizes[-1] * 1.5)


def log_axis(axis: Axis, unit: str = "") -> None:
    """Make an axis logarithmic with plain numbers: at decades, and between them if it spans few
    decades.

    Args:
        axis: the axis; its data is drawn already.
        unit: ``us`` for times in microseconds, which are shown in a fitting unit.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    set_scale, get_limits, set_limits = (
        (axis.axes.set_yscale, axis.axes.get_ylim, axis.axes.set_ylim)
        if axis is axis.axes.yaxis
        else (axis.axes.set_xscale, axis.axes.get_xlim, axis.axes.set_xlim)
    )
    set_scale("log")
    low, high = get_limits()
    if high < _LEAST_RATIO * low:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(_LEAST_RATIO), middle * math.sqrt(_LEAST_RATIO)
        set_limits(low, high)
    axis.set_major_locator(
        LogLocator(subs=(1.0, 2.0, 5.0) if high < _FEW_DECADES * low else (1.0,), numticks=12)
    )
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: plain_time(value) if unit == "us" else plain(value))
    )


def plain(value: float) -> str:
    """Format a number without an exponent while it stays short: ``0.05``, ``20``, ``50 k``."""
    scale, prefix = next(
        ((scale, prefix) for scale, prefix in _SCALES if abs(value) >= 10 * scale), (1.0, "")
    )
    return f"{value / scale:.10g}{' ' if prefix else ''}{prefix}"


def plain_time(time_us: float) -> str:
    """Format a round time: ``50 us``, ``2 ms``."""
    scale, unit = next(
        ((s, u) for s, u in ((1e6, "s"), (1e3, "ms")) if time_us >= s * (1 - 1e-9)), (1.0, "us")
    )
    return f"{time_us / scale:.6g} {unit}"


def mark_limit(axes: Axes, value: float, text: str, *, vertical: bool = False) -> None:
    """Draw a named limit."""
    style: Style = {"color": BAD, "linewidth": 1.0, "linestyle": (0, (6, 3))}
    if vertical:
        axes.axvline(value, **style)
        axes.annotate(
            text,
            (value, 1.0),
            xycoords=("data", "axes fraction"),
            ha="right",
            **_note(-4, -2, va="top"),
        )
    else:
        axes.axhline(value, **style)
        axes.annotate(
            text, (0.0, value), xycoords=("axes fraction", "data"), **_note(4, 3, va="bottom")
        )


def _note(x: float, y: float, va: str) -> Style:
    return {"xytext": (x, y), "textcoords": "offset points", "color": BAD, "fontsize": 9, "va": va}


def legend(figure: Figure, axes: Axes) -> None:
    """Draw the names of the series below the figure, in as many columns as fit.

    None for a single series.
    """
    handles, names = axes.get_legend_handles_labels()
    if len(names) < 2:  # noqa: PLR2004 - one needs no name
        return
    columns = min(_legend_columns(names), len(names))
    figure.legend(
        handles,
        names,
        loc="outside lower center",
        ncols=columns,
        handlelength=3.0,
        columnspacing=1.2,
    )


def _legend_columns(names: Sequence[str]) -> int:
    """Return the number of columns in which the longest name fits."""
    longest = max(map(len, names))
    return next((columns for most, columns in _LEGEND_COLUMNS if longest <= most), 1)


def legend_height_in(names: Sequence[str]) -> float:
    """Return the height in inches that `legend` needs."""
    if len(names) < 2:  # noqa: PLR2004 - as there
        return 0.0
    return 0.1 + 0.19 * math.ceil(len(names) / _legend_columns(names))


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
