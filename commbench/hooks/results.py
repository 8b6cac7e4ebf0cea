"""Checks of the results of hooks, and of errors in their futures."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from commbench.errors import CommbenchError, InputError, LaunchError

if TYPE_CHECKING:
    from typing_extensions import Self

#: The first words of torch's RuntimeError for an error in a callback; torch has no type for it and
#: drops the cause.
_IN_CALLBACK = "Got the following error when running the callback: "
#: Gloo's messages begin with a file and a line of Gloo's source.
_PLACE = re.compile(r"^\[\S+\] ")


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """The required result of a hook for its bucket: size, type and device."""

    index: int
    numel: int
    is_last: bool
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, bucket: dist.GradBucket) -> Self:
        """Return the requirements of a bucket; raise InputError if its gradients are sparse."""
        buffer, index = bucket.buffer(), bucket.index()
        if buffer.layout != torch.strided:
            raise InputError(
                f"Bucket {index} holds sparse gradients, which hooks cannot average: make them"
                " dense."
            )
        return cls(
            index=index,
            numel=buffer.numel(),
            is_last=bucket.is_last(),
            dtype=buffer.dtype,
            device=buffer.device,
        )

    def check(self, hook: str, result: object) -> Tensor:
        """Return the result if DDP can use it.

        Otherwise raise InputError with the hook, the bucket and the problem.

        DDP itself crashes on None, and silently copies from a result that is too long,
        two-dimensional, strided or of another type.
        """
        if isinstance(result, list) and len(result) == 1:  # the value of a Gloo all_reduce
            result = result[0]
        if isinstance(result, Tensor) and self._fits(result):
            return result
        raise InputError(
            f"Hook {hook} returned {_describe(result)} for bucket {self.index}; it must return a"
            f" Future of one contiguous tensor of shape ({self.numel},), {_plain(self.dtype)}, on"
            f" {self.device}."
        )

    def _fits(self, result: Tensor) -> bool:
        return bool(
            result.shape == (self.numel,)
            and result.dtype == self.dtype
            and result.device == self.device
            and result.is_contiguous()
        )

    def value_of(self, hook: str, done: Future) -> Any:  # noqa: ANN401 - a future's value
        """Return the value of a future.

        Raise InputError for a failed callback, LaunchError for a lost rank.
        """
        try:
            return done.value()
        except CommbenchError:
            raise
        except Exception as error:
            text = (str(error) or type(error).__name__).splitlines()[0]
            if text.startswith(_IN_CALLBACK):
                raised = text.removeprefix(_IN_CALLBACK)
                raise InputError(
                    f"A callback of hook {hook} raised {raised} on bucket {self.index}."
                ) from error
            reason = _PLACE.sub("", text.split(". ")[0])
            raise LaunchError(
                f"Hook {hook} could not exchange bucket {self.index} ({reason}): look at the other"
                " ranks' messages, one of them has probably ended."
            ) from error


def _describe(result: object) -> str:
    if not isinstance(result, Tensor):
        return "None" if result is None else f"a {type(result).__name__}"
    strided = "" if result.is_contiguous() else "strided "
    return (
        f"a {strided}tensor of shape {tuple(result.shape)}, {_plain(result.dtype)}, on"
        f" {result.device}"
    )


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
