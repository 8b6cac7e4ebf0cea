"""What a run says: findings for a terminal, a page and a log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from types import MappingProxyType

from commbench.analysis.prediction.links import limit_of
from commbench.analysis.prediction.network import network_model
from commbench.analysis.scaling import all_rank_rows
from commbench.analysis.soak import soak_results
from commbench.analysis.stragglers import straggler_findings
from commbench.analysis.watched import watched_findings, watched_headline
from commbench.collectives.composed import MATRIX
from commbench.collectives.operations import OPERATIONS
from commbench.ddp.plan.records import TrainingRow
from commbench.engine.flags import FLAGS, NOISE, Flag, has_flag, split_flags
from commbench.engine.records import Row
from commbench.findings import Finding, Value, shared_cause
from commbench.report.columns import Flagged
from commbench.report.formats import time_with_interval
from commbench.report.matrix import name_range
from commbench.report.state import KINDS_OF_ENERGY, tools_of
from commbench.results import MODEL, Run
from commbench.results.info import (
    RunInfo,
    is_live,
    is_watched,
    measures_interconnect,
    shares_gpu,
)
from commbench.results.pairs import Matrix
from commbench.results.tables import rows_by
from commbench.results.verdict import recommendation_findings
from commbench.stats import family_hint, median
from commbench.stats.budgets import BUDGETS
from commbench.words import SENTENCES, Estimate

#: Bits per second of 1 GB/s.
_GIGABYTE_BPS = 8e9

# ------------------------------------------------------------------------------- state and settings


def unfinished(run: Run) -> list[Finding]:
    """Return why a run is incomplete and how to resume it; nothing of a complete run."""
    status = run.info.get("status", "complete")
    if status == "complete":
        return []
    why = run.info.get("reason") or status
    if why == "running":
        why = "it is running, or was killed"
    code = "run_unfinished_live" if is_live(run.info) else "run_unfinished"
    if status == "cut":
        code = "run_cut_live" if is_live(run.info) else "run_cut"
    numbers = {"why": why.rstrip("."), "path": str(run.path)}
    return [Finding(code=code, numbers=numbers, level="warning")]


def setting(run: Run) -> list[Finding]:
    """Return all about the recommended settings; before its first look a recommendation is
    withheld.
    """
    if run.decision:
        return recommendation_findings(run.decision)
    if not run.recommendation:
        return []
    planned = run.info.get("first_look") or 0
    numbers = {"launches": run.recommendation.launches, "planned": planned}
    return [Finding(code="run_undecided", numbers=numbers, level="verdict")]


def watched(run: Run) -> list[Finding]:
    """Return the share of exposed communication in a watched training, and where steps go."""
    if not is_watched(run.info) or not run.training_records:
        return []
    record = run.training_records[-1]
    return [_headed([watched_headline(record), *watched_findings(record, run.info)])]


def soak(run: Run) -> list[Finding]:
    """Return the events and the drift of a soak."""
    results = soak_results(run)
    if results is None:
        return []
    return [_headed(results.findings())]


def _headed(findings: Sequence[Finding]) -> Finding:
    """Return the first as a verdict, with the others as its details."""
    return replace(findings[0], level="verdict", details=tuple(findings[1:]))


def stragglers(run: Run) -> list[Finding]:
    """Return what is slow, or that nothing was found to be."""
    search = straggler_findings(run)
    if not search.stragglers:
        return search.findings()
    return [replace(finding, level="verdict") for finding in search.findings()]


def time_spent(run: Run) -> list[Finding]:
    """Return the shares of the run's time; nothing before the first launch has ended."""
    launches = run.info.get("launches") or []
    total = sum(launch.get("seconds", 0.0) for launch in launches)
    if not total:
        return []
    numbers: dict[str, Value] = {"seconds": total, "launches": len(launches)}
    code = "time"
    if is_watched(run.info):
        code = "time_watched"
    elif is_live(run.info):
        code = "time_live"
    numbers["starting"] = sum(launch.get("startup_s", 0.0) for launch in launches) / total
    numbers["measuring"] = sum(launch.get("measuring_s", 0.0) for launch in launches) / total
    numbers["other"] = sum(launch.get("other_s", 0.0) for launch in launches) / total
    findings = [Finding(code=code, numbers=numbers)]
    hung = [launch for launch in launches if launch.get("status") == "hung"]
    if hung and code == "time":
        findings.append(Finding(code="time_of_hung", numbers={"launches": len(hung)}))
    return findings


