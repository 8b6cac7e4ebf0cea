"""The `Record` of one collective in one launch, the rows made of records, and the schema number of
a run's files.

Schema 1: first version.
Schema 2: each line of ``samples.jsonl`` states its ``kind``, ``collective`` or ``training``.
Schema 3: in ``run.json`` ``failed_rank`` was ``culprit`` and ``stragglers`` was ``suspects``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from commbench.collectives.cases import Case, check_case
from commbench.collectives.composed import operation_in_pattern
from commbench.engine.flags import OVERHEAD, check_flags
from commbench.errors import InputError
from commbench.findings import Finding
from commbench.schema import JsonMapping, JsonObject, Ranks, check_as, read_as

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from commbench.stats import Interval

SCHEMA = 3

Status = Literal["ok", "unsupported", "failed", "hung", "wrong"]
RecordT = TypeVar("RecordT", bound="DataclassInstance")


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Overlap of a non-blocking collective with computing, in one launch; medians, microseconds."""

    pure_us: float
    """Start and completion without computing between."""
    compute_us: float
    """Computing alone, for as long as the pure communication."""
    overall_us: float
    """Start, computing, completion."""

    @property
    def percent(self) -> float:
        """Return OSU's overlap: max(0, 100 (1 - (overall - compute) / pure)), at most 100."""
        if not self.pure_us:
            return 0.0
        return min(100.0, max(0.0, 100 * (1 - (self.overall_us - self.compute_us) / self.pure_us)))


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """The clocks of all participating GPUs, before and after a case in one launch."""

    sm_low_MHz: float | None = None
    """The lowest clock of the multiprocessors, if NVML reports it."""
    sm_high_MHz: float | None = None
    """The highest clock of the multiprocessors."""
    slowed_by: Sequence[str] = ()
    """What slowed any of them down, other than idleness or clocks set by a user."""


@dataclass(frozen=True, kw_only=True)
class Stated:
    """Statistics that another tool reports for a case, in place of the times of all repetitions."""

    time: str
    """Definition of its time, such as the mean over repetitions and ranks."""
    repetitions: int | None = None
    """Repetitions behind its time; None if not reported, here and below."""
    min_us: float | None = None
    """The shortest repetition; the next fields are quantiles over repetitions."""
    p25_us: float | None = None
    """25 % quantile."""
    p75_us: float | None = None
    """75 % quantile."""
    p95_us: float | None = None
    """95 % quantile."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """Times of some ranks in one launch, in microseconds of one operation.

    Lists over repetitions hold valid repetitions only.
    """

    group: str = ""
    """The participating ranks, e.g. ``0-3`` or ``0,3``."""
    group_size: Ranks = 0
    """Number of participating ranks."""
    times_us: Sequence[float] = ()
    """The slowest rank's time of each repetition."""
    rank_mean_us: Sequence[float] = ()
    """The mean over ranks of each repetition."""
    skew_us: Sequence[float] = ()
    """Last minus first arrival of each repetition; empty if ranks share no clock."""
    rank_median_us: Sequence[float] = ()
    """Each participating rank's median time."""
    rank_average_us: Sequence[float] = ()
    """Each participating rank's mean time; empty in older files."""
    rank_arrival_us: Sequence[float] = ()
    """Each participating rank's median arrival after the first."""
    rank_slowest: Sequence[int] = ()
    """In how many repetitions each participating rank was the slowest."""
    wrong: int | None = None
    """Wrong elements over these ranks; None if nothing could be verified."""
    transport: str = ""
    """What carried the messages."""
    flags: Sequence[str] = ()
    """Names of flags; those of a group replace the record's of the same names."""


