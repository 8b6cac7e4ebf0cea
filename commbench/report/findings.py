"""What a run says: findings for a terminal, a page and a log."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from commbench.analysis.expectations import METRICS, interval_of
from commbench.analysis.prediction.links import limit_of
from commbench.analysis.prediction.network import network_model
from commbench.analysis.scaling import all_rank_rows
from commbench.analysis.soak import soak_results
from commbench.analysis.stragglers import straggler_findings
from commbench.analysis.watched import watched_findings
from commbench.collectives.composed import MATRIX
from commbench.collectives.operations import OPERATIONS
from commbench.engine.flags import FLAGS, NOISE, split_flags
from commbench.engine.records import Row
from commbench.findings import Finding, Numbers, Value, shared_cause
from commbench.report.columns import Flagged
from commbench.report.formats import time_with_interval
from commbench.report.matrix import name_range
from commbench.results import MODEL, Run
from commbench.results.info import (
    RunInfo,
    is_live,
    is_watched,
    measures_interconnect,
)
from commbench.results.tables import rows_by
from commbench.results.verdict import recommendation_findings
from commbench.stats import family_hint, median
from commbench.stats.budgets import BUDGETS
from commbench.units import counted
from commbench.words import SENTENCES, Estimate

_backend = attrgetter("backend")

# ------------------------------------------------------------------------------- state and settings


def unfinished(run: Run) -> Iterator[Finding]:
    """Yield why a run is incomplete and how to resume it; nothing of a complete run."""
    status = run.info.get("status", "complete")
    if status == "complete":
        return
    why = run.info.get("reason") or status
    if why == "running":
        why = "it is running, or was killed"
    state = "cut" if status == "cut" else "unfinished"
    code = f"run_{state}"
    if is_live(run.info):
        code = f"run_{state}_live"
    numbers = {"why": why.rstrip("."), "path": shlex.quote(str(run.path))}
    yield Finding(code, numbers=numbers, level="warning")


def setting(run: Run) -> Iterator[Finding]:
    """Yield all about the recommended settings, which are withheld before the first look."""
    if run.decision:
        yield from recommendation_findings(run.decision)
    elif run.recommendation:
        planned = run.info.get("first_look") or 0
        numbers = {"launches": run.recommendation.launches, "planned": planned}
        yield Finding("run_undecided", numbers=numbers, level="verdict")


def watched(run: Run) -> Iterator[Finding]:
    """Yield the share of exposed communication in a watched training, and where steps go."""
    if is_watched(run.info) and run.training_records:
        record = run.training_records[-1]
        yield _headed(watched_findings(record, run.info))


def soak(run: Run) -> Iterator[Finding]:
    """Yield the events and the drift of a soak."""
    results = soak_results(run)
    if results is not None:
        yield _headed(results.findings())


def _headed(findings: Sequence[Finding]) -> Finding:
    """Return the first as a verdict, with the others as its details."""
    return replace(findings[0], level="verdict", details=tuple(findings[1:]))


def stragglers(run: Run) -> list[Finding]:
    """Return what is slow, or that nothing was found to be."""
    search = straggler_findings(run)
    if not search.stragglers:
        return search.findings()
    return [replace(finding, level="verdict") for finding in search.findings()]


def time_spent(run: Run) -> Iterator[Finding]:
    """Yield the shares of the run's time; nothing before the first launch has ended."""
    launches = run.info.get("launches", [])
    totals = dict.fromkeys(("seconds", "startup_s", "measuring_s", "other_s"), 0.0)
    for launch in launches:
        for name in totals:
            totals[name] += launch.get(name, 0.0)  # type: ignore[operator]
    seconds = totals.pop("seconds")
    if not seconds:
        return
    code = "time"
    if is_watched(run.info):
        code = "time_watched"
    elif is_live(run.info):
        code = "time_live"
    shares = {name: part / seconds for name, part in totals.items()}
    yield Finding(code, numbers={"seconds": seconds, "launches": len(launches), **shares})


