"""The exceptions of commbench, each with the exit code the conductor ends with.

CommbenchError
├── InputError        2  what was asked cannot be done; nothing has been written
├── LaunchError       3  a rank crashed or hung; what had finished is kept
├── WrongDataError    4  an operation delivered wrong elements
└── UnsupportedError  -  a backend cannot do a case; becomes a row with the reason, never a crash

A `Reason` says why a case has no result or no prediction: a code, its parameters, and the sentence
that both make.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from string import Formatter
from types import MappingProxyType
from typing import TypeVar

EntryT = TypeVar("EntryT")


class CommbenchError(Exception):
    """Base of every error that commbench raises on purpose.

    Its text is one sentence for the user.
    """

    exit_code = 1


class InputError(CommbenchError):
    """What was asked cannot be done: the sentence says what was asked, what was found and what to
    do.
    """

    exit_code = 2


def unknown_choice(
    what: str, name: str, choices: Iterable[str], alternative: str = ""
) -> InputError:
    """Return the error for a ``name`` that is none of ``choices``; ``what`` is the kind of name."""
    return InputError(f"Unknown {what} {name!r}; choose from {', '.join(choices)}{alternative}.")


def check_choice(what: str, name: str, choices: Collection[str]) -> None:
    """Raise `InputError` with the list of ``choices`` unless ``name`` is one of them.

    ``what`` is the kind of name.
    """
    if name not in choices:
        raise unknown_choice(what, name, choices)


def find_entry(what: str, name: str, entries: Mapping[str, EntryT]) -> EntryT:
    """Return the entry called ``name``.

    Raises:
        InputError: there is none; the message lists the names.
    """
    check_choice(what, name, entries)
    return entries[name]


@contextlib.contextmanager
def noting(note: Callable[[str], object]) -> Iterator[None]:
    """Hand over the text of an `InputError` instead of raising it."""
    try:
        yield
    except InputError as error:
        note(str(error))


class LaunchError(CommbenchError):
    """A rank crashed, raised or stopped making progress; everything measured before is kept."""

    exit_code = 3


class WrongDataError(CommbenchError):
    """At least one operation delivered wrong elements."""

    exit_code = 4


#: The meaning of each exit code of commbench; `tune -- COMMAND` and `watch -- COMMAND` end with the
#: code of COMMAND.
EXIT_CODES: Mapping[int, str] = MappingProxyType(
    {
        0: "done; also a run cut by --time-limit after each case had a launch (status is cut)",
        CommbenchError.exit_code: "an internal error of commbench",
        InputError.exit_code: "bad input: one sentence on stderr, nothing written",
        LaunchError.exit_code: (
            "partial: cases failed, hung or had no launch; the others are kept, the same command "
            "tries the missing ones again; check: an expectation is not shown or not tested"
        ),
        WrongDataError.exit_code: "wrong data was found, also in a partial run",
        5: (
            "compare found a regression beyond --threshold; check found an expectation that is"
            " not met"
        ),
        129: "hung up; the same command resumes",
        130: "interrupted by Ctrl-C; the same command resumes",
        141: "the reader of stdout closed the pipe",
        143: "terminated; the same command resumes",
    }
)

#: The sentence of each code; fields are the subject and the parameters.
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
        "imported_failure": "{tool} found wrong data by its own check",
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
#: Parameters with text from outside: reasons that differ in these have different causes.
_QUOTED = frozenset({"cause", "error", "last_line", "remedy", "sentence"})
#: Parameters of one prediction: reasons that differ in these alone are alike.
_OF_ONE_PREDICTION = frozenset(
    {
        "ranks",
        "ranks_per_node",
    }
)


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a case has no result, or why something is not predicted.

    A code that `SENTENCES` lacks raises a ``KeyError``.
    """

    code: str
    subject: str = ""
    """An operation of a backend (``gloo all_reduce``), a hook, a workload or a rank."""
    parameters: Mapping[str, str | int] = field(default_factory=dict)
    """The other fields of the sentence."""

    def __post_init__(self) -> None:
        str(self)

    @classmethod
    def of(cls, error: CommbenchError) -> Reason:
        """Return the reason of an error; code ``stated`` if it carries none."""
        if isinstance(error, ReasonedError):
            return error.reason
        return cls.stated(str(error))

    @classmethod
    def stated(cls, sentence: str) -> Reason:
        """Return a reason without a code of its own."""
        return cls(code="stated", parameters={"sentence": sentence})

    def __str__(self) -> str:
        return SENTENCES[self.code].format(subject=self.subject, **self.parameters)

    def key(self, subject: str) -> tuple[object, ...]:
        """Return what alike reasons have in common, for a prediction of ``subject``.

        Reasons are alike if they differ only in the subject of the prediction, in ranks.
        """
        shared = {
            name: value for name, value in self.parameters.items() if name not in _OF_ONE_PREDICTION
        }
        return (
            self.code,
            "" if self.subject == subject else self.subject,
            tuple(sorted(shared.items())),
        )


def shared_cause(code: str, sentence: str) -> str:
    """Return what reasons with the same cause have in common, from what a row states.

    It is the code, unless the sentence quotes text from outside or has no code, as in older files.
    """
    fields = {name for _, name, _, _ in Formatter().parse(SENTENCES.get(code, "{sentence}"))}
    return sentence if fields & _QUOTED else code


class ReasonedError(CommbenchError):
    """An error with a reason."""

    def __init__(self, code: str, subject: str = "", **parameters: str | int) -> None:
        self.reason = Reason(code=code, subject=subject, parameters=parameters)
        super().__init__(str(self.reason))


class UnsupportedError(ReasonedError):
    """A backend cannot run a case, which becomes a row with this reason."""


class UnpredictedError(ReasonedError, InputError):
    """Something cannot be predicted from what was measured."""
