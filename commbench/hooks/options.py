"""How a hook is declared, without torch: a dataclass whose fields are its options, and which states
the messages that it sends.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from typing_extensions import Self

from commbench.errors import InputError
from commbench.findings import UnpredictedError
from commbench.hooks.message import BucketShape, Message, Shapes, ring_bytes

OptionValue: TypeAlias = bool | int | float | str | tuple[float, ...]
#: What a hook does to gradients: nothing beyond the rounding of a sum; it rounds each to 16 bits;
#: it drops more.
Effect = Literal["none", "half precision", "lossy"]


# ------------------------------------------------------------------------------------------ options


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The values that an option takes; a list takes any number of them."""

    words: str
    """The values, in words."""
    read: Callable[[str], OptionValue]
    """Parses a text; raises KeyError or ValueError."""
    choices: Sequence[str] = ()
    """Allowed texts; empty: numbers in the bounds below."""
    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf

    def holds(self, value: Any) -> bool:
        """Return whether the option takes this value."""
        if self.choices:
            return value in self.choices
        if isinstance(value, Sequence):
            return all(map(self.holds, value))
        return bool(self.least <= value <= self.most and value > self.above)


#: Words for true and false.
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _read_switch(text: str) -> bool:
    return _TRUTH[text.lower()]


def _read_list(text: str) -> tuple[float, ...]:
    """Parse a list; plus signs may stand for commas, which separate hooks on a command line."""
    return tuple(map(float, text.replace("+", ",").split(",")))


SWITCH = Kind(words="true or false", read=_read_switch)
WHOLE = Kind(words="a whole number", read=int)
FROM_0 = Kind(words="a whole number of at least 0", read=int, least=0)
FROM_1 = Kind(words="a whole number of at least 1", read=int, least=1)
NOT_NEGATIVE = Kind(words="a number of at least 0", read=float, least=0)
POSITIVE = Kind(words="a number above 0", read=float, above=0)
SHARE = Kind(words="a number above 0, at most 1", read=float, above=0, most=1)
SHARES = Kind(words="a list such as 0.25+0.06", read=_read_list, above=0, most=1)


def option(kind: Kind, default: OptionValue) -> Any:
    """Return a field of a hook that is an option of this kind."""
    return dataclasses.field(default=default, metadata={"kind": kind})


def one_of(literal: Any) -> Kind:
    """Return the kind of an option that takes one of the texts of a `Literal`."""
    texts = get_args(literal)
    return Kind(words=" or ".join(texts), read=str, choices=texts)


# -------------------------------------------------------------------------------------------- hooks


@dataclass(kw_only=True, eq=False)
class HookSpec(ABC):
    """A hook as it is declared; the fields that `option` made are its options. It knows no torch.

    The class of the same name in `commbench.hooks` inherits it and does the work.

    Raises:
        InputError: a value that an option does not take.
    """

    name: ClassVar[str]
    """Name in ``--hook``."""
    formula: ClassVar[str]
    """Bytes that one of p ranks sends for n float32 elements, as text."""
    module: ClassVar[str] = ""
    """The module of `commbench.hooks` with the class that does the work; empty: there is none."""
    effect: ClassVar[Effect] = "lossy"
    """What the hook does to the gradients that the optimiser gets."""
    number: ClassVar[Literal["density", "rank"] | None] = None
    """The option whose value follows the hook's name, without the option's name."""
    usual: ClassVar[str] = ""
    """The hook with a typical number: ``topk:0.01``; empty: it takes none."""
    is_instrument: ClassVar[bool] = False
    """Whether the hook only serves measurements and is never recommended."""

    def __post_init__(self) -> None:
        for name, kind in self.kinds().items():
            value = getattr(self, name)
            if not kind.holds(value):
                raise InputError(
                    f"Hook {self.name} was given {name}={value}: it takes {kind.words}."
                )

    def messages(self, bucket: BucketShape) -> tuple[Message, ...]:
        """Return the collectives that the hook issues for a bucket, in order, after any warm-up.

        Raises:
            UnpredictedError: the hook does not state them.
        """
        raise UnpredictedError("hook_bytes_unknown", hook=self.name)

    def wire_bytes(self, shapes: Shapes, world_size: int) -> int:
        """Return the bytes that one rank sends by theory for a float32 bucket, after any warm-up.

        An all_reduce is a ring, see `ring_bytes`. In an all_gather a rank sends its part once for
        every other rank; in an all_to_all it sends every other rank one part.

        ``shapes`` are the shapes of the bucket's tensors.
        """
        bucket = BucketShape(shapes=shapes, world_size=world_size)
        reduced = moved = 0.0
        for message in self.messages(bucket):
            if message.operation == "all_reduce":
                reduced += message.message_bytes
            else:
                moved += message.message_bytes
        return round(ring_bytes(reduced, world_size) + (world_size - 1) * moved / world_size)

    @property
    def runs_in_order(self) -> bool:
        """Whether the collectives of a bucket wait for those of the previous bucket."""
        return False

    @classmethod
    def kinds(cls) -> dict[str, Kind]:
        """Return the kind of each option by its name."""
        return {
            each.name: each.metadata["kind"]
            for each in dataclasses.fields(cls)
            if "kind" in each.metadata
        }

    @classmethod
    def usage(cls) -> str:
        """Return the syntax in ``--hook``: ``topk:DENSITY``."""
        if cls.number is None:
            return cls.name
        return f"{cls.name}:{cls.number.upper()}"

    @classmethod
    def read(cls, *, density: float | None, options: Mapping[str, str]) -> Self:
        """Return the hook with the given density, and its options as text.

        Raises:
            InputError: the hook has no such option, or does not take the value.
        """
        kinds = cls.kinds()
        values = {}
        texts = dict(options)
        if density is not None:
            texts["density"] = str(density)
        for name, text in texts.items():
            if name not in kinds:
                listed = ", ".join(kinds) or "none"
                raise InputError(f"Hook {cls.name} has no option {name!r}: it takes {listed}.")
            try:
                values[name] = kinds[name].read(text)
            except (KeyError, ValueError) as error:
                raise InputError(
                    f"Hook {cls.name} was given {name}={text}: it takes {kinds[name].words}."
                ) from error
        return cls(**values)


@dataclass(kw_only=True, eq=False)
class Feedback(HookSpec):
    """A hook that keeps the unsent part of the gradients."""

    feedback: bool = option(SWITCH, default=True)
    """Keep the unsent part of each gradient, and add it to the next."""
    start: int = option(FROM_0, 0)
    """Number of first steps without compression."""