def origins(run: Run) -> Iterator[Finding]:
    """Yield each tool that measured an imported run."""
    files: dict[str, list[str]] = {}
    for output in run.info.get("imported", ()):
        tool = f"{output['tool']} {output['version'].removeprefix('OSU ')}".strip()
        files.setdefault(tool, []).append(output["file"])
    for tool, names in files.items():
        yield Finding("imported_from", tool, {"files": ", ".join(names)})


def unmetered(run: Run) -> Iterator[Finding]:
    """Yield each kind of energy that was not counted, with the reason."""
    if energy := run.info.get("energy"):
        for kind, why in energy["missing"].items():
            yield Finding("energy_missing", kind, {"error": why})


# --------------------------------------------------------------------------------- the network


def bandwidths(run: Run) -> Iterator[Finding]:
    """Yield the best bandwidth of each backend in one operation, all-reduce over all ranks if
    timed, and its share of the link's rate if known.
    """
    rated = [row for row in _network_rows(run) if row.busbw_GBps is not None]
    operations = list(OPERATIONS)
    for backend, rows in rows_by(rated, _backend).items():
        kinds = rows_by(rows, attrgetter("operation", "pattern"))
        operation, pattern = min(
            kinds, key=lambda kind: (kind[1] != "flat", operations.index(kind[0]))
        )
        comparable = kinds[operation, pattern]
        if pattern != "flat":
            operation = f"{operation} {pattern}"
        best = max(comparable, key=lambda row: row.busbw_GBps or 0.0)
        numbers = {
            "operation": operation,
            "busbw": busbw_of(best),
            "size": best.message_bytes or 0,
        }
        code = "bandwidth"
        limit = limit_of(best, run.info)
        if limit is not None:
            code = "bandwidth_of_link"
            bound_GBps, numbers["link"] = limit
            numbers["share"] = (best.busbw_GBps or 0.0) / bound_GBps
        # a maximum over many rows is partly chance
        chosen = Finding("bandwidth_best", operation, {"count": len(comparable)})
        details = (chosen, *_briefs(best))
        yield Finding(code, backend, numbers, "verdict", details=details)


def busbw_of(row: Row) -> Estimate:
    """Return the bus bandwidth with the interval that follows from the time's."""
    return Estimate(row.busbw_GBps or 0.0, *interval_of(row, METRICS["busbw"]))


def _briefs(row: Row) -> Iterator[Finding]:
    """Yield what a row's interval does not show, from its flags."""
    numbers = {}
    if row.harness_us is not None and row.time_us:
        numbers["overhead"] = row.harness_us / row.time_us
    for flag in split_flags(row.flags):
        code = f"brief_{flag}"
        if code in SENTENCES:
            yield Finding(code, row.backend, numbers)


def latencies(run: Run) -> Iterator[Finding]:
    """Yield half the round trip of the smallest message, for each backend."""
    timed = []
    for row in _network_rows(run):
        if OPERATIONS[row.operation].is_round_trip and row.time_us is not None:
            timed.append(row)
    for backend, rows in rows_by(timed, _backend).items():
        least = min(rows, key=lambda row: row.message_bytes or 0)
        time = time_with_interval(least.time_us, least.time_us_ci_low, least.time_us_ci_high)
        half = Finding("latency_is_half", numbers={"size": least.message_bytes or 0})
        details = (half, *_briefs(least))
        yield Finding("latency", backend, {"time": time}, "verdict", details=details)


def _network_rows(run: Run) -> Iterator[Row]:
    """Yield the rows with a result over all ranks, without matrices, whose rows pool different
    pairs, and of ranks that share a GPU, whose times do not show the network.
    """
    for row in all_rank_rows(run):
        if row.status == "ok" and row.pattern != MATRIX and measures_interconnect(row):
            yield row


def pairs(run: Run) -> Iterator[Finding]:
    """Yield the range of bandwidths or times over the pairs of ranks of each matrix, separately
    between hosts and within hosts if both exist.
    """
    for matrix in run.linked_matrices:
        between = name_range(matrix, matrix.is_inter)
        within = name_range(matrix, ~matrix.is_inter)
        if between or within:
            code = "pairs_of_hosts" if between and within else "pairs"
            ranges = {"between": between, "within": within, "range": between or within}
            meaning = Finding("pairs_meaning", numbers={"launches": len(matrix.times_us)})
            yield Finding(code, matrix.name, ranges, "verdict", details=(meaning,))


