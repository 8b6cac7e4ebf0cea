"""The configurations of a training sweep: `TrainingCase` is one of them, `TrainingSweep` the
product of axes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from commbench.collectives.backends import TRAINING_BACKENDS
from commbench.collectives.cases import stable_key
from commbench.errors import InputError, check_choice
from commbench.fields import as_names, as_numbers, as_switch, join_names, option
from commbench.hooks.registry import (
    HOOKS,
    NONE,
    find_hook,
    hook_words,
    is_file_hook,
    parse_hook,
    split_options,
)
from commbench.schema import Ranks, read_as
from commbench.system.env import parse_env
from commbench.units import counted

PRECISIONS = ("fp32", "amp-bf16", "amp-fp16")
#: The hook of a step that runs without DDP.
LOCAL = "local"
#: DDP's default bucket sizes: a first bucket of 1 MiB, then 25 MiB. No single number is equivalent.
DEFAULT_CAP = "default"
#: One byte, and more than any model, which is one bucket.
SMALLEST_CAP_MB, LARGEST_CAP_MB = 2**-20, 2**20
SWEEP, CONFIRM = "sweep", "confirm"
#: Fields of a case that older keys lack.
_LATER = ("env", "unused_parameters", "broadcast_buffers", "batched_grad_copy", "compile")
#: How torch.compile splits the graph of a DDP object, as ``torch._dynamo.config.optimize_ddp``
#: takes it.
COMPILE_MODES = ("ddp_optimizer", "python_reducer", "no_optimization")


class Switch(NamedTuple):
    """A setting of DDP that is on or off."""

    name: str
    """Of the field of `TrainingCase` and of the column."""
    argument: str
    """DDP's."""
    words: str
    """In a setting's name, where it differs from DDP's default."""
    label: str
    """The same in a table."""
    about: str
    """The help of its option."""
    default: bool = False
    is_live: bool = False
    """Whether it can change between two steps of a training without changing a gradient, or a
    tensor that the script may hold."""

    def option(self) -> Any:
        """Return the field of a sweep that is its option."""
        default = "off"
        if self.default:
            default = "on"
        return option(
            default,
            f"--{self.name.replace('_', '-')}",
            metavar="WHICH",
            about=self.about,
            read=as_switch,
        )


BUCKET_VIEW = Switch(
    "bucket_view",
    "gradient_as_bucket_view",
    "bucket views",
    "views",
    about="gradient_as_bucket_view: off, on or both.",
)
STATIC_GRAPH = Switch(
    "static_graph",
    "static_graph",
    "static graph",
    "static",
    about="static_graph: off, on or both.",
)
UNUSED_PARAMETERS = Switch(
    "unused_parameters",
    "find_unused_parameters",
    "unused parameters",
    "unused",
    about=(
        "find_unused_parameters: off, on or both; on by itself for a model whose loss leaves"
        " parameters out."
    ),
)
BROADCAST_BUFFERS = Switch(
    "broadcast_buffers",
    "forward_sync_buffers",
    "no broadcast of buffers",
    "no broadcast",
    about=(
        "Whether rank 0 sends its buffers before each forward pass (DDP's forward_sync_buffers,"
        " or broadcast_buffers before torch 2.13): on, off or both."
    ),
    default=True,
)
BATCHED_GRAD_COPY = Switch(
    "batched_grad_copy",
    "batched_grad_copy",
    "batched copies",
    "batched",
    about="batched_grad_copy (torch 2.13): off, on or both.",
    is_live=True,
)
SWITCHES = (BUCKET_VIEW, STATIC_GRAPH, UNUSED_PARAMETERS, BROADCAST_BUFFERS, BATCHED_GRAD_COPY)


def changed_switches(setting: Any) -> list[Switch]:
    """Return the switches of a setting that differ from DDP's default.

    None in a row is the default.
    """
    return [
        switch for switch in SWITCHES if getattr(setting, switch.name) not in {None, switch.default}
    ]


