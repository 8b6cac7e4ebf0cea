"""Tests of pairs.csv."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import KIB, make_case, make_record
from fields import fields_of
from matrices import (
    INTER_US,
    INTRA_US,
    Pair,
    joined,
    make_hosts,
    make_matrix,
    pairs_of,
    receiving,
    without,
)

from commbench import stats
from commbench.engine.records import Pairs, Record
from commbench.errors import InputError
from commbench.results import tables
from commbench.results.pairs import matrices, pair_table

# The contract's order; a change of it is a change of the schema.


def rows_of(
    records: list[Record], hosts: int = 4, ranks_per_host: int = 1
) -> dict[tuple[int | None, int | None], Any]:
    """Return the rows of the only matrix by source and target."""
    info = make_hosts(hosts, ranks_per_host)
    (matrix,) = matrices(records, info)
    return {(row.source, row.target): row for row in tables.rows_of(pair_table([matrix], info))}


@pytest.mark.parametrize("launches", [2, 6])
def test_times_are_summarised_over_launches(launches):
    """Return the median of launch medians, with an interval over launches."""
    records = make_matrix(3, launches=launches)
    times = [
        next(pair.time_us for pair in pairs_of(record) if pair[:2] == (2, 1)) for record in records
    ]
    row, interval = rows_of(records, 3)[2, 1], stats.launch_interval(times)
    median_us = np.median(times)
    assert pytest.approx([interval.low, interval.high]) == [row.time_us_ci_low, row.time_us_ci_high]
    assert pytest.approx([median_us, 1.1 * median_us]) == [row.time_us, row.time_us_p95]
    assert (launches, 30 * launches) == (row.launches, row.repetitions)
    assert ("host3", "host2") == (row.source_host, row.target_host)


def test_one_launch_has_no_interval():
    """Leave the interval empty and flag the row for one launch."""
    row = rows_of(make_matrix(3, launches=1), 3)[0, 1]
    assert (None, None, "one_launch") == (row.time_us_ci_low, row.time_us_ci_high, row.flags)
    assert "few_launches" == rows_of(make_matrix(3, launches=3), 3)[0, 1].flags


def test_bandwidth_is_of_the_message():
    """Divide bytes by time; count bytes in both directions twice."""
    assert (
        pytest.approx(2**20 / (INTER_US * 1e3))
        == rows_of(make_matrix(3, noise=0), 3)[0, 1].algbw_GBps
    )
    case = make_case("bibandwidth", pattern="matrix", message_bytes=KIB)
    row = rows_of(make_matrix(3, noise=0, case=case), 3)[0, 1]
    assert pytest.approx(2 * KIB / (INTER_US * 1e3)) == row.algbw_GBps


def test_pairs_are_compared_with_their_kind():
    """Compare pairs within a host and pairs between hosts separately."""
    rows = rows_of(make_matrix(3, 2, noise=0, host_slowness=receiving(2, 3.0)), 3, 2)
    ratios = [rows[pair].ratio_to_typical for pair in ((0, 1), (0, 2), (0, 4), (4, 0))]
    assert pytest.approx([1, 1, 3, 1]) == ratios
    assert pytest.approx([INTRA_US, INTER_US]) == [rows[0, 1].time_us, rows[0, 2].time_us]


def test_wrong_pair_has_no_bandwidth():
    """Mark only pairs with wrong elements in any launch as wrong."""
    records = make_matrix(3)
    wrong_by_pair = [7 * (pair[:2] == (1, 2)) for pair in pairs_of(records[2])]
    broken = replace(records[2].pairs, wrong=wrong_by_pair)
    records[2] = replace(records[2], pairs=broken, status="wrong")
    rows = rows_of(records, 3)
    wrong = rows.pop((1, 2))
    assert ("wrong", 7) == (wrong.status, wrong.wrong)
    assert (None, None) == (wrong.algbw_GBps, wrong.ratio_to_typical)
    assert wrong.reason
    assert {"ok"} == set(fields_of(rows.values(), "status"))


def test_warnings_of_a_launch_hold_for_its_pairs():
    """Flag pairs with their launch's warnings, except those about all pairs' times."""
    flags = ("throttled", "clock", "late", "bimodal")
    assert "late;clock;throttled" == rows_of(make_matrix(3, flags=flags), 3)[0, 1].flags


def test_launch_that_lacks_a_pair():
    """Summarise a pair over the launches that measured it."""
    records = make_matrix(3)
    records[0] = replace(records[0], pairs=joined(pairs_of(records[0])[1:]))
    rows = rows_of(records, 3)
    assert 5 == rows[0, 1].launches
    assert 6 == rows[0, 2].launches
    assert "few_launches" == rows[0, 1].flags
    assert "" == rows[0, 2].flags


def test_untimed_pairs_are_counted():
    """Count ordered pairs that no launch measured, whole ranks included."""
    info, records = make_hosts(4), make_matrix(4, group_size=4)
    untimed = [(rank, 3) for rank in range(3)] + [(3, rank) for rank in range(3)]
    (whole,), (part,) = matrices(records, info), matrices(without(records, *untimed), info)
    assert (0, 6) == (whole.untimed, part.untimed)
    assert ["host1", "host2", "host3", "host4"] == list(part.hosts)


def test_unknown_hosts_are_one():
    """Read a run without hosts as one host."""
    (matrix,) = matrices(make_matrix(3), {})
    assert not matrix.is_inter.any()
    assert {""} == set(pair_table([matrix], {})[["source_host", "target_host"]].to_numpy().flat)


def test_pairs_come_back():
    """Read a launch's pairs, unverified ones included, and refuse fields of several lengths."""
    pairs = joined([Pair(0, 1, 9.5, 10.0, 30, None), Pair(1, 0, 9.5, 10.0, 30, 3)])
    data = make_record(make_case("bandwidth", pattern="matrix"), pairs=pairs).to_json()
    back = Record.from_json(json.loads(json.dumps(data)))
    assert [(0, None), (1, 3)] == fields_of(pairs_of(back), "source", "wrong")
    assert Pairs() == Record.from_json(make_record().to_json()).pairs
    with pytest.raises(InputError, match="differ in length"):
        Record.from_json({**data, "pairs": {"source": [0]}})