def model_error(run: Run) -> Iterator[Finding]:
    """Yield the errors of the fitted network; nothing without curves."""
    model = network_model(run)
    if not model.curves:
        return
    numbers: Numbers = {
        "curves": len(model.curves),
        "held_out": 100 * model.held_out_error,
        "worst": 100 * model.worst_residual,
        "file": MODEL,
    }
    yield Finding("model", numbers=numbers)


def precision(run: Run) -> Iterator[Finding]:
    """Yield how many rows of each backend have an interval within the target, and the states of
    the machine if there were two.
    """
    target = target_of(run.info)
    sound = [row for row in run.rows if measures_interconnect(row)]
    for backend, rows in rows_by(sound, _backend).items():
        half_widths = half_widths_of(rows)
        if half_widths:
            within = sum(width <= target for width in half_widths)
            numbers = {"within": within, "rows": len(half_widths), "target": target}
            typical = f"±{100 * median(half_widths):.3g} %"
            yield Finding("precision", backend, {"median": typical, **numbers})
    yield from machine_states(run)


def machine_states(run: Run) -> Iterator[Finding]:
    """Yield the two states of the machine under each backend that met both."""
    for backend, levels in run.divided.states.items():
        ratio = levels["slow_us"] / levels["fast_us"]
        numbers = {"share": levels["fast_share"], "ratio": ratio}
        yield Finding("states", backend, numbers, "warning")


def half_widths_of(rows: Iterable[Row]) -> list[float]:
    """Return half the width of each row's interval, as a share of its time."""
    half_widths = []
    for row in rows:
        low, high = row.time_us_ci_low, row.time_us_ci_high
        if row.status == "ok" and row.time_us and low is not None and high is not None:
            half_widths.append((high - low) / 2 / row.time_us)
    return half_widths


# ----------------------------------------------------------------------------------------- warnings

#: Statuses without a result, the worst first.
_FAILURES = ("wrong", "hung", "failed", "unsupported")
#: The code of the one warning about several flags of noise.
_NOISY = "flagged_noisy"
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
    noun: str = "row"
    hidden: frozenset[str] = frozenset()
    """Flags that are not warned of."""

    def flags_of(self, row: Flagged) -> set[str]:
        """Return the names of a row's flags that are warned of."""
        return set(split_flags(row.flags)) - self.hidden


def kinds_of(run: Run) -> list[Kind]:
    """Return the rows of training, of collectives and of pairs.

    A sweep may be short where its fastest settings are compared again.
    """
    hidden: frozenset[str] = frozenset()
    is_compared = run.decision is not None and run.decision.launches >= FEWEST_LAUNCHES
    if is_compared or run.info.get("candidates"):
        hidden = _OF_SHORT_SWEEPS
    collectives = []
    matrices = []
    for row in run.rows:
        if row.pattern == MATRIX:
            matrices.append(row)
        else:
            collectives.append(row)
    training = []
    for trained in run.training_rows:
        if "same_layout" not in split_flags(trained.flags):  # its stand-in has the same flags
            training.append(trained)
    kinds = [
        Kind(section="training", rows=training, noun="training row", hidden=hidden),
        Kind(section="collectives", rows=collectives),
        Kind(section="pairs", rows=matrices, noun="matrix case", hidden=_SPREAD),
    ]
    return [kind for kind in kinds if kind.rows]


def section_warnings(run: Run, *sections: str) -> Iterator[Finding]:
    """Yield all warnings about the rows of some sections of the page, the most severe first."""
    kinds = [kind for kind in kinds_of(run) if kind.section in sections]
    yield from row_warnings(kinds, run.info)
    if "training" in sections:
        yield from _undecidable(run)


