"""Tables of a report: rows and the specifications of columns, for the terminal and for the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from operator import attrgetter, itemgetter
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from commbench.ddp.plan.records import TrainingRow
from commbench.engine.flags import FLAGS, split_flags
from commbench.engine.records import Row, about
from commbench.findings import Finding, Numbers
from commbench.report.formats import between, digits
from commbench.results import Run
from commbench.results.tables import column_dtypes
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
#: The most lines in a table of a page: browsers are slow with more, and the run's files have all.
MOST_LINES = 1000
#: A width that every table fits into.
_UNLIMITED = 10_000

R = TypeVar("R")


Flagged: TypeAlias = Row | TrainingRow
"""A row with a status, the reason for it, and flags."""


class Cell(NamedTuple):
    """One cell of a table."""

    text: str
    value: float | None = None
    """The value by which a column of numbers is sorted; None comes last."""
    tone: Tone = ""
    flags: tuple[str, ...] = ()
    """Flags shown in place of the text, each with its meaning."""
    drawn: Sequence[float] = ()
    """A ratio that the page draws, in 200 units: low end, ratio, high end, ends of a margin."""


#: The tones of statuses, verdicts and outcomes in any cell.
_TONES: Mapping[str, Tone] = {
    "failed": "bad",
    "faster": "good",
    "hung": "bad",
    "inconclusive": "warning",
    "interrupted": "bad",
    "cut": "bad",
    "met": "good",
    "not met": "bad",
    "not shown": "warning",
    "not tested": "warning",
    "refused": "bad",
    "slower": "bad",
    "spike": "warning",
    "unsupported": "quiet",
    "wrong": "bad",
}


def toned(text: str, value: float | None = None) -> Cell:
    """Return a cell in the tone of the status, verdict or outcome that it holds."""
    return Cell(text, value, _TONES.get(text, ""))


Field = str | Callable[[R], Any]
"""The name of a field, or the function that returns the value for a row."""


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


@dataclass(frozen=True)
class Column(Generic[R]):
    """A column: its heading, and how to make the cell of a row."""

    heading: str
    value_of: Field[R] = ""
    """The field's name, or a function that returns a row's value: None for an empty cell, or a
    whole `Cell`."""
    _: KW_ONLY
    text_of: Callable[[Any], str] = _text
    """Returns the text of a value that is not None."""
    scale: float = 1.0
    """Factor of the values of a column of numbers."""
    unit: str = ""
    about: str = ""
    """Its meaning, shown on hover and below the section's tables; empty if the heading explains
    itself."""
    is_number: bool = False
    """Whether cells are aligned at the right, and sorted by their value."""
    should_vary: bool = False
    """Whether the column is left out if all rows have the same value; the table's title then
    states it."""
    can_wrap: bool = False
    """Whether a terminal may break its cells."""
    drop_order: int = 0
    """The order in which columns are left out if a terminal is narrow, the largest first; 0:
    never."""

    def cell(self, row: R) -> Cell:
        """Return the cell of a row."""
        value_of = self.value_of
        if isinstance(value_of, str):
            value_of = attrgetter(value_of)
        value = value_of(row)
        if value is None:
            return Cell("")
        if isinstance(value, Cell):
            return value
        if not self.is_number or isinstance(value, str):
            return toned(self.text_of(value))
        if self.scale != 1:
            value *= self.scale
        return Cell(self.text_of(value), value)

    def is_needed(self, cells: Iterable[Cell]) -> bool:
        """Return whether any cell has content.

        If the column should vary, whether the cells differ.
        """
        contents = {(cell.text, cell.flags, tuple(cell.drawn)) for cell in cells}
        return len(contents) > 1 if self.should_vary else contents != {("", (), ())}


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; the page sorts it by each of its columns.

    A terminal shows as many columns as fit, and names the others below.
    """

    title: str = ""
    columns: Sequence[Column[Any]]
    lines: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    """Sentences below the table."""
    legend: Mapping[str, str] = field(default_factory=dict)
    """The flags in use, each with its meaning."""
    file: str = ""
    """The file that has all rows and columns."""

    @property
    def width(self) -> int:
        """The characters of its lines on a terminal."""
        console = Console(width=_UNLIMITED, force_terminal=False, markup=False, emoji=False)
        return console.measure(_grid(self.columns, self.lines)).maximum

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield title and table, the names of columns that did not fit, and the notes."""
        if self.title:
            yield Text(f"\n{self.title}", style="bold")
        columns = list(self.columns)
        lines = [list(line) for line in self.lines]
        left_out = []
        while replace(self, columns=columns, lines=lines).width > options.max_width:
            place, dropped = max(enumerate(columns), key=lambda each: each[1].drop_order)
            if not dropped.drop_order:
                break
            left_out.append(dropped.heading)
            del columns[place]
            for line in lines:
                del line[place]
        yield _grid(columns, lines)
        shared = _shared_flags(lines)
        if shared:
            numbers = {"flags": ", ".join(sorted(shared))}
            yield Text(str(Finding("flags_shared", numbers=numbers)), style="dim")
        if left_out:
            numbers = {"columns": ", ".join(left_out), "file": self.file}
            yield Text(str(Finding("columns_hidden", numbers=numbers)), style="dim")
        yield from self.notes


def tabulate(
    rows: Iterable[R],
    columns: Sequence[Column[R]],
    *,
    title: str = "",
    notes: Sequence[str] = (),
) -> Table:
    """Put rows into a table, without empty columns."""
    rows = list(rows)
    shown: list[Column[R]] = []
    cells_by_column: list[list[Cell]] = []
    used: set[str] = set()
    for column in columns:
        cells = [column.cell(row) for row in rows]
        if column.is_needed(cells):
            shown.append(column)
            cells_by_column.append(cells)
            used.update(*(cell.flags for cell in cells))
    legend = {name: flag.description for name, flag in FLAGS.items() if name in used}
    lines = list(zip(*cells_by_column, strict=True))
    return Table(title=title, notes=notes, columns=shown, lines=lines, legend=legend)


def plain_table(
    headings: Sequence[str],
    lines: Iterable[Sequence[str | Cell]],
    *,
    title: str = "",
    words: int | None = None,
    notes: Sequence[str] = (),
) -> Table:
    """Return a table of texts, without empty columns.

    Args:
        headings: one for each column.
        lines: cells of each line.
        title: of the table.
        words: the number of columns at the left that hold words, which a terminal may break; the
            others are aligned at the right. None: all.
        notes: sentences below the table.
    """
    columns: list[Column[Any]] = []
    for place, heading in enumerate(headings):
        is_number = words is not None and place >= words
        value_of = itemgetter(place)
        columns.append(Column(heading, value_of, is_number=is_number, can_wrap=not is_number))
    return tabulate(lines, columns, title=title, notes=notes)


def prefixes(runs: Sequence[Run]) -> list[tuple[Run, str]]:
    """Return each run with the prefix of its titles: empty for a single run."""
    if len(runs) == 1:
        return [(runs[0], "")]
    return [(run, f"{run.name}: ") for run in runs]


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
    visible_rows = rows[:MOST_LINES]
    table = tabulate([row for _, row in visible_rows], columns, title=title)
    if len({name for name, _ in rows}) > 1:
        lines = [
            (Cell(name), *line) for (name, _), line in zip(visible_rows, table.lines, strict=True)
        ]
        table = replace(table, columns=[Column("run"), *table.columns], lines=lines)
    if len(visible_rows) < len(rows):
        numbers: Numbers = {"shown": MOST_LINES, "lines": len(rows), "file": rest_in}
        notes = [str(Finding("lines_hidden", numbers=numbers)), *notes]
    return replace(table, notes=notes, file=rest_in)


def make_tables(
    title: str,
    runs: Iterable[Run],
    rows_of: Callable[[Run], Iterable[R]],
    columns: Sequence[Column[R]],
    **options: Any,
) -> list[Table]:
    """Put the rows of all runs into one table, as `make_table`; no table without rows."""
    rows = [(run.name, row) for run in runs for row in rows_of(run)]
    return [make_table(title, rows, columns, **options)] if rows else []


# --------------------------------------------------------------------------------- kinds of columns


#: The unit that a field's name states.
_UNIT = re.compile(r"_(us|ms|s|J|GBps|MB|percent)(?=_|$)")
_UNIT_TEXTS = {"GBps": "GB/s", "percent": "%"}
#: How numbers of a field are written, if not by `digits`.
_FORMS = {"message_bytes": format_size}


def unit_of(name: str) -> str:
    """Return the unit that a field's name states; empty for a number without one."""
    found = _UNIT.search(name)
    if found is None:
        return ""
    return _UNIT_TEXTS.get(found[1], found[1])


