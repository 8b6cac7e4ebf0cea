"""Tests of the matrix of pairs: rounds, evaluation of stamps, and matrices of scripted and real
ranks.
"""

import importlib.util
from dataclasses import replace
from typing import Any

import pytest
from builders import summarise_run
from faking import EXACT, FakeRun, Script, fake_case, make_late
from fields import fields_of
from hypothesis import given
from hypothesis import strategies as st
from matrices import pairs_of

from commbench.collectives.patterns import rounds_of
from commbench.engine.matrix import FEWEST, MOST
from commbench.engine.records import Record

# ------------------------------------------------------------------------------------------- rounds


@given(size=st.integers(0, 60))
def test_every_pair_meets_once(size):
    """Pair every two ranks exactly once, with no rank in two pairs of a round."""
    rounds = rounds_of(size)
    met = [pair for pairs in rounds for pair in pairs]
    assert {(a, b) for a in range(size) for b in range(a)} == {
        (max(pair), min(pair)) for pair in met
    }
    assert size * (size - 1) // 2 == len(met)
    for pairs in rounds:
        taking_part = [rank for pair in pairs for rank in pair]
        assert len(taking_part) == len(set(taking_part))


# -------------------------------------------------------------------------------- scripted matrices


def matrix(
    operation: str = "bandwidth",
    *,
    ranks: int = 5,
    script: Script = EXACT,
    slice_s: float = 0.05,
    **options: Any,
) -> Record:
    """Return the record of a matrix on the fake backend."""
    run = FakeRun(ranks=ranks, script=script, slice_s=slice_s, **options)
    return run.launch([fake_case(operation, 1024, pattern="matrix")])[0]


@pytest.mark.parametrize("operation", ["bandwidth", "bibandwidth", "latency", "sendrecv"])
@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_every_ordered_pair_is_measured(operation, ranks):
    """Report all ordered pairs with their repetitions; the record's times are theirs."""
    record = matrix(operation, ranks=ranks)
    expected = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    assert expected == fields_of(pairs_of(record), "source", "target")
    assert fields_of(pairs_of(record), "time_us") == list(record.times_us)
    assert all(FEWEST <= pair.repetitions <= MOST and pair.wrong == 0 for pair in pairs_of(record))
    assert "ok" == record.status
    assert f"0-{ranks - 1}" == record.group
    assert ranks == record.group_size
    assert 0 == record.wrong


def test_pairs_with_a_slow_rank_are_slow():
    """Measure only the pairs of a slow rank as slow."""
    record = matrix("latency", script=replace(EXACT, slow_rank=3, slow_rank_factor=2.0))
    slow = {
        (p.source, p.target) for p in pairs_of(record) if p.time_us > 1.5 * min(record.times_us)
    }
    assert {(p.source, p.target) for p in pairs_of(record) if 3 in {p.source, p.target}} == slow


def test_wrong_data_is_counted_by_pair():
    """Count wrong elements at the receiver; the record names the pairs and has no times."""
    record = matrix(ranks=4, script=replace(EXACT, wrong=lambda rank: 7 * (rank == 2)))
    assert "wrong" == record.status
    assert 21 == record.wrong
    assert () == tuple(record.times_us)
    assert {(0, 2): 7, (1, 2): 7, (3, 2): 7} == {
        (p.source, p.target): p.wrong for p in pairs_of(record) if p.wrong
    }
    assert record.reason.endswith("sent from rank 0 to 2, rank 1 to 2, rank 3 to 2")


def test_launches_are_alike_and_take_turns_otherwise():
    """Reuse warm-ups and batch of launch 1, and measure the pairs in another order."""
    first, second = FakeRun(ranks=6, slice_s=0.05).launches(
        [fake_case("latency", 8, pattern="matrix")], 2
    )
    assert first.warmups == second.warmups
    assert first.batch == second.batch
    assert len(first.pairs) == len(second.pairs) == 30


def test_late_starts_are_dropped_by_pair(monkeypatch):
    """Drop late repetitions of one rank's pairs only."""
    make_late(monkeypatch, lambda rank, _: [rank == 1, False, False])
    record = matrix(ranks=4, slice_s=5.0)  # enough for all repetitions on a busy machine
    dropped = {(p.source, p.target): p.repetitions < MOST for p in pairs_of(record)}
    assert {pair: 1 in pair for pair in dropped} == dropped
    assert record.late_discarded > 0


@pytest.mark.parametrize("operation", ["bandwidth", "latency"])
def test_repetitions_and_late_starts_count_alike(operation, monkeypatch):
    """Warn if more than a fifth of a matrix was late, also for symmetric operations."""
    make_late(monkeypatch, lambda *_: [True, False, False, False])
    record = matrix(operation, ranks=2)
    (row,) = summarise_run([record], {})
    assert 0.2 < record.late_discarded / (record.late_discarded + row.repetitions) < 1 / 3
    assert ("late",) == record.flags


def test_collectives_have_no_pairs():
    """Refuse an operation that is not between two ranks, and a matrix of one rank."""
    run = FakeRun(ranks=3)
    (refused,) = run.launch([fake_case(pattern="matrix")])
    assert "unsupported" == refused.status
    assert "pattern matrix is for latency, bandwidth" in refused.reason
    assert "latency needs at least 2 ranks" in matrix("latency", ranks=1).reason


# --------------------------------------------------------------------------------------- real ranks

BACKENDS = ("mpi", "gloo") if importlib.util.find_spec("torch") else ("mpi",)
OPERATIONS = ("latency", "bandwidth", "bibandwidth", "sendrecv")


@pytest.fixture(scope="module", params=[3, pytest.param(4, marks=pytest.mark.slow)])
def matrices(request, run_ranks):
    """Return the records by backend and variant, from one launch."""
    records = run_ranks(request.param, "verify_patterns.py", ",".join(BACKENDS), "matrices")
    return {
        (backend, name): Record.from_json(record)
        for backend, of_backend in records["matrices"].items()
        for name, record in of_backend.items()
    }


@pytest.mark.mpi
@pytest.mark.timeout(180)
def test_real_pairs_are_measured_and_verified(matrices):
    """Measure all pairs without wrong elements, twice, in each loop, with and without an agreed
    start.
    """
    for (backend, name), record in matrices.items():
        if name == "all_reduce":
            assert "unsupported" == record.status
        elif not name.endswith("distorted"):
            size = record.group_size
            assert ("ok", 0, size * (size - 1)) == (
                record.status,
                record.wrong,
                len(record.pairs),
            ), (backend, name)
            assert all(pair.time_us > 0 and pair.repetitions >= 1 for pair in pairs_of(record))
            assert (
                "native" if backend == "mpi" and "python" not in name else "python"
            ) == record.loop


@pytest.mark.mpi
@pytest.mark.timeout(180)
def test_a_corrupted_pair_is_found(matrices):
    """Count all elements from rank 2 to rank 1 as wrong, and no others."""
    for backend in BACKENDS:
        for operation in OPERATIONS:
            record = matrices[backend, f"{operation} distorted"]
            assert "wrong" == record.status
            assert 2000 == record.wrong
            assert () == tuple(record.times_us)
            assert [(2, 1, 2000)] == [
                (p.source, p.target, p.wrong) for p in pairs_of(record) if p.wrong
            ]
