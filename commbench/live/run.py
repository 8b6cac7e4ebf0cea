"""The run directory of a live run: rank 0 writes it beside the training, and the command completes
it afterwards.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TypedDict

from commbench.analysis.watched import watched_lines
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.errors import InputError, LaunchError
from commbench.hooks.registry import canonical_hook
from commbench.launch.events import Session
from commbench.launch.facts import header_fields, refuse_other_conditions
from commbench.launch.tables import write_tables
from commbench.live.instructions import say
from commbench.live.options import DOING, DONE, LiveOptions, Mode
from commbench.results import Store
from commbench.results.files import RUN
from commbench.results.info import Launch, RunInfo, is_live, is_watched
from commbench.results.losses import Loss, append_losses
from commbench.results.plan import launch_times
from commbench.results.reading import read_info
from commbench.results.recommendation import (
    Choice,
    Recommendation,
    altering_sentences,
    headline,
    safe_sentences,
    setting_of,
    snippets,
)
from commbench.results.record_types import Records, training_records
from commbench.schema import JsonObject
from commbench.system.software import git_commit
from commbench.tuner.decision import recommend

#: Name of the stage of every launch.
STAGE = "live"
#: Endings that need no more blocks; the others cut the tuning, see
#: `commbench.tuner.experiment.Experiment.ending`.
WATCHED = "watched"
ENDINGS_IN_ORDER = frozenset({"decided", "undecided", "nothing", WATCHED})
#: Seconds that the end of the process waits for the writer.
PATIENCE_S = 20.0
#: Conclusion where no run was begun.
NOTHING_DONE = (
    "Nothing was {}: a line above says why, or no model was trained in DistributedDataParallel by a"
    " Python that heeds PYTHONPATH (-I, -E and -S turn that off). A script that sets PYTHONPATH"
    " must keep what it holds: PYTHONPATH=DIR:$PYTHONPATH. An mpirun inside a script reaches"
    " other hosts only with -x PYTHONPATH -x COMMBENCH_TUNE."
)
#: Why a run ended, where its ending alone says it; the brace stands for `_GOALS`.
REASONS = {
    "steps": "--steps was reached before {}",
    "time": "--time-limit was reached before {}",
    "ended": "the training ended before {}",
}
_GOALS: Mapping[Mode, str] = {"tune": "the decision", "watch": "all steps were watched"}


class LiveFacts(TypedDict, total=False):
    """What rank 0 knows of the training beyond its settings."""

    framework: str
    """The library that wrapped the model, such as ``transformers``; empty: the script itself."""
    torch: str
    own_hook: bool
    """Whether the script has registered a communication hook."""
    traits: Sequence[str]
    """``sparse`` or ``complex`` gradients, which no hook understands."""
    session: Session
    """The conditions of all ranks."""


class LiveRun:
    """A run directory that grows by one launch while a person's training goes on.

    Only rank 0 has one.

    A thread of its own writes, so that no disk delays a step. If the disk fails, one line says so,
    writing stops, and the run goes on from memory. At the end of the process an undecided tuning is
    concluded from what there is.
    """

    launch: int
    """Number of this launch in the directory, from 0."""
    is_concluded: bool = False

    def __init__(self, store: Store, options: LiveOptions) -> None:
        self._store = store
        self._info: RunInfo = store.info
        self._launches = _ended_launches(store.info)
        self._records = Records(store.records)
        self.launch = 1 + max((entry.get("launch", 0) for entry in self._launches), default=-1)
        self._started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._opened_s = time.monotonic()
        self._invocation = options.invocation
        self._writer = _Writer(store)
        self._update(
            launches=[*self._launches, self._entry("running")], status="running", reason=""
        )
        atexit.register(self._end)
        os.register_at_fork(
            after_in_child=store.close
        )  # a data loader that outlives this process must not hold the lock

    @classmethod
    def open(
        cls,
        options: LiveOptions,
        *,
        baseline: TrainingCase,
        settings: Sequence[TrainingCase],
        parameters: int,
        facts: LiveFacts,
    ) -> LiveRun:
        """Create the directory, or continue the one that holds the same training.

        Args:
            options: of the tuning.
            baseline: the script's own setting.
            settings: all that may be tried.
            parameters: trainable elements of the model.
            facts: of the training.

        Raises:
            CommbenchError: the directory cannot be used, or holds another run.
        """
        header = _header(options, baseline, settings, parameters, facts)
        store = Store.open(options.out, header)
        try:
            if store.resumed:
                _refuse_other_baseline(store, baseline)
                store.update(**_permissions(options))
            if "session" in facts:
                refuse_other_conditions(facts["session"], store.info)
                store.update(**header_fields(facts["session"], store.info))
            return cls(store, options)
        except BaseException:
            store.discard()
            store.close()
            raise

    @property
    def info(self) -> RunInfo:
        """The entries of run.json."""
        return self._info

    def append(self, record: TrainingRecord) -> None:
        """Write a record: of one block, or of a setting that has failed."""
        self._records.add(record)
        self._writer.do(lambda: self._store.append(record))

    def add_losses(self, losses: Iterable[tuple[int, float]]) -> None:
        """Write the losses of optimiser steps, each a pair of the step and its loss."""
        launch_losses = [Loss(launch=self.launch, step=step, loss=loss) for step, loss in losses]
        self._writer.do(lambda: append_losses(self._store.path, launch_losses))

    def conclude(
        self, ending: str, *, reason: str = "", seconds: float = 0.0
    ) -> Recommendation | None:
        """Decide from all launches of the directory; the files follow in the background.

        Args:
            ending: as `commbench.tuner.experiment.Experiment.ending`, or ``released``, ``failed``,
                ``ended``.
            reason: a clause for the message; empty: the usual one of the ending.
            seconds: how long the tuning took.

        Returns:
            The conclusion; None if nothing was compared.
        """
        self.is_concluded = True
        status = "ok" if ending in ENDINGS_IN_ORDER else "cut"
        entry = self._entry(
            status, ending=ending, reason=reason or _reason_of(ending, self._info), seconds=seconds
        )
        self._update(launches=[*self._launches, entry])
        conclusion = _conclusion_of(training_records(self._records), self._info)
        self._writer.do(lambda: _finish(self._store, conclusion))
        return conclusion

    def close(self) -> None:
        """Release the directory when all is written; return at once."""
        self._writer.close()

    def wait(self) -> None:
        """Wait until all is written, before the process ends."""
        self._writer.wait()

    def _end(self) -> None:
        """Conclude, and finish writing, when the process ends."""
        if not self.is_concluded:
            self.conclude("ended", seconds=time.monotonic() - self._opened_s)
        self.close()
        self.wait()

    def _entry(
        self, status: str, *, ending: str = "", reason: str = "", seconds: float = 0.0
    ) -> Launch:
        """Return the entry of this launch in run.json."""
        records = training_records(self._records)
        measuring_s = sum(each.measuring_s for each in records if each.launch == self.launch)
        entry: Launch = {
            "stage": STAGE,
            "launch": self.launch,
            "started": self._started,
            "status": status,
            "reason": reason,
            "ending": ending,
            "invocation": self._invocation,
        }
        entry.update(launch_times(seconds=seconds, startup_s=0.0, measuring_s=measuring_s))
        return entry

    def _update(self, **entries: object) -> None:
        """Set entries of run.json."""
        self._info = {**self._info, **entries}  # type: ignore[typeddict-item]
        self._writer.do(lambda: self._store.update(**entries))


class _Writer:
    """A thread that writes in the order of requests, until the first failure."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._requests: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="commbench-writer", daemon=True)
        self._thread.start()

    def do(self, request: Callable[[], object]) -> None:
        """Request to write something."""
        self._requests.put(request)

    def close(self) -> None:
        """Request to release the directory; closing twice is harmless."""
        self._requests.put(None)

    def wait(self) -> None:
        """Wait until all requests are done, after `close`."""
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        requests = iter(self._requests.get, None)
        try:
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