@dataclass(frozen=True, kw_only=True)
class GroupTimes(Times):
    """One of several concurrent groups, in one launch."""

    group: str = field()  # required, unlike of a record
    group_size: Ranks = field()
    message_bytes: int
    """The true size in this group: a rank's share is rounded up to one element."""


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The ordered pairs of ranks of a matrix in one launch, a list per field: summarised, because a
    thousand ranks have a million pairs.
    """

    source: Sequence[Ranks] = ()
    """Sending rank."""
    target: Sequence[Ranks] = ()
    """Receiving rank."""
    time_us: Sequence[float] = ()
    """Median over repetitions of the slower rank's time, of one operation as in `Record`."""
    time_us_p95: Sequence[float] = ()
    """95 % quantile of the same."""
    repetitions: Sequence[int] = ()
    """Valid repetitions."""
    wrong: Sequence[int | None] = ()
    """Wrong elements; None: not verified."""

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, kw_only=True)
class Interruption:
    """One of the longest repetitions of a visit of a soak, with the wait before it."""

    at_s: float
    """When the repetition before it had ended on all ranks: seconds since 1970, UTC."""
    lasted_s: float
    """From then until all ranks had ended this one."""
    rank_s: Sequence[float] = ()
    """Each participating rank's time of this repetition."""
    arrival_s: Sequence[float] = ()
    """When each of them started it, after ``at_s``; empty if ranks share no clock."""


@dataclass(frozen=True, kw_only=True)
class Stall:
    """A time in which the process of a rank did not run: it was stopped, or had no CPU.

    Known to a quarter second.
    """

    rank: Ranks
    """Number of the rank."""
    at_s: float
    """When it began, by the clock of its host: seconds since 1970, UTC."""
    lasted_s: float
    """Its duration."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One visit of a soak: a point of its time line."""

    at_s: float
    """When its repetitions began: seconds since 1970, UTC."""
    lasted_s: float
    """Duration of its repetitions and what was between them."""
    repetitions: int
    """Timed repetitions; the record keeps the times of some."""
    late: int
    """Repetitions that a rank started late; ``longest`` includes them."""
    median_us: float
    """Median time of an operation on the slowest rank."""
    slowest: Ranks
    """The rank that was the slowest most often."""
    slowest_share: float
    """The share of repetitions in which it was."""
    longest: Sequence[Interruption] = ()
    """The longest repetitions, the longest first."""
    stalls: Sequence[Stall] = ()
    """Of all ranks, since the visit before."""


