"""Tests of the number of rotated buffer sets."""

import pytest

from commbench.engine.setup import MOST_BYTES, MOST_SETS, sets_needed
from commbench.findings import UnsupportedError

MIB = 2**20


@pytest.mark.parametrize(
    ("message_bytes", "cache_bytes", "expected"),
    [
        (MIB, 32 * MIB, 64),  # together twice the cache
        (3 * MIB, 32 * MIB, 32),  # 21.3 would do
        (48 * MIB, 32 * MIB, 2),
        (64 * MIB, 32 * MIB, 1),  # one alone drives its own beginning out
        (2**30, 32 * MIB, 1),
        (8, 32 * MIB, MOST_SETS),
        (256 * MIB, 2**30, MOST_BYTES // (256 * MIB)),  # a cache that is larger than we can afford
    ],
)
def test_sets_exceed_the_cache(message_bytes, cache_bytes, expected):
    """Use the power of two of sets that exceeds twice the cache, within bounds; refuse if its size
    is unknown.
    """
    assert expected == sets_needed(message_bytes, cache_bytes)
    with pytest.raises(
        UnsupportedError, match="the size of the last-level cache is not known on every rank"
    ):
        sets_needed(8, 0)