def _header(
    options: LiveOptions,
    baseline: TrainingCase,
    settings: Sequence[TrainingCase],
    parameters: int,
    facts: LiveFacts,
) -> JsonObject:
    """Return run.json as it is at the beginning."""
    return {
        "suite": options.mode,
        "argv": _argv(options),
        "seed": options.seed,
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "git_commit": git_commit(Path(__file__).parent),
        "status": "running",
        "world_size": baseline.world_size,
        "plan": {
            "live": True,
            **({"watch": True} if options.mode == "watch" else {}),
            "workload": options.workload,
            "world_size": baseline.world_size,
            "backend": baseline.backend,
            "model": parameters,
        },
        "baseline": baseline.key,
        "settings": [setting.key for setting in settings],
        "framework": facts.get("framework", ""),
        "own_hook": facts.get("own_hook", False),
        **_permissions(options),
    }


def _permissions(options: LiveOptions) -> RunInfo:
    """Return the entries of run.json on what may be recommended."""
    return {
        "named_hooks": list(map(canonical_hook, options.allow)),
        "accepts_loss": options.accept_loss,
    }


def _argv(options: LiveOptions) -> list[str]:
    """Return the command to repeat: that of `commbench tune`, or of a script that tunes itself."""
    if not options.invocation:
        return list(options.argv)
    limits = {"--steps": options.steps, "--time-limit": options.time_limit_s}
    words = [
        word for name, limit in limits.items() if limit is not None for word in (name, f"{limit:g}")
    ]
    words += ["--bucket-cap-mb", ",".join(options.bucket_cap_mb)] if options.bucket_cap_mb else []
    words += ["--allow", ",".join(map(_quoted, options.allow))] if options.allow else []
    words += ["--accept-loss"] if options.accept_loss else []
    words += ["--then", options.then] if options.then != "go-on" else []
    return ["commbench", options.mode, *words, "--out", _quoted(options.out), "--", *options.argv]


