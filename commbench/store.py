"""A run's directory: created or resumed under a lock, appended to case by case, summarised and read back."""

import contextlib
import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from commbench.collectives import find_operation
from commbench.errors import CommbenchError, InputError, LaunchError
from commbench.kinds import AnyRecord, collective_records, read_record, training_records
from commbench.pairs import PAIR_COLUMNS, Matrix, PairRow, matrices, pair_columns, pair_rows
from commbench.records import COLUMNS, OVERLAP_COLUMNS, SCHEMA, OverlapRow, Record, Row
from commbench.summary import overlap_rows, summarise_run
from commbench.suspects import Findings, find_suspects
from commbench.tables import columns_text, csv_text
from commbench.training.records import BUCKET_COLUMNS, DDP_COLUMNS, BucketRow, TrainingRecord, TrainingRow
from commbench.training.summary import bucket_rows, training_rows

RUN = "run.json"
SAMPLES = "samples.jsonl"
SUMMARY = "collectives.csv"
OVERLAP = "overlap.csv"
PAIRS = "pairs.csv"
DDP = "ddp.csv"
BUCKETS = "buckets.csv"
RECOMMENDATION = "recommendation.json"
LOCK = ".lock"
_WRITTEN = (RUN, SUMMARY, OVERLAP, PAIRS, DDP, BUCKETS, RECOMMENDATION)
#: Files that a run which ended before its first line leaves; they make a directory neither ours nor foreign.
_SCAFFOLD = frozenset({LOCK, *(f".{name}.tmp" for name in _WRITTEN)})


