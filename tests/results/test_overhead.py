"""Tests of the overhead that a framework adds to a library."""

import pytest
from builders import make_case, make_info, make_launches, summarise_run
from fields import fields_of
from training_builders import run_of

from commbench.engine.records import Row
from commbench.report.collectives import TIME_SLICES, overhead_tables
from commbench.results.overhead import overheads


def rows(ranks_per_gpu: int = 1, **times_us: list[float]) -> list[Row]:
    """Return rows of a 1 KiB all_reduce by backend; underscores in names stand for hyphens."""
    records = [
        record
        for backend, times in times_us.items()
        for record in make_launches(times, make_case(backend=backend.replace("_", "-")))
    ]
    return summarise_run(records, make_info(ranks_per_gpu=ranks_per_gpu))


DIRECT, THROUGH = [10.0, 10.1, 9.9, 10.0, 10.05, 9.95], [14.0, 14.1, 13.9, 14.0, 14.05, 13.95]


def test_the_difference_is_told_with_an_interval():
    """Return the difference with an interval from both intervals."""
    (found,) = overheads(rows(nccl=DIRECT, torch_nccl=THROUGH))
    assert pytest.approx([10.0, 14.0, 4.0]) == [found.direct_us, found.through_us, found.added_us]
    assert 3.5 < (found.added_us_ci_low or 0) < 4.0 < (found.added_us_ci_high or 0) < 4.5


def test_only_what_was_timed_both_ways_counts():
    """Compare only cases that were timed over both backends."""
    assert [] == overheads(rows(mpi=DIRECT, gloo=THROUGH))
    assert [] == overheads(rows(torch_nccl=THROUGH))
    one = make_launches(DIRECT, make_case(backend="nccl"))
    other = make_launches(THROUGH, make_case(backend="torch-nccl", algorithm="ring"))
    assert [] == overheads(summarise_run([*one, *other], make_info()))


def test_time_slices_are_called_so():
    """State below the table that ranks shared a GPU."""
    records = []
    for backend, times in (("nccl", DIRECT), ("torch-nccl", THROUGH)):
        records += make_launches(times, make_case(backend=backend))
    (table,) = overhead_tables([run_of(records, ranks_per_gpu=2)])
    assert [TIME_SLICES] == list(table.notes)
    assert "4.00" in fields_of(table.lines[0], "text")
