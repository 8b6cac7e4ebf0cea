"""Cases: a `Case` is one measured point, a `Sweep` the product of axes that yields cases."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from commbench.collectives.algorithms import ALGORITHMS, AUTO, PROTOCOLS, Choice
from commbench.collectives.backends import BACKENDS, USUAL_BACKENDS
from commbench.collectives.composed import operation_in_pattern
from commbench.collectives.datatypes import DTYPES, find_dtype
from commbench.collectives.operations import (
    OPERATIONS,
    REDOPS,
    Operation,
    find_operation,
    true_message_bytes,
)
from commbench.collectives.patterns import PATTERNS, check_pattern, shares_of
from commbench.errors import InputError, check_choice
from commbench.fields import as_names, as_numbers, check_choices, join_names, option
from commbench.findings import UnsupportedError
from commbench.schema import Ranks
from commbench.system.env import parse_env
from commbench.units import counted, format_size, parse_sizes
from commbench.words import phrase

T = TypeVar("T")

SYNCS = ("auto", "round-time", "dissemination", "barrier", "none")
LOOPS = ("auto", "native", "python", "event")
#: The forms of ``--in-place``; None: the operation's default.
_PLACES: Mapping[str, tuple[bool | None, ...]] = {
    "default": (None,),
    "in": (True,),
    "out": (False,),
    "both": (False, True),
}
MODES = ("isolated", "pipelined", "graph", "persistent")
#: Kinds of buffers that are registered with NCCL and need no copy; symmetric ones have the same
#: offset on each rank.
REGISTERED = ("registered", "symmetric")
BUFFERS = ("hot", "rotated", *REGISTERED)

#: Default sizes of a sweep: nccl-tests' usual range, limited to sizes that a small machine can
#: time.
DEFAULT_SIZES = (8, 64, 512, 4096, 16384, 65536, 262144, 2**20, 4 * 2**20, 16 * 2**20)

#: Fields that the name of a case states in phrases: the value that is not named, and the phrase.
_PHRASES: Mapping[str, tuple[object, str]] = {
    "root": (0, "root {}"),
    "pattern": ("flat", "pattern {}"),
    "world_size": (None, "on {:rank}"),
    "algorithm": (AUTO, "by {}"),
    "mode": ("isolated", "{}"),
    "buffers": ("hot", "in {} buffers"),
    "env": ("", "under {}"),
}


def stable_key(case: Any, *, later: Sequence[str]) -> str:
    """Return the fields of a case as a stable text.

    Those of ``later`` were added after others. They appear only if they differ from the default, so
    that older keys stay valid.
    """
    fields = {}
    for field in dataclasses.fields(case):
        value = getattr(case, field.name)
        if value != field.default or field.name not in later:
            fields[field.name] = value
    return json.dumps(fields, separators=(",", ":"))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One point of a sweep. None means that the axis does not apply to the operation.

    ``message_bytes`` is the measured size, with each rank's share rounded up to whole elements. In
    the patterns ``node`` and ``cross``, whose group sizes depend on the hosts, each group may round
    it up once more.
    """

    backend: str
    """Backend."""
    operation: str
    """Operation."""
    message_bytes: int
    """Size: the larger of a rank's send and receive buffer."""
    dtype: str | None
    """Element type; None: no data."""
    redop: str | None = None
    """Reduction."""
    root: Ranks | None = None
    """Root rank."""
    in_place: bool | None = None
    """Whether send and receive buffer are the same."""
    pattern: str = "flat"
    """Which ranks communicate with which."""
    sync: str = "auto"
    """Requested start, as ``--sync`` takes it."""
    loop: str = "auto"
    """Requested loop, as ``--loop`` takes it."""
    buffers: str = "hot"
    """Kind of message buffers, as ``--buffers`` takes it."""
    world_size: Ranks | None = None
    """Use only the first ``world_size`` ranks of the launch; None: all ranks."""
    algorithm: str = AUTO
    """The requested algorithm, as `commbench.collectives.algorithms.Choice` writes it."""
    graph: bool = False
    """Whether several operations are captured in one CUDA graph, which is replayed."""
    persistent: bool = False
    """Whether the operation is a persistent request of MPI, which each repetition starts and
    completes."""
    env: str = ""
    """The environment variables of its launches, see `commbench.system.env`; empty: none was
    asked for."""

    @cached_property
    def key(self) -> str:
        """A stable text that identifies the case across launches."""
        return stable_key(self, later=("world_size", "algorithm", "graph", "persistent", "env"))

    @property
    def mode(self) -> str:
        """One of `MODES`: ``pipelined`` without synchronisation, except for graphs and persistent
        requests.
        """
        if self.graph:
            return "graph"
        if self.persistent:
            return "persistent"
        if self.sync == "none":
            return "pipelined"
        return "isolated"

    def __str__(self) -> str:
        """Name the case by the fields that differ from the defaults."""
        words = [self.backend, self.operation]
        if self.dtype is not None:
            words.append(format_size(self.message_bytes))
            words.append(self.dtype)
        if self.redop:
            words.append(self.redop)
        is_usually_in_place = OPERATIONS[self.operation].default_in_place
        if self.in_place and not is_usually_in_place:
            words.append("in place")
        elif self.in_place is False and is_usually_in_place:
            words.append("out of place")
        for name, (default, template) in _PHRASES.items():
            value = getattr(self, name)
            if value and value != default:
                words.append(phrase(template, value))
        return " ".join(words)


