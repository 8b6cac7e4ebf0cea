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


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _microseconds(time_us: float) -> str:
    return format_time(time_us * 1e-6)


#: How a field of a sentence is written, by the name after its colon.
FORMATS: Mapping[str, Callable[[Any], str]] = MappingProxyType(
    {
        "digits": three_digits,
        "duration": format_duration,
        "percent": _percent,
        "ratio": _ratio,
        "size": format_size,
        "us": _microseconds,
    }
)
#: Nouns that a field's name of a format counts.
NOUNS = frozenset({"block", "case", "event", "host", "launch", "rank", "row", "step"})


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