def origins(run: Run) -> list[Finding]:
    """Return each tool that measured an imported run."""
    findings = []
    for tool, files in tools_of(run).items():
        numbers = {"files": ", ".join(files)}
        findings.append(Finding(code="imported_from", subject=tool, numbers=numbers))
    return findings


def unmetered(run: Run) -> list[Finding]:
    """Return each kind of energy that was not counted, with the reason."""
    energy = run.info.get("energy")
    if not energy:
        return []
    findings = []
    for kind, why in energy["missing"].items():
        subject = KINDS_OF_ENERGY.get(kind, kind)
        findings.append(Finding(code="energy_missing", subject=subject, numbers={"error": why}))
    return findings


# --------------------------------------------------------------------------------- the network


def bandwidths(run: Run) -> list[Finding]:
    """Return the best bandwidth of each backend in one operation, and its share of the link's
    rate if known.
    """
    rated = _by_backend(run, lambda row: row.busbw_GBps is not None)
    findings = []
    for backend, rows in rated.items():
        comparable = _comparable(rows)
        best = max(comparable, key=lambda row: row.busbw_GBps or 0.0)
        numbers: dict[str, Value] = {
            "operation": _operation(best),
            "busbw": busbw_of(best),
            "size": best.message_bytes or 0,
        }
        code = "bandwidth"
        limit = limit_of(best, run.info)
        if limit is not None and limit.bound_bps:
            code = "bandwidth_of_link" if limit.directions == 1 else "bandwidth_of_links"
            numbers["share"] = (best.busbw_GBps or 0.0) * _GIGABYTE_BPS / limit.bound_bps
            numbers["link"] = str(limit)
        details = (_chosen_from(comparable), *_briefs(best))
        findings.append(
            Finding(code=code, subject=backend, numbers=numbers, level="verdict", details=details)
        )
    return findings


