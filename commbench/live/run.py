"""The run directory of a live run: rank 0 writes it beside the training, and the command completes
it afterwards.
"""

from __future__ import annotations

import _thread
import atexit
import concurrent.futures.thread  # noqa: F401 - pandas needs it, and it cannot load at the end
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from commbench.analysis.watched import watched_lines
from commbench.ddp.plan.cases import TrainingCase, setting_name
from commbench.ddp.plan.records import TrainingRecord
from commbench.errors import CommbenchError, InputError, LaunchError
from commbench.hooks.registry import canonical_hook
from commbench.launch.facts import header_fields, refuse_other_conditions
from commbench.launch.tables import write_tables
from commbench.live.imports import python_first
from commbench.live.options import DOING, DONE, LiveOptions, Mode, say
from commbench.results import Store
from commbench.results.files import RUN
from commbench.results.info import Launch, RunInfo, is_live, is_watched
from commbench.results.losses import Loss, append_losses
from commbench.results.plan import launch_times
from commbench.results.reading import read_info
from commbench.results.recommendation import Recommendation
from commbench.results.record_types import Records, training_records
from commbench.results.verdict import verdict_lines
from commbench.schema import JsonObject
from commbench.tuner.conclusion import recommend
from commbench.units import utc_now

#: Name of the stage of every launch.
STAGE = "live"
#: Endings that need no more blocks; the others cut the tuning, see
#: `commbench.tuner.experiment.Experiment.ending`.
WATCHED = "watched"
ENDINGS_IN_ORDER = frozenset({"decided", "undecided", "nothing", WATCHED})
#: Seconds that the end of the process waits for the writer.
PATIENCE_S = 20.0
#: Seconds that the command waits for a rank that ends after its launcher, and time between looks.
ENDING_S, LOOK_S = 5.0, 0.1
#: Conclusion where no run was begun.
NOTHING_DONE = (
    "Nothing was {}: a line above says why, or no model was trained in DistributedDataParallel by a"
    " Python that heeds PYTHONPATH (-I, -E and -S turn that off). A script that sets PYTHONPATH"
    " must keep what it holds: PYTHONPATH=DIR:$PYTHONPATH. An mpirun inside a script reaches"
    " other hosts only with -x PYTHONPATH -x COMMBENCH_TUNE."
)
#: Why a run ended, where its ending alone says it.
REASONS = {
    "steps": "--steps was reached before the decision",
    "time": "--time-limit was reached before the decision",
    "ended": "the training ended too early",
    "disturbed": "too few steps of the script's own setting were undisturbed",
}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What rank 0 knows of a training."""

    original: TrainingCase
    """The script's own setting."""
    parameters: int
    """Trainable elements of the model."""
    framework: str = ""
    """The library that wrapped the model, such as ``transformers``; empty: the script itself."""
    has_own_hook: bool = False
    """Whether the script has registered a communication hook."""
    traits: Sequence[str] = ()
    """``sparse`` or ``complex`` gradients, which no hook understands."""
    held: str = ""
    """Why gradients must stay where they are, see `commbench.live.switching.why_held`."""
    session: RunInfo | None = None
    """The conditions of all ranks."""


