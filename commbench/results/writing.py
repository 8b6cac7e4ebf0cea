"""A run's directory opened for writing: created or resumed, appended to case by case,
summarised.
"""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.records import SCHEMA
from commbench.errors import InputError, LaunchError
from commbench.results.files import (
    COMPRESSED_SAMPLES,
    LOCK,
    RECOMMENDATION,
    RUN,
    SAMPLES,
    SCAFFOLD,
    as_json,
    encode,
    json_text,
    refusing,
    replace_file,
    samples_file,
    sign_lock,
    sync_directory,
    take_lock,
    write_all,
)
from commbench.results.info import RunInfo
from commbench.results.reading import Run, make_run, read_info, read_samples
from commbench.results.recommendation import Recommendation
from commbench.results.record_types import AnyRecord, Records, training_records
from commbench.results.verdict import paragraph
from commbench.schema import JsonMapping, JsonObject

#: Entries of ``run.json`` that no table is made of.
_CONCLUDED = frozenset(
    {
        "status",
        "reason",
        "states",
        "components",
        "stragglers",
        "straggler_comparisons",
        "straggler_remarks",
    }
)


#: The longest value of a plan that a message shows.
LONGEST = 24
#: Entries of a plan with another name in a message.
_LABELS = {"cases_sha256": "the cases", "model": "the number of parameters"}


