"""Every communication hook as one entry: its class, its options, its messages and its name on the
command line.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

from commbench.errors import InputError, unknown_choice
from commbench.findings import UnpredictedError
from commbench.hooks.message import (
    BucketShape,
    Exchange,
    Message,
    Scope,
    Selection,
    ValueType,
    aligned_messages,
    dense_messages,
    power_sgd_messages,
    quantised_messages,
    top_k_messages,
)
from commbench.system.user_files import is_callable_of_file, split_callable
from commbench.units import TRUTH

if TYPE_CHECKING:
    from commbench.hooks.base import Hook

OptionValue: TypeAlias = bool | int | float | str | tuple[float, ...]
#: What a hook does to gradients: nothing beyond the rounding of a sum; it rounds each to 16 bits;
#: it drops more.
Effect = Literal["none", "half precision", "lossy"]
#: DDP without a hook.
NONE = "none"
FP16 = "fp16"
TOP_K = "topk"
#: The value of top-k's option ``exchange`` with which ranks send the same chunks.
ALIGNED = "aligned"
_NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class HookOption:
    """A keyword argument of a hook's class."""

    name: str
    default: OptionValue
    """Its type is the option's type; a tuple is a list of numbers."""
    choices: tuple[str, ...] = ()
    """Allowed texts; empty unless the option is a choice."""
    least: int | None = None
    """The smallest allowed whole number; None: not checked here."""

    @property
    def values(self) -> str:
        """The option's values, in words."""
        words = {
            bool: "true or false",
            int: "a whole number",
            float: "a number",
            tuple: "a list such as 0.25+0.06",
        }
        at_least = "" if self.least is None else f" of at least {self.least}"
        return " or ".join(self.choices) if self.choices else words[type(self.default)] + at_least

    def read(self, text: str) -> OptionValue:
        """Parse a value of the option.

        Raises:
            KeyError, ValueError: the text is not a value of the option.
        """
        if self.choices:
            return self.choices[self.choices.index(text)]
        if isinstance(self.default, bool):
            return TRUTH[text.lower()]
        if isinstance(
            self.default, tuple
        ):  # commas separate hooks on a command line, so plus signs may stand for them
            return tuple(float(word) for word in text.replace("+", ",").split(","))
        number = int(text) if isinstance(self.default, int) else float(text)
        if self.least is not None and number < self.least:
            raise ValueError(text)
        return number