class LiveRun:
    """A run directory that grows by one launch while a person's training goes on.

    Only rank 0 has one.

    A thread of its own writes, so that no disk delays a step. If the disk fails, one line says so,
    writing stops, and the run goes on from memory. At the end of the process an undecided tuning is
    concluded from what there is.

    Args:
        options: of the tuning; the directory is created, or continued if it holds the same
            training.
        settings: all that may be tried, the script's own first.
        facts: of the training.

    Raises:
        CommbenchError: the directory cannot be used, or holds another run.
    """

    def __init__(
        self, options: LiveOptions, settings: Sequence[TrainingCase], facts: Facts
    ) -> None:
        permissions: RunInfo = {
            "named_hooks": list(map(canonical_hook, options.allow)),
            "accepts_loss": options.accept_loss,
        }
        baseline, session = facts.original, facts.session
        plan: JsonObject = {"live": True}
        if options.mode == "watch":
            plan["watch"] = True
        plan["workload"] = options.workload
        plan["world_size"] = baseline.world_size
        plan["backend"] = baseline.backend
        plan["model"] = facts.parameters
        header = {
            "suite": options.mode,
            "argv": options.argv,
            "seed": options.seed,
            "started": utc_now(),
            "git_commit": options.git_commit,
            "status": "running",
            "world_size": baseline.world_size,
            "plan": plan,
            "baseline": baseline.key,
            "settings": [setting.key for setting in settings],
            "framework": facts.framework,
            "own_hook": facts.has_own_hook,
            **permissions,
        }
        self._store = Store.open(options.out, header)
        try:
            if self._store.resumed:
                _refuse_other_baseline(self._store, baseline)
                self._store.update(**permissions)
            if session is not None:
                refuse_other_conditions(session, self._store.info)
                self._store.update(**header_fields(session, self._store.info))
        except BaseException:
            self._store.discard()
            self._store.close()
            raise
        self.info: RunInfo = self._store.info
        """The entries of run.json, without the entry of this launch."""
        self.is_concluded = False
        self.recommendation: Recommendation | None = None
        self.records = Records(self._store.records)
        """Of all launches."""
        self._witness = options.witness
        self._opened_s = time.monotonic()
        self._launches = _ended_launches(self.info)
        self.launch = 1 + max((entry.get("launch", 0) for entry in self._launches), default=-1)
        """Number of this launch in the directory, from 0."""
        self._entry: Launch = {
            "stage": STAGE,
            "launch": self.launch,
            "started": utc_now(),
            "invocation": options.invocation,
        }
        self._requests: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._has_written = threading.Event()
        # A script may wait until threading.enumerate() has no other thread.
        _thread.start_new_thread(self._write, ())
        self._requests.put(partial(self._store.update, status="running", reason=""))
        self._enter("running")
        atexit.register(self._end)
        # A forked process, as of a data loader, must not hold the lock, and has no writer.
        os.register_at_fork(after_in_child=self._store.close)
        os.register_at_fork(after_in_child=partial(atexit.unregister, self._end))

    def append(self, record: TrainingRecord) -> None:
        """Write a record: of one block, or of a setting that has failed."""
        self.records.add(record)
        self._requests.put(partial(self._store.append, record))

    def add_losses(self, first: int, losses: Sequence[float]) -> None:
        """Write the losses of consecutive optimiser steps."""
        rows = [Loss(self.launch, step, loss) for step, loss in enumerate(losses, first)]
        self._requests.put(partial(append_losses, self._store.path, rows))

    def conclude(self, ending: str, reason: str = "") -> Recommendation | None:
        """Decide once from all launches of the directory; the files follow in the background.

        Args:
            ending: as `commbench.tuner.experiment.Experiment.ending`, or ``released``, ``failed``,
                ``ended``.
            reason: a clause for the message; empty: the usual one of the ending.

        Returns:
            The conclusion; None if nothing was compared.
        """
        if self.is_concluded:
            return self.recommendation
        self.is_concluded = True
        status = "cut"
        if ending in ENDINGS_IN_ORDER:
            status = "ok"
        self._enter(status, ending, reason or REASONS.get(ending, ""))
        self.recommendation = _conclusion_of(training_records(self.records), self.info)
        verdict = ""
        if self.recommendation is not None:
            verdict = self.recommendation.verdict
        if ending == "decided" and verdict == "inconclusive":  # by all launches together
            self._enter("ok", "undecided")
        # pandas makes tables, and it changes the warning filters, which the training's own threads
        # share. So a command on this host makes them, see `complete`, if it still waits.
        has_command = bool(self._witness) and Path(self._witness).parent.is_dir()
        finish = partial(_finish, self._store, self.recommendation, has_tables=not has_command)
        self._requests.put(finish)
        return self.recommendation

    def close(self) -> None:
        """Release the directory when all is written; return at once."""
        self._requests.put(None)

    def wait(self) -> None:
        """Wait until all is written, after `close`, before the process ends."""
        self._has_written.wait(PATIENCE_S)

    @python_first()
    def _end(self) -> None:
        """Conclude, and finish writing, when the process ends."""
        self.conclude("ended")
        self.close()
        self.wait()

    def _enter(self, status: str, ending: str = "", reason: str = "") -> None:
        """Write the entry of this launch to run.json."""
        measuring_s = 0.0
        for record in training_records(self.records):
            if record.launch == self.launch:
                measuring_s += record.measuring_s
        seconds = time.monotonic() - self._opened_s
        entry: Launch = {
            **self._entry,
            "status": status,
            "reason": reason,
            "ending": ending,
            **launch_times(seconds=seconds, startup_s=0.0, measuring_s=measuring_s),
        }
        self._requests.put(partial(self._store.update, launches=[*self._launches, entry]))

    def _write(self) -> None:
        """Write in the order of requests, until the first failure."""
        requests = iter(self._requests.get, None)
        try:
            with python_first():
                for request in requests:
                    request()
        except Exception as error:  # noqa: BLE001 - nothing here may fail the training
            say(
                f"results are no longer written to {self._store.path}, and the training goes on:"
                f" {error}"
            )
            for _ in requests:
                pass
        self._store.close()
        self._has_written.set()