def switch_words(setting: Any, baseline: Any = None) -> list[str]:
    """Return the words in a setting's name for switches and torch.compile that differ from the
    baseline's.

    Without a baseline they are those that differ from DDP's default.
    """
    changed = changed_switches(setting)
    shared = []
    if baseline is not None:
        shared = changed_switches(baseline)
    words = [switch.words for switch in changed if switch not in shared]
    words += [f"without {switch.words}" for switch in shared if switch not in changed]
    is_alike = baseline is not None and setting.compile == baseline.compile
    if setting.compile and not is_alike:
        words.append(f"compiled with {setting.compile}")
    return words


def setting_name(setting: Any, baseline: Any = None) -> str:
    """Return a setting of DDP in words, e.g. ``topk:0.01 with 25 MiB buckets and amp-bf16``.

    Switches that the baseline has, too, are left out.
    """
    name = "default buckets"
    if setting.bucket_cap_mb != DEFAULT_CAP:
        name = f"{setting.bucket_cap_mb} MiB buckets"
    if setting.hook == LOCAL:
        name = "without DDP"
    elif setting.hook != NONE:
        hook = hook_words(setting.hook, setting.density, setting.hook_options)
        name = f"{hook} with {name}"
    words = [name]
    if setting.precision != "fp32":
        words.append(setting.precision)
    if (setting.accumulation or 1) > 1:
        words.append(f"accumulation {setting.accumulation}")
    return " and ".join([*words, *switch_words(setting, baseline)])