@dataclass(frozen=True, kw_only=True)
class HookSpec:
    """The entry of a hook; its options must be the keyword arguments of its class."""

    name: str
    """Name in ``--hook``."""
    messages: Callable[..., tuple[Message, ...]]
    """Returns the hook's messages for a `BucketShape` after any warm-up; its options are keyword
    arguments."""
    formula: str
    """Bytes that one of p ranks sends for n float32 elements, as text."""
    class_name: str = ""
    """Name of the class in `commbench.hooks`; empty for `NONE`."""
    options: tuple[HookOption, ...] = ()
    number: Literal["density", "rank"] | None = None
    """The option whose value follows the hook's name, without the option's name."""
    usual_number: str = ""
    """The value that stands for no number, if the number is optional."""
    effect: Effect = "lossy"
    """What the hook does to the gradients that the optimiser gets."""
    is_instrument: bool = False
    """Whether the hook only serves measurements and is never recommended."""
    runs_in_order: Callable[[Mapping[str, str]], bool] = lambda _options: False
    """Returns whether, with these options, the collectives of a bucket wait for those of the
    previous bucket."""
    compiles: Callable[[Mapping[str, str]], bool] = lambda _options: False
    """Returns whether the hook with these options uses compiled code, which takes seconds to
    compile."""
    is_from_file: bool = False
    """Whether it is a callable of a user's file: then its messages are unknown, and its bytes
    can only be measured."""
    needs_shapes: Callable[[Collection[str]], bool] = lambda _options: False
    """Returns whether the size of the messages depends on the shapes of the tensors with these
    options."""

    @property
    def usage(self) -> str:
        """The syntax in ``--hook``: ``topk:DENSITY``."""
        return f"{self.name}:{self.number.upper()}" if self.number else self.name

    @property
    def usual(self) -> str:
        """The hook with a typical number: ``topk:0.01``."""
        return f"{self.name}:{self.usual_number}" if self.number else self.name

    def load(self) -> type[Hook]:
        """Import the hook's class.

        Raises:
            InputError: PyTorch is not installed.
        """
        hook_class: type[Hook] = getattr(
            importlib.import_module("commbench.hooks"), self.class_name
        )
        return hook_class

    def arguments(
        self, *, density: float | None, options: Mapping[str, str]
    ) -> dict[str, OptionValue]:
        """Parse the given density and options to keyword arguments.

        Raises:
            InputError: the hook has no such option, or the text is not understood.
        """
        by_name = {option.name: option for option in self.options}
        arguments: dict[str, OptionValue] = {}
        if density is not None:
            if "density" not in by_name:
                raise InputError(
                    f"Hook {self.name} was given density {density:g} and takes none: leave it out."
                )
            arguments["density"] = density
        for name, text in options.items():
            if name not in by_name or name in arguments:
                listed = ", ".join(by_name) or "none"
                raise InputError(f"Hook {self.name} has no option {name!r}: it takes {listed}.")
            option = by_name[name]
            try:
                arguments[name] = option.read(text)
            except (KeyError, ValueError) as error:
                raise InputError(
                    f"Hook {self.name} was given {name}={text}: it takes {option.values}."
                ) from error
        return arguments

    def messages_of(
        self, bucket: BucketShape, *, density: float | None, options: Mapping[str, str]
    ) -> tuple[Message, ...]:
        """Return the messages of the hook with these options for a bucket, in order, after any
        warm-up.

        Raises:
            InputError: an option is not understood, or the bucket's shapes are needed and missing.
        """
        if bucket.shapes is None and self.needs_shapes(options):
            name = hook_words(
                self.name, density, ";".join(f"{key}={text}" for key, text in options.items())
            )
            raise InputError(
                f"What hook {name} sends was asked for from the number of elements alone, but it"
                " depends on the shapes of the tensors: give these, from an inspection of the"
                " workload."
            )
        defaults = {option.name: option.default for option in self.options}
        return self.messages(
            bucket, **(defaults | self.arguments(density=density, options=options))
        )


# -------------------------------------------------------------------------------------- the entries

_DENSITY = HookOption(name="density", default=0.01)
_FEEDBACK = HookOption(name="feedback", default=True)
_SEED = HookOption(name="seed", default=0)
_START = HookOption(name="start", default=0)
#: Options of top-k that make it treat the tensors of a bucket differently.
_BY_TENSOR = frozenset({"scope", "dense_below", "dense_vectors"})


def _top_k(
    bucket: BucketShape,
    *,
    density: float,
    values: ValueType,
    scope: Scope,
    dense_below: int,
    dense_vectors: bool,
    exchange: Exchange,
    chunk: int,
    **_others: OptionValue,
) -> tuple[Message, ...]:
    if exchange == ALIGNED:
        return aligned_messages(bucket, density=density, chunk=chunk)
    selection = Selection(
        density=density,
        values=values,
        scope=scope,
        dense_below=dense_below,
        dense_vectors=dense_vectors,
    )
    return top_k_messages(bucket, selection)


def _is_aligned(options: Mapping[str, str]) -> bool:
    return options.get("exchange") == ALIGNED


def _int8(bucket: BucketShape, *, block: int, **_others: OptionValue) -> tuple[Message, ...]:
    return quantised_messages(bucket, block=block)


def _power_sgd(
    bucket: BucketShape,
    *,
    rank: int,
    min_compression_rate: float,
    values: str,
    **_others: OptionValue,
) -> tuple[Message, ...]:
    return power_sgd_messages(
        bucket, rank=rank, min_compression_rate=min_compression_rate, values=values
    )


