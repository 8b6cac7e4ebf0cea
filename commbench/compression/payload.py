"""The bytes in which selected elements travel: how many they are, and what cannot be sent.

A payload is a byte array that collectives can carry as it is: k indices (int32), then k values (float32 or float16),
then, where k is odd and values take two bytes, two bytes of zero, so that payloads in one buffer stay aligned.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np

from commbench.errors import InputError

ValueType: TypeAlias = Literal["float32", "float16"]

#: One more element could not be named by an int32.
LARGEST_N = 2**31 - 1


def payload_bytes(k: int, value_dtype: ValueType = "float32") -> int:
    """Bytes of a payload of ``k`` slots, a multiple of 4."""
    return 4 * k + -(-np.dtype(value_dtype).itemsize * k // 4) * 4


def check_slots(n: int, k: int, value_dtype: str) -> None:
    """Raise InputError where ``k`` of ``n`` elements cannot be sent, or not in this type."""
    if not 1 <= n <= LARGEST_N or not 1 <= k <= n:
        raise InputError(f"Cannot send {k} of {n} elements; give 1 <= k <= n < 2**31.")
    if value_dtype not in get_args(ValueType):
        raise InputError(f"Values cannot be sent as {value_dtype!r}; choose float32 or float16.")