def grave_warnings(run: Run) -> list[Finding]:
    """Return the warnings of a run, the most severe first.

    They are failures, severe flags, and medium ones that most rows of a kind have.
    """
    kinds = []
    for kind in kinds_of(run):
        counts = Counter(flag for row in kind.rows for flag in kind.flags_of(row))
        hidden = set(kind.hidden)
        if kind.section == "collectives":
            hidden.add(NOISE.name)  # intervals are a finding of their own
        for name, flag in FLAGS.items():
            is_rare = counts[name] <= len(kind.rows) / 2
            if flag.severity == "low" or (flag.severity == "medium" and is_rare):
                hidden.add(name)
        kinds.append(replace(kind, hidden=frozenset(hidden)))
    return list(row_warnings(kinds, run.info))


def _undecidable(run: Run) -> Iterator[Finding]:
    """Warn if every verdict must be inconclusive: too few launches for so many configurations.

    A tuning plans its launches, and blocks of a live one count, too.
    """
    judged = [row for row in run.training_rows if row.verdict]
    launches = max((row.launches or 0 for row in judged), default=0)
    is_tuned = is_live(run.info) or bool(run.info.get("candidates"))
    if judged and not is_tuned and family_hint(len(judged), launches, launches):
        numbers = {"launches": launches, "settings": len(judged)}
        yield Finding("launches_undecidable", "", numbers, "warning", "training")


def row_warnings(kinds: Sequence[Kind], info: RunInfo) -> Iterator[Finding]:
    """Yield the warnings about rows, the most severe first: failures, then one for each flag.

    Flags of noise share one. What to try is a detail.

    Args:
        kinds: the rows of a run.
        info: contents of ``run.json``.
    """
    counts: dict[str, Counter[Kind]] = {}
    reasons: dict[str, dict[str, str]] = {}
    for kind in kinds:
        for row in kind.rows:
            names = kind.flags_of(row)
            if any(FLAGS[name].is_noise for name in names):
                names.add(_NOISY)
            if row.status != "ok":
                names.add(row.status)
                sentence = row.reason.rstrip(".")
                cause = shared_cause(row.reason_code, sentence)
                reasons.setdefault(row.status, {}).setdefault(cause, sentence)
            for name in names:
                counts.setdefault(name, Counter())[kind] += 1
    for status in _FAILURES:
        if status in counts:
            details = []
            errors = tuple(filter(None, reasons[status].values()))
            if errors:
                details.append(Finding("rows_why", numbers={"errors": errors}))
            yield _warning(f"rows_{status}", counts[status], {}, *details)
    yield from _flagged(counts, info)


def _flagged(counts: Mapping[str, Counter[Kind]], info: RunInfo) -> Iterator[Finding]:
    """Yield a warning for each flag in use; flags of noise share one."""
    used = [flag for flag in FLAGS.values() if flag.name in counts]
    used.sort(key=attrgetter("gravity"))
    noises = [flag for flag in used if flag.is_noise]
    for flag in used:
        if flag.is_noise and len(noises) > 1:
            if flag is noises[0]:
                named = [f"{counts[noise.name].total()} {noise.name}" for noise in noises]
                of_noise = {"flags": ", ".join(named)}
                yield _warning(_NOISY, counts[_NOISY], of_noise, Finding("remedy_noise"))
            continue
        code = f"flag_{flag.name}"
        if code not in SENTENCES:
            code = "flagged"
        details = []
        if flag is NOISE:
            details.append(Finding("remedy_noise"))
        elif flag.remedy:
            details.append(Finding("remedy", numbers={"remedy": flag.remedy}))
        words = {"flag": flag.name, "meaning": flag.meaning}
        yield _warning(code, counts[flag.name], {**words, "target": target_of(info)}, *details)


def _warning(
    code: str, counts: Mapping[Kind, int], numbers: Mapping[str, Value], *details: Finding
) -> Finding:
    """Return a warning about some rows of each kind; the first kind has more about it."""
    phrases = []
    for kind, count in counts.items():
        phrases.append(f"{count} of {counted(len(kind.rows), kind.noun)}")
    subject = " and ".join(phrases)
    section = next(iter(counts)).section
    return Finding(code, subject, numbers, "warning", section, details)


def target_of(info: RunInfo) -> float:
    """Return the half-width of an interval that a run aimed at, as a share."""
    return info.get("relative_half_width") or BUDGETS["quick"].relative_half_width