#: Values for fields of `Sweep`, by the name of the field.
Axes: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Axes whose product is measured; a suite is a short Python file that names one or several.

    A field takes values, or a text as its option does.

    Raises:
        InputError: an unknown name, or a size that is not a whole number of elements of each data
            type.
    """

    operations: Sequence[str] = option(
        ("all_reduce",),
        "--collective",
        "-c",
        choices=("operation", OPERATIONS),
        metavar="NAMES",
        about=f"Operations, comma-separated: {join_names(OPERATIONS)}.",
        read=as_names,
    )
    sizes: Sequence[int] | str = option(
        DEFAULT_SIZES,
        "--sizes",
        metavar="SIZES",
        about=(
            "Message sizes as a list or as ranges: 8,1K,64K, or 8:64M (factor 2), or 8:64M:4. K, M"
            " and G are 1024-based. A size is the larger of a rank's send and receive buffer, as in"
            " nccl-tests."
        ),
        read=parse_sizes,
    )
    backends: Sequence[str] = option(
        USUAL_BACKENDS,
        "--backend",
        choices=("backend", BACKENDS),
        metavar="NAMES",
        about=f"Backends, comma-separated: {join_names(BACKENDS)}.",
        read=as_names,
    )
    dtypes: Sequence[str] = option(
        ("float32",),
        "--dtype",
        "-d",
        metavar="NAMES",
        about=f"Element types, comma-separated: {join_names(DTYPES)}.",
        read=as_names,
    )
    redops: Sequence[str] = option(
        ("sum",),
        "--redop",
        "-o",
        choices=("reduction", REDOPS),
        metavar="NAMES",
        about=f"Reductions, comma-separated: {join_names(REDOPS)}.",
        read=as_names,
    )
    roots: Sequence[int] = option(
        (0,),
        "--root",
        metavar="RANKS",
        about="Root ranks of broadcast, reduce, gather, scatter and fan patterns.",
        read=as_numbers,
    )
    in_place: str = option(
        "default",
        "--in-place",
        choices=("in_place value", _PLACES),
        metavar="WHICH",
        about=(
            f"Whether send and receive buffer are the same: {join_names(_PLACES)}. By default"
            " all_reduce and reduce are in place, the other operations are not."
        ),
    )
    patterns: Sequence[str] = option(
        ("flat",),
        "--pattern",
        metavar="NAMES",
        about=f"Which ranks communicate with which: {join_names(PATTERNS)}.",
        read=as_names,
    )
    world_sizes: Sequence[int] = option(
        (),
        "--world-sizes",
        "--world-size",
        metavar="RANKS",
        about=(
            "Scaling study: measure every case on each of these numbers of ranks, e.g. 2,4,8, and"
            " report how time grows. The first ranks of the run take part; the others wait."
        ),
        read=as_numbers,
    )
    """Empty: all ranks."""
    algorithms: Sequence[str] = option(
        (AUTO,),
        "--algorithm",
        metavar="NAMES",
        about=(
            "NCCL's algorithm, protocol and number of channels, each optional: e.g."
            f" auto,ring,tree/ll,ring/simple/8ch (algorithms: {join_names(ALGORITHMS)}; protocols:"
            f" {join_names(PROTOCOLS)}). A combination that NCCL does not support gets a row with"
            " the reason."
        ),
        read=as_names,
    )
    sync: str = option(
        "auto",
        "--sync",
        choices=("synchronisation", SYNCS),
        metavar="HOW",
        about=(
            f"How ranks start an operation together: {join_names(SYNCS)}. auto: at an agreed"
            " instant if the ranks share a clock or their clocks agree well enough, else after a"
            " dissemination barrier; Gloo: after a barrier."
        ),
    )
    loop: str = option(
        "auto",
        "--loop",
        choices=("loop", LOOPS),
        metavar="LOOP",
        about=f"Timed loop: {join_names(LOOPS)}. auto: native if the backend has such a loop.",
    )
    cadences: Sequence[str] = option(
        (),
        "--cadence",
        choices=("cadence", MODES),
        metavar="NAMES",
        about=(
            f"How operations follow each other: {join_names(MODES)}. isolated: ranks start each"
            " operation together; pipelined: without waiting, as with --sync none; graph: a CUDA"
            " graph replays a sequence (NCCL); persistent: each operation starts a request that"
            " was initialised once, by MPI_Allreduce_init (MPI)."
        ),
        read=as_names,
    )
    """Empty: ``sync`` decides."""
    buffers: Sequence[str] = option(
        ("hot",),
        "--buffers",
        choices=("kind of buffers", BUFFERS),
        metavar="NAMES",
        about=(
            f"Message buffers: {join_names(BUFFERS)}. hot (default): the same buffers in each"
            " repetition; rotated: buffers take turns and together exceed the last-level cache"
            " (GPU: L2); registered and symmetric: memory that NCCL knows beforehand (torch-nccl)."
        ),
        read=as_names,
    )
    env: Sequence[str] = option(
        (),
        "--env",
        metavar="NAME=VALUES",
        about=(
            "Compare values of an environment variable, e.g. NCCL_ALGO=Ring,Tree,default (default:"
            " unset; \\, is a comma). Repeatable."
        ),
        kind=list[str],
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            read, value = field.metadata["read"], getattr(self, field.name)
            if read is not None and isinstance(value, str):
                object.__setattr__(self, field.name, read(value))
        if isinstance(self.env, str):
            object.__setattr__(self, "env", (self.env,))
        self._check_types()
        check_choices(self)
        if self.sync == "none" and "isolated" in self.cadences:
            raise InputError(
                "Cadence isolated synchronises the ranks, synchronisation none does not; choose one"
                " of the two."
            )
        for pattern in self.patterns:
            check_pattern(pattern)
        object.__setattr__(
            self, "algorithms", tuple(str(Choice.parse(text)) for text in self.algorithms)
        )
        for world_size in self.world_sizes:
            if not isinstance(world_size, int) or world_size < 2:  # one rank does not communicate
                raise InputError(
                    f"World size {world_size!r} is not a number of ranks to compare; give 2 or"
                    " more."
                )
        parse_env(self.env)
        self._check_sizes()

    def _check_types(self) -> None:
        """Raise `InputError` for a value of another type, as the file of a suite can have it."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            kind = str if isinstance(field.default, str) else Collection
            if not isinstance(value, kind):
                raise InputError(
                    f"A sweep's {field.name} is {value!r}; write a value such as {field.default!r}."
                )
        for root in self.roots:
            if not isinstance(root, int):
                raise InputError(f"Root {root!r} is not a rank; give whole numbers, such as 0.")

    def _check_sizes(self) -> None:
        for size, name in itertools.product(self.sizes, self.dtypes):
            itemsize = find_dtype(name).itemsize
            if not isinstance(size, int) or size <= 0:
                raise InputError(f"Message size {size!r} is not a positive number of bytes.")
            if size % itemsize:
                raise InputError(
                    f"Message size {size} B is not a multiple of {name}'s {itemsize} B; "
                    "give a multiple or a smaller dtype."
                )

    def cases(self, world_size: int) -> list[Case]:
        """Return the cases on ``world_size`` ranks, in axis order, without the axes that an
        operation lacks.

        Raises:
            InputError: a root that is not a rank, a pattern that does not divide the ranks, or a
                scaling study on more ranks than the run has.
        """
        if self.world_sizes and max(self.world_sizes) > world_size:
            raise InputError(
                f"World size {max(self.world_sizes)} was asked for and this run has"
                f" {counted(world_size, 'rank')}; start as many as the largest (-n)."
            )
        unique: dict[Case, None] = {}
        for size in self.world_sizes or [world_size]:
            for case in self._cases(size):
                if size == world_size:  # the same case as outside a scaling study
                    unique[replace(case, world_size=None)] = None
                else:
                    unique[case] = None
        envs = parse_env(self.env) or [""]
        return [replace(case, env=env) for env in envs for case in unique]

    def _cases(self, world_size: int) -> Iterable[Case]:
        """Yield the cases on ``world_size`` ranks; each case states that number."""
        for pattern in self.patterns:
            check_pattern(pattern, world_size)
        for root in self.roots:
            if not 0 <= root < world_size:
                raise InputError(
                    f"Root {root} is not a rank of a run with {counted(world_size, 'rank')} (0 to"
                    f" {world_size - 1})."
                )
        axes = {
            "operation": self.operations,
            "backend": self.backends,
            "dtype": self.dtypes,
            "redop": self.redops,
            "pattern": self.patterns,
            "algorithm": self.algorithms,
            "root": self.roots,
            "message_bytes": self.sizes,
            "in_place": _PLACES[self.in_place],
            "cadence": self.cadences or ("",),
            "buffers": self.buffers,
        }
        for values in itertools.product(*axes.values()):
            yield self._fitting(dict(zip(axes, values, strict=True)), world_size)

    def _fitting(self, fields: dict[str, Any], world_size: int) -> Case:
        """Return the case without the axes that its operation lacks."""
        cadence, sync = fields.pop("cadence"), self.sync
        if cadence == "pipelined":
            sync = "none"
        operation = _entry(fields["operation"], fields["pattern"], world_size)
        shares = shares_of(fields["pattern"], world_size)
        fields["message_bytes"] = true_message_bytes(
            operation, fields["message_bytes"], find_dtype(fields["dtype"]).itemsize, shares
        )
        fields = operation.applied(fields)
        if operation.has_in_place and fields["in_place"] is None:
            fields["in_place"] = operation.default_in_place
        if not operation.moves_data:
            fields["buffers"] = "hot"
        if not operation.has_nccl_algorithms:
            fields["algorithm"] = AUTO
        return Case(
            **fields,
            loop=self.loop,
            sync=sync,
            graph=cadence == "graph",
            persistent=cadence == "persistent",
            world_size=world_size,
        )


def _entry(operation: str, pattern: str, world_size: int) -> Operation:
    """Return the entry of the pattern.

    If it lacks the operation, the plain entry, for a row that states the reason.
    """
    try:
        return operation_in_pattern(operation, pattern, world_size)
    except UnsupportedError:
        return OPERATIONS[operation]


def check_case(case: Case) -> None:
    """Raise `InputError` if a case from a file names an unknown operation, pattern, type or
    reduction.
    """
    operation = find_operation(case.operation)
    check_pattern(case.pattern)
    if case.dtype is not None or operation.moves_data:
        find_dtype(str(case.dtype))
    if case.redop is not None:
        check_choice("reduction", case.redop, REDOPS)


def all_cases(sweeps: Sequence[Sweep], world_size: int) -> list[Case]:
    """Return the cases of several sweeps, each once, in order."""
    return list(dict.fromkeys(case for sweep in sweeps for case in sweep.cases(world_size)))


def shuffled(cases: Sequence[T], seed: int, launch: int) -> list[T]:
    """Return the cases in the order of one launch: shuffled by the run's seed and the launch's
    number.
    """
    order = list(cases)
    random.Random(f"{seed}:{launch}").shuffle(order)
    return order