# --------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as read from its directory."""

    path: Path
    info: Mapping[str, Any]
    """What ``run.json`` holds."""
    records: tuple[Record, ...]
    """What ``samples.jsonl`` holds of collectives, in the order of writing."""
    training_records: tuple[TrainingRecord, ...] = ()
    """What it holds of training, likewise."""
    recommendation: Mapping[str, Any] | None = None
    """What ``recommendation.json`` holds; None where nothing was concluded."""

    @cached_property
    def overlaps(self) -> list[OverlapRow]:
        """The lines of ``overlap.csv``; empty without non-blocking collectives."""
        return overlap_rows(self.records, self.info)

    @cached_property
    def training_rows(self) -> list[TrainingRow]:
        """The lines of ``ddp.csv``; empty where nothing was trained."""
        return training_rows(self.training_records, self.info)

    @cached_property
    def bucket_rows(self) -> list[BucketRow]:
        """The lines of ``buckets.csv``; empty where nothing was trained."""
        return bucket_rows(self.training_records, self.info)

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of ``collectives.csv``, made from the records."""
        return summarise_run(self.records, self.info)

    @cached_property
    def matrices(self) -> list[Matrix]:
        """What was measured of pairs of ranks; empty without the pattern ``matrix``."""
        return matrices(self.records, self.info)

    @cached_property
    def pair_rows(self) -> list[PairRow]:
        """The lines of ``pairs.csv``; empty without the pattern ``matrix``."""
        return [row for matrix in self.matrices for row in pair_rows(matrix, self.info)]

    @cached_property
    def findings(self) -> Findings:
        """Which hosts, ranks and links are slower than their peers."""
        return find_suspects(self.matrices, self.records, self.info)


def load_run(path: str | Path) -> Run:
    """Read the run in the directory ``path``, finished or not; nothing is locked or written.

    Raises:
        InputError: there is no run of commbench, a newer version wrote it, or a line of it is damaged.
    """
    path = Path(path)
    with _refusing(path, InputError):
        if not path.exists():
            raise InputError(f"There is no {path}; give the directory that --out named.")
        if not path.is_dir():
            raise InputError(f"{path} is not a directory; give the directory that --out named.")
        if not (path / RUN).exists():
            raise InputError(f"{path} holds no run of commbench (no {RUN}); give the directory that --out named.")
        records, _ = _read_samples(path)
        return Run(
            path=path,
            info=_read_info(path),
            records=collective_records(records),
            training_records=training_records(records),
            recommendation=_read_recommendation(path),
        )


def _read_json(file: Path) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(file.read_bytes())
    except ValueError as error:
        raise InputError(f"{file} is not JSON ({error}); restore it or choose another directory.") from error


def _read_recommendation(path: Path) -> dict[str, Any] | None:
    file = path / RECOMMENDATION
    conclusion = _read_json(file) if file.exists() else None
    if conclusion is not None and not isinstance(conclusion, dict):
        raise InputError(f"{file} is no recommendation of commbench; remove it to go on.")
    return conclusion


def _read_info(path: Path) -> dict[str, Any]:
    file = path / RUN
    info = _read_json(file)
    if not isinstance(info, dict) or not isinstance(info.get("schema"), int):
        raise InputError(f"{file} is not a run of commbench (it states no schema); choose another directory.")
    if info["schema"] > SCHEMA:
        raise InputError(
            f"{file} has schema {info['schema']} and this commbench knows up to {SCHEMA}; update commbench or choose "
            "another directory."
        )
    return info


def _read_samples(path: Path) -> tuple[list[AnyRecord], int]:
    """The records and how many bytes of the file they fill: a last line that a crash tore is left out."""
    file = path / SAMPLES
    data = file.read_bytes() if file.exists() else b""
    *lines, unfinished = data.split(b"\n")
    records: list[AnyRecord] = []
    sound = 0
    for number, line in enumerate(lines, start=1):
        try:
            records.append(_decode(line))
        except ValueError as error:
            if number == len(lines) and not unfinished:
                break  # a crash can leave the length of a line without its content
            raise InputError(f"{file} line {number} is damaged ({error}); remove the line to go on.") from error
        except InputError as error:
            raise InputError(f"{file} line {number} cannot be used: {error}") from error
        sound += len(line) + 1
    return records, sound


def _decode(line: bytes) -> AnyRecord:
    record = read_record(json.loads(line))
    if isinstance(record, Record):
        find_operation(record.case.operation)
    return record


# --------------------------------------------------------------------------------------------------- checking


def check_out(path: str | Path, plan: Mapping[str, Any] | None = None) -> None:
    """Check that a run can be started or resumed in ``path``, and write nothing.

    Args:
        path: the directory that ``--out`` names; it need not exist.
        plan: the identity of the run that is asked for; None leaves it unchecked.

    Raises:
        InputError: ``path`` is a file, cannot be written, belongs to something else, to a newer version, to a run with
            another plan or to a running commbench, or holds a damaged line.
    """
    path = Path(path)
    with _refusing(path, InputError):
        if not path.is_dir():
            _check_absent(path)
        elif not os.access(path, os.W_OK | os.X_OK):
            raise InputError(f"--out {path} cannot be written; choose another --out or change its permissions.")
        elif (path / RUN).exists():
            _check_plan(path, _read_info(path), plan)
            _check_unlocked(path)
            _read_samples(path)
        elif foreign := sorted({entry.name for entry in path.iterdir()} - _SCAFFOLD):
            raise InputError(
                f"--out {path} is no run of commbench and not empty (it holds {foreign[0]}); choose another --out."
            )
        else:
            _check_unlocked(path)


def _check_absent(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise InputError(f"--out {path} is not a directory; choose another --out.")
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir():
        raise InputError(f"--out {path} lies below {above}, which is not a directory; choose another --out.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"--out {path} cannot be made because {above} cannot be written; choose another --out.")


def _check_plan(path: Path, info: Mapping[str, Any], plan: Mapping[str, Any] | None) -> None:
    if plan is None:
        return
    kept, asked = info.get("plan") or {}, _as_json(plan)
    unlike = [name for name in sorted(kept.keys() | asked.keys()) if kept.get(name) != asked.get(name)]
    if unlike:
        if "cases" in unlike and "cases_sha256" in unlike:  # their number says it already
            unlike.remove("cases_sha256")
        listed = ", ".join(_difference(name, kept.get(name), asked.get(name)) for name in unlike)
        raise InputError(f"--out {path} holds a run with another plan ({listed}); choose another --out.")


def _difference(name: str, kept: object, asked: object) -> str:
    """Name an entry, and its values where they are short enough to read."""
    if name == "cases_sha256":
        return "other cases, as many as here"
    longest = 24
    texts = [json.dumps(value) for value in (kept, asked)]
    return name if max(map(len, texts)) > longest else f"{name} is {texts[0]} there and {texts[1]} here"


def _check_unlocked(path: Path) -> None:
    if (path / LOCK).exists():
        os.close(_take_lock(path))


def _take_lock(path: Path) -> int:
    """Return a file descriptor that holds the lock of ``path`` for as long as it is open."""
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
        os.close(descriptor)
        raise InputError(f"--out {path} is in use by {holder}; wait for it or choose another --out.") from error
    except OSError:
        pass  # some cluster file systems have no locks: then nothing guards against two conductors
    return descriptor


def _as_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping as it will be read back."""
    decoded: dict[str, Any] = json.loads(_encode(value))
    return decoded


