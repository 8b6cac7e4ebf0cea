"""What a rank has done so far, readable by its heartbeat thread while a timed loop runs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Progress:
    """Counters of repetitions entered and left; native loops write them without holding the GIL."""

    def __init__(self) -> None:
        self.counters: NDArray[np.int64] = np.zeros(2, dtype=np.int64)
        self.case = ""

    @property
    def total(self) -> int:
        """A number that moves as long as the rank does."""
        return int(self.counters.sum())
