"""Tables of a report: rows and the specifications of columns, for the terminal and for the page."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from operator import attrgetter
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from commbench.engine.flags import FLAGS, split_flags
from commbench.report.formats import between, digits, grouped
from commbench.results import Run
from commbench.units import format_size

Tone = Literal["", "good", "warning", "bad", "quiet", "strong"]
_STYLES: Mapping[Tone, str] = {
    "": "",
    "good": "green",
    "warning": "yellow",
    "bad": "red",
    "quiet": "dim",
    "strong": "bold",
}
#: A table of a page holds no more lines: a browser must stay quick, and the rest is in the run's files.
MOST_LINES = 1000
#: Wider than every table.
_UNLIMITED = 10_000

R = TypeVar("R")


class Flagged(Protocol):
    """A row of any table, with its flags."""

    @property
    def flags(self) -> str:
        """Names of its flags, separated by ``;``."""

    @property
    def status(self) -> str:
        """``ok`` or another status."""

    @property
    def reason(self) -> str:
        """One sentence if the status is not ok."""

    @property
    def reason_code(self) -> str:
        """The code of the reason; empty in older files."""


class Cell(NamedTuple):
    """One cell of a table."""

    text: str
    value: float | None = None
    """What a column of numbers is sorted by; None comes last."""
    tone: Tone = ""
    flags: tuple[str, ...] = ()
    """Shown in place of the text, each with its meaning."""
    link: str = ""
    """A file beside the page."""


@dataclass(frozen=True, kw_only=True)
class Heading:
    """The heading of a column."""

    text: str
    unit: str = ""
    about: str = ""
    """What the column holds, shown on hover and below the section's tables."""
    is_number: bool = False
    """Whether cells are aligned at the right, and sorted by their value."""
    can_wrap: bool = False
    """Whether a terminal may break its cells."""
    gives_way: int = 0
    """The order in which columns are left out if a terminal is narrow, the largest first; 0: never."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; the page sorts it by each of its columns."""

    title: str = ""
    headings: Sequence[Heading]
    lines: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    """Sentences below it."""
    legend: Mapping[str, str] = field(default_factory=dict)
    """The flags in use, each with its meaning."""


@dataclass(frozen=True)
class Column(Generic[R]):
    """A column: its heading, and the cell of each row."""

    heading: str
    text: Callable[[R], str]
    _: KW_ONLY
    unit: str = ""
    about: str = ""
    value: Callable[[R], float | None] | None = None
    """The number that a column is sorted by; None: it holds words."""
    tone: Callable[[R], Tone] | None = None
    flags: Callable[[R], Sequence[str]] | None = None
    """In a column of flags: those of a row, in place of the text."""
    if_varied: bool = False
    """Whether it is left out if all rows have the same in it: the table's title names it then."""
    is_number: bool = False
    """Whether texts are aligned at the right without a ``value``."""
    can_wrap: bool = False
    gives_way: int = 0
    """As in `Heading`."""

    @property
    def head(self) -> Heading:
        """The heading."""
        return Heading(
            text=self.heading,
            unit=self.unit,
            about=self.about,
            is_number=self.is_number or self.value is not None,
            can_wrap=self.can_wrap,
            gives_way=self.gives_way,
        )

    def cell(self, row: R) -> Cell:
        """The cell of a row."""
        return Cell(
            text=self.text(row),
            value=None if self.value is None else self.value(row),
            tone="" if self.tone is None else self.tone(row),
            flags=() if self.flags is None else tuple(self.flags(row)),
        )

    def is_needed(self, cells: Iterable[Cell]) -> bool:
        """Whether its cells hold anything to read."""
        texts = {(cell.text, cell.flags) for cell in cells}
        return len(texts) > 1 if self.if_varied else texts != {("", ())}


def tabulate(rows: Iterable[R], columns: Sequence[Column[R]], *, title: str = "", keeps_empty: bool = False) -> Table:
    """Put rows into a table; columns without anything to read are left out unless the table ``keeps_empty``."""
    rows = list(rows)
    made = [(column, [column.cell(row) for row in rows]) for column in columns]
    needed = [(column, cells) for column, cells in made if keeps_empty or column.is_needed(cells)]
    used = {flag for _, cells in needed for cell in cells for flag in cell.flags}
    return Table(
        title=title,
        headings=[column.head for column, _ in needed],
        lines=list(zip(*(cells for _, cells in needed), strict=True)),
        legend={flag.name: flag.description for flag in FLAGS.values() if flag.name in used},
    )


