"""A run as read from its directory; rows and tables are made from its records on first use."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import io
import json
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import BucketRow, TrainingRecord, TrainingRow
from commbench.engine.records import SCHEMA, OverlapRow, Record, Row
from commbench.errors import InputError
from commbench.results.files import (
    COMPRESSED_SAMPLES,
    RECOMMENDATION,
    RUN,
    refusing,
    samples_file,
)
from commbench.results.info import RunInfo, check_info, is_live, shares_gpu
from commbench.results.losses import Loss, read_losses
from commbench.results.pairs import Matrix, matrices, pair_table
from commbench.results.recommendation import Recommendation
from commbench.results.record_types import (
    Records,
    collective_records,
    read_record,
    training_records,
)
from commbench.results.states import SLOW, Divided, divide
from commbench.results.summary import KeyedRows, keyed_rows, overlap_rows
from commbench.results.tables import table_of
from commbench.results.training_summary import bucket_rows, keyed_training_rows
from commbench.schema import JsonObject
from commbench.system.process import without_collector

if TYPE_CHECKING:
    from pandas import DataFrame

T = TypeVar("T")
#: Of a machine with one state.
NO_STATES = Divided(records=())


@dataclass(kw_only=True, eq=False)
class Run:
    """A run as read from its directory; its tables stay as they were made."""

    path: Path
    info: RunInfo
    """Contents of ``run.json``."""
    records: tuple[Record, ...]
    """Records of collectives in ``samples.jsonl``, in the order of writing; of each case in its
    better state, where the machine was in two."""
    training_records: tuple[TrainingRecord, ...] = ()
    """Records of training in ``samples.jsonl``, in the order of writing."""
    recommendation: Recommendation | None = None
    """None if the run concluded nothing; `decision` is what people may see."""
    divided: Divided = NO_STATES
    """What `records` leave out where the machine was in two states."""
    alias: str = ""
    """The name of the run beside another of the same directory name; else empty."""

    @cached_property
    def name(self) -> str:
        """The alias, or the name of the directory."""
        return self.alias or self.path.resolve().name

    @property
    def decision(self) -> Recommendation | None:
        """The recommendation; None before its first look, which needs the planned launches."""
        made = self.recommendation
        planned = self.info.get("first_look") or 0
        if made and self.info.get("status") == "partial" and made.launches < planned:
            return None
        return made

    @cached_property
    def overlaps(self) -> list[OverlapRow]:
        """The lines of ``overlap.csv``; empty without non-blocking collectives."""
        return list(overlap_rows(self.records, self.keyed_rows))

    @cached_property
    def training_rows(self) -> list[TrainingRow]:
        """The lines of ``ddp.csv``; empty without training."""
        return list(self.keyed_training_rows.values())

    @cached_property
    def keyed_training_rows(self) -> dict[TrainingCase, TrainingRow]:
        """The lines of ``ddp.csv`` by their case."""
        return keyed_training_rows(self.training_records, self.info)

    @cached_property
    def bucket_rows(self) -> list[BucketRow]:
        """The lines of ``buckets.csv``; empty without training."""
        return bucket_rows(self.training_records, self.info)

    @cached_property
    def losses(self) -> list[Loss]:
        """The losses of your own training while it was tuned; empty elsewhere."""
        return read_losses(self.path) if is_live(self.info) else []

    @cached_property
    def collectives(self) -> DataFrame:
        """The table of ``collectives.csv``, not rounded.

        Types as in `commbench.results.tables.table_of`.

        Where the machine was in two states, a case that met both has a row for each, the fast one
        first.
        """
        rows = []
        for key, row in self.keyed_rows.items():
            rows += [row, self.slow_rows[key]] if key in self.slow_rows else [row]
        return table_of(Row, rows)

    @cached_property
    def overlap(self) -> DataFrame:
        """The table of ``overlap.csv``, not rounded."""
        return table_of(OverlapRow, self.overlaps)

    @cached_property
    def pairs(self) -> DataFrame:
        """The table of ``pairs.csv``, not rounded."""
        return pair_table(self.matrices, self.info)

    @cached_property
    def ddp(self) -> DataFrame:
        """The table of ``ddp.csv``, not rounded."""
        return table_of(TrainingRow, self.training_rows)

    @cached_property
    def buckets(self) -> DataFrame:
        """The table of ``buckets.csv``, not rounded."""
        return table_of(BucketRow, self.bucket_rows)

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of ``collectives.csv``, made from the records."""
        return list(self.keyed_rows.values())

    @cached_property
    def keyed_rows(self) -> KeyedRows:
        """The rows of ``collectives.csv`` by case and group, in the better state where the machine
        was in two.
        """
        rows = keyed_rows(self.records, self.info)
        for key, row in rows.items():
            if key[0] in self.divided.met:
                state, share = self.divided.met[key[0]]
                rows[key] = dataclasses.replace(row, state=state, state_share=share)
        return rows

    @cached_property
    def slow_rows(self) -> KeyedRows:
        """The rows of cases that met both states of the machine, in the slow one."""
        rows = keyed_rows(self.divided.others, self.info)
        for key, row in rows.items():
            _, share = self.divided.met[key[0]]
            rows[key] = dataclasses.replace(row, state=SLOW, state_share=1 - share)
        return rows

    @cached_property
    def matrices(self) -> list[Matrix]:
        """The measured matrices of pairs of ranks; empty without the pattern ``matrix``."""
        return matrices(self.records, self.info)

    @property
    def linked_matrices(self) -> list[Matrix]:
        """The matrices of ranks that share no GPU, so that their pairs are links."""
        return [m for m in self.matrices if not shares_gpu(m.case.backend, self.info)]