@dataclass(frozen=True, kw_only=True)
class TrainingCase:
    """One configuration of DDP training as ``ddp.csv`` names it, or with hook `LOCAL` the step
    without DDP.
    """

    workload: str
    """Name of the workload."""
    world_size: Ranks
    """Ranks that train."""
    batch_per_rank: int
    """Samples per rank in one forward and backward pass; an optimiser step has ``accumulation``
    times as many."""
    backend: str = "gloo"
    """``gloo`` or ``nccl``."""
    precision: str = "fp32"
    """``fp32``, ``amp-bf16`` or ``amp-fp16``."""
    hook: str = NONE
    """Name of the communication hook; ``local``: the step without DDP."""
    density: float | None = None
    """Share of a gradient's elements that is sent, k/n; None for hooks without a density."""
    hook_options: str = ""
    """Further options of the hook, ``key=value`` separated by ``;`` and sorted."""
    bucket_cap_mb: str = DEFAULT_CAP
    """``default``, a number of MiB, or a list ``1+5+25``."""
    bucket_view: bool = False
    """DDP's gradient_as_bucket_view."""
    static_graph: bool = False
    """DDP's static_graph."""
    unused_parameters: bool = False
    """DDP's find_unused_parameters."""
    broadcast_buffers: bool = True
    """Whether rank 0 sends its buffers before each forward pass: DDP's forward_sync_buffers,
    broadcast_buffers before torch 2.13."""
    batched_grad_copy: bool = False
    """Whether gradients are copied into a bucket in one call."""
    compile: str = ""
    """One of `COMPILE_MODES`; empty without torch.compile."""
    accumulation: int = 1
    """Backward passes per optimiser step."""
    phase: str = SWEEP
    """``sweep``, or ``confirm`` for the blocks that confirm a recommendation."""
    env: str = ""
    """As in `commbench.collectives.cases.Case`."""

    @property
    def key(self) -> str:
        """A stable text that identifies the case within a run."""
        return stable_key(self, later=_LATER)

    @classmethod
    def from_key(cls, key: str) -> TrainingCase:
        """Return the case that has this key; ignore fields that this version does not know.

        Raises:
            InputError: ``key`` is not the key of a case.
        """
        try:
            return read_as(cls, json.loads(key)).checked()
        except (ValueError, RecursionError, InputError) as error:
            raise InputError(
                f"{key[:60]!r} is not a training case of commbench ({error})."
            ) from error

    def checked(self) -> TrainingCase:
        """Return the case if its hook, options, bucket size and backend are valid.

        Raises:
            InputError: one of them is invalid.
        """
        if self.uses_ddp:
            find_hook(self.hook)
        for pair in self.hook_options.split(";"):
            if pair and "=" not in pair:
                raise InputError(
                    f"The options {self.hook_options!r} of hook {self.hook} are not key=value."
                )
        canonical_cap(self.bucket_cap_mb)
        check_choice("training backend", self.backend, TRAINING_BACKENDS)
        return self

    @property
    def uses_ddp(self) -> bool:
        """Whether gradients are exchanged at all."""
        return self.hook != LOCAL

    @property
    def carrier(self) -> str:
        """The backend of DDP's collectives: NCCL as called by torch, not as a library."""
        return TRAINING_BACKENDS[self.backend].name

    @property
    def trains_on_gpu(self) -> bool:
        """Whether model and gradients are in GPU memory."""
        return TRAINING_BACKENDS[self.backend].uses_gpu

    @property
    def is_predicted(self) -> bool:
        """Whether the model of a step predicts the hook: its messages must be known."""
        return self.uses_ddp and not self.is_file_hook

    @property
    def is_plain(self) -> bool:
        """Whether DDP exchanges the gradients unchanged, without a hook."""
        return self.hook == NONE

    @property
    def is_file_hook(self) -> bool:
        """Whether the hook is a callable of a user's file."""
        return is_file_hook(self.hook)

    @property
    def is_default(self) -> bool:
        """Whether DDP exchanges the gradients by its defaults: without a hook, in its default
        buckets.
        """
        return self.is_plain and self.bucket_cap_mb == DEFAULT_CAP

    @property
    def keeps_first_buckets(self) -> bool:
        """Whether DDP keeps the buckets of its construction, instead of rebuilding them after the
        first step.
        """
        return self.unused_parameters and not self.static_graph

    @property
    def caps_mb(self) -> tuple[float, ...]:
        """The numbers of ``bucket_cap_mb`` in MiB; empty for DDP's default."""
        if self.bucket_cap_mb == DEFAULT_CAP:
            return ()
        return tuple(map(float, self.bucket_cap_mb.split("+")))

    @property
    def options(self) -> dict[str, str]:
        """``hook_options`` by name."""
        return split_options(self.hook_options)

    @property
    def group(self) -> tuple[str, str, int, int, str]:
        """The key of comparable cases: cases with the same key are alternatives for a user of
        DDP.
        """
        return self.workload, self.backend, self.world_size, self.batch_per_rank, self.env

    @property
    def samples_per_step(self) -> int:
        """Samples of all ranks in one optimiser step."""
        return self.world_size * self.batch_per_rank * self.accumulation

    def local(self) -> TrainingCase:
        """Return the step without DDP that this case is compared with."""
        compiled = ""
        if self.compile:
            compiled = LOCAL
        return self.beside(
            precision=self.precision, hook=LOCAL, accumulation=self.accumulation, compile=compiled
        )

    def beside(self, **settings: Any) -> TrainingCase:
        """Return another case of the same `group` and phase with these settings, else DDP's
        defaults.
        """
        return TrainingCase(
            workload=self.workload,
            world_size=self.world_size,
            batch_per_rank=self.batch_per_rank,
            backend=self.backend,
            phase=self.phase,
            env=self.env,
            **settings,
        )

    def __str__(self) -> str:
        """Return a name of the settings that differ from the defaults."""
        ranks = counted(self.world_size, "rank")
        if self.trains_on_gpu:
            ranks = f"{ranks} over {self.backend.upper()}"
        words = [self.workload, setting_name(self), ranks, f"batch {self.batch_per_rank}"]
        if self.env:
            words.append(f"under {self.env}")
        if self.phase != SWEEP:
            words.append(self.phase)
        return ", ".join(words)

    @property
    def hook_name(self) -> str:
        """The hook as ``--hook`` takes it, e.g. ``topk:0.01:values=float16``."""
        return hook_words(self.hook, self.density, self.hook_options)


