"""The engine: measures one case on one backend in one launch and returns its `Record`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from commbench.collectives.algorithms import transport_by
from commbench.collectives.cases import Case
from commbench.collectives.composed import MATRIX, operation_in_pattern
from commbench.collectives.patterns import rank_list
from commbench.engine.communicator import Communicator
from commbench.engine.control import agree_on, gather_everywhere
from commbench.engine.flags import raised_flags
from commbench.engine.gpu_clocks import Reading, clocks_between
from commbench.engine.matrix import MatrixSampler, PreparedMatrix, prepare_matrix
from commbench.engine.overlap import measure_overlap, probe_us
from commbench.engine.probe import probe_of
from commbench.engine.records import (
    FixedSettings,
    Overlap,
    PairTimes,
    Point,
    Record,
    Stall,
    without_result,
)
from commbench.engine.samples import (
    Samples,
    elements_wrong,
    join_transports,
    timed_groups,
    wrong_record,
)
from commbench.engine.session import Session
from commbench.engine.setup import Checked, Prepared, prepare, sets_needed
from commbench.engine.soak import SoakSamples
from commbench.engine.stopping import Sampler
from commbench.engine.timing.clocks import is_close
from commbench.engine.timing.loops import Timer
from commbench.engine.visits import DISTURBED_SHARE, USUAL_OPERATIONS, are_many_late, extended
from commbench.findings import Finding, UnsupportedError
from commbench.system import process

#: Pairs that the reason of a wrong matrix names.
NAMED_PAIRS = 3
#: Probed operations, of which the shortest gives an operation's length, and their share of a case's
#: time slice.
PROBES = 5
PROBING_SHARE = 0.1
#: Repetitions of an overlap at least, where there is time.
FEWEST_OVERLAPS = 6
#: Bytes of a window that may take long on a slow link.
LARGE_WINDOW_BYTES = 2**20
#: Share of a case's longest time that a window may take: less than a usual operation.
WINDOW_SHARE = 1 / (1.5 * USUAL_OPERATIONS)

#: Bytes of buffers that a rank keeps between visits, estimated from message sizes; others are
#: allocated again.
KEPT_BYTES = 2**28

PreparedT = TypeVar("PreparedT")


def measure(
    case: Case,
    communicator: Communicator,
    session: Session,
    *,
    launch: int,
    fixed: FixedSettings | None = None,
) -> Record | None:
    """Measure one case in visits that follow each other at once.

    The record on rank 0, None elsewhere.

    ``fixed`` holds the settings of the first launch; None in the first launch. An unsupported case
    becomes a record with status ``unsupported``. Wrong data becomes a record with status ``wrong``
    and no times.
    """
    measurement = Measurement(case, communicator, session, launch=launch, fixed=fixed)
    record = measurement.visit()
    while not measurement.is_finished:
        more = measurement.visit()
        record = extended(record, more) if record and more else None
    return record and replace(record, visit=0)


class Measurement:
    """One case in one launch, measured in one visit or several.

    Args:
        case: the case.
        communicator: its backend.
        session: of the launch.
        launch: number of the launch.
        fixed: as in `measure`.
    """

    def __init__(
        self,
        case: Case,
        communicator: Communicator,
        session: Session,
        *,
        launch: int,
        fixed: FixedSettings | None,
    ) -> None:
        self.case = case
        self.visits_made = 0
        self.settings = fixed or FixedSettings(warmups=0, batch=1, visits=1)
        """As determined in the first visit."""
        self._communicator = communicator
        self.session = session
        self._launch = launch
        self._fixed = fixed
        self._prepared: Prepared | None = None
        self._kept_bytes = 0
        self._sampler: Sampler
        self._checked: Checked
        self._repeated_s = 0.0
        self._repeatable = 0
        """Visits that may yet be repeated if disturbed."""
        self._first: Record
        """Conditions of the case, as the first visit found them."""

    @property
    def is_finished(self) -> bool:
        """Whether no visit is left, the same on all ranks."""
        return self.visits_made >= self.settings.visits

    def visit(self) -> Record | None:
        """Measure the case once more; collective.

        Return the record of this visit on rank 0, None elsewhere.
        """
        is_probed = (
            self.settings.is_probed
            and not self.session.budget.is_soak
            and self.case.pattern != MATRIX
        )
        probe = probe_of(self._communicator, self.session) if is_probed else None
        if probe is None:
            return self._visit()
        before_us = probe.time_us()
        record = self._visit()
        after_us = probe.time_us()
        return record and replace(record, probes_us=(round(before_us, 4), round(after_us, 4)))

    def _visit(self) -> Record | None:
        stopwatch = Stopwatch()
        session = self.session
        session.refresh_clock()
        self.visits_made += 1
        if self.visits_made > 1:
            return self._revisit(stopwatch)
        record = Record(
            case=self.case,
            launch=self._launch,
            visit=1,
            device=self._communicator.device,
            library=self._communicator.library(),
        )
        if self.case.pattern == MATRIX:
            self.settings = replace(self.settings, visits=1)
            return _measure_matrix(record, self._communicator, session, stopwatch, self._fixed)
        verified = _prepare_and_verify(record, self._communicator, session, self._fixed)
        if isinstance(verified, Record):
            self.settings = replace(self.settings, visits=1)
            return _on_root(session, verified)
        return self._first_visit(record, *verified, stopwatch)

    def _first_visit(
        self,
        record: Record,
        prepared: Prepared,
        timer: Timer,
        checked: Checked,
        stopwatch: Stopwatch,
    ) -> Record | None:
        """Settle how the case is measured, and measure what only one visit does: overlap, energy
        and overhead.
        """
        communicator, session, fixed = self._communicator, self.session, self._fixed
        prepared.refill()
        with stopwatch.measuring():
            timer = _timer_for_length(prepared, communicator, timer, session, fixed)
            record = replace(record, **_conditions(prepared, timer))
            longest_s = session.budget.longest_s - stopwatch.lasted_s
            sampler = self._sampler = _sampler(prepared, timer, session, longest_s)
            together = prepared.captured  # `batch` counts operations, the sampler counts calls
            calls = sampler.warm_up(fixed and replace(fixed, batch=max(1, fixed.batch // together)))
            self._calls_batch = calls.batch
            settled = self.settings = replace(calls, batch=calls.batch * together)
            self._repeatable = 0 if session.budget.is_soak else settled.visits // 4
            before = session.read_clock(
                communicator
            )  # after warm-up: the clock of an idle GPU is low
            samples, repetition_J = _sample(sampler, prepared, session, calls.batch)  # noqa: N806 - a unit
            after = session.read_clock(communicator)
            overlap = _overlap(prepared, communicator, timer, session, is_brief=settled.is_brief)
        if session.budget.energy_s and session.meter.covers(self.case.backend):
            lasting_s = max(session.budget.energy_s, session.meter.least_s)
            at_once = replace(
                sampler, timer=session.timer(replace(self.case, sync="none"), communicator)
            )
            _, repetition_J = session.with_energy(  # noqa: N806 - a unit
                lambda: at_once.repeat_for(lasting_s, calls.batch)
            )
        rotated_bytes = prepared.rotation * self.case.message_bytes
        in_cache = self.case.buffers == "rotated" and rotated_bytes <= session.cache_bytes(
            communicator
        )
        self._first = replace(
            record,
            wrong=checked.wrong,
            warmups=settled.warmups,
            batch=settled.batch,
            **asdict(session.overhead(self.case, communicator, settled.batch)),
            flags=raised_flags(
                {
                    "in_cache": in_cache,
                    "small_window": prepared.window < prepared.usual_window,
                    "brief": settled.is_brief,
                }
            ),
        )
        self._checked = checked
        record = self._first
        if repetition_J is not None:
            joules = repetition_J / _operations(record)
            record = replace(record, energy_J=joules, energy_of=session.meter.energy_of)
        self._prepared = prepared
        return self._finish(replace(record, overlap=overlap), samples, (before, after), stopwatch)

    def _revisit(self, stopwatch: Stopwatch) -> Record | None:
        """Measure the case in one more visit, with the settings of the first.

        It has been verified.
        """
        communicator, session, sampler = self._communicator, self.session, self._sampler
        prepared = self._prepared or self._prepare_again()
        sampler.calls = prepared.calls
        with stopwatch.measuring():
            sampler.begin_visit(self.settings, is_first=False)
            before = session.read_clock(communicator)
            disturbance = Disturbance(
                counts_delay=not (communicator.own_threads or session.oversubscribed)
            )
            samples = sampler.collect(_no_samples(sampler, prepared, session), self._calls_batch)
            is_disturbed = self._repeatable > 0 and disturbance.share() > DISTURBED_SHARE
            after = session.read_clock(communicator)
        first = replace(self._first, visit=self.visits_made)
        if any(gather_everywhere(session.control, is_disturbed)):
            first = replace(first, disturbed=1)
            self.visits_made -= 1
            self._repeatable -= 1
        record = self._finish(first, samples, (before, after), stopwatch)
        if record is None:
            return None
        return replace(
            record, revisiting_s=round(record.measuring_s + record.other_s - record.repeating_s, 6)
        )

    def _prepare_again(self) -> Prepared:
        prepared = _prepare_case(self.case, self._communicator, self.session)
        prepared = prepared.capture() if self.case.graph else prepared
        prepared.refill()
        self._prepared = prepared
        return prepared

    def _finish(
        self,
        record: Record,
        samples: Samples | None,
        readings: tuple[Reading | None, Reading | None],
        stopwatch: Stopwatch,
    ) -> Record | None:
        """Return the record with the samples of a visit, on rank 0.

        Free the buffers if there is no room for them.
        """
        prepared, session = self._prepared, self.session
        assert prepared is not None  # noqa: S101 - the visit has used it
        if not self._keeps_buffers(prepared):
            self._prepared = None
        repeating_s, self._repeated_s = (
            self._sampler.repeating_s - self._repeated_s,
            self._sampler.repeating_s,
        )
        stalls = session.progress.take_stalls()
        gathered = session.control.gather((prepared.communicator.transport(), *readings, stalls))
        if samples is None or gathered is None:
            return None
        transports = [transport_by(record.algorithm, transport) for transport, *_ in gathered]
        record = replace(
            record,
            transport=join_transports(transports, prepared.participants),
            clocks=clocks_between(
                (clock, other) for _, clock, other, _ in gathered if clock and other
            ),
            repeating_s=round(repeating_s, 6),
        )
        record = _with_samples(record, samples, session, stopwatch)
        groups = timed_groups(prepared, self._checked, samples, transports, _operations(record))
        points = _points(samples, _operations(record), [stalls for *_, stalls in gathered])
        return replace(record, groups=groups, points=points)

    def _keeps_buffers(self, prepared: Prepared) -> bool:
        """Return whether the buffers remain for the next visit, the same on all ranks."""
        session, needed_bytes = self.session, 2 * prepared.rotation * self.case.message_bytes
        if self._kept_bytes and self.is_finished:
            session.kept_bytes -= self._kept_bytes
        elif (
            not self._kept_bytes
            and not self.is_finished
            and session.kept_bytes + needed_bytes <= KEPT_BYTES
        ):
            self._kept_bytes = needed_bytes
            session.kept_bytes += needed_bytes
        return bool(self._kept_bytes) and not self.is_finished


def _points(
    samples: Samples, per: int, stalls_of_ranks: Sequence[Sequence[tuple[float, float]]]
) -> list[Point]:
    """Return the point of a visit of a soak, in a list.

    Empty elsewhere, and if every repetition started late.
    """
    if not isinstance(samples, SoakSamples) or not samples.valid:
        return []
    stalls = [
        Stall(rank=rank, at_s=at_s, lasted_s=lasted_s)
        for rank, of_rank in enumerate(stalls_of_ranks)
        for at_s, lasted_s in of_rank
    ]
    return [samples.point(per, stalls)]


class Disturbance:
    """The share of time that this rank has waited for a CPU, or that other guests had CPUs, since
    this was made.

    Args:
        counts_delay: whether this thread has a CPU of its own, so that waiting for one is a
            disturbance.
    """

    def __init__(self, *, counts_delay: bool) -> None:
        self._counts_delay = counts_delay
        self._begun, (self._delay_s, self._stolen_s) = time.perf_counter(), process.waiting_s()

    def share(self) -> float:
        """Return the share so far."""
        lasted_s, (delay_s, stolen_s) = time.perf_counter() - self._begun, process.waiting_s()
        waited_s = delay_s - self._delay_s if self._counts_delay else 0.0
        return max(waited_s, stolen_s - self._stolen_s) / max(lasted_s, 1e-9)


class Stopwatch:
    """Splits a case's wall time into measuring and everything else, in seconds."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self.measuring_s = 0.0

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Count the time inside as measuring."""
        begun = time.perf_counter()
        yield
        self.measuring_s += time.perf_counter() - begun

    @property
    def lasted_s(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self._begun

    @property
    def other_s(self) -> float:
        """Return the seconds since the start that were not measuring."""
        return self.lasted_s - self.measuring_s


def _measure_matrix(
    record: Record,
    communicator: Communicator,
    session: Session,
    stopwatch: Stopwatch,
    fixed: FixedSettings | None,
) -> Record | None:
    """Measure every pair of ranks.

    With wrong data the record has no times and its pairs show which are wrong.
    """
    make = partial(prepare_matrix, record.case, communicator)
    prepared_with_timer = _prepare_with_timer(record.case, communicator, session, make)
    if isinstance(prepared_with_timer, Finding):
        return _on_root(session, without_result(record, "unsupported", prepared_with_timer))
    matrix, timer = prepared_with_timer
    sampler = MatrixSampler(
        control=session.control,
        timer=timer,
        matrix=matrix,
        slice_s=session.slice_s or session.budget.slice_s,
        reading_ns=session.reading_ns(timer),
    )
    with stopwatch.measuring():
        settled, pairs = sampler.collect(record.launch, fixed)
    record = replace(
        record,
        **_conditions(matrix, timer),
        pairs=pairs,
        wrong=sampler.wrong,
        warmups=settled.warmups,
        batch=settled.batch,
        **asdict(session.overhead(record.case, communicator, settled.batch)),
        transport=communicator.transport(),
        late_discarded=sampler.late,
        measuring_s=round(stopwatch.measuring_s, 6),
        other_s=round(stopwatch.other_s, 6),
    )
    return _on_root(session, _conclude_matrix(record, session, sampler.counted))


def _conclude_matrix(record: Record, session: Session, counted: int) -> Record:
    """Add status, times and flags to the record of a matrix.

    ``counted``: valid repetitions of all pairs.
    """
    if record.wrong:
        return without_result(
            record, "wrong", elements_wrong(record.wrong, _describe_wrong_pairs(record.pairs))
        )
    if not record.pairs:
        return without_result(record, "failed", _reason_without_times(record))
    late = record.late_discarded
    times_us = [pair.time_us for pair in record.pairs]
    conditions = {
        "oversubscribed": session.oversubscribed,
        "late": are_many_late(late, counted),
        "clock": _is_clock_uncertain(record, times_us, session),
    }
    return replace(record, times_us=times_us, flags=raised_flags(conditions))


def _describe_wrong_pairs(pairs: Sequence[PairTimes]) -> str:
    """Return the end of a sentence: the first pairs with wrong data, and the number of others."""
    wrong = [f"rank {pair.source} to {pair.target}" for pair in pairs if pair.wrong]
    more = f" and {len(wrong) - NAMED_PAIRS} other pairs" if len(wrong) > NAMED_PAIRS else ""
    return f", sent from {', '.join(wrong[:NAMED_PAIRS])}{more}" if wrong else ""


def _prepare_with_timer(
    case: Case, communicator: Communicator, session: Session, make: Callable[[], PreparedT]
) -> tuple[PreparedT, Timer] | Finding:
    """Return the prepared case and its timed loop, or the refusal of any rank, on all ranks."""

    def prepared_on_rank() -> PreparedT:
        prepared = make()
        session.check(case, communicator)
        return prepared

    prepared = agree_on(session.control, prepared_on_rank)
    if isinstance(prepared, Finding):
        return prepared
    return prepared, session.timer(case, communicator)  # all groups start together


def _prepare_case(case: Case, communicator: Communicator, session: Session) -> Prepared:
    """Return buffers and calls of a case, in several sets for rotated buffers; collective."""
    rotated = case.buffers == "rotated"
    sets = sets_needed(case.message_bytes, session.cache_bytes(communicator)) if rotated else 1
    prepared = prepare(case, communicator, session.hosts, sets)
    if prepared.is_idle:
        raise UnsupportedError("idle", backend=case.backend)
    return prepared


def _prepare_and_verify(
    record: Record, communicator: Communicator, session: Session, fixed: FixedSettings | None
) -> tuple[Prepared, Timer, Checked] | Record:
    """Return the prepared case, its timed loop and its verification.

    The finished record if it cannot be timed.
    """
    make = partial(_prepare_case, record.case, communicator, session)
    prepared_with_timer = _prepare_with_timer(record.case, communicator, session, make)
    if isinstance(prepared_with_timer, Finding):
        return without_result(record, "unsupported", prepared_with_timer)
    prepared, timer = prepared_with_timer
    prepared = _with_affordable_window(prepared, session, fixed)
    prepared, checked = _verify_case(prepared, timer, session)
    if not checked.refusal and not checked.wrong:
        return prepared, timer, checked
    record = replace(
        record, **_conditions(prepared, timer)
    )  # the algorithm is known after the first operation
    if checked.refusal:
        return without_result(record, "unsupported", checked.refusal)
    return wrong_record(record, prepared, checked)


def _with_affordable_window(
    prepared: Prepared, session: Session, fixed: FixedSettings | None
) -> Prepared:
    """Return the case with as many messages in flight as there is time for; collective.

    Windows of 1, 2, 4, ... messages are timed until one takes long enough to tell. The library's
    refusal is left to the verification.
    """
    if fixed is not None:
        return prepared.with_window(fixed.window) if fixed.window else prepared
    is_large = prepared.usual_window * prepared.case.message_bytes >= LARGE_WINDOW_BYTES
    if prepared.usual_window == 1 or not is_large or session.budget.is_soak:
        return prepared
    control = session.control
    fitting_s = WINDOW_SHARE * session.budget.longest_s
    window = 1
    if prepared.with_window(window).run_once(control):  # connects the ranks
        return prepared
    lasted_s = 0.0
    while lasted_s < fitting_s / 2 and window < prepared.usual_window:
        begun = time.perf_counter()
        prepared.with_window(window).run_once(control)
        lasted_s = max(gather_everywhere(control, time.perf_counter() - begun))
        affordable = int(window * fitting_s / lasted_s)
        window *= 2
    return prepared.with_window(max(1, min(prepared.usual_window, affordable)))


def _verify_case(prepared: Prepared, timer: Timer, session: Session) -> tuple[Prepared, Checked]:
    """Return the case as it will be timed, and its verification.

    Graphs are captured after plain calls were right.
    """
    checked = prepared.verify(session.control, shared_clock=session.clock.is_shared, timer=timer)
    if checked.refusal or checked.wrong or not prepared.case.graph:
        return prepared, checked
    captured = agree_on(session.control, prepared.capture)
    if isinstance(captured, Finding):
        return prepared, Checked(refusal=captured)
    return captured, captured.verify(
        session.control, shared_clock=session.clock.is_shared, timer=timer
    )


def _timer_for_length(
    prepared: Prepared,
    communicator: Communicator,
    timer: Timer,
    session: Session,
    fixed: FixedSettings | None,
) -> Timer:
    """Return the timed loop for an operation of this length, which may decide how ranks start
    together.
    """
    case = prepared.case
    if case.sync != "auto" or session.clock.is_shared or communicator.own_threads:
        return timer
    if fixed and fixed.sync:
        return session.timer(replace(case, sync=fixed.sync), communicator)
    lasting_us = 0.0
    for share in (0.0, PROBING_SHARE):  # the first is a warm-up
        affordable = (
            share * 1e6 * (session.slice_s or session.budget.slice_s) / max(lasting_us, 1.0)
        )
        if lasting_us and affordable < 1:
            break
        probes = max(1, min(PROBES, int(affordable)))
        probe_times = probe_us(
            session.control, timer, prepared.calls, prepared.participants, probes
        )
        lasting_us = session.control.broadcast(min(probe_times, default=0.0))
    return session.timer(case, communicator, lasting_ns=1e3 * lasting_us)


def _sampler(prepared: Prepared, timer: Timer, session: Session, longest_s: float) -> Sampler:
    """Return the sampler of a case that has ``longest_s`` left."""
    return Sampler(
        control=session.control,
        timer=timer,
        calls=prepared.calls,
        rule=session.rule,
        slice_s=session.slice_s or session.budget.slice_s,
        reading_ns=session.reading_ns(timer),
        most_visits=session.budget.visits,
        is_soak=session.budget.is_soak,
        longest_s=longest_s,
        watched=prepared.participants if prepared.reports_groups else (0,),
    )


def _no_samples(sampler: Sampler, prepared: Prepared, session: Session) -> Samples:
    """Return the samples of a visit before its first repetition."""
    spanning = sampler.timer.sync.plan.spans_ranks
    kind = SoakSamples if session.budget.is_soak else Samples
    return kind(prepared.participants, spanning=spanning, clock_error_ns=session.clock.error_ns)


def _sample(
    sampler: Sampler, prepared: Prepared, session: Session, batch: int
) -> tuple[Samples | None, float | None]:
    """Repeat the case.

    Return the samples on rank 0, and the joules per repetition if they are counted.
    """
    samples = _no_samples(sampler, prepared, session)
    if not session.meter.covers(prepared.case.backend):
        return sampler.collect(samples, batch), None
    return session.with_energy(lambda: sampler.collect(samples, batch))


def _overlap(
    prepared: Prepared,
    communicator: Communicator,
    settled: Timer,
    session: Session,
    *,
    is_brief: bool,
) -> Overlap | None:
    """Return the overlap of a non-blocking collective that starts as in its row.

    None for others.
    """
    if not prepared.operation.overlaps:
        return None
    timer = session.timer(
        replace(prepared.case, loop="python", sync=settled.sync.plan.method), communicator
    )
    slice_s = session.slice_s or session.budget.slice_s
    return measure_overlap(
        prepared.calls,
        timer,
        session.control,
        prepared.participants,
        slice_s=slice_s,
        fewest=1 if is_brief else FEWEST_OVERLAPS,
    )


def _on_root(session: Session, record: Record) -> Record | None:
    return record if session.control.rank == 0 else None


def _conditions(prepared: Prepared | PreparedMatrix, timer: Timer) -> dict[str, Any]:
    participants = prepared.participants
    return {
        "group": rank_list(participants),
        "group_size": len(participants),
        "window": prepared.window,
        "algorithm": (
            prepared.operation.algorithm or prepared.communicator.algorithm(prepared.operation.name)
        ),
        "sync": timer.sync.plan.method,
        "loop": timer.name,
    }


def _with_samples(
    record: Record, samples: Samples, session: Session, stopwatch: Stopwatch
) -> Record:
    """Return the record with the samples and the flags that follow from them."""
    measuring_s, other_s = round(stopwatch.measuring_s, 6), round(stopwatch.other_s, 6)
    record = replace(record, measuring_s=measuring_s, other_s=other_s)
    if not samples.valid and record.visit > 1:  # the other visits stand for the launch
        return replace(record, visit_lengths=(0,), late_discarded=samples.late)
    if not samples.valid:
        return without_result(
            replace(record, late_discarded=samples.late), "failed", _reason_without_times(record)
        )
    per = _operations(record)
    conditions = {
        "oversubscribed": session.oversubscribed,
        "unverified": record.wrong is None,
        "late": are_many_late(samples.late, samples.valid),
        "clock": _is_clock_uncertain(record, samples.slowest_us(per), session),
        "throttled": bool(record.clocks and record.clocks.slowed_by),
    }
    summary = samples.summary(per)
    return replace(
        record,
        **summary,
        visit_lengths=(len(summary["times_us"]),),
        late_discarded=samples.late,
        flags=(*record.flags, *raised_flags(conditions), *samples.flags(per)),
    )


def _reason_without_times(record: Record) -> Finding:
    """Return the reason why no repetition is valid."""
    return Finding(code="never_queued_in_time" if record.loop == "event" else "never_on_time")


def _is_clock_uncertain(record: Record, times_us: Sequence[float], session: Session) -> bool:
    """Return whether the clock error is too large for an agreed start of operations that take
    ``times_us``.
    """
    lasting_ns = 1e3 * _operations(record) * float(np.median(times_us))
    return record.sync == "round-time" and not is_close(session.clock.error_ns, lasting_ns)


def _operations(record: Record) -> int:
    """Return the operations in one repetition."""
    operation = operation_in_pattern(record.case.operation, record.case.pattern, record.group_size)
    return record.batch * record.window * operation.operations_per_call