def _encode(value: object, indent: int | None = None) -> str:
    separators = (",", ":") if indent is None else None
    return json.dumps(value, indent=indent, separators=separators, default=_plain)


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever json does not know
    """Return numpy's numbers and arrays as Python's, paths and the rest as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


@contextlib.contextmanager
def _refusing(path: Path, error_class: type[CommbenchError]) -> Iterator[None]:
    """Turn an error of the file system into one sentence."""
    try:
        yield
    except OSError as error:
        what = f"{error.filename or path} cannot be used ({error.strerror or error})"
        hint = "choose another directory"
        if error_class is not InputError:
            hint = f"{_REMEDIES.get(error.errno or 0, 'put that right')}, then the same command resumes"
        raise error_class(f"{what}; {hint}.") from error


#: What to do about an error of the file system.
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "let it be written again"),
}


# --------------------------------------------------------------------------------------------------- writing


class Store:
    """A run's directory opened for writing by one process; a context manager.

    ``samples.jsonl`` is the source of truth: `append` returns once the record is on disk.
    """

    path: Path
    info: dict[str, Any]
    """What ``run.json`` holds; change it by `update`."""
    records: list[AnyRecord]
    """All records on disk, of collectives and of training, in the order of writing."""
    resumed: bool
    """Whether the directory held this run before."""

    def __init__(self, path: Path, header: Mapping[str, Any], lock: int) -> None:
        self.path = path
        self._lock = lock
        self._made: Sequence[Path] = ()
        """Directories that were made for the run, the innermost first."""
        self.resumed = (path / RUN).exists()
        if self.resumed:
            self.info = _read_info(path)
            _check_plan(path, self.info, header.get("plan", {}))
        else:
            self.info = {"schema": SCHEMA, "run_id": path.resolve().name} | _as_json(header) | {"schema": SCHEMA}
            _replace(path / RUN, _encode(self.info, indent=1) + "\n")
        self.records, sound = _read_samples(path)
        self._samples = os.open(path / SAMPLES, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.ftruncate(self._samples, sound)
        _sync_directory(path)

    @classmethod
    def open(cls, path: str | Path, header: Mapping[str, Any]) -> "Store":
        """Create the directory with ``header`` as its ``run.json``, or resume the run that it holds.

        Args:
            path: the directory that ``--out`` names.
            header: JSON-able; ``plan`` is the identity of the run: a run is resumed only if its plan is equal.
                ``schema`` and, where it is absent, ``run_id`` are added. Of a resumed run the header is kept as it was.

        Raises:
            InputError: as `check_out`; then nothing has been written.
        """
        path = Path(path)
        check_out(path, header.get("plan", {}))
        made = [parent for parent in (path, *path.absolute().parents) if not parent.exists()]
        with _refusing(path, InputError):
            path.mkdir(parents=True, exist_ok=True)
            lock = _take_lock(path)
            try:
                _sign(lock)
                store = cls(path, header, lock)
            except BaseException:
                os.close(lock)
                _remove(made)
                raise
        store._made = made
        return store

    @property
    def training_records(self) -> tuple[TrainingRecord, ...]:
        """Those of training among the records."""
        return training_records(self.records)

    def append(self, record: AnyRecord) -> None:
        """Write a record as one line and wait until it is on disk.

        Raises:
            LaunchError: it could not be written; what was there is unharmed.
        """
        self._check_place()
        line = (_encode(record.to_json()) + "\n").encode()
        before = os.fstat(self._samples).st_size
        with _refusing(self.path / SAMPLES, LaunchError):
            try:
                _write_all(self._samples, line)
                os.fsync(self._samples)
            except OSError:
                os.ftruncate(self._samples, before)  # half a line would spoil the next one
                raise
        self.records.append(record)

    def update(self, **fields: Any) -> None:  # noqa: ANN401 - JSON
        """Set entries of ``run.json`` and rewrite it in one step.

        Raises:
            LaunchError: it could not be written; the old file is unharmed.
        """
        self._check_place()
        self.info |= _as_json(fields)
        with _refusing(self.path / RUN, LaunchError):
            _replace(self.path / RUN, _encode(self.info, indent=1) + "\n")

    def restore(self, info: Mapping[str, Any]) -> None:
        """Put ``run.json`` back as it was when it held ``info``.

        Raises:
            LaunchError: as `update`.
        """
        self.info = dict(info)
        self.update()

    def write_summary(self) -> list[Row]:
        """Write each table that the records fill in one step; return the rows of ``collectives.csv``.

        These are ``collectives.csv``, ``overlap.csv`` for non-blocking collectives, ``pairs.csv`` for matrices,
        ``ddp.csv`` and ``buckets.csv`` for training. Slow hosts, ranks and links go into ``run.json``.

        Raises:
            LaunchError: one could not be written; the old file is unharmed.
        """
        self._check_place()
        collectives, trainings = collective_records(self.records), training_records(self.records)
        rows, overlaps = summarise_run(collectives, self.info), overlap_rows(collectives, self.info)
        measured = matrices(collectives, self.info)
        with _refusing(self.path / SUMMARY, LaunchError):
            if collectives:
                _replace(self.path / SUMMARY, csv_text(rows, COLUMNS))
            if overlaps:
                _replace(self.path / OVERLAP, csv_text(overlaps, OVERLAP_COLUMNS))
            if measured:
                columns = (pair_columns(matrix, self.info) for matrix in measured)
                _replace(self.path / PAIRS, columns_text(columns, PAIR_COLUMNS))
            if trainings:
                _replace(self.path / DDP, csv_text(training_rows(trainings, self.info), DDP_COLUMNS))
                _replace(self.path / BUCKETS, csv_text(bucket_rows(trainings, self.info), BUCKET_COLUMNS))
        if findings := find_suspects(measured, collectives, self.info).to_json():
            self.update(**findings)
        return rows

    def write_recommendation(self, conclusion: Mapping[str, Any]) -> None:
        """Write ``recommendation.json`` in one step.

        Raises:
            LaunchError: it could not be written; the old file is unharmed.
        """
        with _refusing(self.path / RECOMMENDATION, LaunchError):
            _replace(self.path / RECOMMENDATION, _encode(conclusion, indent=1) + "\n")

    def discard(self) -> None:
        """Remove a run that was refused before anything was measured, and directories made for it.

        One that was there before stays.
        """
        if self.resumed or self.records:
            return
        for name in (SAMPLES, RUN, LOCK):
            (self.path / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # one holds something else
            for directory in self._made:
                directory.rmdir()

    def _check_place(self) -> None:
        """Notice that the directory was removed or replaced: into a removed file everything could still be written.

        Raises:
            LaunchError: the directory has vanished; all that is known was written into it anew, if that could be done.
        """
        with contextlib.suppress(OSError):
            if os.path.samestat((self.path / SAMPLES).stat(), os.fstat(self._samples)):
                return
        what = f"{self.path} has vanished or been replaced while the run went on"
        try:
            self._write_anew()
        except OSError as error:
            reason = error.strerror or error
            raise LaunchError(
                f"{what}, and what was measured could not be written anew ({reason}); the same command begins again."
            ) from error
        raise LaunchError(f"{what}; what was measured was written into it anew, and the same command resumes.")

    def _write_anew(self) -> None:
        """Make the directory again from what is in memory, and go on with it.

        Raises:
            OSError: it cannot be made, or holds a run again, which is then left alone.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        samples = os.open(self.path / SAMPLES, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        try:
            lock = _take_lock(self.path)
        except InputError as error:
            os.close(samples)
            raise BlockingIOError(errno.EBUSY, str(error)) from error
        self.close()
        self._samples, self._lock = samples, lock
        _sign(lock)
        _write_all(samples, b"".join(f"{_encode(record.to_json())}\n".encode() for record in self.records))
        os.fsync(samples)
        _replace(self.path / RUN, _encode(self.info, indent=1) + "\n")
        _sync_directory(self.path)

    def close(self) -> None:
        """Release the lock; closing twice is harmless."""
        for descriptor in (self._samples, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._samples = self._lock = -1

    def __enter__(self) -> "Store":  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _sign(lock: int) -> None:
    """Write into the lock who holds it, for whoever is refused."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _replace(file: Path, text: str) -> None:
    """Write a file so that a reader, also after a crash, finds the old or the new content and nothing between."""
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    except OSError:
        with contextlib.suppress(OSError):  # what it holds of a full disk may be what others need
            temporary.unlink()
        raise


def _remove(made: Sequence[Path]) -> None:
    """Take away directories that were made for a run which could not begin, the innermost first."""
    with contextlib.suppress(OSError):
        for name in _SCAFFOLD | {SAMPLES, RUN} if made else ():
            (made[0] / name).unlink(missing_ok=True)
        for directory in made:
            directory.rmdir()


def _sync_directory(path: Path) -> None:
    """Make the names of new files survive a crash."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot, and need not
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