def _as_compile_modes(text: str) -> tuple[str, ...]:
    """Return the modes of ``--compile``; the one without torch.compile is empty."""
    names = as_names(text)
    for name in names:
        check_choice("compile mode", name, ("off", "all", *COMPILE_MODES))
    if "all" in names:
        names = ("off", *COMPILE_MODES)
    return tuple({"off": ""}.get(name, name) for name in names)


#: The axes by the fields of a case, in the order of cases: the last one changes fastest.
_AXES = {
    "accumulation": "accumulations",
    "bucket_view": "bucket_views",
    "static_graph": "static_graphs",
    "unused_parameters": "unused_parameters",
    "broadcast_buffers": "broadcast_buffers",
    "batched_grad_copy": "batched_grad_copies",
    "compile": "compile_modes",
    "precision": "precisions",
    "hook": "hooks",
    "bucket_cap_mb": "bucket_caps",
}


@dataclass(frozen=True, kw_only=True)
class TrainingSweep:
    """Axes whose product is trained: the options of ``commbench train``, whose help says what
    their values are; by default its usual sweep, which shows a trend within a minute.

    Raises:
        InputError: an unknown name, a density outside (0, 1], or a number that is not above 0.
    """

    workload: str = option(
        "mlp",
        "--workload",
        "-w",
        metavar="WORKLOAD",
        about=(
            "What to train: mlp, resnet18, gpt, digits (accuracy), text (loss); trace:resnet50,"
            " trace:bert-base, trace:gpt2-small, trace:many-tiny or trace:FILE (recorded gradients,"
            " replayed); or your own model as FILE.py:CALLABLE, see benchmarks/own_model.py."
        ),
        read=str,
    )
    backend: str = "gloo"
    bucket_caps: Sequence[str] = option(
        "default,5,25,100",
        "--bucket-cap-mb",
        metavar="SIZES",
        about=(
            "DDP bucket sizes in MiB, comma-separated: default (1, then 25), numbers, and lists"
            " such as 1+5+25."
        ),
        read=as_names,
    )
    hooks: Sequence[str] = option(
        "none,fp16,topk:0.01",
        "--hook",
        metavar="HOOKS",
        about=(
            f"Communication hooks, comma-separated: {join_names(HOOKS)}; topk:0.01"
            " sends 1 %, powersgd:2 has rank 2;"
            " options follow as in topk:0.01:values=float16. FILE.py:CALLABLE is a hook of your"
            " own: a function of (state, bucket), or a factory without required arguments."
        ),
        read=as_names,
    )
    precisions: Sequence[str] = option(
        "fp32",
        "--precision",
        metavar="NAMES",
        about=f"Any of {join_names(PRECISIONS)}.",
        read=as_names,
    )
    accumulations: Sequence[int] = option(
        "1",
        "--accumulation",
        metavar="NUMBERS",
        about="Backward passes per optimiser step, comma-separated.",
        read=as_numbers,
    )
    bucket_views: Sequence[bool] = BUCKET_VIEW.option()
    static_graphs: Sequence[bool] = STATIC_GRAPH.option()
    unused_parameters: Sequence[bool] = UNUSED_PARAMETERS.option()
    broadcast_buffers: Sequence[bool] = BROADCAST_BUFFERS.option()
    batched_grad_copies: Sequence[bool] = BATCHED_GRAD_COPY.option()
    compile_modes: Sequence[str] = option(
        "off",
        "--compile",
        metavar="MODES",
        about=(
            "torch.compile of the DDP object, comma-separated: off, and optimize_ddp's"
            f" {join_names(COMPILE_MODES)}; all is all four."
        ),
        read=_as_compile_modes,
    )
    """Of `COMPILE_MODES`; empty: without torch.compile."""
    batches: Sequence[int] = option(
        (),
        "--batch",
        metavar="NUMBERS",
        about="Samples per rank, comma-separated; by default the workload's.",
        read=as_numbers,
    )
    world_sizes: Sequence[int] = option(
        (),
        "--world-size",
        "--world-sizes",
        metavar="NUMBERS",
        about="Train on the first N ranks, comma-separated.",
        read=as_numbers,
    )
    """Empty: all ranks."""
    env: Sequence[str] = ()
    """As in `commbench.collectives.cases.Sweep`."""

    def __post_init__(self) -> None:
        check_choice("training backend", self.backend, TRAINING_BACKENDS)
        for precision in self.precisions:
            check_choice("precision", precision, PRECISIONS)
        object.__setattr__(
            self,
            "bucket_caps",
            tuple(dict.fromkeys(canonical_cap(cap) for cap in self.bucket_caps)),
        )
        parse_env(self.env)
        for hook in self.hooks:
            parse_hook(hook)
        for axis, numbers in (
            ("Accumulation", self.accumulations),
            ("Batch", self.batches),
            ("World size", self.world_sizes),
        ):
            for number in numbers:
                if number < 1:
                    raise InputError(f"{axis} {number} was asked for; give at least 1.")

    def cases(self, *, ranks: int, batch: int) -> list[TrainingCase]:
        """Return the configurations on ``ranks`` ranks, each once: each group's baseline first,
        local steps last.

        ``batch`` is the workload's default number of samples per rank.

        Raises:
            InputError: a world size beyond ``ranks``.
        """
        for size in self.world_sizes:
            if size > ranks:
                raise InputError(
                    f"A world size of {size} was asked for in a launch of {counted(ranks, 'rank')};"
                    " raise -n."
                )
        cases = []
        for env in parse_env(self.env) or ("",):
            for size in self.world_sizes or (ranks,):
                for samples in self.batches or (batch,):
                    cases += self._group(size, samples, env)
        return list(dict.fromkeys([*cases, *(case.local() for case in cases)]))

    def _group(self, world_size: int, batch: int, env: str) -> list[TrainingCase]:
        cases = []
        for values in itertools.product(*(getattr(self, axis) for axis in _AXES.values())):
            settings: dict[str, Any] = dict(zip(_AXES, values, strict=True))
            settings.update(parse_hook(settings["hook"]))
            case = TrainingCase(
                workload=self.workload,
                backend=self.backend,
                world_size=world_size,
                batch_per_rank=batch,
                env=env,
                **settings,
            )
            cases.append(case)
        return [baseline_of(cases), *cases]