@dataclass(frozen=True, kw_only=True)
class Record(Times):
    """One case in one launch: raw times, how they were measured, and under which conditions.

    Times are divided by ``batch`` and ``window`` and halved for a round trip;
    ``late_discarded`` counts the repetitions that are not valid.
    """

    kind: ClassVar = "collective"
    """The ``kind`` of its lines in ``samples.jsonl``."""

    case: Case
    """What was measured."""
    launch: int
    """Number of the launch, from 0."""
    status: Status = "ok"
    """Whether there is a result."""
    reason: str = ""
    """Why there is no result, in one sentence."""
    reason_code: str = ""
    """The code of the reason in `commbench.errors`; empty in older files."""
    visit: int = 0
    """Number of the visit within the launch, from 1, if the record holds one visit; 0: it holds
    the whole launch."""
    visit_lengths: Sequence[int] = ()
    """Valid repetitions of each visit, in order; empty: one visit."""
    probes_us: Sequence[float] = ()
    """The probe's time before and after each visit, two for each; empty without a probe."""
    disturbed: int = 0
    """Visits that were repeated because the kernel's counters showed a disturbance; 1 in the
    line of such a visit."""
    warmups: int = 0
    """Discarded repetitions before the first visit."""
    late_discarded: int = 0
    """Repetitions that were discarded because a rank started late."""
    batch: int = 1
    """Operations timed together."""
    window: int = 1
    """Messages in flight; 1 except for ``bandwidth`` and ``bibandwidth``."""
    sync: str = ""
    """How ranks started together."""
    loop: str = ""
    """The timed loop: ``native``, ``python`` or ``event``."""
    device: str = ""
    """Where the buffers are: ``cpu`` or the GPU's name."""
    library: str = ""
    """Library and version that carried the operation."""
    harness_us: float | None = None
    """Time of the loop around an empty call."""
    framework_us: float | None = None
    """Time that torch's call adds; None if unknown."""
    algorithm: str = ""
    """The algorithm that ran, if known."""
    overlap: Overlap | None = None
    """Of non-blocking collectives only."""
    stated: Stated | None = None
    """Of imported measurements only; ``times_us`` then holds its time alone."""
    groups: tuple[GroupTimes, ...] = ()
    """Of patterns with several groups: each group; the record's own times are then those of all
    groups together."""
    pairs: Pairs = Pairs()
    """Of the pattern ``matrix`` only: each pair; the record's own times are then the medians of
    the pairs."""
    points: tuple[Point, ...] = ()
    """Of a soak only: each visit, in order; ``times_us`` then holds some repetitions of each."""
    energy_J: float | None = None
    """Of one operation on all hosts, including waiting; None if not measured."""
    energy_of: str = ""
    """Devices that ``energy_J`` counts: ``cpu`` (processors and their memory), ``gpu`` or
    ``cpu+gpu``; empty without energy and in older files."""
    clocks: Clocks | None = None
    """Of backends on GPUs, if NVML reports them."""
    measuring_s: float = 0.0
    """Wall time of warm-up, timed operations and their synchronisation."""
    other_s: float = 0.0
    """Wall time of everything else: buffers, verification, overlap, collecting samples."""
    repeating_s: float = 0.0
    """Part of ``measuring_s``: wall time of timed repetitions and their synchronisation."""
    revisiting_s: float = 0.0
    """Wall time of all visits but the first, without ``repeating_s``; 0 in the line of a visit."""

    def to_json(self) -> JsonObject:
        """Return its object in ``samples.jsonl``: ``case`` an object, ``launch`` a number,
        ``pairs`` by column.
        """
        plain: JsonObject = {"kind": self.kind, **vars(self)}  # `asdict` would copy every time
        for name in _NESTED:
            if plain[name] is not None:
                plain[name] = dataclasses.asdict(plain[name])
        for name in ("groups", "points"):
            plain[name] = [dataclasses.asdict(each) for each in plain[name]]
        plain["pairs"] = {}
        if self.pairs:
            plain["pairs"] = vars(self.pairs)
        if not self.points:
            del plain["points"]
        return plain

    @classmethod
    def from_json(cls, data: JsonMapping) -> Record:
        """Rebuild a record; fields that this version does not know are ignored.

        Raises:
            InputError: a required field is missing or has another type, a flag is unknown, or the
                fields of pairs or the visits and the times differ in length.
            UnsupportedError: the pattern does not have the operation.
        """
        record = read_as(cls, {**data, "case": _known_case(data.get("case"))})
        check_flags(record.flags)
        for group in record.groups:
            check_flags(group.flags)
        if len({len(values) for values in vars(record.pairs).values()}) > 1:
            raise InputError("pairs: the fields of pairs differ in length")
        is_visited = record.status == "ok" and len(record.visit_lengths)
        if is_visited and sum(record.visit_lengths) != len(record.times_us):
            raise InputError("visit_lengths: the visits differ from times_us in length")
        if len(record.times_us):
            ranks = max(1, record.group_size)
            operation_in_pattern(record.case.operation, record.case.pattern, ranks)
        return record


#: Fields that hold an object, or None.
_NESTED = ("case", "overlap", "stated", "clocks")
_CASES: dict[str, Case] = {}
"""Cases that were read, by the text of their objects; every launch repeats them."""


def _known_case(data: object) -> Case:
    """Return the case of a JSON object.

    Raises:
        InputError: it is no case, or one that this version does not know.
    """
    text = repr(data)
    if text not in _CASES:
        case: Case = check_as(Case, data, "case")
        check_case(case)
        _CASES[text] = case
    return _CASES[text]


@dataclass(frozen=True, kw_only=True)
class FixedSettings:
    """Settings of a case that the first launch determines and later launches keep, so that launches
    are alike.
    """

    warmups: int
    batch: int
    sync: str = ""
    """The start method, if it depends on the length of the operation."""
    visits: int = 0
    """Visits of a launch; 0: not determined yet."""
    repetitions: int = 0
    """Repetitions of each visit; 0: not determined yet."""
    window: int = 0
    """Messages in flight, if fewer than the operation's own; 0: as many."""
    is_brief: bool = False
    """Whether the one visit has few repetitions, as each takes long."""
    is_probed: bool = True
    """Whether the state of the machine is probed around each visit."""