def once_per_run(compute: Callable[[Run], T]) -> Callable[[Run], T]:
    """Cache what ``compute`` returns for a run in that run, so that the cache ends with it."""

    @functools.wraps(compute)
    def cached(run: Run) -> T:
        values = run.__dict__.setdefault("_computed", {})
        if compute not in values:
            values[compute] = compute(run)
        value: T = values[compute]
        return value

    return cached


def load_run(path: str | Path) -> Run:
    """Read the run in the directory ``path``, finished or not; nothing is locked or written.

    Raises:
        InputError: there is no run of commbench, a newer version wrote it, or a line of it is
            damaged.
    """
    path = Path(path)
    with refusing(path, InputError):
        if not (path / RUN).exists():
            raise InputError(
                f"There is no {path / RUN}, so no run of commbench; give the directory that --out"
                " named."
            )
        records, _ = read_samples(path)
        info, recommendation, file = read_info(path), None, path / RECOMMENDATION
        if os.path.lexists(file):
            content = _read_json(file)
            try:
                recommendation = Recommendation.from_json(content)
            except InputError as error:
                raise InputError(f"{file} is not one of commbench ({error}); remove it.") from error
        return make_run(path, info, records, recommendation=recommendation)


def make_run(
    path: Path, info: RunInfo, records: Records, *, recommendation: Recommendation | None = None
) -> Run:
    """Return the run of some records, divided by the state of the machine."""
    divided = divide(collective_records(records))
    return Run(
        path=path,
        info=info,
        records=tuple(divided.records),
        training_records=training_records(records),
        recommendation=recommendation,
        divided=divided,
    )


def runs_in(path: str | Path) -> list[Path]:
    """Return the directory itself if it holds a run, or all runs of a folder by name.

    Nothing is read.

    Any other path is returned unchanged, and `load_run` refuses it.
    """
    path = Path(path)
    with refusing(path, InputError):
        if (path / RUN).exists() or not path.is_dir():
            return [path]
        return sorted(run.parent for run in path.glob(f"*/{RUN}")) or [path]


def _read_json(file: Path) -> Any:
    text = file.read_bytes()
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        what = "is empty" if not text.strip() else f"is not JSON ({error})"
        raise InputError(f"{file} {what}; {_remedy(file)}.") from error


def _remedy(file: Path) -> str:
    """Return the remedy for a file that cannot be read."""
    samples = samples_file(file.parent)
    if file.name != RUN or not samples.exists():
        return "restore it or choose another directory"
    return (
        f'restore it, or write {{"schema": {SCHEMA}}} into it to read what {samples.name} beside it'
        " holds, without the conditions"
    )


def read_info(path: Path) -> RunInfo:
    """Return what ``run.json`` holds, if this version knows its schema and can use its entries."""
    file = path / RUN
    info = _read_json(file)
    if not isinstance(info, dict) or type(info.get("schema")) is not int:
        raise InputError(
            f"{file} is not a run of commbench (it states no schema); choose another directory."
        )
    if info["schema"] != SCHEMA:
        raise InputError(
            f"{file} has schema {info['schema']} and this commbench reads {SCHEMA}; use the version"
            " that wrote it, or choose another directory."
        )
    try:
        return check_info(info)
    except InputError as error:
        raise InputError(f"{file} cannot be used ({error}); {_remedy(file)}.") from error


def _whole_line(data: Any, whole: dict[int, JsonObject]) -> Any:
    """Return a line with what it has in common with the whole line before that its ``of`` names.

    Raises:
        InputError: there is no such line.
    """
    if not isinstance(data, dict):
        return data
    if "of" in data:
        number = data.pop("of")
        if type(number) is not int or number not in whole:
            raise InputError(f"it refers to a line {number!r:.40} that is missing; remove it too")
        return {**whole[number], **data}
    if type(data.get("line")) is int:
        whole[data["line"]] = data
    return data


def _open_samples(file: Path) -> IO[bytes]:
    """Return the lines of a file of samples.

    Raises:
        InputError: the file is compressed and damaged.
    """
    if file.name != COMPRESSED_SAMPLES:
        return file.open("rb")
    data = file.read_bytes()
    try:
        if not data:  # gzip takes that for the content of an empty file
            raise EOFError("it is empty")  # noqa: TRY301 - reported as damage below
        return io.BytesIO(gzip.decompress(data))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{file} is damaged ({error}); restore it to go on.") from error


def read_samples(path: Path) -> tuple[Records, int]:
    """Return the records and how many bytes of the file they fill, before its compression.

    A last line that a crash tore is left out.
    """
    file = samples_file(path)
    records = Records()
    whole: dict[int, JsonObject] = {}
    sound = 0
    if not os.path.lexists(file):
        return records, sound
    with _open_samples(file) as stream, without_collector():
        for number, line in enumerate(stream, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                records.add(read_record(_whole_line(json.loads(line), whole)))
            except (ValueError, RecursionError) as error:
                if not stream.read(1):
                    break  # a crash can leave the length of a line without its content
                raise InputError(
                    f"{file} line {number} is damaged ({error}); remove the line to go on."
                ) from error
            except InputError as error:
                raise InputError(f"{file} line {number} cannot be used: {error}") from error
            sound += len(line)
    return records, sound