def heading_of(row_class: type[Any], name: str) -> str:
    """Return the heading that a field declares, else its name without the unit."""
    heading = row_class.__dataclass_fields__[name].metadata.get("heading")
    return heading or _UNIT.sub("", name).replace("_", " ")


def declared(row_class: type[Any], names: str, **options: Any) -> Iterator[Column[Any]]:
    """Yield columns of fields, separated by spaces, as the class of rows declares them."""
    dtypes = column_dtypes(row_class)
    for name in names.split():
        values: dict[str, Any] = {"unit": unit_of(name), "about": about(row_class, name)}
        if dtypes[name] in {"Int64", "Float64"}:
            values |= {"is_number": True, "text_of": _FORMS.get(name, digits)}
        yield Column(heading_of(row_class, name), name, **values | options)


def number(heading: str, value_of: Field[R], **options: Any) -> Column[R]:
    """Return a column of numbers."""
    return Column(heading, value_of, **{"text_of": digits, "is_number": True, **options})


def outcome(name: str, row_class: type[Any], about_time: str = "") -> Column[Any]:
    """Return a column with a measured time, or with the status of a row without a time."""

    def cell(row: Any) -> Cell:
        value: float | None = getattr(row, name)
        if row.status != "ok":
            return toned(row.status, value)
        return Cell(digits(value) or "no time", value=value)

    return Column(
        heading_of(row_class, name),
        cell,
        about=about_time or about(row_class, name),
        unit=unit_of(name),
        is_number=True,
    )