def _refuse_other_baseline(store: Store, baseline: TrainingCase) -> None:
    """Refuse to compare with another setting than the launches before.

    Raises:
        InputError: the script's own setting has changed since.
    """
    before = TrainingCase.from_key(store.info["baseline"])
    if before != baseline:
        raise InputError(
            f"--out {store.path} holds results of a script whose own setting was {_named(before)},"
            f" and now it is {_named(baseline)}; choose another --out."
        )


def _named(case: TrainingCase) -> str:
    return f"{setting_name(case)} with batch {case.batch_per_rank}"


def _conclusion_of(records: Sequence[TrainingRecord], info: RunInfo) -> Recommendation | None:
    """Return the conclusion of a tuning; None if nothing was compared."""
    if is_watched(info):
        return None
    return recommend(records, info)


def _finish(store: Store, conclusion: Recommendation | None, *, has_tables: bool = True) -> None:
    """Write what follows from the records; the status of the run comes last."""
    if conclusion is not None:
        store.write_recommendation(conclusion)
    if has_tables:
        write_tables(store)
    last = store.info["launches"][-1]
    status = "cut"
    if last.get("status") == "ok":
        status = "complete"
    store.update(status=status, reason=last.get("reason", ""))


# ------------------------------------------------------------------------------- after the training


def complete(options: LiveOptions) -> list[str]:
    """Finish the runs to which a training has added a launch, after it has ended.

    Return the conclusions in lines for people, in the order of the training's models.
    """
    lines = []
    number, path = 1, Path(options.out)
    while (path / RUN).exists():
        try:
            info = read_info(path)
        except CommbenchError:
            if number == 1:
                raise
            break  # another commbench wrote what has this name
        invocations = [entry.get("invocation", "") for entry in info.get("launches") or ()]
        if is_live(info) and options.invocation in invocations:
            lines += _completed(path)
        number += 1
        path = Path(f"{options.out}-{number}")
    if lines:
        return lines
    done = DONE[options.mode]
    if options.witness and Path(options.witness).exists():
        here = f"The ranks of this command were {done}."
        return [f"{here} The command that started rank 0 has the results in {options.out}."]
    return [NOTHING_DONE.format(done)]


def _completed(path: Path) -> list[str]:
    """Finish a run, as rank 0 may not have done; return its conclusion."""
    last_line = f"Results: {path}; `commbench report {path}` draws them."
    with _opened(path) as store:
        records = store.training_records
        conclusion = _conclusion_of(records, store.info)
        try:
            store.update(launches=_ended_launches(store.info))
            _finish(store, conclusion)
        except LaunchError as error:
            last_line = f"Not all results could be written: {error}"
        info = store.info
    if is_watched(info) and records:
        lines = watched_lines(records[-1], info)
    elif conclusion is not None:
        lines = verdict_lines(conclusion)
    else:
        doing = DOING[mode_of(info)].capitalize()
        lines = [f"{doing} has no result, because {info.get('reason') or 'it had no block'}."]
    return [*lines, last_line]


def _opened(path: Path) -> Store:
    """Open a run; a signal to all processes ends the launcher before rank 0, which uses it.

    Raises:
        InputError: it cannot be used.
    """
    end_s = time.monotonic() + ENDING_S
    while True:
        try:
            return Store.open(path, {"plan": read_info(path).get("plan", {})})
        except InputError:
            if time.monotonic() > end_s:
                raise
        time.sleep(LOOK_S)


def mode_of(info: RunInfo) -> Mode:
    """Return whether a training was tuned or only watched."""
    if is_watched(info):
        return "watch"
    return "tune"


def _ended_launches(info: RunInfo) -> list[Launch]:
    """Return the launches of a run whose training goes on no more."""
    launches = []
    for entry in info.get("launches") or ():
        launches.append(entry)
        if entry.get("status") == "running":
            launches[-1] = {
                **entry,
                "status": "cut",
                "ending": "ended",
                "reason": REASONS["ended"],
            }
    return launches
