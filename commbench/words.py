"""The sentences of findings, one for each code, and how a number reads in them.

A field such as ``{speedup:ratio}`` names a format of `FORMATS`, ``{launches:launch}`` the noun of a
count; other formats are Python's own. A list may hold findings, which are clauses then.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from commbench.units import (
    clock_time,
    counted,
    format_duration,
    format_seconds,
    format_size,
    format_time,
    three_digits,
)


class Estimate(NamedTuple):
    """A value with the ends of its interval; None where it has none."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """The ends of the interval; the value itself without one."""
        if self.low is None or self.high is None:
            return self.value, self.value
        return self.low, self.high


def _ratio(ratio: float | Estimate) -> str:
    if not isinstance(ratio, Estimate):
        return f"{ratio:.3g}"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.3g}"
    return f"{ratio.value:.3g} [{ratio.low:.3g}, {ratio.high:.3g}]"


def thousandths(ratio: Estimate) -> str:
    """Return a ratio with three decimals and its interval: ``0.821 [0.811, 0.835]``."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.3f}"
    return f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def _change(ratio: Estimate) -> str:
    change = f"{_signed(ratio.value)} %"
    if ratio.low is None or ratio.high is None:
        return change
    return f"{change} [{_signed(ratio.low)}, {_signed(ratio.high)}]"


def _signed(ratio: float) -> str:
    percent = 100 * (ratio - 1)
    if abs(percent) < 1000:  # noqa: PLR2004 - beyond, three digits would need an exponent
        return f"{percent:+.3g}"
    return f"{percent:+.0f}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _list(items: Sequence[object], separator: str = ", ") -> str:
    texts = [str(item) for item in items[:MOST_LISTED]]
    more = len(items) - MOST_LISTED
    if more > 0:
        texts[-1] += f" and {more} more"
    return separator.join(texts)


def _clauses(items: Sequence[object]) -> str:
    return _list(items, "; ")


def _microseconds(time_us: float) -> str:
    return format_time(time_us * 1e-6)


#: How a field of a sentence is written, by the name after its colon.
FORMATS: Mapping[str, Callable[[Any], str]] = MappingProxyType(
    {
        "change": _change,
        "clauses": _clauses,
        "digits": three_digits,
        "duration": format_duration,
        "list": _list,
        "percent": _percent,
        "ratio": _ratio,
        "seconds": format_seconds,
        "size": format_size,
        "thousandths": thousandths,
        "us": _microseconds,
        "utc": clock_time,
    }
)
#: Nouns that a field's name of a format counts.
NOUNS = frozenset(
    {
        "block",
        "case",
        "event",
        "expectation",
        "group",
        "host",
        "launch",
        "link",
        "rank",
        "row",
        "spike",
        "start",
        "step",
        "straggler",
        "visit",
    }
)
#: The most items of a list; further ones are counted.
MOST_LISTED = 8


class _Words(string.Formatter):
    """Python's formatting, with `FORMATS` and `NOUNS`."""

    def format_field(self, value: Any, format_spec: str) -> str:  # noqa: ANN401 - as in the base
        if format_spec in FORMATS:
            return FORMATS[format_spec](value)
        if format_spec in NOUNS:
            return counted(value, format_spec)
        return str(super().format_field(value, format_spec))


