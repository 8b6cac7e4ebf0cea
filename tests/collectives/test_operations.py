"""Tests of the operations' entries: sizes, factors and buffer geometry."""

import pytest

from commbench.collectives.operations import OPERATIONS, WINDOW_BYTES, true_message_bytes, window_of

KIB = 1024
MIB = 1024 * KIB

OTHERS = (0.0, 0.5, 0.75, 0.875)
TWICE = (0.0, 1.0, 1.5, 1.75)
WHOLE = (1.0, 1.0, 1.0, 1.0)
#: busbw over algbw on 1, 2, 4 and 8 ranks (nccl-tests, doc/PERFORMANCE.md and src/*.cu), and what
#: OSU 7.4 prints for a message of 8 KiB on 4 ranks (c/mpi/collective/blocking, c/mpi/pt2pt):
#: reductions and broadcasts the whole message.
CONVENTIONS = {
    "all_reduce": (TWICE, 8192),
    "all_gather": (OTHERS, 2048),
    "reduce_scatter": (OTHERS, 8192),
    "all_to_all": (OTHERS, 2048),
    "broadcast": (WHOLE, 8192),
    "reduce": (WHOLE, 8192),
    "gather": (OTHERS, 2048),
    "scatter": (OTHERS, 2048),
    "barrier": (WHOLE, 8192),
    "latency": (WHOLE, 8192),
    "bandwidth": (WHOLE, 8192),
    "bibandwidth": (WHOLE, 8192),
    "sendrecv": (WHOLE, 8192),
    "iall_reduce": (TWICE, 8192),
    "iall_gather": (OTHERS, 2048),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_bandwidth_factors_and_sizes_match_nccl_tests_and_osu(name):
    """Match the table of busbw factors and OSU sizes."""
    operation = OPERATIONS[name]
    factors = tuple(operation.busbw_factor(size) for size in (1, 2, 4, 8))
    assert CONVENTIONS[name] == (factors, operation.osu_bytes(8192, 4))


@pytest.mark.parametrize(
    ("name", "requested", "itemsize", "size", "expected"),
    [
        ("all_reduce", 8, 4, 3, 8),
        ("all_gather", 8, 4, 3, 12),
        ("all_gather", 12, 4, 3, 12),
        ("reduce_scatter", 16, 4, 3, 24),
        ("all_to_all", 1, 1, 8, 8),
        ("gather", 64 * KIB, 8, 4, 64 * KIB),
        ("scatter", 1000, 8, 4, 1024),
        ("barrier", 8, 4, 3, 0),
        ("latency", 8, 4, 3, 8),
    ],
)
def test_shares_are_rounded_up_to_an_element(name, requested, itemsize, size, expected):
    """Round up only messages made of blocks."""
    assert expected == true_message_bytes(OPERATIONS[name], requested, itemsize, size)


def test_a_pair_is_the_two_ends():
    """Return first and last rank for operations between two, else all ranks."""
    assert (0, 4) == OPERATIONS["latency"].participants(5)
    assert (0, 1, 2) == OPERATIONS["sendrecv"].participants(3)


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("bandwidth", 8, 64),
        ("bandwidth", MIB, 64),
        ("bibandwidth", 4 * MIB, 16),
        ("bandwidth", 128 * MIB, 1),
        ("latency", 8, 1),
    ],
)
def test_the_window_is_bounded_in_bytes(name, size, expected):
    """Use 64 messages in flight, or fewer to stay within 64 MiB."""
    assert expected == window_of(OPERATIONS[name], size)
    assert 64 * MIB == WINDOW_BYTES
