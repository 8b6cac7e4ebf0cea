"""The engine: measures one case on one backend in one launch and returns its `Record`."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from commbench.collectives.algorithms import transport_by
from commbench.collectives.cases import Case
from commbench.collectives.composed import MATRIX
from commbench.collectives.patterns import rank_list
from commbench.engine.communicator import Communicator
from commbench.engine.control import agree_on, gather_everywhere
from commbench.engine.flags import raised_flags
from commbench.engine.gpu_clocks import GpuClocks
from commbench.engine.matrix import prepare_matrix, sample_matrix
from commbench.engine.observers import (
    FEWEST_OVERLAPS,
    Disturbance,
    EnergyObserver,
    Fields,
    Observer,
    OverlapObserver,
    probe_of,
    slowest_us,
)
from commbench.engine.records import Clocks, FixedSettings, Pairs, Record, Stall, no_result
from commbench.engine.samples import Samples, groups_of, join_transports, timed_groups
from commbench.engine.sampling import USUAL_OPERATIONS, Sampler, repeatable
from commbench.engine.session import Session
from commbench.engine.setup import Prepared, prepare, sets_needed
from commbench.engine.soak import SoakSamples
from commbench.engine.timing.clocks import is_close
from commbench.engine.timing.loops import Timer
from commbench.engine.visits import are_many_late
from commbench.findings import Finding, UnsupportedError

#: Pairs that the reason of a wrong matrix names.
NAMED_PAIRS = 3
#: Probed operations, of which the shortest gives an operation's length, and their share of a case's
#: time slice.
PROBES = 5
PROBING_SHARE = 0.1
#: Bytes of a window that may take long on a slow link.
LARGE_WINDOW_BYTES = 2**20
#: Share of a case's longest time that a window may take: less than a usual operation.
WINDOW_SHARE = 1 / (1.5 * USUAL_OPERATIONS)

#: Bytes of buffers that a rank keeps between visits, estimated from message sizes; others are
#: allocated again.
KEPT_BYTES = 2**28


@dataclass
class CaseRun:
    """One case in one launch, measured in one visit or several.

    An unsupported case becomes a record with status ``unsupported``. Wrong data becomes a record
    with status ``wrong`` and no times.
    """

    case: Case
    communicator: Communicator
    """Of its backend."""
    session: Session
    launch: int
    """Number of the launch."""
    fixed: FixedSettings | None
    """Settings of the first launch; None in the first launch."""

    def __post_init__(self) -> None:
        self.settings = self.fixed or FixedSettings(warmups=0, batch=1, visits=1)
        """As determined in the first visit."""
        self.visits_made = 0
        self._conditions: Fields = {
            "device": self.communicator.device,
            "library": self.communicator.library(),
        }
        """Fields of each visit's record, as the first visit found them."""
        self._gpu_clocks: GpuClocks | None = None
        if self.communicator.gpu:
            self._gpu_clocks = GpuClocks(self.communicator.gpu)
        self._kept: Prepared | None = None
        """The case with its buffers; None if they were freed after the last visit."""
        self._wrong: Sequence[int] | None = None
        """Wrong elements on each rank; None if nothing could be verified."""
        self._repeatable = 0
        """Visits that may yet be repeated if disturbed."""

    def visit(self) -> Record | None:
        """Measure the case once more; collective.

        Return the record of this visit on rank 0, None elsewhere.
        """
        session, is_matrix = self.session, self.case.pattern == MATRIX
        self.visits_made += 1
        number = self.visits_made
        probe = None
        if self.settings.is_probed and not session.budget.is_soak and not is_matrix:
            probe = probe_of(self.communicator, session)
        probes_us = []
        if probe:
            probes_us.append(round(probe(), 4))
        begun = time.perf_counter()
        session.refresh_clock()
        if number == 1:
            fields = self._first_visit(begun)
        else:
            fields = self._measure(self._kept or self._prepare_again(), begun)
        if probe:
            probes_us.append(round(probe(), 4))
        if session.control.rank:
            return None
        fields = {**self._conditions, **fields}
        return Record(
            case=self.case, launch=self.launch, visit=number, probes_us=tuple(probes_us), **fields
        )

    def _first_visit(self, begun: float) -> Fields:
        """Prepare, verify and measure the case; return the fields of its record."""
        self.settings = replace(self.settings, visits=1)  # unless `_settle` finds more
        try:
            prepared = self._prepare()
        except UnsupportedError as error:  # the same on all ranks
            return no_result("unsupported", error.reason)
        if self.case.pattern == MATRIX:
            return self._measure_matrix(prepared, begun)
        wrong = self._conditions["wrong"]
        if not wrong:
            return self._measure(prepared, begun)
        groups = groups_of(prepared, self._wrong)
        wrong_groups = ", ".join(group.group for group in groups if group.wrong)
        where = ""
        if wrong_groups:
            where = f" in group {wrong_groups}"
        return {"groups": groups, **_wrong(wrong, where)}

    # ---------------------------------------------------------------------------------- preparation

    def _prepare(self) -> Prepared:
        """Return the case as it will be timed, verified; collective.

        Raises:
            UnsupportedError: it cannot be timed as requested; on all ranks.
        """
        session = self.session
        prepared = agree_on(session.control, self._allocate)
        if self.case.pattern == MATRIX:  # verified turn by turn
            return prepared
        self._timer = session.timer(self.case, self.communicator)  # all groups start together
        prepared = _with_affordable_window(prepared, session, self.fixed)
        try:
            self._verify(prepared)
            if self.case.graph and not any(self._wrong or ()):  # plain calls were right
                prepared = agree_on(session.control, prepared.capture)
                self._verify(prepared)
        finally:
            self._note_conditions(prepared, self._timer)  # the first operation tells the algorithm
        self._conditions["wrong"] = self._wrong and sum(self._wrong)
        agree_on(session.control, prepared.refill)
        return prepared

    def _verify(self, prepared: Prepared) -> None:
        session = self.session
        if prepared.operation.moves_data or session.clock.is_shared:
            self._wrong = prepared.verify(session.control, self._timer)

    def _allocate(self) -> Prepared:
        """Return buffers and calls, in several sets for rotated buffers; collective.

        Raises:
            UnsupportedError: the case cannot be timed as requested.
        """
        case, communicator = self.case, self.communicator
        if case.pattern == MATRIX:
            prepared = prepare_matrix(case, communicator)
        else:
            sets = 1
            if case.buffers == "rotated":
                cache_bytes = self.session.cache_bytes(communicator)
                sets = sets_needed(case.message_bytes, cache_bytes)
            prepared = prepare(case, communicator, self.session.hosts, sets)
        if prepared.is_idle:
            raise UnsupportedError("idle", backend=case.backend)
        self.session.check(case, communicator)
        return prepared

    def _prepare_again(self) -> Prepared:
        prepared = self._allocate()
        prepared = prepared.with_window(self._conditions["window"])
        if self.case.graph:
            prepared = prepared.capture()
        prepared.refill()
        return prepared

    def _note_conditions(self, prepared: Prepared, timer: Timer) -> None:
        operation, participants = prepared.operation, prepared.participants
        self._conditions |= {
            "group": rank_list(participants),
            "group_size": len(participants),
            "window": prepared.window,
            "algorithm": operation.algorithm or prepared.communicator.algorithm(operation.name),
            "sync": timer.sync.method,
            "loop": timer.name,
        }

    # ------------------------------------------------------------------------------------ a visit

    def _measure(self, prepared: Prepared, begun: float) -> Fields:
        """Repeat the case, and observe what is beside it; collective.

        Return the fields of the visit's record; they are complete on rank 0 alone.
        """
        session, control = self.session, self.session.control
        started = time.perf_counter()
        if self.visits_made == 1:
            self._settle(prepared, longest_s=session.budget.longest_s - (started - begun))
        else:
            self._sampler.calls = prepared.calls
            self._sampler.begin_again(self.settings.warmups)
        sampler = self._sampler
        observers = self._observers(prepared)
        for observer in observers:
            observer.before()
        kind = Samples
        if session.budget.is_soak:
            kind = SoakSamples
        clock_error_ns = session.clock.error_ns
        if sampler.timer.name == "event":  # each device has a clock of its own
            clock_error_ns = math.inf
        samples = sampler.collect(
            kind(
                prepared.participants,
                spanning=sampler.timer.sync.spans_ranks,
                clock_error_ns=clock_error_ns,
            )
        )
        measuring_s = time.perf_counter() - started
        observers.reverse()
        seen = [observer.after() for observer in observers]
        overhead = session.overhead(self.case, self.communicator, self.settings.batch)
        stalls = session.progress.take_stalls()
        gathered = control.gather((prepared.communicator.transport(), stalls, seen))
        fields: Fields = {**overhead}
        if samples is not None and gathered is not None:
            for place, observer in enumerate(observers):
                fields |= observer.fields([seen[place] for _, _, seen in gathered])
            transports = [transport for transport, _, _ in gathered]
            fields |= self._times(prepared, samples, transports, fields.get("clocks"))
            if isinstance(samples, SoakSamples) and samples.valid:
                point = samples.point(self._operations, _stalls([each for _, each, _ in gathered]))
                fields["points"] = (point,)
            fields |= _wall_times(begun, measuring_s)
            fields["repeating_s"] = round(sampler.repeating_s, 6)
        if self.visits_made > 1 and self._repeatable:
            disturbed = control.broadcast_int(fields.get("disturbed", 0))
            self.visits_made -= disturbed
            self._repeatable -= disturbed
        self._keep_or_free(prepared)
        return fields

    def _settle(self, prepared: Prepared, *, longest_s: float) -> None:
        """Settle in the first visit how the case is measured, and begin it.

        ``longest_s``: what is left of the case's longest time.
        """
        session, fixed = self.session, self.fixed
        timer = self._timer_for_length(prepared)
        self._note_conditions(prepared, timer)
        watched: Sequence[int] = (0,)
        if prepared.reports_groups:
            watched = prepared.participants
        self._sampler = Sampler(
            session=session,
            timer=timer,
            calls=prepared.calls,
            longest_s=longest_s,
            watched=watched,
        )
        if fixed:  # a record's batch counts operations, the sampler's counts calls
            fixed = replace(fixed, batch=max(1, fixed.batch // prepared.captured))
        settings = self._sampler.warm_up(fixed)
        self.settings = replace(settings, batch=settings.batch * prepared.captured)
        self._operations = prepared.operations(self.settings.batch)
        """Operations of a repetition."""
        if not session.budget.is_soak:
            self._repeatable = repeatable(settings.visits)
        in_cache = False
        if self.case.buffers == "rotated":
            rotated_bytes = len(prepared.sets) * self.case.message_bytes
            in_cache = rotated_bytes <= session.cache_bytes(self.communicator)
        flags = {
            "in_cache": in_cache,
            "small_window": prepared.window < prepared.usual_window,
            "brief": settings.is_brief,
        }
        self._conditions |= {
            "warmups": settings.warmups,
            "batch": self.settings.batch,
            "flags": raised_flags(flags),
        }

    def _timer_for_length(self, prepared: Prepared) -> Timer:
        """Return the timed loop for an operation of this length, which may decide how ranks start
        together.
        """
        session, control = self.session, self.session.control
        if self.case.sync != "auto" or session.clock.is_shared or self.communicator.own_threads:
            return self._timer
        if self.fixed and self.fixed.sync:
            return session.timer(replace(self.case, sync=self.fixed.sync), self.communicator)
        slowest = partial(slowest_us, control, self._timer, prepared.calls, prepared.participants)
        lasting_us = control.broadcast(min(slowest(1), default=0.0))  # a warm-up
        affordable = int(PROBING_SHARE * 1e6 * session.budget.slice_s / max(lasting_us, 1.0))
        if affordable or not lasting_us:
            times_us = slowest(max(1, min(PROBES, affordable)))
            lasting_us = control.broadcast(min(times_us, default=0.0))
        return session.timer(self.case, self.communicator, lasting_ns=1e3 * lasting_us)

    def _observers(self, prepared: Prepared) -> list[Observer]:
        """Return what is observed in this visit, the outermost first; the same on all ranks."""
        session, communicator, is_first = self.session, self.communicator, self.visits_made == 1
        observers: list[Observer] = []
        energy = EnergyObserver(session.meter, session.progress, self._operations)
        has_energy = is_first and session.meter.covers(self.case.backend)
        if has_energy and session.budget.energy_s:
            seconds = max(session.budget.energy_s, session.meter.least_s)
            timer = session.timer(replace(self.case, sync="none"), communicator)
            energy.repeat = partial(replace(self._sampler, timer=timer).repeat_for, seconds)
            observers.append(energy)
        if is_first and prepared.operation.overlaps:
            sync = self._sampler.timer.sync.method  # it starts as in its row
            case = replace(self.case, loop="python", sync=sync)
            fewest = FEWEST_OVERLAPS
            if self.settings.is_brief:
                fewest = 1
            make_timer = partial(session.timer, case, communicator)
            observers.append(OverlapObserver(prepared, session, make_timer, fewest))
        if self._gpu_clocks:
            observers.append(self._gpu_clocks)
        if has_energy and not energy.repeat:
            observers.append(energy)
        if self._repeatable and not is_first:
            has_own_cpu = not (communicator.own_threads or session.oversubscribed)
            observers.append(Disturbance(counts_delay=has_own_cpu))
        return observers

    def _keep_or_free(self, prepared: Prepared) -> None:
        """Keep the buffers for the next visit, if there is one and room for them on all ranks."""
        session, needed_bytes = self.session, 2 * len(prepared.sets) * self.case.message_bytes
        if not self._kept and session.kept_bytes + needed_bytes <= KEPT_BYTES:
            session.kept_bytes += needed_bytes
            self._kept = prepared
        if self._kept and self.visits_made >= self.settings.visits:
            session.kept_bytes -= needed_bytes
            self._kept = None

    # ------------------------------------------------------------------------------------- result

    def _times(
        self, prepared: Prepared, samples: Samples, transports: Sequence[str], clocks: Clocks | None
    ) -> Fields:
        """Return the fields that follow from the samples, on rank 0.

        Args:
            prepared: the case.
            samples: of this visit.
            transports: of each rank.
            clocks: of the GPUs.
        """
        transports = [
            transport_by(self._conditions["algorithm"], transport) for transport in transports
        ]
        fields: Fields = {
            "transport": join_transports(transports, prepared.participants),
            "late_discarded": samples.late,
        }
        if not samples.valid and self.visits_made > 1:  # the other visits stand for the launch
            return {**fields, "visit_lengths": (0,)}
        if not samples.valid:
            return {**fields, **self._no_times()}
        per = self._operations
        summary = samples.summary(per)
        times_us = samples.slowest_us(per)
        warnings = self._warnings(times_us, samples.late, samples.valid, clocks)
        flags = (*self._conditions["flags"], *warnings, *samples.flags(per))
        groups = timed_groups(prepared, self._wrong, samples, transports, per)
        lengths = (len(summary["times_us"]),)
        return {**fields, **summary, "visit_lengths": lengths, "flags": flags, "groups": groups}

    def _warnings(
        self, times_us: Sequence[float], late: int, valid: int, clocks: Clocks | None = None
    ) -> tuple[str, ...]:
        """Return the flags of a visit with valid repetitions."""
        session = self.session
        lasting_ns = 1e3 * self._operations * float(np.median(times_us))
        is_agreed_start = self._conditions["sync"] == "round-time"
        flags = {
            "oversubscribed": session.oversubscribed,
            "unverified": self._conditions["wrong"] is None,
            "late": are_many_late(late, valid),
            "clock": is_agreed_start and not is_close(session.clock.error_ns, lasting_ns),
            "throttled": clocks is not None and len(clocks.slowed_by) > 0,
        }
        return raised_flags(flags)

    def _no_times(self) -> Fields:
        """Return the fields of a record without a valid repetition."""
        code = "never_on_time"
        if self._conditions["loop"] == "event":
            code = "never_queued_in_time"
        return no_result("failed", Finding(code=code))

    # ------------------------------------------------------------------------------------- matrix

    def _measure_matrix(self, matrix: Prepared, begun: float) -> Fields:
        """Measure every pair of ranks in one visit; collective.

        With wrong data the record has no times and its pairs show which are wrong.
        """
        session = self.session
        timer = session.timer(self.case, self.communicator)
        sampler = Sampler(session=session, timer=timer, calls=())
        started = time.perf_counter()
        settings, samples = sample_matrix(matrix, sampler, launch=self.launch, fixed=self.fixed)
        measuring_s = time.perf_counter() - started
        self._note_conditions(matrix, timer)
        ranks = range(matrix.world_size)
        self._operations = matrix.operations(settings.batch)
        self._conditions |= {
            "group": rank_list(ranks),
            "group_size": len(ranks),
            "warmups": settings.warmups,
            "batch": settings.batch,
            "wrong": samples.wrong,
        }
        pairs = samples.pairs()
        fields: Fields = {
            "pairs": pairs,
            "late_discarded": samples.late,
            **session.overhead(self.case, self.communicator, settings.batch),
            "transport": self.communicator.transport(),
            **_wall_times(begun, measuring_s),
        }
        if samples.wrong:
            return {**fields, **_wrong(samples.wrong, _name_wrong_pairs(pairs))}
        if not pairs:
            return {**fields, **self._no_times()}
        flags = self._warnings(pairs.time_us, samples.late, samples.counted)
        return {**fields, "times_us": pairs.time_us, "flags": flags}


def _wall_times(begun: float, measuring_s: float) -> Fields:
    """Return the fields of a record's wall time since ``begun``, in seconds."""
    other_s = time.perf_counter() - begun - measuring_s
    return {"measuring_s": round(measuring_s, 6), "other_s": round(other_s, 6)}


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
    window, lasted_s = 1, 0.0
    try:
        prepared.with_window(window).run_once(control)  # connects the ranks
        while lasted_s < fitting_s / 2 and window < prepared.usual_window:
            begun = time.perf_counter()
            prepared.with_window(window).run_once(control)
            lasted_s = max(gather_everywhere(control, time.perf_counter() - begun))
            affordable = int(window * fitting_s / lasted_s)
            window *= 2
    except UnsupportedError:
        return prepared
    return prepared.with_window(max(1, min(prepared.usual_window, affordable)))


def _wrong(elements: int, where: str) -> Fields:
    """Return the fields of a record with wrong data; ``where`` ends the sentence."""
    reason = Finding(code="elements_wrong", numbers={"wrong": elements, "where": where})
    return no_result("wrong", reason)


def _name_wrong_pairs(pairs: Pairs) -> str:
    """Return the end of a sentence: the first pairs with wrong data, and the number of others."""
    ends = zip(pairs.source, pairs.target, pairs.wrong, strict=True)
    wrong = [f"rank {source} to {target}" for source, target, wrong in ends if wrong]
    if not wrong:
        return ""
    where = f", sent from {', '.join(wrong[:NAMED_PAIRS])}"
    if len(wrong) > NAMED_PAIRS:
        where += f" and {len(wrong) - NAMED_PAIRS} other pairs"
    return where


def _stalls(of_ranks: Sequence[Sequence[tuple[float, float]]]) -> list[Stall]:
    """Return the stalls of all ranks."""
    stalls = []
    for rank, of_rank in enumerate(of_ranks):
        for at_s, lasted_s in of_rank:
            stalls.append(Stall(rank=rank, at_s=at_s, lasted_s=lasted_s))
    return stalls
