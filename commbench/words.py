"""The sentences of findings, one for each code, and how a number reads in them.

A field such as ``{speedup:ratio}`` names a format of `FORMATS`, ``{launches:launch}`` the noun of a
count; other formats are Python's own. A list may hold findings, which are clauses then.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from commbench.units import (
    clock_time,
    counted,
    format_duration,
    format_seconds,
    format_size,
    percent,
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


def interval_text(estimate: Estimate, text_of: Callable[[float], str], unit: str = "") -> str:
    """Return the text of a value with its unit, and of the ends of its interval if it has one."""
    text = f"{text_of(estimate.value)}{unit}"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{text_of(estimate.low)}, {text_of(estimate.high)}]"


def _ratio(ratio: float | Estimate) -> str:
    if isinstance(ratio, Estimate):
        return interval_text(ratio, "{:.3g}".format)
    return f"{ratio:.3g}"


def thousandths(ratio: Estimate) -> str:
    """Return a ratio with three decimals and its interval: ``0.821 [0.811, 0.835]``."""
    return interval_text(ratio, "{:.3f}".format)


def _percent_change(ratio: float) -> str:
    change = 100 * (ratio - 1)
    if abs(change) < 1000:  # beyond, three digits would need an exponent
        return f"{change:+.3g}"
    return f"{change:+.0f}"


def _level(share: float) -> str:
    return f"{100 * share:.4g} %"


def _list(items: Sequence[object], separator: str = ", ") -> str:
    texts = [str(item) for item in items[:MOST_LISTED]]
    more = len(items) - MOST_LISTED
    if more > 0:
        texts[-1] += f" and {more} more"
    return separator.join(texts)


#: How a field of a sentence is written, by the name after its colon.
FORMATS: Mapping[str, Callable[[Any], str]] = MappingProxyType(
    {
        "change": partial(interval_text, text_of=_percent_change, unit=" %"),
        "clauses": partial(_list, separator="; "),
        "digits": three_digits,
        "duration": format_duration,
        "GBps": partial(interval_text, text_of=three_digits, unit=" GB/s"),
        "level": _level,
        "list": _list,
        "percent": percent,
        "ratio": _ratio,
        "seconds": format_seconds,
        "signed": partial(interval_text, text_of="{:+.2g}".format),
        "size": format_size,
        "thousandths": thousandths,
        "utc": clock_time,
        "verdict": {
            "change": "a gain",
            "keep": "no gain beyond 2 %",
            "inconclusive": "inconclusive",
        }.__getitem__,
    }
)
#: Nouns that a field counts; a nested field, as in ``{units:{kind}}``, may name one.
NOUNS = frozenset(
    {
        "CPU",
        "GPU",
        "alternative",
        "block",
        "case",
        "confirmation block",
        "configuration",
        "core",
        "curve",
        "element",
        "expectation",
        "confirmation launch",
        "group",
        "host",
        "inconclusive case",
        "interval",
        "launch",
        "link",
        "more confirmation launch",
        "more event",
        "more time",
        "pair",
        "physical core",
        "rank",
        "row",
        "sample",
        "setting",
        "spike",
        "start",
        "step",
        "straggler",
    }
)
#: The most items of a list; further ones are counted.
MOST_LISTED = 8


class _Words(string.Formatter):
    """Python's formatting, with `FORMATS` and `NOUNS`."""

    def format_field(self, value: Any, format_spec: str) -> str:
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
        "elements_wrong": "the data differs from the known answer in {wrong:element}{where}",
        "gpu_memory_full": "the GPU's memory has no room for {size} more; choose smaller --sizes",
        "graph_refused": "no graph can hold {operation} here: {error}",
        "graph_waits": (
            "{backend}'s {operation} waits on the host, which no graph can hold; use --cadence"
            " isolated"
        ),
        "hook_bytes_unknown": "what hook {hook} sends is measured, not predicted",
        "hosts_unequal": (
            "pattern hierarchical needs several hosts with equally many ranks, two or more, on"
            " each, and this run has {found}; use pattern flat"
        ),
        "idle": (
            "among one rank {backend} has nothing to do in place, and there is nothing to time; use"
            " more ranks, or --in-place out where the operation has it"
        ),
        "imported_failure": "{subject} found wrong data by its own check.",
        "in_place_only": "torch.distributed reduces in place only; use --in-place in",
        "library_refused": "{error}",
        "loop_missing": "{backend} has no {loop} loop; use --loop {loops}",
        "matrix_of_all_ranks": "a matrix is of all ranks; leave --world-sizes out",
        "matrix_of_plain_calls": (
            "a matrix is timed call by call on the same buffers; leave other cadences and buffers"
            " out"
        ),
        "message_too_large": (
            "{backend} takes at most {most:element} in one call, this case has {elements}; use a"
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
            "root {root} counts within a group, and pattern {pattern} makes groups of {size:rank}"
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
        "too_few_ranks": "{operation} needs at least {minimum:rank}, this run has {ranks}",
        # A launch that failed or hung. A clause about a rank begins with it: the rest is its state.
        "daemon_lost": "mpirun has lost its daemon on host {host}",
        "heard_ago": "for {seconds:.0f} s",
        "heard_never": "since the start",
        "host_silent": "host {hosts:list} has not been heard of {since}",
        "hosts_silent": (
            "hosts {hosts:list} have not been heard of {since}; if no other host answers, it may be"
            " {here} that has lost its network"
        ),
        "launcher_ended": "the launcher ended with exit status {status}",
        "launcher_ended_saying": "the launcher ended with exit status {status}: {last_line}",
        "launcher_killed": "the launcher was killed by signal {signal} ({meaning})",
        "launcher_not_started": (
            "{program} cannot be started ({error}); install it again, or load its module"
        ),
        "no_progress": "no progress for {timeout_s} s: {cause}",
        "no_rank_heard": "no rank has been heard of {since}",
        "no_rank_stands_out": (
            "all ranks are alive and equally far; none can be told to be the cause"
        ),
        "place_before": ("synchronising or preparing for {operation} of {backend}, at {place}"),
        "place_inside": "{operation} of {backend}, at {place}",
        "rank_behind": "{subject} is furthest behind",
        "rank_died": "{subject} has died: others lost their connection to it",
        "rank_ended": "ended by {signal}: a person, a time limit or a failed rank",
        "rank_idle": "{subject} is idle while the others wait for it",
        "rank_killed": "{subject} was killed by signal {signal} ({meaning})",
        "rank_killed_memory": (
            "{subject} was killed by signal 9 (killed), by the kernel for lack of memory"
        ),
        "rank_killed_other": "{subject} was killed by signal 9 (killed), not for lack of memory",
        "rank_killed_unknown": (
            "{subject} was killed by signal 9 (killed); the system may have run out of memory"
        ),
        "rank_left": "{subject} left with exit status {status}",
        "rank_left_because": "{subject} left with exit status {status}: {remedy}",
        "rank_raised": "{subject} raised {error}",
        "rank_silent": "{subject} has not been heard of {since}",
        "rank_silent_process": (
            "{subject} has not been heard of {since} although its process {process}"
        ),
        "rank_stopped": "{subject} is stopped",
        "ranks_not_started": "the ranks could not be started: {remedy}",
        "ranks_left_late": "the ranks did not leave cleanly after their last case: {cause}",
        "ranks_stay": "the ranks did not end after their last case: {cause}",
        "ranks_were_in": "Meanwhile in {place}: {subject}.",
        "ranks_too": "the same is true of {subject}",
        # What launchers complain of, with what to do.
        "daemon_not_started": (
            "mpirun could not start its daemon on host {host}; make `ssh {host} true` and the"
            " same MPI work there"
        ),
        "directory_refused": (
            "{path} cannot be created ({why}); set TMPDIR to a directory that takes files"
        ),
        "disk_full": (
            "a disk that ranks or their launcher write to is full; make room, in TMPDIR first"
            " of all"
        ),
        "host_unresolved": (
            "the host name {host} does not resolve; correct the hostfile or the name service"
        ),
        "host_unresolved_here": (
            "the host name {host} does not resolve; correct /etc/hosts or the name service"
        ),
        "lab_host_missing": "the emulated cluster has no host {host}; correct the hostfile",
        "loopback_down": (
            "no network interface is up; the ranks of one host need the loopback: `ip link set"
            " lo up`"
        ),
        "module_missing": (
            "{module} is not installed for the Python that the ranks run; install the same"
            " environment on every host"
        ),
        "mpi_init_failed": (
            "MPI_Init failed; correct the variables OMPI_MCA_*, one of which may name a component"
            " that this Open MPI lacks"
        ),
        "port_in_use": (
            "port {port}, on which ranks are to meet, is in use; end what holds it, or choose"
            " another one"
        ),
        "program_missing": (
            "{path} cannot be started on host {host}; install the same environment at the same"
            " path on every host"
        ),
        "shared_memory_full": (
            "/dev/shm is full, which ranks of one host need"  # noqa: S108 - not a file of ours
            " to exchange messages in memory; make room there"
        ),
        "shared_memory_unused": (
            "/dev/shm is full, so ranks of one host"  # noqa: S108 - not a file of ours
            " could not exchange messages in memory; make room there"
        ),
        "slots_missing": (
            "mpirun has fewer slots than ranks were asked for; ask for fewer, or give the hosts"
            " more slots"
        ),
        "some_port_in_use": (
            "a port on which ranks are to meet is in use; end what holds it, or choose another one"
        ),
        "ssh_denied": (
            "ssh to {host} is denied ({why}); make `ssh {host} true` work without a password"
        ),
        "ssh_key_unknown": (
            "ssh does not trust a host's key; make `ssh HOST true` work for every host of the"
            " hostfile"
        ),
        "ssh_missing": (
            "mpirun found no ssh to reach other hosts with; install it, or name hosts of this"
            " machine only"
        ),
        "ssh_refused": "host {host} refuses ssh; start its ssh server, or name another host",
        "ssh_unreachable": (
            "host {host} cannot be reached by ssh ({why}); check that it is up, or take it out"
            " of the hostfile"
        ),
        # What follows from how launches ended.
        "cases_failed": "{failed:case} failed; first cause: {cause}",
        "cases_unmeasured": "without a launch: {missing} of {cases:case}",
        "conditions_changed": (
            "The conditions have changed since the first launch: {changes:clauses}."
        ),
        "failures_in_a_row": "stopped after {failures} failed launches in a row: {cause}",
        "interrupted": "interrupted by {subject}",
        "last_case": "Finishing the case; press Ctrl-C again to stop now.",
        "launch_begun": "launch {launch} has begun and not ended",
        "launch_comes_next": (
            "launch {launch} of {launches} of stage {subject} comes next, which takes this command"
            " {invocations:more time}, and what follows may take more"
        ),
        "launch_cut": "the time limit ended the launch before its last case",
        "launch_goes_on": "Launch {launch} failed and goes on: {cause}.",
        "launch_goes_on_without": "Launch {launch} goes on without {env}: {cause}.",
        "launch_warning": "Launch {launch}: {cause}.",
        "soak_goes_on": "Launch {launch} {status} at {at}: {cause}. The soak goes on.",
        "time_limit": (
            "the time limit of {limit_s:g} s was reached after {made} of {launches:launch} of"
            " stage {subject}"
        ),
        "start_conductor": "start commbench without mpirun or torchrun to learn which rank",
        "software_unlike": (
            "Hosts run different software; install the same on every host.\n{table}"
        ),
        # A run: its state, its time, its origin.
        "energy_missing": "Energy of {subject}: {error}.",
        "imported_from": "Measured by {subject}, imported from {files}.",
        "run_cut": (
            "Cut short: {why}. Everything measured is kept; the same command with --out {path} goes"
            " on from there."
        ),
        "run_cut_live": "Cut short: {why}. The same command with --out {path} adds a launch.",
        "run_empty": "Nothing has been measured yet.",
        "run_undecided": ("No verdict yet: {launches} of {planned:confirmation launch} made."),
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
            "Where {seconds:duration} went: starting ranks {startup_s:percent}, measuring"
            " {measuring_s:percent}, preparation, verification and collecting samples"
            " {other_s:percent}."
        ),
        "time_live": "Tuning took {seconds:duration} of the training, in {launches:launch}.",
        "time_watched": "Watching took {seconds:duration} of the training, in {launches:launch}.",
        # Speed of the network, and how exactly it is known.
        "bandwidth": "{subject} {operation} {busbw:GBps} at {size:size}",
        "bandwidth_best": "Bus bandwidth of {subject}, the best of {count:case}.",
        "bandwidth_of_link": (
            "{subject} {operation} {busbw:GBps} at {size:size}, {share:percent} of the link rate"
            " {link}"
        ),
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
        "model": (
            "Network model: {curves:curve}; median error at held-out sizes {held_out:.1f} %,"
            " largest residual {worst:.1f} % ({file}; report --model)."
        ),
        "pairs": "{subject}: {range}",
        "pairs_meaning": (
            "From the slowest to the fastest pair, each the median of {launches:launch}."
        ),
        "pairs_of_hosts": "{subject}: {between} between hosts, {within} within hosts",
        "precision": (
            "{subject}: {within} of {rows:interval} within ±{target:level} (median {median})."
        ),
        "states": (
            "Over {subject} the machine ran at two speeds: the table shows the faster"
            " ({share:percent} of the samples). At the slower the probe took {ratio:.2f} times as"
            " long; collectives.csv has both."
        ),
        # A first answer.
        "answer_exposed": "A step with {baseline} waits {share:percent} of its time for gradients.",
        "answer_precision": "Typical 95 % interval: {half_widths:list}.",
        "answer_verified": "Every result was verified.",
        # A recommendation: what to do.
        "setting_change": "{subject}: change to {setting}.",
        "setting_change_altering": (
            "{subject}: keep {baseline}, or change to {setting} (changed gradients)."
        ),
        "setting_change_either": (
            "{subject}: change to {safe} (same gradients), or to {setting} (changed gradients)."
        ),
        "setting_inconclusive": "{subject}: keep {baseline} for now.",
        "setting_keep": "{subject}: keep {baseline}.",
        "setting_none": "{subject}: nothing can be recommended.",
        # A recommendation: what it rests on.
        "reason": "{sentence}",
        "reason_all_withheld": (
            "Every alternative to {baseline} that was measured changes gradients, and none may be"
            " recommended."
        ),
        "reason_baseline_failed": (
            "Nothing can be compared with {baseline}, which did not train: {cause}."
        ),
        "reason_change": (
            "In {extent} {subject} ran {speedup:thousandths} times as fast as {baseline}; the"
            " {level:level} interval lies wholly above the margin of {margin:level}."
        ),
        "reason_inconclusive": (
            "In {extent} {subject} ran {speedup:thousandths} times as fast as {baseline}; the"
            " {level:level} interval neither shows nor excludes a gain beyond {margin:level}."
        ),
        "reason_keep": (
            "In {extent} {subject} ran {speedup:thousandths} times as fast as {baseline}; by the"
            " {level:level} interval it is no more than {margin:level} faster."
        ),
        "reason_none": "No alternative to {baseline} was measured well.",
        "reason_none_because": "No alternative to {baseline} was measured well ({cause}).",
        "reason_one_block": ("{subject} was confirmed in {blocks:block} only: repeat the command."),
        "reason_one_launch": (
            "{subject} was confirmed in {launches:launch} only: repeat the command."
        ),
        "reason_unconfirmed": (
            "{subject} was the fastest alternative of the sweep but was not measured in"
            " confirmation launches."
        ),
        "reason_unconfirmed_live": (
            "{subject} was the fastest alternative of the screening but was not measured in"
            " confirmation blocks."
        ),
        # A recommendation: what would decide.
        "decide": "{sentence}",
        "decide_about": (
            "About {low:more confirmation launch} would show on which side of {margin:level} the"
            " gain lies, if the estimate holds: the same command with --confirm-launches {launches}"
            " and the same --out."
        ),
        "decide_at_least": (
            "At least {low:more confirmation launch} would show on which side of {margin:level} the"
            " gain lies, if the estimate holds: the same command with --confirm-launches {launches}"
            " and the same --out."
        ),
        "decide_between": (
            "About {low} to {high:more confirmation launch} would show on which side of"
            " {margin:level} the gain lies, if the estimate holds: the same command with"
            " --confirm-launches {launches} and the same --out."
        ),
        "decide_near": (
            "The gain lies too near the margin of {margin:level} for more launches to decide."
        ),
        "decide_noisy": (
            "Launches differ by {spread:.2g} %, too much to show a gain beyond {margin:level} with"
            " {most} of them: a quieter machine helps more than further launches."
        ),
        "decide_time": "That takes about {seconds:duration}.",
        # A recommendation: of which environment it is.
        "env_chosen": "{sentence}",
        "env_unconfirmed": (
            "Settings are of {subject}: no environment was measured in confirmation launches."
        ),
        # A recommendation: its limits, each a clause.
        "limit": "Warning: {sentence}.",
        "limit_bimodal_launches": "launches are bimodal, and a training is one launch",
        "limit_emulated": "the network was emulated",
        "limit_few_blocks": (
            "only {blocks:confirmation block}, so the interval assumes log-normal times"
        ),
        "limit_few_fresh_launches": (
            "only {launches:confirmation launch}, so the interval assumes log-normal launches"
        ),
        "limit_few_launches": "only {launches:launch}, so the interval assumes log-normal launches",
        "limit_launches": (
            "only {launches:launch}, and launches differ: the same command with the same --out adds"
            " one"
        ),
        "limit_left_out": "{subject} is left out because {cause}",
        "limit_oversubscribed": "more ranks than cores took turns",
        "limit_shared_gpu": "ranks shared a GPU and sent by TCP",
        "limit_throttled": "a GPU was slowed down",
        # A setting that may not be recommended, and why, each a clause.
        "accuracy_is_costlier": (
            "its {subject} is {worst:.2g} % higher and {allowed:.2g} % is allowed"
        ),
        "accuracy_is_higher": "its {subject} is {worst:.3g} higher and {allowed:.3g} is allowed",
        "accuracy_is_lower": "its {subject} is {worst:.3g} lower and {allowed:.3g} is allowed",
        "accuracy_may_be_costlier": (
            "its {subject} may be {worst:.2g} % higher and {allowed:.2g} % is allowed"
        ),
        "accuracy_may_be_higher": (
            "its {subject} may be {worst:.3g} higher and {allowed:.3g} is allowed"
        ),
        "accuracy_may_be_lower": (
            "its {subject} may be {worst:.3g} lower and {allowed:.3g} is allowed"
        ),
        "accuracy_not_finite": "its {subject} or the default's is not finite",
        "accuracy_unbounded": "a single launch cannot bound its effect on its {subject}",
        "accuracy_unknown": (
            "its effect on accuracy is unknown: there is neither a metric nor a loss"
        ),
        "accuracy_failed": "{subject}, for {cause}",
        "unfit_diverged": "its loss is not finite",
        "unfit_gradients": "its gradients are not finite",
        "unfit_parameters": "its parameters are not finite",
        "unfit_skipped": "the gradient scaler skipped every step",
        "unfit_unknown": "no reason is known",
        "unfit_unpaired": "no launch has both it and the default",
        "unfit_untimed": "it was not timed",
        "unfit_untrained": "it was not trained",
        # A recommendation: settings that are not recommended, and what it takes.
        "withheld_half_precision_not_allowed": (
            "In half precision the fastest is {subject}, {speedup:thousandths} times as fast as"
            " {baseline} ({verdict:verdict}). To allow it, name it by --hook or --allow."
        ),
        "withheld_lossy_not_allowed": (
            "Of lossy hooks the fastest is {subject}, {speedup:thousandths} times as fast as"
            " {baseline} ({verdict:verdict}). To allow it, name it by --hook or --allow and give"
            " {proofs}."
        ),
        "withheld_lossy_not_validated": (
            "Of lossy hooks the fastest is {subject}, {speedup:thousandths} times as fast as"
            " {baseline} ({verdict:verdict}). To allow it, give {proofs}."
        ),
        # A recommendation: the fastest setting of each effect on gradients.
        "fastest_batch": (
            "With another accumulation the fastest is {subject}, {speedup:thousandths} times as"
            " fast as {baseline} ({verdict:verdict})."
        ),
        "fastest_buffers": (
            "Without the broadcast of buffers the fastest is {subject}, {speedup:thousandths} times"
            " as fast as {baseline} ({verdict:verdict})."
        ),
        "fastest_compiled": (
            "With torch.compile the fastest is {subject}, {speedup:thousandths} times as fast as"
            " {baseline} ({verdict:verdict})."
        ),
        "fastest_half_precision": (
            "In half precision the fastest is {subject}, {speedup:thousandths} times as fast as"
            " {baseline} ({verdict:verdict})."
        ),
        "fastest_lossy": (
            "Of lossy hooks the fastest is {subject}, {speedup:thousandths} times as fast as"
            " {baseline} ({verdict:verdict})."
        ),
        "fastest_over_half": "{subject} ran {speedup:thousandths} times as fast as {half}.",
        "fastest_safe": (
            "With the same gradients the fastest is {subject}, {speedup:thousandths} times as fast"
            " as {baseline} ({verdict:verdict})."
        ),
        "fastest_safe_none": "No setting with the same gradients was faster than {baseline}.",
        "fastest_safe_unmeasured": (
            "With the same gradients the fastest is {subject}, not measured again."
        ),
        # A recommendation: the effect on accuracy.
        "learning_few_steps": "{steps:step} are too few to judge the effect on accuracy.",
        "learning_loss": (
            "After {steps:step} the training loss of {subject} is {loss:.4g} against"
            " {loss_baseline:.4g} (paired by launch: {loss_difference:signed}), after equal time"
            " {equal_time:.4g} against {equal_time_baseline:.4g} (paired:"
            " {equal_time_difference:signed})."
        ),
        "learning_metric": (
            "Its {metric} is {value:.4g} against {value_baseline:.4g} (paired:"
            " {value_difference:signed})."
        ),
        "learning_no_more": "In equal time {subject} learnt no more than {baseline}.",
        "learning_of_other_batch": (
            "Speed is per sample: with another accumulation a step of the optimiser sees other"
            " numbers of them."
        ),
        "learning_unmeasured": (
            "The effect of {subject} on accuracy was not measured: the workload has no loss."
        ),
        "learning_unmeasured_live": (
            "The effect of {subject} on accuracy was not measured: all settings trained the same"
            " model in turn."
        ),
        # A recommendation: how the choice was limited, and found.
        "accuracy_limit": (
            "Left out, as no more than {limit:g} of accuracy may be lost: {settings:clauses}."
        ),
        "accuracy_limit_met": (
            "As asked, no more than {limit:g} of accuracy may be lost; nothing was left out for"
            " that."
        ),
        "search": (
            "Of {settings:alternative}, {confirmed} measured in confirmation launches, and"
            " {in_rounds} in the search only."
        ),
        "search_of_some": (
            "Of {settings:alternative}, {confirmed} measured in confirmation launches, {in_rounds}"
            " in the search only, and {untried} not at all: bucket sizes of slower hooks, or no"
            " time was left."
        ),
        # Conditions of a host that distort a measurement, and what helps.
        "host_clock": "The kernel's clock source is '{source}' instead of 'tsc'.",
        "host_clock_remedy": (
            "Where `dmesg | grep -i tsc` shows nothing against it, boot with clocksource=tsc;"
            " operations shorter than some twenty readings are timed in batches either way."
        ),
        "host_fabric_unused": "The data went over {transport} although {fabric} is active.",
        "host_fabric_unused_remedy": (
            "See whether the MPI or NCCL in use was built for this fabric and may open its devices"
            " (`ucx_info -d`, `fi_info`, NCCL_DEBUG=INFO), else use the site's."
        ),
        "host_governor": (
            "The CPU frequency governor is '{governor}', so short operations may be timed at a low"
            " clock rate."
        ),
        "host_governor_remedy": (
            "Set it to 'performance' while measuring, e.g. `sudo cpupower frequency-set -g"
            " performance`."
        ),
        "host_gpu_unused": "{gpus:GPU} ({model}) present, but no cupy and no torch.",
        "host_gpu_unused_remedy": (
            "Install the extra `cuda13` (`cuda12` before driver 580), as `make install` does where"
            " there are GPUs, or a CUDA build of torch to measure NCCL; without either, only host"
            " memory is measured."
        ),
        "host_gpu_unwatched": (
            "{gpus:GPU} ({model}) present, but nvidia-ml-py is missing, so throttling and energy"
            " cannot be read."
        ),
        "host_gpu_unwatched_remedy": "pip install nvidia-ml-py",
        "host_gpu_without_cuda": (
            "{gpus:GPU} ({model}) present, but no cupy and only the CPU build of torch ({torch})."
        ),
        "host_load": (
            "The load average of the last minute was {load:.1f} on {cpus:CPU} at the start."
        ),
        "host_load_remedy": (
            "End other programs, or wait until the load average has fallen, and measure again."
        ),
        "host_oversubscribed": (
            "{ranks:rank} share {cpus:CPU}, so waiting ranks delay working ones."
        ),
        "host_oversubscribed_remedy": (
            "Use at most {cpus:rank} on this host, or treat these times as times of an"
            " oversubscribed host."
        ),
        "host_quota": (
            "A control group limits this job to {quota:g} CPUs' worth of time for {users}, and"
            " pauses it when the quota of a period is used up."
        ),
        "host_quota_remedy": (
            "Ask for whole CPUs (a CPU set instead of a quota), or for a quota of at least one CPU"
            " per rank."
        ),
        "host_shared_cores": (
            "{ranks:rank} run on {cores:physical core}, so some share a core with another rank."
        ),
        "host_shared_cores_remedy": (
            "Use at most {cores:rank} on this host, each bound to a core of its own."
        ),
        "host_virtual": "This is a virtual machine.",
        "host_virtual_remedy": (
            "Its neighbours can change from minute to minute: use more launches, and compare runs"
            " that were taken interleaved."
        ),
        "host_virtual_shared": (
            "This is a virtual machine, and {steal:.1f} % of its CPU time since boot went to other"
            " guests."
        ),
        "host_wheel": "{fabric} is active and the wheel {wheel} {version} is installed.",
        "host_wheel_remedy": (
            "A wheel is built for no particular fabric: look at the column `transport`, and prefer"
            " the site's MPI (`make install MPI=system`) where there is one."
        ),
        # The topology of a host: what slows communication, or is emulated.
        "topology_bare": (
            "NUMA node {subject} has no memory of its own: ranks there use the memory of other"
            " nodes."
        ),
        "topology_bound_afar": (
            "This process is bound to NUMA node {node}, {subject} to node {adapter_nodes:list}:"
            " messages to other hosts cross the link between sockets."
        ),
        "topology_emulated": (
            "{subject} is emulated: only that it is a link of its own is real, not its latency."
        ),
        "topology_emulated_rate": (
            "{subject} is emulated: only its rate of {rate} is real, not its latency."
        ),
        "topology_far_gpus": (
            "{subject} and {adapters} are on different NUMA nodes (SYS): messages from {subject} to"
            " other hosts cross the link between sockets, and may be slower than from GPUs beside"
            " the adapter."
        ),
        "topology_unbound": (
            "This process may run on NUMA nodes {subject}: a rank that is not bound moves between"
            " them, and its times with it; bind ranks (mpirun --bind-to core, or numactl)."
        ),
        # What a figure shows.
        "figure_blank": "Blank: {pairs:pair}.",
        "figure_blocks": "Blocks: {screened} of the screening, {fresh} of the confirmation.",
        "figure_half": "A time is half a round trip.",
        "figure_hidden": ("Not drawn, as more than {most} lines cannot be told apart: {series}."),
        "figure_shared_gpu": "Not drawn: {rows:row} of ranks that share a GPU.",
        "figure_times": "Times: {meaning}.",
        # What stands around tables.
        "columns_hidden": "No space for {columns}: see {file}.",
        "flags_shared": "Every row: {flags}.",
        "left_out": "Left out: {sentence}",
        "lines_hidden": "{shown} of {lines:row}; all of them are in {file}.",
        "pairs_hidden": "The slowest {shown} of {lines:pair}; all of them are in {file}.",
        "origin": "Made with {how:list}; its files are in {path}.",
        # The model of a network, and predictions.
        "model_none": (
            "No model: fitting one needs {sizes} message sizes of an operation, by ranks that do"
            " not share a GPU; measure more (--sizes)."
        ),
        "model_variant": "{subject}: measured {variant}.",
        "not_predicted": "Not predicted: {subject} on {ranks:rank}. {reason}",
        "predicted_from": "PREDICTED, not measured, from {subject}: {ranks:rank} over {links}",
        "shared_cores": (
            "The emulated hosts shared {cores:core}: hosts with their own can be faster."
        ),
        # A training: the baseline, the step without DDP, what tuning cost.
        "own_setting": (
            "The script's own setting is {subject}. Times and speedups are of the screening; what"
            " is recommended rests on confirmation blocks."
        ),
        "tuning_cost": "Measured {steps:step}, in {seconds:duration}.",
        "without_ddp": (
            "Without DDP a step takes {alone}; scaling efficiency is {efficiency:percent} for"
            " {subject}."
        ),
        "without_ddp_best": (
            "Without DDP a step takes {alone}; scaling efficiency is {efficiency:percent} for"
            " {subject} and {best_efficiency:percent} for {best}."
        ),
        # Rows with a flag or without a result; the subject counts them.
        "flag_ci_wide": "{subject} had an interval wider than ±{target:level}.",
        "flag_few_launches": (
            "{subject} came from fewer than 6 launches; intervals assume log-normal launches."
        ),
        "flag_imported": (
            "{subject} came from another tool, without raw repetitions and intervals, with time as"
            " it defines it."
        ),
        "flag_one_launch": (
            "{subject} came from one launch, but launches differ more than repetitions."
        ),
        "flag_short": "{subject} had fewer than 3 timed steps in a launch.",
        "flag_slowest_group": (
            "{subject} had a group slower than the median one of its pattern, beyond noise."
        ),
        "flagged": "{subject} got the flag {flag}: {meaning}.",
        "flagged_noisy": "{subject} got flags for noise ({flags}).",
        "launches_undecidable": (
            "{launches:launch} cannot show one of {settings:configuration} to be faster or slower,"
            " whatever the difference: go by the confirmation launches, or add launches."
        ),
        "remedy": "To try: {remedy}.",
        "remedy_noise": (
            "To try: more launches (--launches or a larger --budget) with a new --out, or a"
            " quieter machine."
        ),
        "rows_failed": "{subject} failed: the same command measures them again.",
        "rows_hung": "{subject} hung: the same command measures them again.",
        "rows_unsupported": "The backend does not support {subject}.",
        "rows_why": "Why: {errors:clauses}.",
        "rows_wrong": (
            "{subject} got wrong data and no bandwidth: do not trust this library and transport"
            " with these sizes."
        ),
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
        "soak_extent": (
            "Soak of {seconds:duration}, {launches:launch} and {visits:sample}: {spikes:spike} and"
            " {failures:launch} that failed or hung."
        ),
        "soak_failed": "{began:utc} UTC, {lasted:seconds}: launch {launch} failed: {cause}.",
        "soak_hung": "{began:utc} UTC, {lasted:seconds}: launch {launch} hung: {cause}.",
        "soak_more": "{more:more event} in events.csv.",
        "soak_spike": "{began:utc} UTC, {lasted:seconds}: {subject} ({cause}), during {case}.",
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
            "In {measured} it was slower than the typical {kind} in {slower} of {launches:launch},"
            " p = {p_value:.1g}."
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
            "Slow: {subject}: operations take longer than the others': {seen:clauses}."
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
        "slow_uplink_evidence": "In {measured} all {links} are slow.",
        "slow_way_back": (
            "{subject} takes {factor:.2g} times as long as back, but with two hosts it cannot be"
            " told which of the two is slow; add a third."
        ),
        "slow_within": (
            "Slow: {subject}: pairs of its own ranks take longer than the others': {seen:clauses}."
        ),
        # Concurrent groups.
        "groups_even": "{subject}: no group is slower than the median one beyond noise.",
        "groups_slowest": (
            "{subject}: slowest group {group}: {ratio:.2f} times the median at {at}; the slowest in"
            " {often} of {cases:case}."
        ),
        "groups_together": (
            "{subject}: the {groups:group} together reach a bus bandwidth of {rate:GBps} at"
            " {size:size}."
        ),
        # Matrices of pairs.
        "pairs_untimed": (
            "{untimed} of {pairs:pair} of ranks could not be timed: none of their repetitions"
            " started on time; use --sync dissemination"
        ),
        # A prediction that cannot be made.
        "links_unmeasured": (
            "{subject} was measured within one host, so nothing is known of links between hosts;"
            " give --rate, or measure across hosts."
        ),
        "operation_unmeasured": (
            "Nothing is known of {subject} of {dtype}; measure it: commbench run --backend"
            " {backend} --collective {operation} --dtype {dtype} --sizes 64K:64M:4."
        ),
        "hook_unmeasured": "Hook {subject} has no result in this training; train it first.",
        "within_host_unmeasured": (
            "{subject} was measured across hosts alone, and so many ranks fit on one host; measure"
            " it within a host, too, and give both runs."
        ),
        # A watched training.
        "watched_bound": (
            "Without exposed communication of gradients a step would be {gain:.2f} times as fast."
            " To try: commbench tune -- {command}"
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
        "check_no_interval": "The row has no interval.",
        "check_no_ranks": "The run compares no ranks; measure the suite matrix.",
        "check_no_row": "The run has no such row.",
        "check_one_launch": "One launch does not show how much launches differ.",
        "check_outcomes": "{expectations:expectation}: {outcomes:list}.",
        "check_reason": "{subject}: {outcome}. {reason}",
        "check_unverified": "The result was not verified.",
        # A comparison of runs: the answer, what is beyond a threshold, conditions, advice.
        "compare_beyond": "Beyond {limit:g} %: {cases:clauses}.",
        "compare_broken": "Not compared: {subject} is {status_a} in A and {status_b} in B.",
        "compare_change": "{subject} {change:change}",
        "compare_conditions": (
            "A and B differ in these conditions, which could explain a difference of times:"
        ),
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
            "{cases:case} too noisy for {launches:launch} to tell: a quieter machine helps more"
            " than further launches; so do more baselines if there are several."
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
            "{cases:inconclusive case} would be settled by at least {low:launch} more of each run"
            " (column more), if the estimates hold: the commands that made the runs add them, with"
            " a larger --launches and the same --out."
        ),
        "compare_slower": "{slower} of {cases:case} slower: {changes:clauses}.",
        "condition_known": "Differs: {subject}: {values}.",
        "condition_of_cases": "No verdict where {subject} differs: {values}; {why}.",
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


def phrase(template: str, value: object) -> str:
    """Return the template with a value in its one field, e.g. ``on {:rank}``."""
    return _Words().format(template, value)
