"""Gradients of all types for selection: smooth, tied, mostly zero, tiny, huge."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

Floats = NDArray[np.float32]

#: Not a multiple of anything: some elements are left over by every block, chunk and vector.
N = 20_011

#: 3e9 and 1e30 are beyond what float16 holds, and beyond where 65504 can be taken away from a
#: float32.
DISTRIBUTIONS = {
    "gauss": lambda rng, n: rng.standard_normal(n),
    "student t2": lambda rng, n: rng.standard_t(2, n),
    "blocky": lambda rng, n: (
        rng.standard_normal(n) * np.where(np.arange(n) // 500 % 20 == 3, 100, 1)
    ),
    "all large ones first": lambda rng, n: (
        rng.standard_normal(n) * np.where(np.arange(n) < n // 30, 100, 1)
    ),
    "large ones in the sample": lambda rng, n: (
        rng.standard_normal(n) * np.where(np.arange(n) % 4096 < 64, 100, 1)
    ),
    "small ones in the sample": lambda rng, n: (
        rng.standard_normal(n) * np.where(np.arange(n) % 4096 < 64, 1, 100)
    ),
    "ascending": lambda _, n: np.arange(n) / n,
    "mostly zeros": lambda rng, n: rng.standard_normal(n) * (rng.random(n) < 0.004),
    "all equal": lambda _, n: np.full(n, -0.3),
    "plus and minus one": lambda rng, n: rng.choice([-1, 1], n),
    "few values": lambda rng, n: rng.choice(
        [-2, -1, -0.0, 0, 1, 2, 5], n, p=[0.01, 0.3, 0.2, 0.18, 0.3, 0.005, 0.005]
    ),
    "all zero": lambda rng, n: rng.choice([-0.0, 0.0], n),
    "denormals": lambda rng, n: rng.integers(-1000, 1000, n) * 2.0**-149,
    "float16's denormals": lambda rng, n: rng.standard_normal(n) * 1e-6,
    "huge": lambda rng, n: rng.standard_normal(n) * rng.choice([1e4, 3e9, 1e30], n),
}
#: Single elements, with those at which something changes.
ELEMENTS = st.one_of(
    st.floats(-(2.0**126), 2.0**126, width=32),
    st.sampled_from(
        [
            0.0,
            -0.0,
            1.0,
            -1.0,
            2.0**-149,
            -(2.0**-126),
            65504.0,
            65519.0,
            65520.0,
            -(2.0**29),
            2.0**100,
        ]
    ),
)


def draw_small(data: st.DataObject, n: int) -> tuple[Floats, Floats]:
    """Draw a gradient and a residual of ``n`` elements."""
    small = arrays(np.float32, n, elements=ELEMENTS)
    return data.draw(small), data.draw(small)


def make(name: str, n: int = N, seed: int = 0) -> Floats:
    """Draw ``n`` elements of a distribution."""
    return DISTRIBUTIONS[name](np.random.default_rng(seed), n).astype(np.float32)
