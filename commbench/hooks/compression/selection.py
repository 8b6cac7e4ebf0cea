"""Top-k selection with error feedback on host arrays: a packed payload, and the residual for the
next step.
"""

from __future__ import annotations

from typing import TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from commbench.errors import InputError, WrongDataError
from commbench.hooks.compression import kernels
from commbench.hooks.message import ValueType, check_slots, payload_bytes

Floats: TypeAlias = NDArray[np.float32]
Payload: TypeAlias = NDArray[np.uint8]


class TopKSelector:
    """Encodes the k elements of largest magnitude, exactly k in every step.

    It releases the GIL while it works.
    """

    def __init__(self, n: int, k: int, *, value_dtype: ValueType = "float32") -> None:
        """Prepare to send ``k`` of ``n`` elements as ``value_dtype``.

        Raises:
            InputError: k is not in 1..n, n does not fit an int32, or the type is neither float32
                nor float16.
        """
        check_slots(n, k, value_dtype)
        self.n = n
        self.k = k
        self.value_dtype: ValueType = value_dtype
        self.payload_bytes = payload_bytes(k, value_dtype)

    def encode(
        self,
        gradient: Floats,
        residual: Floats | None,
        payload: Payload,
        *,
        out_residual: Floats | None = None,
        step: int = 0,
    ) -> bool:
        """Write the largest elements of a = gradient + residual to ``payload``, and the unsent part
        to the residual.

        Strictly larger elements come before ties. The choice among ties rotates with ``step``, so
        that each is chosen in turn. If fewer than k elements are not zero, the unused slots add 0
        to the first elements.

        Args:
            gradient: shape (n,); not changed.
            residual: shape (n,), the unsent part of earlier steps; None: a = gradient.
            payload: shape (payload_bytes,), written.
            out_residual: shape (n,), becomes a minus the sent values: a sent element becomes zero
                or, with float16 values, the exact rounding error. Default: ``residual`` itself;
                without both, no residual is written.
            step: the number of this step.

        Returns:
            False if an element of a is not finite: both residuals are unchanged, and all values of
                the payload are NaN, so that the other ranks detect it. Else True.

        Raises:
            InputError: an array has another type, shape or layout, or the new residual overlaps the
                gradient.
        """
        rest = residual if out_residual is None else out_residual
        self._check(gradient, residual, payload, rest)
        indices, values = _slots(payload, self.k, self.value_dtype)
        payload[indices.nbytes + values.nbytes :] = 0
        source = gradient
        if residual is not None and rest is not None:
            source = rest
        count = kernels.select(gradient, residual, source, step, indices)
        if count == kernels.NOT_FINITE:
            indices[:] = np.arange(self.k)
            values[:] = np.nan
            return False
        if residual is None and rest is not None:
            rest[:] = gradient
        indices[count:] = np.arange(self.k - count)
        values[count:] = 0
        if self.value_dtype == "float32":
            kernels.take(source, rest, indices[:count], values[:count])
            return True
        sent = np.empty(count, dtype=np.float32)
        kernels.take(source, rest, indices[:count], sent)
        values[:count] = _halved(sent)
        if rest is not None:
            rest[indices[:count]] = sent - values[:count]
        return True

    def _check(
        self, gradient: Floats, residual: Floats | None, payload: Payload, rest: Floats | None
    ) -> None:
        _check_array("gradient", gradient, np.float32, self.n)
        _check_array("payload", payload, np.uint8, self.payload_bytes, written=True)
        if residual is not None:
            _check_array("residual", residual, np.float32, self.n)
        if rest is not None:
            _check_array("new residual", rest, np.float32, self.n, written=True)
            if np.may_share_memory(rest, gradient) or (
                residual is not None and _overlap_in_part(rest, residual)
            ):
                raise InputError(
                    "The new residual overlaps the gradient or part of the old one; give it memory"
                    " of its own."
                )


def _halved(values: Floats) -> NDArray[np.float16]:
    """Return the float16 that are sent for finite values: the nearest, but no infinity.

    From 2**29 on, the last place of float32 is worth more than that of 65504, 32: what is sent is
    then a multiple of it, so that float32 can hold the remainder.
    """
    places = np.maximum(np.spacing(np.abs(values)), np.float32(32))
    limits = np.float32(65504) // places * places
    return np.copysign(np.minimum(np.abs(values), limits), values).astype(np.float16)


def decode_add(payload: Payload, n: int, k: int, value_dtype: ValueType, into: Floats) -> None:
    """Add a rank's payload to ``into``, shape (n,).

    Raises:
        InputError: an array's type, shape or layout does not match n, k and the type of the values.
        WrongDataError: the payload has an index out of range; ``into`` is unchanged.
    """
    check_slots(n, k, value_dtype)
    _check_array("payload", payload, np.uint8, payload_bytes(k, value_dtype))
    _check_array("gradient to add to", into, np.float32, n, written=True)
    indices, values = _slots(payload, k, value_dtype)
    if not kernels.are_within(indices, n):
        raise WrongDataError(
            f"A payload names elements outside of the {n} there are; do all ranks agree on n and k?"
        )
    kernels.add(indices, values.astype(np.float32, copy=False), into)


def prepare() -> None:
    """Compile all kernels, or load them from numba's cache, so that no timed step waits for
    them.
    """
    gradient, total = np.ones(4, dtype=np.float32), np.zeros(4, dtype=np.float32)
    for value_dtype in get_args(ValueType):
        selector = TopKSelector(4, 2, value_dtype=value_dtype)
        payload = np.zeros(selector.payload_bytes, dtype=np.uint8)
        selector.encode(gradient, None, payload)
        selector.encode(gradient, None, payload, out_residual=total)
        selector.encode(gradient, total, payload)
        decode_add(payload, 4, 2, value_dtype, total)


def _slots(
    payload: Payload, k: int, value_dtype: ValueType
) -> tuple[NDArray[np.int32], NDArray[np.floating]]:
    """Return the indices and values of a payload, as views."""
    values = payload[4 * k :].view(value_dtype)
    return payload[: 4 * k].view(np.int32), values[:k]


def _overlap_in_part(a: Floats, b: Floats) -> bool:
    """Return whether two arrays of one size share part of their memory, but not all."""
    return a is not b and np.may_share_memory(a, b) and a.ctypes.data != b.ctypes.data


def _check_array(
    name: str, array: NDArray[np.generic], dtype: type, size: int, *, written: bool = False
) -> None:
    """Raise InputError if the array does not suit the compiled code, which does not check
    arrays.
    """
    if array.dtype != dtype or array.shape != (size,):
        actual = f"{array.dtype} of shape {array.shape}"
        raise InputError(
            f"The {name} must be {np.dtype(dtype)} of shape ({size},) and is {actual}."
        )
    if (
        not array.flags.c_contiguous
        or array.ctypes.data % 4
        or (written and not array.flags.writeable)
    ):
        raise InputError(
            f"The {name} must be contiguous, aligned to 4 bytes and, where it is written,"
            " writeable."
        )
