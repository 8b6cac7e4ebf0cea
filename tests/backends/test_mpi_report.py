"""Tests of what an MPI library reports about GPU memory."""

from types import SimpleNamespace
from typing import Any

import pytest

from commbench.backends.mpi_report import takes_gpu_memory


def answer_with(answer: Any, value: int, code: int = 0) -> int:
    """Write the value through a pointer, as MPICH does, and return a code."""
    answer._obj.value = value
    return code


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        (SimpleNamespace(), False),
        (SimpleNamespace(MPIX_Query_cuda_support=lambda: 1), True),
        (
            SimpleNamespace(
                MPIX_Query_cuda_support=lambda: 0, MPIX_GPU_query_support=lambda *_: 1 / 0
            ),
            False,
        ),
        (
            SimpleNamespace(
                MPIX_GPU_query_support=lambda kind, answer: answer_with(answer, int(kind == 0))
            ),
            True,
        ),
        (SimpleNamespace(MPIX_GPU_query_support=lambda _, answer: answer_with(answer, 0)), False),
        (
            SimpleNamespace(
                MPIX_GPU_query_support=lambda _, answer: answer_with(answer, 1, code=3)
            ),
            False,
        ),
    ],
)
def test_gpu_memory_needs_a_positive_answer_of_the_library(library, expected):
    """Query Open MPI's function, else MPICH's older one; without an answer return False."""
    assert expected is takes_gpu_memory(library)