_SPECS = (
    HookSpec(name=NONE, messages=dense_messages, formula="2(p-1)/p x 4n", effect="none"),
    HookSpec(
        name="passthrough",
        class_name="PassThrough",
        messages=dense_messages,
        formula="2(p-1)/p x 4n",
        effect="none",
        is_instrument=True,
    ),
    HookSpec(
        name=FP16,
        class_name="FP16",
        messages=lambda bucket: dense_messages(bucket, dtype="float16"),
        formula="2(p-1)/p x 2n",
        effect="half precision",
    ),
    HookSpec(
        name="bf16",
        class_name="BF16",
        messages=lambda bucket: dense_messages(bucket, dtype="bfloat16"),
        formula="2(p-1)/p x 2n",
        effect="half precision",
    ),
    HookSpec(
        name="int8",
        class_name="Int8",
        messages=_int8,
        formula="2(p-1)/p x n (1 + 4/block)",
        options=(HookOption(name="block", default=256, least=1), _FEEDBACK, _START),
        runs_in_order=lambda _options: True,
        compiles=lambda _options: True,
    ),
    HookSpec(
        name=TOP_K,
        class_name="TopK",
        messages=_top_k,
        formula=(
            "(p-1) messages of k x (4 + value bytes), padded to 4, and the tensors sent whole as"
            " they are; with `exchange=aligned` 2(p-1)/p x 4 (n/chunk + k)"
        ),
        options=(
            _DENSITY,
            HookOption(name="selection", default="fast", choices=("fast", "exact")),
            HookOption(name="values", default="float32", choices=("float32", "float16")),
            HookOption(name="scope", default="bucket", choices=("bucket", "parameter")),
            HookOption(name="dense_below", default=0),
            HookOption(name="dense_vectors", default=False),
            HookOption(name="exchange", default="gather", choices=("gather", ALIGNED)),
            HookOption(name="chunk", default=256, least=1),
            _FEEDBACK,
            HookOption(name="momentum", default=0.0),
            HookOption(name="clip", default=0.0),
            HookOption(name="warmup", default=()),
            HookOption(name="warmup_steps", default=0),
            _START,
        ),
        number="density",
        usual_number="0.01",
        needs_shapes=lambda options: not _BY_TENSOR.isdisjoint(options),
        runs_in_order=_is_aligned,
        compiles=lambda options: (
            options.get("selection", "fast") == "fast" and not _is_aligned(options)
        ),
    ),
    HookSpec(
        name="powersgd",
        class_name="PowerSGD",
        messages=_power_sgd,
        formula=(
            "2(p-1)/p x value bytes x (sum of r (rows + columns) + what is sent whole); without"
            " shapes, of one square matrix"
        ),
        options=(
            HookOption(name="rank", default=1),
            HookOption(name="start", default=2),
            _FEEDBACK,
            HookOption(name="min_compression_rate", default=2.0),
            HookOption(
                name="values", default="float32", choices=("float32", "float16", "bfloat16")
            ),
            _SEED,
        ),
        number="rank",
        usual_number="2",
        runs_in_order=lambda _options: True,
        needs_shapes=lambda _options: True,
    ),
)
#: The hooks by name, in the order in which they are listed.
HOOKS: Mapping[str, HookSpec] = MappingProxyType({spec.name: spec for spec in _SPECS})


def find_hook(name: str) -> HookSpec:
    """Return the entry of a hook; one of a user's file is named as `file_hook_name` returns it.

    Raises:
        InputError: no hook has this name.
    """
    if is_file_hook(name):
        return HookSpec(
            name=name,
            messages=functools.partial(_unknown_messages, name),
            formula="measured",
            is_from_file=True,
        )
    if name not in HOOKS:
        usages = [spec.usage for spec in HOOKS.values()]
        raise unknown_choice("hook", name, [*usages, "FILE.py:CALLABLE"])
    return HOOKS[name]


def make_hook(
    name: str, *, density: float | None = None, options: Mapping[str, str] = _NO_OPTIONS
) -> Hook | None:
    """Make the hook of this name, or None for ``none``.

    ``options`` are its keyword arguments, written as text.

    A hook of a user's file is named with its path, see `hook_source`.

    Raises:
        InputError: the name or an option is unknown, a text is not understood, or the density is
            outside (0, 1].
    """
    spec = find_hook(name)
    if spec.is_from_file:
        own: Hook = importlib.import_module("commbench.hooks.from_file").make_file_hook(name)
        return own
    arguments = spec.arguments(density=density, options=options)
    return spec.load()(**arguments) if spec.class_name else None


# --------------------------------------------------------------------------- hooks of a user's file


def is_file_hook(text: str) -> bool:
    """Return whether a hook is a callable of a user's file: ``FILE.py:CALLABLE``."""
    return is_callable_of_file(text)