#: The sentence of each code; fields are the subject and the numbers, with a name of `FORMATS`.
SENTENCES: Mapping[str, str] = MappingProxyType(
    {
        # A case without a result, by what refused it.
        "algorithm_not_offered": (
            "{backend} takes no algorithm from --algorithm; its library may have variables of its"
            " own for it"
        ),
        "average_inexact": (
            "the average of {dtype} has no exact answer: libraries round it differently"
        ),
        "bucket_list_missing": (
            "torch {version} has no bucket_cap_mb_list; give one bucket size, or a newer torch"
        ),
        "buffers_not_made": "torch {version} makes no {kind} buffers here: {error}",
        "cache_unknown": (
            "the size of the last-level cache is not known on every rank; use --buffers hot"
        ),
        "channels_fixed": (
            "cupy makes no NCCL communicators of so many channels; use --backend torch-nccl, or set"
            " NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS for a parent run"
        ),
        "communicator_not_made": "NCCL makes no communicator for {algorithm}: {error}",
        "compiler_missing": (
            "torch.compile needs a C++ compiler on this host: install g++, or leave out --compile"
        ),
        "ddp_argument_missing": "DDP of torch {version} has no {argument}; use a newer torch",
        "ddp_optimizer_small_bucket": (
            "ddp_optimizer takes no buckets below 1 MiB; choose larger --bucket-cap-mb"
        ),
        "dtype_not_reduced": (
            "this MPI library has no {dtype} to reduce in; use float32, or backend gloo"
        ),
        "elements_wrong": "{wrong} elements differ from the known answer{where}",
        "gpu_memory_full": (
            "the GPU's memory has no room for another {size}, {free} are free; choose smaller"
            " --sizes"
        ),
        "graph_refused": "no graph can hold {operation} here: {error}",
        "graph_waits": (
            "{backend}'s {operation} waits on the host, which no graph can hold; use --cadence"
            " isolated"
        ),
        "graphs_unsupported": "NCCL {version} cannot be captured in CUDA graphs, 2.9 or newer can",
        "hook_bytes_unknown": "what hook {hook} sends is measured, not predicted",
        "hosts_unequal": (
            "pattern hierarchical needs several hosts with equally many ranks, two or more, on"
            " each, and this run has {found}; use pattern flat"
        ),
        "idle": (
            "among one rank {backend} has nothing to do in place, and there is nothing to time; use"
            " more ranks, or --in-place out where the operation has it"
        ),
        "imported_defects": "IMB found defects.",
        "imported_failure": "OSU's validation failed.",
        "in_place_only": "torch.distributed reduces in place only; use --in-place in",
        "library_refused": "{error}",
        "loop_missing": "{backend} has no {loop} loop; use --loop {loops}",
        "matrix_of_all_ranks": "a matrix is of all ranks; leave --world-sizes out",
        "matrix_of_plain_calls": (
            "a matrix is timed call by call on the same buffers; leave other cadences and"
            " buffers out"
        ),
        "message_too_large": (
            "{backend} takes at most {most} elements in one call, this case has {elements}; use a"
            " larger data type or a smaller message"
        ),
        "missing": "{backend} has no {what}",
        "native_form_missing": "this operation has no native form; use --loop python",
        "never_on_time": "no repetition started on time; use --sync dissemination",
        "never_queued_in_time": (
            "the GPU waited for the host in every repetition; use --cadence pipelined or graph"
        ),
        "no_group": "pattern {pattern} makes no group of two ranks or more of {placement}",
        "not_persistent": (
            "{library} has no {function}, which came with MPI 4.0; use --cadence isolated"
        ),
        "operation_not_in_pattern": (
            "pattern {pattern} is for {offered}, and {operation} was asked for; use pattern flat"
        ),
        "overlap_rotates": (
            "{operation} and its overlap are timed on the same buffers; use --buffers hot"
        ),
        "pair_wrong": "the data differs from the known answer",
        "parameters_differ": "its ranks ended with different parameters",
        "redop_missing": "MPI has no {redop}; reduce by sum, or use backend gloo",
        "root_outside_group": (
            "root {root} counts within a group, and pattern {pattern} makes groups of {size} ranks"
            " here"
        ),
        "start_method_missing": "{backend} cannot start ranks by {sync}; use --sync {syncs}",
        "stated": "{sentence}",
        "python_reducer_hook": (
            "python_reducer calls no communication hook such as {hook}; use --hook none with it"
        ),
        "static_graph_accumulates": (
            "DDP of torch {version} fails in its first step where a static graph accumulates; leave"
            " out one of the two"
        ),
        "too_few_ranks": "{operation} needs at least {minimum} ranks, this run has {ranks}",
        # A launch that failed or hung.
        "daemon_lost": "mpirun has lost its daemon on host {host}",
        "hosts_silent": "{hosts} not been heard of {since}{suspicion}",
        "launcher_ended": "the launcher ended with exit status {status}{last_line}",
        "launcher_not_started": (
            "{program} cannot be started ({error}); install it again, or load its module"
        ),
        "no_progress": "no progress for {timeout_s} s: {cause}",
        "no_rank_heard": "no rank has been heard of since the launch was started",
        "no_rank_stands_out": (
            "all ranks are alive and equally far; none can be told to be the cause"
        ),
        "rank_died": "{subject} has died: others lost their connection to it",
        "rank_ended": "ended by {signal}: a person, a time limit or a failed rank",
        "rank_killed": "{subject} was killed by signal {signal} ({meaning}){memory}{remedy}",
        "rank_left": "{subject} left with exit status {status}{remedy}",
        "rank_raised": "{subject} raised {error}",
        "rank_stuck": "{subject} {state}{others}",
        "ranks_not_started": "the ranks could not be started: {remedy}",
        # A soak: spikes, failed launches, drift; who caused them, and the evidence.
        "evidence_late": "the others waited for it",
        "evidence_late_all": "all ranks waited, and none was late by itself",
        "evidence_stalled": "its process did not run: it was stopped, or had no CPU",
        "evidence_stalled_all": "no process ran",
        "soak_drift_faster": (
            "Drift: {subject} became {change:.1f} % faster from the first launch to the last"
            " (interval {low:+.1f} to {high:+.1f} %)."
        ),
        "soak_drift_none": "Drift: {cases:case} stayed within 2 %.",
        "soak_drift_slower": (
            "Drift: {subject} became {change:.1f} % slower from the first launch to the last"
            " (interval {low:+.1f} to {high:+.1f} %)."
        ),
        "soak_drift_unclear": (
            "Drift: {cases:case} with too few launches, or too wide an interval, to tell."
        ),
        "soak_events": (
            "Soak of {seconds:duration}, {launches:launch} and {visits:visit}: {spikes:spike} and"
            " {failures:launch} that failed or hung."
        ),
        "soak_failed": "{began:utc} UTC, {lasted:seconds}: launch {launch} failed: {cause}.",
        "soak_hung": "{began:utc} UTC, {lasted:seconds}: launch {launch} hung: {cause}.",
        "soak_more": "{more} more events are in events.csv.",
        "soak_quiet": (
            "Soak of {seconds:duration}, {launches:launch} and {visits:visit}: no spike, no"
            " failure."
        ),
        "soak_spike": "{began:utc} UTC, {lasted:seconds}: {subject} ({cause}), during {case}.",
        "soak_spikes": (
            "Soak of {seconds:duration}, {launches:launch} and {visits:visit}: {spikes:spike}."
        ),
        "who_all": "system-wide",
        "who_host": "host {host}",
        "who_rank": "rank {ranks}",
        "who_rank_on": "rank {ranks} on host {host}",
        "who_ranks": "ranks {ranks}",
        "who_ranks_on": "ranks {ranks} on host {host}",
        # Stragglers: hosts, ranks, links and groups that are slower than their peers.
        "slow_both": "Slow: {subject}: its links take longer than the others': {seen:clauses}.",
        "slow_detectable": "{slowdown:percent} among {count:{kind}}",
        "slow_evidence": (
            "{measured}, slower than the typical {kind} in {slower} of {launches} launches, p ="
            " {p_value:.1g}"
        ),
        "slow_hint": (
            "{subject} came out slowest, {factor:ratio} times the typical {kind}, maybe by chance."
        ),
        "slow_late": (
            "Slow: {subject}: it arrives late, and operations take longer by it: {seen:clauses}."
        ),
        "slow_link": "Slow: {subject}: it takes longer than the typical link: {seen:clauses}.",
        "slow_more": "Slow, too: {more:straggler} more, in run.json.",
        "slow_none": (
            "Nothing is slower than its peers by more than noise; a slowdown would have been seen"
            " of {detectable:list}."
        ),
        "slow_observation": "{factor:ratio} times in {measured}",
        "slow_operations": (
            "Slow: {subject}: operations take longer than those of the others: {seen:clauses}."
        ),
        "slow_receives": (
            "Slow: {subject}: receiving takes it longer than the others: {seen:clauses}."
        ),
        "slow_sends": "Slow: {subject}: sending takes it longer than the others: {seen:clauses}.",
        "slow_two_hosts": "With two hosts it cannot be told which of the two is slow; add a third.",
        "slow_two_ranks": "With two ranks it cannot be told which of the two is slow; add a third.",
        "slow_unjudged": (
            "{count:{kind}} are not judged: {launches:launch} cannot distinguish slowness from"
            " chance, and {needed} would."
        ),
        "slow_uplink": "Slow: {subject}: they take longer than the typical link: {seen:clauses}.",
        "slow_uplink_evidence": "{measured}, all {links} are slow",
        "slow_way_back": (
            "{subject} takes {factor:.2g} times as long as back, but with two hosts it cannot be"
            " told which of the two is slow; add a third."
        ),
        "slow_within": (
            "Slow: {subject}: pairs of its own ranks take longer than the others': {seen:clauses}."
        ),
        # Concurrent groups.
        "groups_even": "{subject}: no group is slower than the median one beyond noise.",
        "groups_slowest": "{subject}: slowest group {group}: {ratio:.2f} times the median.",
        "groups_slowest_at": (
            "{subject}: slowest group {group}: {ratio:.2f} times the median at {at}."
        ),
        "groups_slowest_often": (
            "{subject}: slowest group {group}: {ratio:.2f} times the median at {at}; the slowest in"
            " {often} of {cases:case}."
        ),
        # Matrices of pairs.
        "pairs_untimed": (
            "{untimed} of {pairs} pairs of ranks could not be timed: none of their repetitions"
            " started on time; use --sync dissemination"
        ),
        # A prediction that cannot be made.
        "hook_unmeasured": (
            "A step with hook {subject} was to be predicted, but only {hooks} can be: measure one"
            " setting of it first, and the collectives that it uses."
        ),
        "links_unmeasured": (
            "{subject} was measured within one host and is not predicted for {ranks} ranks"
            " on hosts of {ranks_per_node}: nothing is known of links between hosts; give --rate,"
            " or measure across hosts."
        ),
        "operation_unmeasured": (
            "Nothing is known of {subject} of {dtype}; measure it: commbench run --backend"
            " {backend} --collective {operation} --dtype {dtype} --sizes 64K:64M:4."
        ),
        "within_host_unmeasured": (
            "{subject} was measured across hosts alone and is not predicted for {ranks}"
            " ranks, which fit on one host of {ranks_per_node}; measure it within a host, too, and"
            " give both runs."
        ),
        # A watched training.
        "watched_bound": (
            "Without exposed communication of gradients a step would be {gain:.2f} times as fast;"
            " that is the bound. To try: commbench tune -- {command}"
        ),
        "watched_even": "No rank is slower than the others beyond noise.",
        "watched_exposed": "{share:percent} of a step is exposed communication of gradients.",
        "watched_ranks": (
            "Between two exchanges of gradients a rank computes for {fastest_ms:digits} ms (rank"
            " {fastest}) to {slowest_ms:digits} ms (rank {slowest})."
        ),
        "watched_step": (
            "A step takes {mean_ms:digits} ms on average over {steps:step}, {median_ms:digits} ms"
            " in the median. The parts are of the rank that the others wait for."
        ),
        "watched_straggler": (
            "The straggler is {subject}: the others wait {late_ms:digits} ms for its gradients."
        ),
        # Expectations of a run, and why a row is not tested or not shown.
        "check_empty": "The row has no {column}.",
        "check_holds_bound": "The interval holds the bound.",
        "check_link": "Link: {limit}.",
        "check_link_given": "Link: {rate} (--link).",
        "check_no_interval": "The row has no interval.",
        "check_no_ranks": "The run compares no ranks; measure the suite matrix.",
        "check_no_row": "The run has no such row.",
        "check_one_launch": "One launch does not show how much launches differ.",
        "check_outcomes": "{expectations:expectation}: {outcomes:list}.",
        "check_reason": "{subject}: {outcome}. {reason}",
        "check_status": "The row's status is {status}.",
        "check_unverified": "The result was not verified.",
        # A comparison of runs: the answer, what is beyond a threshold, conditions, advice.
        "compare_beyond": "Beyond {limit:g} %: {cases:clauses}.",
        "compare_broken": "Not compared: {subject} is {status_a} in A and {status_b} in B.",
        "compare_change": "{subject} {change:change}",
        "compare_few_baselines": (
            "{baselines} baselines leave the variance between runs uncertain, so intervals are"
            " wide, and the wider the more cases there are: keep {enough}."
        ),
        "compare_few_launches": (
            "A single changed case among {cases} could not be detected with so few launches,"
            " however large the change: measure with more launches (--budget standard or rigorous)"
            " or compare fewer cases."
        ),
        "compare_forced": "A and B were measured under different conditions.",
        "compare_incomplete": "B is not complete: {cases:case} of A not measured.",
        "compare_lost": "{cases:case} lost: ok in A and not in B.",
        "compare_lost_cases": "Lost: {cases:clauses}.",
        "compare_near": ("{cases:case} so near the margin that no number of launches would tell."),
        "compare_noisy": (
            "{cases:case} too noisy for {launches} launches to tell: a quieter machine helps more"
            " than further launches."
        ),
        "compare_noisy_runs": (
            "{cases:case} too noisy for {launches} launches to tell: a quieter machine or more"
            " baselines help more than further launches."
        ),
        "compare_none": "{slower} of {cases:case} slower.",
        "compare_none_beyond": "None beyond {limit:g} %.",
        "compare_none_seen": (
            "None beyond {limit:g} %; half of the cases would have shown {slowdown:+.1f} %."
        ),
        "compare_none_visible": (
            "None beyond {limit:g} %; half of the cases would have shown no slowdown."
        ),
        "compare_only_a": "Only in A: {cases:clauses}.",
        "compare_only_b": "Only in B: {cases:clauses}.",
        "compare_others": (
            "{faster} faster, {same} same, {inconclusive} inconclusive, with a margin of {margin:g}"
            " %."
        ),
        "compare_refused": (
            "{subject} were measured under different conditions ({differences:clauses}), which"
            " could explain a difference of times: measure again under the same conditions, or add"
            " --force to compare anyway."
        ),
        "compare_settled": (
            "{cases} of the inconclusive cases would be settled by {low} to {high} more launches of"
            " each run (column more), if the estimates hold: the commands that made the runs add"
            " them, with a larger --launches and the same --out."
        ),
        "compare_settled_by": (
            "{cases} of the inconclusive cases would be settled by {high:launch} more of each run"
            " (column more), if the estimates hold: the commands that made the runs add them, with"
            " a larger --launches and the same --out."
        ),
        "compare_settled_open": (
            "{cases} of the inconclusive cases would be settled by {low} to {high} more launches of"
            " each run or more (column more), if the estimates hold: the commands that made the"
            " runs add them, with a larger --launches and the same --out."
        ),
        "compare_slower": "{slower} of {cases:case} slower: {changes:clauses}.",
        "condition_known": "differs, to be known: {subject}: {values}",
        "condition_of_cases": "no verdict where timed unlike: {subject}: {values} - {why}",
        "condition_unsound": "{subject}: {values}, and {why}",
        # Environments of launches.
        "env_fastest": (
            "Fastest: {env} took {best:thousandths} of the time under {subject}; the control, which"
            " is {subject} again, took {control:thousandths} of it."
        ),
        "env_few_launches": (
            "No verdict: {subject} and its control take 2 launches each; add launches."
        ),
        "env_none": (
            "No environment is shown to be faster than {subject}; the control, which is {subject}"
            " again, took {control:thousandths} of its time."
        ),
        "env_unsound": (
            "No verdict on any environment: the control, which is {subject} again, took"
            " {control:thousandths} of its time, a difference without a cause; measure with more"
            " launches on a machine without other work."
        ),
        "variables_nccl_read": "With {subject} NCCL read {read:list}.",
        "variables_logged": "NCCL's log states that it read {names:list}.",
        "variables_ranks_had": "With {subject} the ranks had {had}.",
        "variables_set": "In {right} of {starts:start} every rank had {names:list} as asked.",
        "variables_unlogged": "NCCL's log does not mention {names:list}.",
    }
)


def sentence_of(code: str, subject: str, numbers: Mapping[str, object]) -> str:
    """Return the sentence of a finding.

    Raises:
        KeyError: there is no such code, or its sentence has a field without a number.
    """
    return _Words().vformat(SENTENCES[code], (), {"subject": subject, **numbers})