Ends = tuple[float | None, float | None]
"""The ends of an interval; None if unknown."""


def ends(
    ends_of: Callable[[R], tuple[float | None, ...]],
    *,
    heading: str = "95 % CI",
    **options: Any,
) -> Column[R]:
    """Return a column with an interval; ``ends_of`` returns the arguments of `between`."""

    def cell(row: R) -> Cell:
        low, *others = ends_of(row)
        return Cell(between(low, *others), low)

    return Column(heading, cell, is_number=True, **options)


def interval(name: str, row_class: type[Any], *, is_bounded: bool = False) -> Column[Any]:
    """Return a column with a field's 95 % interval.

    One that ``is_bounded``, as a percentage is, is never too wide.
    """

    def ends_of(row: Any) -> tuple[float | None, ...]:
        low, high, value = (getattr(row, f"{name}{part}") for part in ("_ci_low", "_ci_high", ""))
        return low, None if value is None else high, None if is_bounded else value

    meaning = about(row_class, f"{name}_ci_low").replace(", low end", "")
    return ends(ends_of, unit=unit_of(name), about=meaning)


def flag_column() -> Column[Any]:
    """Return the column of flags."""

    def cell(row: Any) -> Cell:
        return Cell("", flags=tuple(split_flags(row.flags)))

    about_flags = "warnings about the row; see below the table"
    return Column("flags", cell, about=about_flags, can_wrap=True)


#: The counted devices of a row's energy.
ENERGY_OF: Column[Any] = Column(
    "energy of",
    "energy_of",
    about="cpu: processors and their memory; gpu: GPUs; what idles and other programs there, too",
    drop_order=9,
)


# ------------------------------------------------------------------------------------- the terminal


def _grid(columns: Sequence[Column[Any]], lines: Sequence[Sequence[Cell]]) -> RichTable:
    """Return cells for `rich.console.Console.print`, without the flags that all lines have."""
    grid = RichTable(pad_edge=False, show_edge=False, box=box.SIMPLE_HEAD, collapse_padding=True)
    for column in columns:
        overflow: Literal["fold", "ellipsis"] = "ellipsis"  # the beginning of a number is no number
        if column.can_wrap:
            overflow = "fold"
        grid.add_column(
            Text(f"{column.heading}\n{column.unit}".strip()),
            justify="right" if column.is_number else "left",
            no_wrap=not column.can_wrap,
            overflow=overflow,
        )
    shared = _shared_flags(lines)
    for line in lines:
        texts = []
        for cell in line:
            text = cell.text or ", ".join(flag for flag in cell.flags if flag not in shared)
            texts.append(Text(text, style=_STYLES[cell.tone]))
        grid.add_row(*texts)
    return grid


def _shared_flags(lines: Sequence[Sequence[Cell]]) -> set[str]:
    """Return the flags that all of several lines have."""
    if len(lines) < 2:
        return set()
    return set.intersection(*({flag for cell in line for flag in cell.flags} for line in lines))