def _comparable(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that represent a backend: one operation and pattern, all-reduce over all
    ranks if timed.
    """
    order = list(OPERATIONS)
    first = min(
        rows,
        key=lambda row: (
            row.operation != order[0],
            row.pattern != "flat",
            order.index(row.operation),
        ),
    )
    return [row for row in rows if (row.operation, row.pattern) == (first.operation, first.pattern)]


def _chosen_from(rows: Sequence[Row]) -> Finding:
    """Return from how many rows a maximum was taken: one over many rows is partly chance."""
    code = "bandwidth_of_one" if len(rows) == 1 else "bandwidth_best"
    return Finding(code=code, subject=_operation(rows[0]), numbers={"count": len(rows)})


def _operation(row: Row) -> str:
    return row.operation if row.pattern == "flat" else f"{row.operation} {row.pattern}"


def busbw_of(row: Row) -> Estimate:
    """Return the bus bandwidth with the interval that follows from the time's."""
    busbw, time_us = row.busbw_GBps or 0.0, row.time_us or 0.0
    if not row.time_us_ci_low or not row.time_us_ci_high:
        return Estimate(busbw)
    return Estimate(
        busbw, busbw * time_us / row.time_us_ci_high, busbw * time_us / row.time_us_ci_low
    )


def _briefs(row: Row) -> list[Finding]:
    """Return what a row's interval does not show, from its flags."""
    numbers: dict[str, Value] = {}
    if row.harness_us is not None and row.time_us:
        numbers["overhead"] = row.harness_us / row.time_us
    findings = []
    for flag in split_flags(row.flags):
        code = f"brief_{flag.name}"
        if code in SENTENCES:
            findings.append(Finding(code=code, subject=row.backend, numbers=numbers))
    return findings


def latencies(run: Run) -> list[Finding]:
    """Return half the round trip of the smallest message, for each backend."""
    timed = _by_backend(
        run, lambda row: OPERATIONS[row.operation].is_round_trip and row.time_us is not None
    )
    findings = []
    for backend, rows in timed.items():
        least = min(rows, key=lambda row: row.message_bytes or 0)
        half = Finding(code="latency_is_half", numbers={"size": least.message_bytes or 0})
        time = time_with_interval(least.time_us, least.time_us_ci_low, least.time_us_ci_high)
        findings.append(
            Finding(
                code="latency",
                subject=backend,
                numbers={"time": time},
                level="verdict",
                details=(half, *_briefs(least)),
            )
        )
    return findings


def _by_backend(run: Run, is_wanted: Callable[[Row], bool]) -> dict[str, list[Row]]:
    """Return the rows over all ranks by backend, without matrices, whose rows pool different pairs.

    Ranks that share a GPU are left out: their times do not show the network.
    """
    by_backend: dict[str, list[Row]] = {}
    for row in all_rank_rows(run):
        if (
            row.status == "ok"
            and row.pattern != MATRIX
            and measures_interconnect(row)
            and is_wanted(row)
        ):
            by_backend.setdefault(row.backend, []).append(row)
    return by_backend


def pairs(run: Run) -> list[Finding]:
    """Return the range of bandwidths or times over the pairs of ranks of each matrix."""
    findings = []
    for matrix in run.matrices:
        if not shares_gpu(matrix.case.backend, run.info):
            findings += _pairs(matrix)
    return findings


def _pairs(matrix: Matrix) -> list[Finding]:
    """Return the range of the pairs, separately between hosts and within hosts if both exist."""
    between, within = (name_range(matrix, mask) for mask in (matrix.is_inter, ~matrix.is_inter))
    numbers: dict[str, Value] = {
        "between": between,
        "within": within,
        "range": between or within,
        "launches": len(matrix.times_us),
    }
    code = "pairs"
    if between and within:
        code = "pairs_of_hosts"
    if not (between or within):
        return []
    meaning = Finding(code="pairs_meaning", numbers=numbers)
    return [
        Finding(
            code=code,
            subject=matrix.name,
            numbers=numbers,
            level="verdict",
            details=(meaning,),
        )
    ]


def model_error(run: Run) -> list[Finding]:
    """Return the errors of the fitted network; nothing without curves."""
    model = network_model(run)
    if not model.curves:
        return []
    numbers: dict[str, Value] = {"curves": len(model.curves), "file": MODEL}
    numbers["worst"] = 100 * (model.worst_residual or 0.0)
    code = "model_of_unknown_error"
    if model.held_out_error is not None:
        code = "model"
        numbers["held_out"] = 100 * model.held_out_error
    return [Finding(code=code, numbers=numbers)]


def precision(run: Run) -> list[Finding]:
    """Return how many rows of each backend have an interval within the target, and the states of
    the machine if there were two.
    """
    target = target_of(run.info)
    findings = []
    sound = [row for row in run.rows if measures_interconnect(row)]
    for backend, rows in rows_by(sound, lambda row: row.backend).items():
        half_widths = half_widths_of(rows)
        if half_widths:
            numbers: dict[str, Value] = {
                "within": sum(width <= target for width in half_widths),
                "rows": len(half_widths),
                "target": target,
                "median": 100 * median(half_widths),
            }
            code = "precision" if median(half_widths) < 1 else "precision_none"
            findings.append(Finding(code=code, subject=backend, numbers=numbers))
    return [*findings, *machine_states(run)]


def machine_states(run: Run) -> list[Finding]:
    """Return the two states of the machine under each backend that met both."""
    findings = []
    for backend, levels in run.divided.states.items():
        numbers = {
            "share": levels["fast_share"],
            "ratio": levels["slow_us"] / levels["fast_us"],
        }
        findings.append(Finding(code="states", subject=backend, numbers=numbers, level="warning"))
    return findings


def half_widths_of(rows: Iterable[Row]) -> list[float]:
    """Return half the width of each row's interval, as a share of its time."""
    half_widths = []
    for row in rows:
        low, high = row.time_us_ci_low, row.time_us_ci_high
        if row.status == "ok" and row.time_us and low is not None and high is not None:
            half_widths.append((high - low) / 2 / row.time_us)
    return half_widths


def in_place(run: Run) -> list[Finding]:
    """Return the operations that ran in place, unlike in OSU and IMB; nothing of imported rows."""
    if run.info.get("imported"):
        return []
    names = set()
    for row in run.rows:
        if row.status == "ok" and row.in_place and OPERATIONS[row.operation].default_in_place:
            names.add(row.operation)
    if not names:
        return []
    return [Finding(code="in_place", numbers={"operations": ", ".join(sorted(names))})]


# ----------------------------------------------------------------------------------------- warnings

#: Statuses without a result, the worst first.
_FAILURES = ("wrong", "hung", "failed", "unsupported")
#: The fewest launches whose spread an interval can rest on.
FEWEST_LAUNCHES = 4
#: Flags of a sweep of few launches.
_OF_SHORT_SWEEPS = frozenset({"one_launch", "few_launches", "ci_wide", "unsteady", "drift"})
#: Flags about spread: in a matrix differences between pairs cause it.
_SPREAD = frozenset({"ci_wide", "bimodal", "bimodal_launches", "unsteady"})


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """Rows of one kind: many of them must not hide a few of another."""

    section: str
    """The section of a page with all warnings about them."""
    rows: Sequence[Flagged]
    noun: str = "rows"
    hidden: frozenset[str] = frozenset()
    """Flags that are not warned of."""

    def flags_of(self, row: Flagged) -> set[str]:
        """Return the names of a row's flags that are warned of."""
        return {flag.name for flag in split_flags(row.flags)} - self.hidden

    def count(self, number: int) -> str:
        """Return a number of its rows as a phrase."""
        return f"{number} of {len(self.rows)} {self.noun}"


def warnings_of(run: Run) -> list[Finding]:
    """Return the warnings of a run, the most severe first.

    They are failures, severe flags, and medium ones that most rows of a kind have. A sweep may be
    short where its fastest settings were compared again.
    """
    kinds = []
    for kind in kinds_of(run):
        shown = _without_mild(kind)
        is_compared = run.decision is not None and run.decision.launches >= FEWEST_LAUNCHES
        if kind.section == "training" and is_compared:
            shown = replace(shown, hidden=shown.hidden | _OF_SHORT_SWEEPS)
        kinds.append(shown)
    return row_warnings(kinds, run.info)


def kinds_of(run: Run) -> list[Kind]:
    """Return the rows of training, of collectives and of pairs."""
    matrices = [row for row in run.rows if row.pattern == MATRIX]
    collectives = [row for row in run.rows if row.pattern != MATRIX]
    kinds = [
        Kind(section="training", rows=run.training_rows),
        Kind(section="collectives", rows=collectives),
        Kind(section="pairs", rows=matrices, noun="matrices", hidden=_SPREAD),
    ]
    if run.training_rows and collectives:
        kinds[0] = replace(kinds[0], noun="rows of training")
        kinds[1] = replace(kinds[1], noun="rows of collectives")
    return [kind for kind in kinds if kind.rows]


def _without_mild(kind: Kind) -> Kind:
    """Hide flags that only the section of these rows names."""
    counts = Counter(flag for row in kind.rows for flag in kind.flags_of(row))
    hidden = set(kind.hidden)
    if kind.section == "collectives":
        hidden.add(NOISE.name)  # intervals are a finding of their own
    for name, flag in FLAGS.items():
        is_rare = counts[name] <= len(kind.rows) / 2
        if flag.severity == "low" or (flag.severity == "medium" and is_rare):
            hidden.add(name)
    return replace(kind, hidden=frozenset(hidden))


def training_warnings(run: Run) -> list[Finding]:
    """Return the warnings about a run's training; of a tuning, which plans its launches, only
    failures.
    """
    if run.info.get("candidates"):
        return failures([Kind(section="training", rows=run.training_rows)])
    rows = []
    for row in run.training_rows:
        if not has_flag(row.flags, "same_layout"):  # its stand-in has the same flags
            rows.append(row)
    findings = row_warnings([Kind(section="training", rows=rows)], run.info)
    if not is_live(run.info):  # its blocks count, too
        findings += _undecidable(rows)
    return findings


def _undecidable(rows: Iterable[TrainingRow]) -> list[Finding]:
    """Warn if every verdict must be inconclusive: too few launches for so many configurations."""
    judged = [row for row in rows if row.verdict]
    launches = max((row.launches or 0 for row in judged), default=0)
    if not judged or not family_hint(len(judged), launches, launches):
        return []
    numbers = {"launches": launches, "settings": len(judged)}
    return [
        Finding(code="launches_undecidable", numbers=numbers, level="warning", section="training")
    ]


def row_warnings(kinds: Iterable[Kind], info: RunInfo) -> list[Finding]:
    """Return the warnings about rows, the most severe first: failures, then one for each flag.

    Flags of noise share one. What to try is a detail.

    Args:
        kinds: the rows of a run.
        info: contents of ``run.json``; the budget keeps remedies from naming one in use.
    """
    kinds = list(kinds)
    return [*failures(kinds), *_flagged(kinds, info)]


def failures(kinds: Iterable[Kind]) -> list[Finding]:
    """Return a warning for each status without a result; its reason is a detail."""
    kinds = list(kinds)
    findings = []
    for status in _FAILURES:
        counts, without = {}, []
        for kind in kinds:
            rows = [row for row in kind.rows if row.status == status]
            counts[kind] = len(rows)
            without += rows
        if without:
            findings.append(_warning(f"rows_{status}", counts, details=_why(without)))
    return findings


def _why(rows: Iterable[Flagged]) -> tuple[Finding, ...]:
    """Return the reasons of rows without a result, each cause once."""
    by_cause: dict[str, str] = {}
    for row in rows:
        if row.reason:
            sentence = row.reason.rstrip(".")
            by_cause.setdefault(shared_cause(row.reason_code, sentence), sentence)
    if not by_cause:
        return ()
    return (Finding(code="rows_why", numbers={"errors": tuple(by_cause.values())}),)


def _flagged(kinds: Sequence[Kind], info: RunInfo) -> list[Finding]:
    """Return a warning for each flag in use; flags of noise share one."""
    counts = {name: Counter[Kind]() for name in FLAGS}
    noisy = Counter[Kind]()
    for kind in kinds:
        for row in kind.rows:
            flags = kind.flags_of(row)
            for name in flags:
                counts[name][kind] += 1
            noisy[kind] += any(FLAGS[name].is_noise for name in flags)
    used = [flag for flag in FLAGS.values() if counts[flag.name]]
    noises = [flag for flag in used if flag.is_noise]
    ranked = []
    for flag in used:
        if not flag.is_noise or len(noises) == 1:
            ranked.append((flag.gravity, _flag(flag, counts[flag.name], info)))
    if len(noises) > 1:
        named = [f"{counts[flag.name].total()} {flag.name}" for flag in noises]
        numbers = {"flags": ", ".join(named)}
        finding = _warning("flagged_noisy", noisy, numbers, _remedy(NOISE, info))
        ranked.append((min(flag.gravity for flag in noises), finding))
    return [finding for _, finding in sorted(ranked, key=itemgetter(0))]


def _flag(flag: Flag, counts: Mapping[Kind, int], info: RunInfo) -> Finding:
    code = f"flag_{flag.name}"
    if code not in SENTENCES:
        code = "flagged"
    numbers: dict[str, Value] = {
        "flag": flag.name,
        "meaning": flag.meaning,
        "target": target_of(info),
    }
    return _warning(code, counts, numbers, _remedy(flag, info))


def _remedy(flag: Flag, info: RunInfo) -> tuple[Finding, ...]:
    """Return what to try: of noise the next larger budget, which has more launches."""
    if flag is NOISE:
        budgets = list(BUDGETS)
        budget = budget_of(info)
        larger = budgets[-1]
        if budget == larger:
            return (Finding(code="remedy_launches", numbers={"budget": budget}),)
        if budget in budgets:
            larger = budgets[budgets.index(budget) + 1]
        return (Finding(code="remedy_budget", numbers={"budget": larger}),)
    if flag.remedy:
        return (Finding(code="remedy", numbers={"remedy": flag.remedy}),)
    return ()


def _warning(
    code: str,
    counts: Mapping[Kind, int],
    numbers: Mapping[str, Value] = MappingProxyType({}),
    details: tuple[Finding, ...] = (),
) -> Finding:
    """Return a warning about some rows of each kind; the first kind has more about it."""
    kinds = [kind for kind, count in counts.items() if count]
    subject = " and ".join(kind.count(counts[kind]) for kind in kinds)
    return Finding(
        code=code,
        subject=subject,
        numbers=numbers,
        level="warning",
        section=kinds[0].section,
        details=details,
    )


def budget_of(info: RunInfo) -> str | None:
    """Return the name of the run's budget; None if unknown."""
    budget = info.get("budget") or (info.get("plan") or {}).get("budget")
    if isinstance(budget, Mapping):
        budget = budget.get("name")
    return str(budget) if budget else None


def target_of(info: RunInfo) -> float:
    """Return the half-width of an interval that a run aimed at, as a share."""
    return float(info.get("relative_half_width") or BUDGETS["quick"].relative_half_width)