def plain_table(
    headings: Sequence[str], lines: Iterable[Sequence[str | Cell]], *, title: str = "", words: int | None = None
) -> Table:
    """Return a table of texts.

    Args:
        headings: one for each column.
        lines: cells of each line.
        title: of the table.
        words: the number of columns at the left that hold words; the others are aligned at the right. None: all.
    """
    return Table(
        title=title,
        headings=[
            Heading(text=heading, is_number=words is not None and place >= words)
            for place, heading in enumerate(headings)
        ],
        lines=[[Cell(cell) if isinstance(cell, str) else cell for cell in line] for line in lines],
    )


Named = tuple[str, R]
"""A row with the name of its run."""


def make_table(
    title: str,
    rows: Sequence[Named[R]],
    columns: Sequence[Column[R]],
    *,
    notes: Sequence[str] = (),
    rest_in: str = "the run's files",
) -> Table:
    """Put rows of one run or several into a table of a page, at most `MOST_LINES` of them.

    Args:
        title: of the table.
        rows: each with the name of its run, which is a column where they differ.
        columns: in their order.
        notes: sentences below the table.
        rest_in: the file that has all rows.
    """
    shown = rows[:MOST_LINES]
    table = tabulate([row for _, row in shown], columns, title=title)
    if len({name for name, _ in rows}) > 1:
        lines = [(Cell(name), *line) for (name, _), line in zip(shown, table.lines, strict=True)]
        table = replace(table, headings=[Heading(text="run"), *table.headings], lines=lines)
    left_out = f"{grouped(len(shown))} of {grouped(len(rows))} rows; all of them are in {rest_in}."
    return replace(table, notes=[*([left_out] if len(shown) < len(rows) else []), *notes])


def make_tables(
    title: str,
    runs: Iterable[Run],
    rows_of: Callable[[Run], Iterable[R]],
    columns: Sequence[Column[R]],
    **options: Any,  # noqa: ANN401 - as in `make_table`
) -> list[Table]:
    """Put the rows of all runs into one table, as `make_table`; no table without rows."""
    rows = [(run.name, row) for run in runs for row in rows_of(run)]
    return [make_table(title, rows, columns, **options)] if rows else []


# ------------------------------------------------------------------------------------------------ columns of fields


def about(kind: type[Any], name: str) -> str:
    """The documentation of a column of a CSV file."""
    return str(kind.__dataclass_fields__[name].metadata.get("about", ""))


Field = str | Callable[[Any], Any]
"""The name of a field, or the function that returns its value for a row."""


def words(heading: str, of: Field, kind: type[Any] | None = None, **options: Any) -> Column[Any]:  # noqa: ANN401 - as in `Column`
    """A column with the text of a field, documented in the dataclass ``kind``."""
    value = _getter(of)
    return Column(heading, lambda row: _text(value(row)), **{"about": _about(of, kind), **options})


def number(
    heading: str,
    of: Field,
    kind: type[Any] | None = None,
    *,
    form: Callable[[Any], str] = digits,
    scale: float = 1.0,
    **options: Any,  # noqa: ANN401 - as in `Column`
) -> Column[Any]:
    """A column with a number, times ``scale``, as ``form`` writes it; empty for None."""
    get = _getter(of)

    def value(row: Any) -> float | None:  # noqa: ANN401 - a row of any table
        found: float | None = get(row)
        return found if found is None or scale == 1 else scale * found

    def text(row: Any) -> str:  # noqa: ANN401 - a row of any table
        found = value(row)
        return "" if found is None else form(found)

    return Column(heading, text, **{"value": value, "about": _about(of, kind), **options})


def _getter(of: Field) -> Callable[[Any], Any]:
    return attrgetter(of) if isinstance(of, str) else of


def _about(of: Field, kind: type[Any] | None) -> str:
    return about(kind, of) if kind and isinstance(of, str) else ""