def _quoted(text: str) -> str:
    """Return a path as run.json names it, relative to the working directory.

    Kept runs name no folder of a machine.
    """
    path, here = Path(text), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _refuse_other_baseline(store: Store, baseline: TrainingCase) -> None:
    """Refuse to compare with another setting than the launches before.

    Raises:
        InputError: the script's own setting has changed since.
    """
    before = TrainingCase.from_key(store.info["baseline"])
    if before != baseline:
        names = [
            f"{Choice(**setting_of(case)).name} with batch {case.batch_per_rank}"
            for case in (before, baseline)
        ]
        raise InputError(
            f"--out {store.path} holds results of a script whose own setting was {names[0]}, and"
            f" now it is {names[1]}; choose another --out."
        )


def _conclusion_of(records: Sequence[TrainingRecord], info: RunInfo) -> Recommendation | None:
    """Return the conclusion of a tuning; None if nothing was compared."""
    return None if is_watched(info) else recommend(records, info)


def _finish(store: Store, conclusion: Recommendation | None) -> None:
    """Write everything that follows from the records; the status of the run comes last."""
    if conclusion is not None:
        store.write_recommendation(conclusion.to_json())
    write_tables(store)
    last = store.info["launches"][-1]
    store.update(
        status="complete" if last.get("status") == "ok" else "cut", reason=last.get("reason", "")
    )


# ------------------------------------------------------------------------------- after the training


def complete(options: LiveOptions) -> list[str]:
    """Finish the runs that a training has begun, after it has ended.

    Return the conclusions in lines for people.
    """
    done = DONE[options.mode]
    lines = [line for path in _runs_of(options) for line in _completed(path)]
    if not lines and options.witness and Path(options.witness).exists():
        return [
            (
                f"The ranks of this host were {done}. Rank 0, on another host, has the results in"
                f" {options.out}."
            )
        ]
    return lines or [NOTHING_DONE.format(done)]


def _runs_of(options: LiveOptions) -> Iterator[Path]:
    """Yield the directories of the runs to which the training has added a launch, in the order of
    its models.
    """
    number, path = 1, Path(options.out)
    while (path / RUN).exists():
        info = read_info(path)
        if is_live(info) and any(_is_of(entry, options) for entry in info.get("launches") or ()):
            yield path
        number += 1
        path = Path(f"{options.out}-{number}")


def _is_of(entry: Launch, options: LiveOptions) -> bool:
    return entry.get("invocation", "") == options.invocation


def _completed(path: Path) -> Iterator[str]:
    """Finish a run if rank 0 could not; yield its conclusion."""
    trouble = ""
    with Store.open(path, {"plan": read_info(path).get("plan", {})}) as store:
        conclusion = _conclusion_of(store.training_records, store.info)
        try:
            if store.info.get("status") == "running":
                store.update(launches=_ended_launches(store.info))
                _finish(store, conclusion)
        except LaunchError as error:
            trouble = f"Not all results could be written: {error}"
        reason = store.info.get("reason", "")
        records, info = store.training_records, store.info
    if is_watched(info) and records:
        yield from watched_lines(records[-1], info)
    elif conclusion is None:
        before = "a block of steps was over" if is_watched(info) else "anything was compared"
        yield (
            f"{DOING[mode_of(info)].capitalize()} ended before"
            f" {before}{': ' if reason else ''}{reason}."
        )
    else:
        altering = [
            sentence
            for each in conclusion.altering
            for sentence in altering_sentences(each, conclusion)
        ]
        yield " ".join(
            [headline(conclusion), *safe_sentences(conclusion), conclusion.reason, *altering]
        )
        for title, text in snippets(conclusion) if conclusion.verdict == "change" else ():
            yield from filter(
                None, [title, *(f"    {line}".rstrip() for line in text.splitlines())]
            )
    yield trouble or f"Results: {path}; `commbench report {path}` draws them."


def mode_of(info: RunInfo) -> Mode:
    """Return whether a training was tuned or only watched."""
    return "watch" if is_watched(info) else "tune"


def _reason_of(ending: str, info: RunInfo) -> str:
    """Return why a run ended, as a clause; empty if its ending does not say it."""
    return REASONS.get(ending, "").format(_GOALS[mode_of(info)])


def _ended_launches(info: RunInfo) -> list[Launch]:
    """Return the launches of a run whose training goes on no more."""
    ended: Launch = {"status": "cut", "ending": "ended", "reason": _reason_of("ended", info)}
    return [
        {**entry, **ended} if entry.get("status") == "running" else entry
        for entry in info.get("launches") or ()
    ]