def no_result(status: Status, reason: Finding) -> dict[str, str]:
    """Return the fields of a record of a case without result."""
    return {"status": status, "reason": str(reason), "reason_code": reason.code}


def without_result(record: RecordT, status: Status, reason: Finding) -> RecordT:
    """Return the record of a case without result, with the ``reason``."""
    return dataclasses.replace(record, **no_result(status, reason))


def column(about: str, default: Any = None, *, heading: str = "") -> Any:
    """Return the field of a column: its documentation and its default.

    The ``heading`` of its tables is the name without the unit, unless it is given.
    """
    return field(default=default, metadata={"about": about, "heading": heading})


def about(row_class: type[Any], name: str) -> str:
    """Return the meaning of a column of such rows; see `TableRow.like` for one that states none."""
    stated: str = row_class.__dataclass_fields__[name].metadata.get("about", "")
    if not stated:
        return f"as in {row_class.like}"
    return stated


def no_column() -> Any:
    """Return the field of a row that its table does not show, empty by default."""
    return field(default="", metadata={"is_column": False})


def columns_of(row_class: type[DataclassInstance]) -> tuple[str, ...]:
    """Return the columns of the table of such rows, in order."""
    return tuple(f.name for f in dataclasses.fields(row_class) if f.metadata.get("is_column", True))


def copied(row_class: type[DataclassInstance], source: object) -> dict[str, Any]:
    """Return the columns of such rows that another object has, too, with its values."""
    return {name: getattr(source, name) for name in columns_of(row_class) if hasattr(source, name)}


def interval_columns(name: str, interval: Interval | None) -> dict[str, float]:
    """Return the columns with the ends of an interval of column ``name``; none without one."""
    if interval is None:
        return {}
    return {f"{name}_ci_low": interval.low, f"{name}_ci_high": interval.high}


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """One line of a CSV file of a run. None is an empty cell."""

    like: ClassVar = ""
    """The file of which columns that state no meaning have the same one."""

    schema: int = column("schema number", SCHEMA)
    run_id: str = column("name of the run's directory", "")