def file_hook_name(text: str) -> str:
    """Return the name of a user's own hook in results: its file without directories, and its
    callable.
    """
    return text.replace("\\", "/").rpartition("/")[2]


def find_file_hooks(hooks: Iterable[str]) -> tuple[str, ...]:
    """Return the hooks of a user's files with absolute paths.

    Raises:
        InputError: a file or the name of a callable is missing, or two hooks have the same name.
    """
    values: dict[str, str] = {}
    for text in (hook.strip() for hook in hooks if is_file_hook(hook.strip())):
        file, callable_name = split_callable(text, "hook")
        path = f"{file.absolute()}:{callable_name}"
        if values.setdefault(file_hook_name(text), path) != path:
            raise InputError(
                f"Hooks {path} and {values[file_hook_name(text)]} have the same name: rename a"
                " file."
            )
    return tuple(values.values())


def hook_source(name: str, file_hooks: Iterable[str]) -> str:
    """Return what `make_hook` takes for a hook that results call ``name``: of a user's file its
    path, else the name.
    """
    return next((path for path in file_hooks if file_hook_name(path) == name), name)


def _unknown_messages(name: str, _bucket: BucketShape) -> tuple[Message, ...]:
    raise UnpredictedError("hook_bytes_unknown", hook=name)


# -------------------------------------------------------------------------------- on a command line


class HookFields(TypedDict):
    """A hook as the columns of ``ddp.csv``."""

    hook: str
    density: float | None
    hook_options: str


def parse_hook(text: str) -> HookFields:
    """Return the fields of a hook as typed: ``topk:0.01:values=float16``.

    Raises:
        InputError: an unknown hook, a missing or superfluous number, or a density outside (0, 1].
    """
    if is_file_hook(text.strip()):
        return {"hook": file_hook_name(text.strip()), "density": None, "hook_options": ""}
    name, *rest = text.strip().split(":")
    spec = find_hook(name)
    numbers, pairs = (
        [part for part in rest if "=" not in part],
        [part for part in rest if "=" in part],
    )
    if len(numbers) != (spec.number is not None):
        raise InputError(f"Hook {text!r} is not understood; write {spec.usage}.")
    options = dict(pair.split("=", 1) for pair in pairs)
    if len(options) < len(pairs) or spec.number in options:
        raise InputError(
            f"Hook {text!r} names something twice; write each option once, and {spec.usage} first."
        )
    if not all(
        re.fullmatch(r"[a-z_]+", key) and re.fullmatch(r"[\w.+-]+", value)
        for key, value in options.items()
    ):
        raise InputError(
            f"The options of hook {text!r} are not understood; write them as key=value, separated"
            " by :."
        )
    density = None
    if spec.number == "density":
        density = _density(text, numbers[0])
    elif spec.number:
        options[spec.number] = _whole_number(text, numbers[0], spec)
    canonical = ";".join(f"{key}={options[key]}" for key in sorted(options))
    return {"hook": name, "density": density, "hook_options": canonical}


def hook_words(hook: str, density: float | None, hook_options: str) -> str:
    """Return the text from which `parse_hook` returns these fields."""
    texts = split_options(hook_options)
    option = HOOKS[hook].number if hook in HOOKS else None
    number = texts.pop(option or "", "") if density is None else f"{density:g}"
    return ":".join(
        [hook, *([number] if number else []), *(f"{key}={value}" for key, value in texts.items())]
    )


def canonical_hook(text: str) -> str:
    """Return a hook as results name it; raise InputError as `parse_hook` does."""
    return hook_words(**parse_hook(text.strip()))


def split_options(text: str) -> dict[str, str]:
    """Parse ``key=value;...``; return the values by key."""
    return dict(pair.split("=", 1) for pair in text.split(";") if pair)


def _density(text: str, number: str) -> float:
    try:
        density = float(number)
    except ValueError:
        density = float("nan")
    if not 0 < density <= 1:
        raise InputError(
            f"The density of hook {text!r} is not in (0, 1]; write e.g. topk:0.01 to send 1 %."
        )
    return density


def _whole_number(text: str, number: str, spec: HookSpec) -> str:
    if not number.isdecimal() or int(number) < 1:
        raise InputError(
            f"The {spec.number} of hook {text!r} is not a whole number above 0; write e.g."
            f" {spec.usual}."
        )
    return str(int(number))