class Store:
    """A run's directory opened for writing by one process; a context manager.

    ``samples.jsonl`` is the source of truth: `append` returns once the record is on disk.
    """

    path: Path
    info: RunInfo
    """Contents of ``run.json``; `update` changes it."""
    records: Records
    """All records on disk, of collectives and of training, in the order of writing."""
    resumed: bool
    """Whether the directory held this run before."""

    def __init__(self, path: Path, header: JsonMapping, lock: int) -> None:
        self.path = path
        self._lock = lock
        self._whole: dict[tuple[str, int], JsonObject] = {}
        """The last whole line of each case in the launch that is being written."""
        self._run: Run | None = None
        self._recommendation: Recommendation | None = None
        """As written last."""
        self._made: Sequence[Path] = ()
        """Directories that were made for the run, the innermost first."""
        self.resumed = (path / RUN).exists()
        if self.resumed:
            self.info = read_info(path)
            check_plan(path, self.info, header.get("plan", {}))
        self.records, sound = read_samples(path)
        sign_lock(lock)  # the first that is written: until here the run could be refused
        if not self.resumed:
            entries = {"schema": SCHEMA, "run_id": path.resolve().name, **as_json(header)}
            self.info = cast("RunInfo", entries)
            replace_file(path / RUN, json_text(self.info))
        self._samples = os.open(path / SAMPLES, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.ftruncate(self._samples, sound)
        sync_directory(path)

    @classmethod
    def open(cls, path: str | Path, header: JsonMapping) -> "Store":
        """Create the directory with ``header`` as its ``run.json``, or resume the run that it
        holds.

        Args:
            path: the directory that ``--out`` names.
            header: JSON-able; ``plan`` is the identity of the run: a run is resumed only if its
                plan is equal. ``schema`` and, where it is absent, ``run_id`` are added. Of a
                resumed run the header is kept as it was.

        Raises:
            InputError: as `check_out`, or a line is damaged; then nothing has been written.
        """
        path = Path(path)
        check_out(path, header.get("plan", {}))
        made = [parent for parent in (path, *path.absolute().parents) if not parent.exists()]
        was_locked_before = (path / LOCK).exists()
        with refusing(path, InputError):
            path.mkdir(parents=True, exist_ok=True)
            lock = take_lock(path)
            try:
                store = cls(path, header, lock)
            except BaseException:
                os.close(lock)
                _remove(made)
                if not was_locked_before:
                    (path / LOCK).unlink(missing_ok=True)
                raise
        store._made = made
        return store

    @property
    def run(self) -> Run:
        """The run so far; its tables are made once until a record or a condition is added."""
        if self._run is None:
            self._run = make_run(
                self.path, self.info, self.records, recommendation=self._recommendation
            )
        return self._run

    @property
    def training_records(self) -> tuple[TrainingRecord, ...]:
        """The training records."""
        return training_records(self.records)

    def append(self, record: AnyRecord) -> None:
        """Write a record as one line and wait until it is on disk.

        Raises:
            LaunchError: it could not be written; earlier records are intact.
        """
        self._check_place()
        before = os.fstat(self._samples).st_size
        line = f"{encode(self._line(record, before))}\n".encode()
        with refusing(self.path / SAMPLES, LaunchError):
            try:
                write_all(self._samples, line)
                os.fsync(self._samples)
            except OSError:
                os.ftruncate(self._samples, before)  # half a line would damage the next one
                self._whole.clear()
                raise
        self._run = None
        self.records.add(record)

    def _line(self, record: AnyRecord, place: int) -> JsonObject:
        """Return the line of a record at a place of the file: whole, or of a further visit what
        differs from the whole line that ``of`` names.
        """
        fields, key = record.to_json(), (record.case.key, record.launch)
        whole = self._whole.get(key)
        if whole is not None and whole.keys() - {"line"} <= fields.keys():
            changed = {name: value for name, value in fields.items() if whole.get(name) != value}
            return {"of": whole["line"], **changed}
        if any(launch != record.launch for _, launch in self._whole):
            self._whole.clear()
        self._whole[key] = {"line": place, **fields}
        return self._whole[key]

    def update(self, **fields: Any) -> None:
        """Set entries of ``run.json`` and rewrite it in one step.

        Raises:
            LaunchError: it could not be written; the old file is unharmed.
        """
        self.info = cast("RunInfo", {**self.info, **as_json(fields)})
        if fields.keys() - _CONCLUDED:
            self._run = None
        elif self._run is not None:
            self._run.info = self.info
        self.write_files({RUN: json_text(self.info)})

    def restore(self, info: RunInfo) -> None:
        """Put ``run.json`` back as it was when it held ``info``.

        Raises:
            LaunchError: as `update`.
        """
        self.info, self._run = info, None
        self.update()

    def write_files(self, texts: Mapping[str, str]) -> None:
        """Write each of these files of the run directory, by name, in one step.

        Raises:
            LaunchError: one could not be written; the old file is unharmed.
        """
        self._check_place()
        for name, text in texts.items():
            with refusing(self.path / name, LaunchError):
                replace_file(self.path / name, text)

    def write_recommendation(self, recommendation: Recommendation) -> None:
        """Write ``recommendation.json`` in one step, with a paragraph of text.

        Raises:
            LaunchError: it could not be written; the old file is unharmed.
        """
        content = {**recommendation.to_json(), "paragraph": paragraph(recommendation)}
        self.write_files({RECOMMENDATION: json_text(content)})
        self._recommendation = recommendation
        self.run.recommendation = recommendation

    def discard(self) -> None:
        """Remove a run that was refused before anything was measured, and directories made for it.

        One that was there before stays.
        """
        if self.resumed or self.records:
            return
        for name in (SAMPLES, RUN, LOCK):
            (self.path / name).unlink(missing_ok=True)
        _remove(self._made)

    def _check_place(self) -> None:
        """Check that the directory was not removed or replaced, as writing into a removed file
        raises no error.

        Raises:
            LaunchError: the directory has vanished; all records were written to a new one if
                possible.
        """
        with contextlib.suppress(OSError):
            if os.path.samestat((self.path / SAMPLES).stat(), os.fstat(self._samples)):
                return
        what = f"{self.path} has vanished or been replaced while the run went on"
        try:
            again = Store.open(self.path, self.info)
        except InputError as error:
            raise LaunchError(
                f"{what}, and what was measured could not be written again: {error}"
            ) from error
        if again.resumed:
            again.close()
            raise LaunchError(f"{what}: another run is in its place.")
        for record in self.records:
            again.append(record)
        self.close()
        vars(self).update(vars(again))
        raise LaunchError(
            f"{what}; what was measured was written into it again, and the same command resumes."
        )

    def close(self) -> None:
        """Release the lock; closing twice is harmless."""
        for descriptor in (self._samples, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._samples = self._lock = -1

    def __enter__(self) -> "Store":  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _remove(made: Sequence[Path]) -> None:
    """Take away directories that were made for a run which could not begin, the innermost first."""
    with contextlib.suppress(OSError):  # one holds something else
        for name in SCAFFOLD | {SAMPLES, RUN} if made else ():
            (made[0] / name).unlink(missing_ok=True)
        for directory in made:
            directory.rmdir()


def check_out(path: str | Path, plan: JsonMapping | None = None) -> None:
    """Check that a run can be started or resumed in ``path``, and write nothing.

    Its records are not read yet.

    Args:
        path: the directory that ``--out`` names; it need not exist.
        plan: the identity of the run that is asked for; None leaves it unchecked.

    Raises:
        InputError: ``path`` is a file, cannot be written, belongs to something else, to a newer
            version, to a run with another plan, with compressed samples or to a running commbench.
    """
    path = Path(path)
    with refusing(path, InputError):
        places = (path, *path.absolute().parents)
        above = next(place for place in places if place.exists() or place.is_symlink())
        if not above.is_dir():
            raise InputError(
                f"--out {path} cannot be used, because {above} is not a directory; choose another"
                " --out."
            )
        if not os.access(above, os.W_OK | os.X_OK):
            raise InputError(
                f"--out {path} cannot be written; choose another --out or change the permissions of"
                f" {above}."
            )
        if (path / RUN).exists():
            check_plan(path, read_info(path), plan)
            samples = samples_file(path)
            if samples.name == COMPRESSED_SAMPLES:
                raise InputError(
                    f"--out {path} holds a run whose samples are compressed, to which nothing is"
                    f" added; choose another --out, or decompress them: gunzip {samples}"
                )
        elif above == path:
            foreign = sorted({entry.name for entry in path.iterdir()} - SCAFFOLD)
            if foreign:
                raise InputError(
                    f"--out {path} is no run of commbench and not empty (it holds {foreign[0]});"
                    " choose another --out."
                )
        if (path / LOCK).exists():
            os.close(take_lock(path))


def check_plan(path: Path, info: RunInfo, plan: JsonMapping | None) -> None:
    """Refuse a run whose plan differs from ``plan``, and name the entries that differ.

    None skips the check.
    """
    if plan is None:
        return
    recorded, requested = info.get("plan", {}), as_json(plan)
    unlike = []
    for name in sorted(recorded.keys() | requested.keys()):
        if recorded.get(name) == requested.get(name):
            continue
        kept, asked = json.dumps(recorded.get(name)), json.dumps(requested.get(name))
        label = _LABELS.get(name, name)
        if max(len(kept), len(asked)) > LONGEST:
            unlike.append(label)
        else:
            unlike.append(f"{label} is {kept} there and {asked} here")
    if unlike:
        raise InputError(
            f"--out {path} holds a run with another plan ({', '.join(unlike)}); each needs an"
            " --out of its own."
        )
