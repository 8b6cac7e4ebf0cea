"""The spread of launches: one dot for each launch median, beside the overall median and its
interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commbench import stats
from commbench.collectives.cases import Case
from commbench.collectives.composed import MATRIX
from commbench.ddp.plan.cases import CONFIRM, hook_position, setting_name
from commbench.engine.flags import split_flags
from commbench.engine.records import Row
from commbench.report.figures.drawing import INK, MUTED, Drawing, log_axis, look
from commbench.report.figures.words import prefixes, sentences
from commbench.report.formats import launches_of, listed
from commbench.report.groups import brief
from commbench.results import Run
from commbench.results.summary import keyed_records, launch_flags, launch_medians
from commbench.results.trained import Trained, trained
from commbench.units import counted, format_size, three_digits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The most lines in the figure.
_MOST_LINES = 16
#: Flags about the spread of launches, the most severe first.
_SHOWN_FLAGS = ("bimodal_launches", "ci_wide")
#: Vertical offsets of the dots of successive launches.
_OFFSETS = (0.0, -0.16, 0.16, -0.08, 0.08)
#: A larger ratio between launches gets a logarithmic axis.
_WIDE = 5.0
_TICKS = 5


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The launches of one case or setting."""

    name: str
    medians: Sequence[float]
    """The median of each launch, at least two, in any unit."""
    flags: frozenset[str]
    colour: str

    @property
    def shares(self) -> list[float]:
        """The median of each launch in percent of the median over launches."""
        return [100 * value / self.middle for value in self.medians]

    @property
    def middle(self) -> float:
        """The median over launches."""
        return stats.median(self.medians)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval over launches, in percent of the median."""
        interval = stats.launch_interval(list(self.medians))
        return (
            (100 * interval.low / self.middle, 100 * interval.high / self.middle)
            if interval
            else None
        )

    @property
    def range(self) -> float:
        """The slowest launch over the fastest."""
        return max(self.medians) / min(self.medians)


def launch_figures(runs: Sequence[Run]) -> list[Drawing]:
    """Return the launches of the most important cases, and of the settings that the decision
    compared.
    """
    drawings = []
    for name, content, spreads_of in (
        ("launches-collectives", "collectives", collective_spreads),
        ("launches-training", "training steps", training_spreads),
    ):
        spreads = [
            spread
            for run, prefix in zip(runs, prefixes(runs), strict=True)
            for spread in spreads_of(run, prefix)
        ]
        if spreads:
            drawings.append(
                _drawing(name, f"Launches of {content}", _foremost(spreads), len(spreads))
            )
    return drawings


def _foremost(spreads: Sequence[Spread]) -> list[Spread]:
    """Keep the lines that fit: flagged ones first, then the widest intervals, in the given
    order.
    """
    if len(spreads) <= _MOST_LINES:
        return list(spreads)

    def rank(spread: Spread) -> tuple[int, float]:
        worst = next(
            (place for place, flag in enumerate(_SHOWN_FLAGS) if flag in spread.flags),
            len(_SHOWN_FLAGS),
        )
        return worst, -spread.range

    selected = sorted(range(len(spreads)), key=lambda place: rank(spreads[place]))[:_MOST_LINES]
    return [spreads[place] for place in sorted(selected)]


# --------------------------------------------------------------------------------------------- what


def collective_spreads(run: Run, prefix: str) -> list[Spread]:
    """Return the largest size of each operation, backend and pattern, and every row with flags
    about its launches.
    """
    if not run.records:
        return []
    records = keyed_records(run.records)
    cases = {record.case.key: record.case for record in run.records}
    rows = [(cases[key[0]], key, row) for key, row in run.keyed_rows.items()]
    rows = [line for line in rows if line[0].pattern != MATRIX]  # its times pool all pairs
    backends = list(dict.fromkeys(case.backend for case, _, _ in rows))
    largest: dict[tuple[str, ...], int] = {}
    for case, _, row in rows:
        kind = _kind(case, row)
        largest[kind] = max(largest.get(kind, 0), case.message_bytes)
    spreads = []
    for case, key, row in rows:
        medians, flags = (
            launch_medians(records[key]),
            frozenset(flag.name for flag in split_flags(row.flags)),
        )
        matters = case.message_bytes == largest[_kind(case, row)] or flags & set(_SHOWN_FLAGS)
        if matters and len(medians) > 1 and min(medians) > 0:
            colour = look(backends.index(case.backend)).colour
            spreads.append(
                Spread(name=prefix + _name(case, row), medians=medians, flags=flags, colour=colour)
            )
    return spreads


def _kind(case: Case, row: Row) -> tuple[str, ...]:
    return (
        case.operation,
        case.backend,
        case.pattern,
        row.group,
        str(case.dtype),
        str(case.world_size),
        case.env,
    )


def _name(case: Case, row: Row) -> str:
    words = [
        case.backend,
        case.operation,
        format_size(case.message_bytes) if case.message_bytes else "",
    ]
    words += [case.pattern, brief(row.group)] if case.pattern != "flat" else []
    words += [case.env]
    return " ".join(filter(None, words))


def training_spreads(run: Run, prefix: str) -> list[Spread]:
    """Return the settings measured in fresh launches; without these, the settings of the sweep."""
    settings = trained(run.training_records, CONFIRM) or trained(run.training_records)
    return [
        Spread(
            name=f"{prefix}{setting_name(setting.case)}",
            medians=list(setting.steps_ms.values()),
            flags=frozenset(launch_flags(list(setting.steps_ms.values()))),
            colour=look(_order(setting)[0]).colour,
        )
        for setting in sorted(settings.values(), key=_order)
        if setting.case.uses_ddp
        and len(setting.steps_ms) > 1
        and min(setting.steps_ms.values()) > 0
    ]


def _order(setting: Trained) -> tuple[int, tuple[float, ...]]:
    """Return a sort key: the default first, then by hook and bucket size."""
    return hook_position(setting.case.hook), setting.case.caps_mb


# ---------------------------------------------------------------------------------------------- how


def _drawing(name: str, title: str, spreads: Sequence[Spread], total: int) -> Drawing:
    return Drawing(
        paint=lambda figure: paint_spreads(figure, spreads),
        name=name,
        section="launches",
        title=title,
        caption=caption_of(spreads, total),
        alt=(
            f"{title}: {counted(len(spreads), 'case')}, each with a dot a launch around its median."
        ),
        height_in=0.75 + 0.24 * len(spreads),
    )


def paint_spreads(figure: Figure, spreads: Sequence[Spread]) -> None:
    """Draw a line for each case: dots slightly apart if they overlap, the interval below them."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes = figure.subplots()
    for place, spread in enumerate(spreads):
        if spread.interval is not None:
            low, high = spread.interval
            axes.plot(
                [low, high],
                [place, place],
                color=MUTED,
                linewidth=5,
                alpha=0.35,
                solid_capstyle="butt",
            )
        heights = [
            place + _OFFSETS[launch % len(_OFFSETS)] for launch in range(len(spread.medians))
        ]
        axes.plot(
            spread.shares, heights, "o", color=spread.colour, markersize=3.5, markeredgewidth=0
        )
    axes.axvline(100, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(spreads)), [_marked(spread) for spread in spreads])
    axes.set_ylim(len(spreads) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("time, share of the median launch's")
    shares = [share for spread in spreads for share in spread.shares]
    if max(shares) > _WIDE * min(shares):
        log_axis(axes.xaxis)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(_TICKS))
        axes.set_xlim(min(95.0, *axes.get_xlim()), max(105.0, *axes.get_xlim()))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:g} %"))


def _marked(spread: Spread) -> str:
    return f"{spread.name} *" if "bimodal_launches" in spread.flags else spread.name


def caption_of(spreads: Sequence[Spread], total: int) -> str:
    """Return the caption: how to read the figure, and which launches differ most."""
    widest = max(spreads, key=lambda spread: spread.range)
    bimodal = [spread.name for spread in spreads if "bimodal_launches" in spread.flags]
    wide = [spread.name for spread in spreads if "ci_wide" in spread.flags]
    launches = launches_of(len(spread.medians) for spread in spreads)
    return sentences(
        f"Each dot is the median of one launch ({launches}), grey bars are the 95 % intervals of"
        " the median launch; dots far from 100 % are why one launch proves little.",
        f"They differ most in {widest.name}: the slowest takes {three_digits(widest.range)} times"
        " as long as the fastest.",
        f"In two modes (*): {listed(bimodal)}." if bimodal else "",
        f"Intervals wider than the budget's target: {listed(wide)}." if wide else "",
        f"Shown are {len(spreads)} of {total}, flagged ones first." if total > len(spreads) else "",
    )