@dataclass(frozen=True, kw_only=True)
class Row(TableRow):
    """One line of ``collectives.csv``: a case summarised over launches."""

    backend: str = column("mpi, gloo, nccl, torch-nccl, mpi-cuda or mpi-staged", "")
    device: str = column("cpu, or the GPU's name", "")
    library: str = column("library and version that carried the operation", "")
    transport: str = column("what carried the row: sm, tcp, ucx/rc, tcp/lo, ...", "")
    operation: str = column("what was timed", "")
    pattern: str = column("who talks to whom", "")
    group: str = column(
        "ranks that took part, of a pattern that makes groups one of them, e.g. 2-3", ""
    )
    world_size: int | None = column("ranks of the launch")
    group_size: int | None = column("ranks that took part")
    nodes: int | None = column("hosts of the launch")
    ranks_per_node: int | None = column("most ranks on one host")
    ranks_per_gpu: int | None = column("most ranks on one physical GPU")
    dtype: str | None = column("element type")
    redop: str | None = column("reduction")
    root: int | None = column("root rank of a rooted operation")
    in_place: bool | None = column("send and receive share memory")
    message_bytes: int | None = column("nccl-tests' size: the larger buffer", heading="size")
    osu_bytes: int | None = column("the size OSU prints for the same case")
    cadence: str = column("isolated, pipelined, graph or persistent", "")
    batch: int | None = column("operations timed together")
    window: int | None = column("messages in flight")
    buffers: str = column(
        "hot: the same each repetition; rotated: sets that exceed the cache take turns; registered,"
        " symmetric: known to NCCL",
        "",
    )
    sync: str = column("how ranks were made to start together", "")
    loop: str = column("native, python or event", "")
    env: str = column(
        "environment variables of the ranks by --env, NAME=value;...; (again): the A/A control;"
        " empty without --env",
        "",
    )
    launches: int | None = column("launches behind the row")
    visits: int | None = column("samples of the case in a launch, spread over it; their median")
    disturbed: int | None = column(
        "samples repeated because a rank had no CPU, all launches together"
    )
    state: str = column(
        "speed of the machine in the samples of this row, fast or slow; empty where it had one", ""
    )
    state_share: float | None = column("share of the case's samples at that speed")
    repetitions: int | None = column("valid repetitions, all launches together")
    late_discarded: int | None = column(
        "repetitions dropped for a late start, or because a GPU waited for its host"
    )
    time_us: float | None = column(
        "median over launches of the median over samples of the median over repetitions of the"
        " slowest rank"
    )
    time_us_ci_low: float | None = column("95 % interval of time_us over launches, low end")
    time_us_ci_high: float | None = column("and its high end")
    time_us_min: float | None = column("median over launches of the launch's minimum")
    time_us_p25: float | None = column("median over launches of the launch's first quartile")
    time_us_p75: float | None = column("median over launches of the launch's third quartile")
    time_us_p95: float | None = column("median over launches of the launch's p95", heading="p95")
    time_us_rank_mean: float | None = column(
        "time_us with the mean over ranks, nccl-tests' default"
    )
    time_us_mean: float | None = column(
        "median over launches of the mean over repetitions and ranks, as nccl-tests, OSU and IMB"
        " (t_avg) state it"
    )
    time_us_mean_min: float | None = column(
        "the same of the fastest rank, IMB's t_min; empty in older runs"
    )
    time_us_mean_max: float | None = column("and of the slowest rank, IMB's t_max")
    skew_us: float | None = column("median of last minus first arrival")
    algbw_GBps: float | None = column("message_bytes over time_us, GB = 1e9 bytes")
    busbw_GBps: float | None = column("algbw times nccl-tests' factor")
    wrong: int | None = column("wrong elements found")
    harness_us: float | None = column(
        f"{OVERHEAD}, per operation; never subtracted; in older Gloo rows, without framework_us,"
        " with torch's call",
        heading="overhead",
    )
    framework_us: float | None = column(
        "what torch adds to a call: 8-byte all_reduce of one rank, less harness_us; empty without"
        " torch or with events",
        heading="torch's call",
    )
    algorithm_requested: str = column("algorithm asked for", "")
    algorithm: str = column("algorithm that ran", "")
    energy_J: float | None = column(
        "energy of one operation, of what energy_of in samples.jsonl names"
    )
    energy_of: str = no_column()
    status: str = column("ok, unsupported, failed, hung or wrong", "ok")
    reason: str = column("one sentence where status is not ok", "")
    reason_code: str = no_column()
    flags: str = column("warnings about the row, separated by ;", "")


@dataclass(frozen=True, kw_only=True)
class OverlapRow(TableRow):
    """One line of ``overlap.csv``: a non-blocking collective summarised over launches; medians."""

    like = "collectives.csv"

    backend: str = ""
    operation: str = column("what was timed", "")
    pattern: str = ""
    dtype: str | None = column("element type")
    redop: str | None = column("reduction")
    in_place: bool | None = column("send and receive share memory")
    message_bytes: int | None = column("as in collectives.csv", heading="size")
    osu_bytes: int | None = column("the size OSU prints for the same case")
    env: str = ""
    launches: int | None = column("launches behind the row")
    overall_us: float | None = column("started, computed, completed")
    compute_us: float | None = column("computing alone, as long as the communication")
    pure_us: float | None = column(
        "started and completed at once, Python loop", heading="pure comm."
    )
    overlap_percent: float | None = column(
        "max(0, 100 (1 - (overall - compute) / pure)), OSU's definition"
    )
    overlap_percent_ci_low: float | None = column("its 95 % interval, low end")
    overlap_percent_ci_high: float | None = column("and its high end")
