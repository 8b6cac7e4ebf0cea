"""Tests of the states of the machine: told by the probe alone, both reported, no visit lost."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from builders import make_case, make_record
from effort import repetitions, slack
from fields import fields_of
from numpy.typing import NDArray

from commbench import compare
from commbench.engine.records import Record
from commbench.results.reading import Run, make_run
from commbench.results.record_types import Records
from commbench.results.states import divide, find_states

LAUNCHES, VISITS, REPETITIONS = 6, 8, 10
#: Visits of a run.
ALL_VISITS = 2 * LAUNCHES * VISITS
ALTERNATING = [True, False] * (ALL_VISITS // 2)
#: Times of the probe, and of the cases, in us.
PROBE_US, TIMES_US = 0.3, {8: 0.3, 65536: 20.0}


def make_records(
    slow: Sequence[bool],
    *,
    ratio: float = 1.8,
    noise: float = 0.03,
    seed: int = 0,
) -> list[Record]:
    """Return launches of two sizes whose visits met the slow state in turn as stated.

    There all takes ``ratio`` times.
    """
    random = np.random.default_rng(seed)
    records = []
    states = iter(slow)
    for launch in range(LAUNCHES):
        for size, time_us in TIMES_US.items():
            factors = np.array([ratio if next(states) else 1.0 for _ in range(VISITS)])
            probes_us = np.repeat(PROBE_US * factors, 2) * np.exp(
                noise * random.standard_normal(2 * VISITS)
            )
            times_us = np.repeat(factors * time_us, REPETITIONS)
            times_us = times_us * np.exp(noise * random.standard_normal(VISITS * REPETITIONS))
            record = make_record(make_case(message_bytes=size), launch=launch)
            record = dataclasses.replace(
                record,
                times_us=times_us.tolist(),
                rank_mean_us=times_us.tolist(),
                skew_us=(),
                visit_lengths=[REPETITIONS] * VISITS,
                probes_us=probes_us.tolist(),
            )
            records.append(record)
    return records


def run_of(records: Sequence[Record], name: str = "run") -> Run:
    """Return the run of these records."""
    collected = Records()
    for record in records:
        collected.add(record)
    return make_run(Path(name), {"run_id": name}, collected)


@pytest.mark.parametrize(("ratio", "share"), [(1.3, 0.3), (2.0, 0.5), (1.3, 0.7)])
def test_two_states_are_found_and_both_are_reported(ratio, share):
    """Find the probe's time in each state, and state both times of each case, the fast one
    first.
    """
    slow = [number % 10 < 10 * share for number in range(ALL_VISITS)]
    run = run_of(make_records(slow, ratio=ratio))
    found = run.divided.states["mpi"]
    assert pytest.approx([PROBE_US, ratio * PROBE_US, 1 - sum(slow) / len(slow)], rel=0.03) == [
        *(found["fast_us"], found["slow_us"], found["fast_share"])
    ]
    table = run.collectives
    assert ["fast", "slow", "fast", "slow"] == table["state"].tolist()
    assert table["repetitions"].sum() == len(slow) * REPETITIONS
    for size, time_us in TIMES_US.items():
        of_size = table[table["message_bytes"] == size]
        assert pytest.approx([time_us, ratio * time_us], rel=0.02) == of_size["time_us"].tolist()
        assert 1 == pytest.approx(of_size["state_share"].sum())
    assert ["fast", "fast"] == fields_of(run.rows, "state")


def test_one_state_changes_nothing():
    """Return the very records, with empty columns, where all probes are alike."""
    records = make_records([False] * ALL_VISITS)
    assert divide(records).records is records
    table = run_of(records).collectives
    assert table["state"].isna().all() or (table["state"] == "").all()
    assert table["state_share"].isna().all()


def draw(noise: str, random: np.random.Generator) -> NDArray[np.float64]:
    """Return the logarithms of the factors of all visits."""
    normal = random.standard_normal(ALL_VISITS)
    if noise == "normal":
        return 0.2 * normal
    if noise == "skewed":
        return 0.1 * np.exp(0.8 * normal)
    if noise == "exponential":
        return random.exponential(0.3, ALL_VISITS)
    is_outlier = random.random(ALL_VISITS) < 0.1
    return 0.05 * normal + is_outlier * random.random(ALL_VISITS)


@pytest.mark.parametrize("noise", ["normal", "skewed", "exponential", "outliers"])
def test_noise_of_one_state_is_seldom_divided(noise):
    """Find two states in at most 2 % of runs of a machine with one."""
    random = np.random.default_rng(3)
    runs = 200
    plain = make_records([False] * ALL_VISITS, noise=0.0)
    found = 0
    for _ in range(repetitions(runs)):
        probes_us = (PROBE_US * np.exp(draw(noise, random))).reshape(len(plain), VISITS)
        drawn = [
            dataclasses.replace(record, probes_us=np.repeat(line, 2).tolist())
            for record, line in zip(plain, probes_us, strict=True)
        ]
        found += bool(find_states(drawn))
    assert found / repetitions(runs) <= 0.02 + slack(0.02, runs)


def test_a_case_that_met_the_slow_state_alone_has_its_times():
    """Keep a case that never met the fast state, and say so."""
    # the first size is slow in every launch, the second never
    of_launch = [True] * VISITS + [False] * VISITS
    run = run_of(make_records(of_launch * LAUNCHES))
    assert [("slow", 1.0), ("fast", 1.0)] == fields_of(run.rows, "state", "state_share")
    assert not run.slow_rows


def test_records_without_a_probe_are_left_alone():
    """Divide neither records of older runs nor those of another backend."""
    records = make_records(ALTERNATING)
    older = [dataclasses.replace(record, probes_us=()) for record in records]
    assert divide(older).records is older
    gloo = []
    for record in older:
        case = dataclasses.replace(record.case, backend="gloo")
        gloo.append(dataclasses.replace(record, case=case))
    divided = divide([*records, *gloo])
    assert [record for record in divided.records if record.case.backend == "gloo"] == gloo


def test_like_states_are_compared():
    """Compare a run that met the slow state alone with the slow state of the other, not with its
    fast one.
    """
    both = run_of(make_records(ALTERNATING), "both")
    slow = run_of(make_records([True] * ALL_VISITS, seed=1), "slow")
    for a, b in ((both, slow), (slow, both)):
        table = compare(a, b)
        assert pytest.approx([1.0, 1.0], abs=0.03) == fields_of(table.cases, "comparison.ratio")
        assert not [difference for difference in table.differences if "state" in difference.name]


def test_states_without_a_match_are_named():
    """Compare the better states and say so if the probe shows no state that both runs met."""
    other = [
        dataclasses.replace(record, probes_us=[4 * probe_us for probe_us in record.probes_us])
        for record in make_records(ALTERNATING, seed=1)
    ]
    table = compare(run_of(make_records(ALTERNATING), "a"), run_of(other, "b"))
    (difference,) = [difference for difference in table.differences if "state" in difference.name]
    assert "0.3 us vs 1.2 us" == difference.text
    assert not difference.is_unsound
