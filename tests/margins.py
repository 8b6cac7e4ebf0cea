"""Arrays between elements that nobody may touch; an odd number, as nothing need be aligned to a
vector.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

MARGIN, UNTOUCHED = 33, -7.75


def guarded(values: NDArray[Any]) -> NDArray[Any]:
    """Return a copy with margins; scratch memory of 8 bytes an element is aligned to them."""
    width = values.itemsize // 4 or 1
    whole = np.full(values.nbytes // 4 + 2 * MARGIN * width, UNTOUCHED, dtype=np.float32)
    inner = whole[MARGIN * width : len(whole) - MARGIN * width].view(values.dtype)
    inner[:] = values.reshape(-1)
    return inner


def check_margins(*spans: NDArray[Any] | None) -> None:
    """Check that nothing was written beside arrays of `guarded`."""
    for array in spans:
        if array is None:
            continue
        whole = array.base
        while whole.base is not None:
            whole = whole.base
        assert {UNTOUCHED} == set(whole[:MARGIN].tolist()) | set(whole[-MARGIN:].tolist())