def outcome(heading: str, name: str, kind: type[Any], **options: Any) -> Column[Any]:  # noqa: ANN401 - as in `Column`
    """A column with a measured time, or one word that says why there is none."""

    def text(row: Any) -> str:  # noqa: ANN401 - a row of any table
        return str(row.status) if row.status != "ok" else digits(getattr(row, name)) or "no time"

    options = {"about": about(kind, name), **options}
    return Column(heading, text, value=attrgetter(name), tone=lambda row: tone_of(row.status), **options)


def size_column(of: Field = "message_bytes", kind: type[Any] | None = None) -> Column[Any]:
    """A column with the size of a message."""
    return number("size", of, kind, form=format_size)


Ends = tuple[float | None, float | None]
"""The ends of an interval; None if unknown."""


def ends(of: Field, *, heading: str = "95 % CI", **options: Any) -> Column[Any]:  # noqa: ANN401 - as in `Column`
    """A column with an interval, of which ``of`` gives the `Ends`, and optionally a value as in `between`."""
    get = _getter(of)
    return Column(heading, lambda row: between(*get(row)), value=lambda row: get(row)[0], **options)


def interval(name: str, kind: type[Any], *, unit: str = "", is_bounded: bool = False) -> Column[Any]:
    """A column with the 95 % interval of a field; one that ``is_bounded``, as a percentage is, is never too wide."""

    def get(row: Any) -> tuple[float | None, ...]:  # noqa: ANN401 - a row of any table
        low, high, value = (getattr(row, f"{name}{part}") for part in ("_ci_low", "_ci_high", ""))
        return low, None if value is None else high, None if is_bounded else value

    return ends(get, unit=unit, about=about(kind, f"{name}_ci_low").replace(", low end", ""))


def flag_column() -> Column[Any]:
    """The column of flags."""

    def flags(row: Flagged) -> list[str]:
        return [flag.name for flag in split_flags(row.flags)]

    return Column("flags", lambda _: "", about="warnings about the row; see below the table", flags=flags)


def _text(value: object) -> str:
    return "" if value is None else "yes" if value is True else "no" if value is False else str(value)


def tone_of(status: str) -> Tone:
    """The tone of a row with a status."""
    return "" if status == "ok" else "quiet" if status == "unsupported" else "bad"


#: The tone of a verdict; none for other verdicts.
VERDICT_TONES: Mapping[str, Tone] = {"faster": "good", "slower": "bad", "inconclusive": "warning"}


# ------------------------------------------------------------------------------------------------------ the terminal


def printed(table: Table, **options: Any) -> RichTable:  # noqa: ANN401 - rich's
    """Return the table for `rich.console.Console.print`; a table with a title has no line below its headings."""
    looks: dict[str, Any] = {"title": table.title, "title_justify": "left", "title_style": "bold", "box": None}
    if not table.title:
        looks = {"box": box.SIMPLE_HEAD, "pad_edge": False, "show_edge": False}
    made = RichTable(**looks | options)
    for heading in table.headings:
        made.add_column(
            Text(heading.text), justify="right" if heading.is_number else "left", no_wrap=not heading.can_wrap
        )
    for line in table.lines:
        made.add_row(*(Text(cell.text, style=_STYLES[cell.tone]) for cell in line))
    return made


@dataclass(frozen=True, kw_only=True)
class FittedTable:
    """A table with as many columns as fit the console; the columns left out are named below it."""

    table: Table
    file: str
    """The file that has all columns."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, and the names of columns that did not fit."""
        headings = list(self.table.headings)
        left_out: list[str] = []
        unlimited = options.update(width=_UNLIMITED)
        while console.measure(made := self._printed(headings), options=unlimited).maximum > options.max_width:
            heading = max(headings, key=lambda heading: heading.gives_way)
            if not heading.gives_way:
                break
            headings.remove(heading)
            left_out.append(heading.text.replace("\n", " ").strip())
        yield made
        if left_out:
            yield Text(f"No space for {', '.join(left_out)}: see {self.file}.", style="dim")

    def _printed(self, headings: Sequence[Heading]) -> RichTable:
        kept = [heading in headings for heading in self.table.headings]
        lines = [list(itertools.compress(line, kept)) for line in self.table.lines]
        return printed(replace(self.table, headings=headings, lines=lines), collapse_padding=True)