def hook_position(hook: str) -> int:
    """Return a hook's position in the order of `HOOKS`, then hooks of a user's file, then the step
    without DDP.

    Raises:
        ValueError: no hook has this name.
    """
    own = "FILE.py"
    if is_file_hook(hook):
        hook = own
    return [*HOOKS, own, LOCAL].index(hook)


def baseline_of(cases: Sequence[TrainingCase]) -> TrainingCase:
    """Return the baseline of a group of alternatives: DDP's default in fp32, at the group's least
    accumulation.

    It looks for unused parameters only if all alternatives do: the model may need that.
    """
    return cases[0].beside(
        accumulation=min(case.accumulation for case in cases),
        unused_parameters=all(case.unused_parameters for case in cases),
    )


def baseline_name(*, is_live: bool) -> str:
    """Return the baseline's name in text: in a live tuning it is the setting of the user's
    script.
    """
    if is_live:
        return "the script's own setting"
    return "the default"


def canonical_cap(text: str) -> str:
    """Return a bucket size as ``ddp.csv`` writes it: ``default``, ``25``, ``0.5`` or ``1+5+25``
    (MiB).

    Raises:
        InputError: not a number, or not above 0.
    """
    if text.strip() == DEFAULT_CAP:
        return DEFAULT_CAP
    try:
        caps = [float(part) for part in text.split("+")]
    except ValueError:
        raise InputError(
            f"Bucket size {text!r} is not understood; write default, MiB such as 25, or 1+5+25."
        ) from None
    if not all(SMALLEST_CAP_MB <= cap <= LARGEST_CAP_MB for cap in caps):
        raise InputError(
            f"Bucket size {text!r} is not above 0 and at most {LARGEST_CAP_MB} MiB; "
            "write default, MiB such as 25, or 1+5+25."
        )
    # without exponents, whose + would split the list
    return "+".join(f"{cap:.9f}".rstrip("0").rstrip(".") for cap in caps)
