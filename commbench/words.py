"""The sentences of findings, one for each code, and how a number reads in them.

A field such as ``{speedup:ratio}`` names a format of `FORMATS`, ``{launches:launch}`` the noun of a
count; other formats are Python's own.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from commbench.units import counted, format_duration, format_size, format_time, three_digits


class Estimate(NamedTuple):
    """A value with the ends of its interval; None where it has none."""

    value: float
    low: float | None = None
    high: float | None = None


def _ratio(ratio: float | Estimate) -> str:
    if not isinstance(ratio, Estimate):
        return f"{ratio:.3g}"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.3g}"
    return f"{ratio.value:.3g} [{ratio.low:.3g}, {ratio.high:.3g}]"


def _speedup(speedup: Estimate) -> str:
    if speedup.low is None or speedup.high is None:
        return f"{speedup.value:.3f}"
    return f"{speedup.value:.3f} [{speedup.low:.3f}, {speedup.high:.3f}]"


def _rate(rate_GBps: Estimate) -> str:  # noqa: N803 - a unit
    text = f"{three_digits(rate_GBps.value)} GB/s"
    if rate_GBps.low is None or rate_GBps.high is None:
        return text
    return f"{text} [{three_digits(rate_GBps.low)}, {three_digits(rate_GBps.high)}]"


def _signed(difference: Estimate) -> str:
    if difference.low is None or difference.high is None:
        return f"{difference.value:+.2g}"
    return f"{difference.value:+.2g} [{difference.low:+.2g}, {difference.high:+.2g}]"


def _level(share: float) -> str:
    return f"{100 * share:.4g} %"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _microseconds(time_us: float) -> str:
    return format_time(time_us * 1e-6)


#: How a field of a sentence is written, by the name after its colon.
FORMATS: Mapping[str, Callable[[Any], str]] = MappingProxyType(
    {
        "GBps": _rate,
        "digits": three_digits,
        "duration": format_duration,
        "level": _level,
        "percent": _percent,
        "ratio": _ratio,
        "signed": _signed,
        "size": format_size,
        "speedup": _speedup,
        "us": _microseconds,
        "verdict": {
            "change": "a gain",
            "keep": "no gain beyond 2 %",
            "inconclusive": "inconclusive",
        }.__getitem__,
    }
)
#: Nouns that a field's name of a format counts.
NOUNS = frozenset(
    {
        "alternative",
        "block",
        "case",
        "configuration",
        "event",
        "fresh launch",
        "host",
        "launch",
        "rank",
        "row",
        "setting",
        "step",
    }
)


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
        # A run: its state, its time, its origin.
        "energy_missing": "Energy of {subject}: {error}.",
        "imported_from": "Measured by {subject}, imported from {files}.",
        "in_place": (
            "In place: {operations}. OSU and IMB use a second buffer, as --in-place out does over"
            " MPI; nccl-tests prints both."
        ),
        "run_cut": (
            "Cut short: {why}. Everything measured is kept; the same command with --out {path} goes"
            " on from there."
        ),
        "run_cut_live": "Cut short: {why}. The same command with --out {path} adds a launch.",
        "run_empty": "Nothing has been measured yet.",
        "run_undecided": "No verdict yet: {launches} of {planned:fresh launch} made.",
        "run_unfinished": (
            "Not finished: {why}. Everything measured is kept; the same command with --out {path}"
            " goes on from there."
        ),
        "run_unfinished_live": (
            "Not finished: {why}. The same command with --out {path} adds a launch."
        ),
        "runs_unlike": (
            "Unlike in {conditions}: these conditions can explain differences between the runs."
        ),
        "time": (
            "Where {seconds:duration} went: starting ranks {starting:percent}, measuring"
            " {measuring:percent}, preparation, verification and collecting samples"
            " {other:percent}."
        ),
        "time_live": ("Tuning took {seconds:duration} of the training, in {launches:launch}."),
        "time_of_hung": "That includes waiting for hung ranks in {launches:launch}.",
        "time_watched": ("Watching took {seconds:duration} of the training, in {launches:launch}."),
        # Speed of the network, and how exactly it is known.
        "slow": "{sentence}",
        "slow_none": "{sentence}",
        "bandwidth": "{subject} {operation} {busbw:GBps} at {size:size}",
        "bandwidth_best_of_cases": ("Bus bandwidth of {subject}, the best of its {count} cases."),
        "bandwidth_best_of_groups": ("Bus bandwidth of {subject}, the best of its {count} groups."),
        "bandwidth_best_of_sizes": ("Bus bandwidth of {subject}, the best of its {count} sizes."),
        "bandwidth_of_link": (
            "{subject} {operation} {busbw:GBps} at {size:size}, {share:percent} of the link's"
            " {link}"
        ),
        "bandwidth_of_links": (
            "{subject} {operation} {busbw:GBps} at {size:size}, {share:percent} of {link}"
        ),
        "bandwidth_of_one": "Bus bandwidth of {subject}, measured at one size.",
        "brief_bimodal": "{subject}: times are bimodal within a launch.",
        "brief_bimodal_launches": "{subject}: launches are bimodal.",
        "brief_harness": (
            "{subject}: {overhead:percent} is time of commbench's loop around an empty call."
        ),
        "brief_late": (
            "{subject}: more than a fifth of the repetitions started late and were dropped."
        ),
        "brief_unsteady": "{subject}: times drifted within launches.",
        "latency": "{subject} {time}",
        "latency_is_half": "Half the round trip of {size:size}.",
        "pairs": "{subject}: {range}",
        "pairs_meaning": (
            "From the slowest to the fastest pair, each the median of {launches:launch}."
        ),
        "pairs_of_hosts": "{subject}: {between} between hosts, {within} within hosts",
        "precision": (
            "Over {subject} {within} of {rows:row} have an interval within {target:level} either"
            " way (median {median:.2g} %)."
        ),
        "precision_none": (
            "Over {subject} {within} of {rows:row} have an interval within {target:level} either"
            " way (median over 100 %)."
        ),
        "states": (
            "The machine was in two states: over {subject} {share:percent} of visits met the fast"
            " one; in the slow one the probe took {ratio:.2f} times as long. The table shows the"
            " fast state, collectives.csv both."
        ),
        # A recommendation: what to do.
        "setting_change": "{subject}: change to {setting}.",
        "setting_change_altering": (
            "{subject}: keep {baseline}, or change to {setting}, which alters learning."
        ),
        "setting_change_either": (
            "{subject}: change to {safe}, which leaves learning as it is, or change to {setting},"
            " which alters learning."
        ),
        "setting_inconclusive": "{subject}: keep {baseline} for now.",
        "setting_keep": "{subject}: keep {baseline}.",
        "setting_none": "{subject}: nothing can be recommended.",
        # A recommendation: what it rests on, and what would decide; written by the decision.
        "decide": "{sentence}",
        "env_chosen": "{sentence}",
        "reason": "{sentence}",
        # A recommendation: settings that are not recommended, and what it takes.
        "withheld_half_precision_unnamed": (
            "In half precision the fastest is {subject}, {speedup:speedup} times as fast as"
            " {baseline} ({verdict:verdict}); it is not recommended unless you name it by --hook or"
            " --allow."
        ),
        "withheld_lossy_unnamed": (
            "Of lossy hooks the fastest is {subject}, {speedup:speedup} times as fast as {baseline}"
            " ({verdict:verdict}); it is not recommended unless you name it by --hook or --allow"
            " and give {proofs}."
        ),
        "withheld_lossy_unproven": (
            "Of lossy hooks the fastest is {subject}, {speedup:speedup} times as fast as {baseline}"
            " ({verdict:verdict}); it is not recommended unless you give {proofs}."
        ),
        # A recommendation: the fastest setting of each effect on learning.
        "fastest_batch": (
            "With another accumulation the fastest is {subject}, {speedup:speedup} times as fast as"
            " {baseline} ({verdict:verdict})."
        ),
        "fastest_buffers": (
            "Without the broadcast of buffers the fastest is {subject}, {speedup:speedup} times as"
            " fast as {baseline} ({verdict:verdict})."
        ),
        "fastest_compiled": (
            "With torch.compile the fastest is {subject}, {speedup:speedup} times as fast as"
            " {baseline} ({verdict:verdict})."
        ),
        "fastest_half_precision": (
            "In half precision the fastest is {subject}, {speedup:speedup} times as fast as"
            " {baseline} ({verdict:verdict})."
        ),
        "fastest_lossy": (
            "Of lossy hooks the fastest is {subject}, {speedup:speedup} times as fast as {baseline}"
            " ({verdict:verdict})."
        ),
        "fastest_over_half": "{subject} ran {speedup:speedup} times as fast as {half}.",
        "fastest_safe": (
            "Of those that leave learning as it is the fastest is {subject}, {speedup:speedup}"
            " times as fast as {baseline} ({verdict:verdict})."
        ),
        "fastest_safe_none": (
            "No setting that leaves learning as it is was faster than {baseline}."
        ),
        "fastest_safe_unmeasured": (
            "Of those that leave learning as it is the fastest is {subject}, not measured again."
        ),
        # A recommendation: the effect on learning.
        "learning_few_steps": "{steps:step} are too few to judge the effect on learning.",
        "learning_loss": (
            "After {steps} steps the training loss of {subject} is {loss:.4g} against"
            " {loss_baseline:.4g} (paired by launch: {difference:signed}), after equal time"
            " {equal_time:.4g} against {equal_time_baseline:.4g} (paired:"
            " {equal_time_difference:signed})."
        ),
        "learning_metric": (
            "Its {metric} is {value:.4g} against {value_baseline:.4g} (paired:"
            " {difference:signed})."
        ),
        "learning_no_more": "In equal time {subject} learnt no more than {baseline}.",
        "learning_of_other_batch": (
            "Speed is per sample: with another accumulation a step of the optimiser sees other"
            " numbers of them."
        ),
        "learning_unmeasured": (
            "What {subject} does to learning was not measured: the workload has no loss."
        ),
        "learning_unmeasured_live": (
            "What {subject} does to learning was not measured: all settings trained the same model"
            " in turn."
        ),
        # A recommendation: how the choice was limited, and found.
        "accuracy_limit": (
            "Left out, as no more than {limit:g} of accuracy may be lost: {settings}."
        ),
        "accuracy_limit_met": (
            "As asked, no more than {limit:g} of accuracy may be lost; nothing was left out for"
            " that."
        ),
        "accuracy_limit_more": (
            "Left out, as no more than {limit:g} of accuracy may be lost: {settings}; and {more}"
            " more."
        ),
        "search": (
            "Of {settings:alternative}, {afresh} measured in fresh launches, {in_rounds} in rounds"
            " only, and {predicted} judged by prediction (median error {error:.1f} % at"
            " {held_out:setting} measured later)."
        ),
        "search_of_unknown_error": (
            "Of {settings:alternative}, {afresh} measured in fresh launches, {in_rounds} in rounds"
            " only, and {predicted} judged by prediction (of unknown error)."
        ),
        "limit": "Warning: {sentence}.",
        # Rows with a flag or without a result; the subject counts them.
        "flag_ci_wide": "{subject} have an interval wider than {target:level} either way.",
        "flag_few_launches": (
            "{subject} come from fewer than 6 launches; intervals assume log-normal launches."
        ),
        "flag_imported": (
            "{subject} are figures of another tool, without raw repetitions and intervals, with"
            " time as it defines it."
        ),
        "flag_one_launch": (
            "{subject} come from one launch, but launches differ more than repetitions."
        ),
        "flag_short": "{subject} have fewer than 3 timed steps in a launch.",
        "flag_slowest_group": (
            "{subject} are of a group that was slower than the median one of its pattern, beyond"
            " noise."
        ),
        "flagged": "{subject} are flagged {flag}: {meaning}.",
        "flagged_noisy": "{subject} are noisy ({flags}).",
        "launches_undecidable": (
            "{launches:launch} cannot show one of {settings:configuration} to be faster or slower,"
            " whatever the difference: go by the fresh launches of the recommendation, or add"
            " launches."
        ),
        "remedy": "To try: {remedy}.",
        "remedy_budget": "To try: --budget {budget} with a new --out, or a quieter machine.",
        "remedy_launches": (
            "To try: more launches, as --budget {budget} is in use already, or a quieter machine."
        ),
        "rows_failed": "{subject} failed: the same command measures them again.",
        "rows_hung": "{subject} hung: the same command measures them again.",
        "rows_unsupported": "{subject} are not supported by their backend.",
        "rows_why": "The reason: {error}.",
        "rows_why_first": "The first of {causes} reasons: {error}.",
        "rows_wrong": (
            "{subject} hold wrong data and no bandwidth: do not trust this library and transport"
            " with these sizes."
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
    }
)


def sentence_of(code: str, subject: str, numbers: Mapping[str, object]) -> str:
    """Return the sentence of a finding.

    Raises:
        KeyError: there is no such code, or its sentence has a field without a number.
    """
    return _Words().vformat(SENTENCES[code], (), {"subject": subject, **numbers})
