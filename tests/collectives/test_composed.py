"""Tests of composed operations in rings, fans and hierarchies: their geometry, and results on real
ranks.
"""

import importlib.util
from typing import Any

import pytest
from builders import make_case, make_record, summarise_run
from faking import FakeCommunicator, FakeRun, fake_case
from fields import fields_of
from launching import records_from_lab
from verifying import read_cases, surprises

from commbench.collectives.cases import Case, Sweep
from commbench.collectives.composed import (
    COMPOSED,
    MATRIX,
    MATRIX_WINDOW_BYTES,
    _hierarchy,
    operation_in_pattern,
)
from commbench.collectives.operations import WINDOW_BYTES, window_of
from commbench.findings import UnsupportedError

RINGS_AND_FANS = [(p, name) for p in ("ring", "fan-in", "fan-out") for name in COMPOSED[p]]
MIB = 2**20


def test_windows_share_the_bytes_in_flight():
    """Limit all windows of the busiest rank to the bytes of one; shorten windows of a matrix."""
    assert 64 == window_of(operation_in_pattern("bandwidth", "ring", 9), MIB)
    assert 32 == window_of(operation_in_pattern("bibandwidth", "ring", 9), MIB)
    assert WINDOW_BYTES // MIB // 8 == window_of(
        operation_in_pattern("bandwidth", "fan-in", 9), MIB
    )
    assert 1 == window_of(operation_in_pattern("bandwidth", "fan-out", 1000), MIB)
    assert MATRIX_WINDOW_BYTES // MIB == window_of(
        operation_in_pattern("bandwidth", MATRIX, 1000), MIB
    )


@pytest.mark.parametrize(
    ("operation", "pattern", "expected"),
    [
        ("bandwidth", "flat", 1),
        ("bandwidth", "ring", 1),
        ("bibandwidth", "ring", 2),
        ("bandwidth", "fan-in", 4),
        ("bandwidth", "fan-out", 4),
        ("bibandwidth", "fan-in", 8),
        ("bandwidth", "matrix", 1),
    ],
)
def test_bandwidth_is_that_of_the_busiest_rank(operation, pattern, expected):
    """Count the bytes of the busiest link: a rank's own in a ring, the root's in a fan."""
    case = make_case(operation, pattern=pattern, message_bytes=1000)
    record = make_record(case, times_us=[1.0] * 6, group="0-4", group_size=5)
    (row,) = summarise_run([record], {})
    assert (expected, expected) == (row.algbw_GBps, row.busbw_GBps)


def test_sweeps_vary_the_root_of_a_fan():
    """Make a case per root, also for combinations that a row then refuses."""
    sweep = Sweep(
        operations=["bandwidth", "all_reduce"],
        patterns=["ring", "fan-in"],
        sizes=[8],
        roots=[0, 2],
        backends=["mpi"],
    )
    expected = [("bandwidth", "ring", None), ("bandwidth", "fan-in", 0), ("bandwidth", "fan-in", 2)]
    expected += [("all_reduce", "ring", None), ("all_reduce", "fan-in", None)]
    assert expected == fields_of(sweep.cases(3), "operation", "pattern", "root")


@pytest.mark.parametrize(
    ("hosts", "placement"),
    [
        ("aab", "2 on a, 1 on b"),
        ("aa", "2 on a"),
        ("abc", "1 on a, 1 on b, 1 on c"),
        ("abcdef", "1 on a, 1 on b, 1 on c, 1 on d, ..."),
    ],
)
def test_no_hierarchy_is_refused(hosts, placement):
    """Refuse hosts that form no hierarchy, and say what to do."""
    with pytest.raises(
        UnsupportedError, match=rf"on each, and this run has {placement}; use pattern flat$"
    ):
        _hierarchy(hosts)


def test_every_rank_makes_the_divisions_of_a_hierarchy_of_some(
    monkeypatch,
):
    """Create all groups on idle ranks too, because libraries count groups."""
    made = {rank: [] for rank in range(6)}
    split = FakeCommunicator._split

    def _split(self: FakeCommunicator, groups: Any, own: Any) -> FakeCommunicator | None:
        made[self.rank].append(groups)
        return split(self, groups, own)

    monkeypatch.setattr(FakeCommunicator, "_split", _split)
    FakeRun(ranks=6, hosts="aabbcc").launch([fake_case(pattern="hierarchical", world_size=4)])
    assert 6 * [[((0, 1, 2, 3),), ((0, 1), (2, 3)), ((0, 2), (1, 3))]] == list(made.values())


# --------------------------------------------------------------------------------------- real ranks

BACKENDS = "mpi,gloo" if importlib.util.find_spec("torch") else "mpi"


@pytest.fixture(scope="module", params=[pytest.param(3, marks=pytest.mark.slow), 4])
def verified(request, run_ranks):
    """Return all findings on each number of ranks, from one launch."""
    return read_cases(run_ranks(request.param, "verify_patterns.py", BACKENDS, "cases"))["cases"]


def refusal(case: Case, _: int) -> str:
    """Return the beginning of the sentence that must refuse a case, or an empty text."""
    return "MPI has no avg" if case.backend == "mpi" and case.redop == "avg" else ""


@pytest.mark.mpi
@pytest.mark.timeout(180)
def test_results_are_right_and_wrong_ones_are_caught(verified, request):
    """Find no wrong element in either loop, exactly the flipped one, and missing messages."""
    size = request.node.callspec.params["verified"]
    possible = []
    for entry in verified:
        is_flat = entry["case"].pattern != "hierarchical"
        if is_flat or entry["hosts"] in {"ABAB", "AABB"}:
            possible.append(entry)
        else:
            assert entry["refused"].startswith("pattern hierarchical needs several hosts")
    assert [] == surprises(possible, size, refusal)


@pytest.mark.mpi
@pytest.mark.timeout(180)
def test_every_combination_ran(verified, request):
    """Verify each operation of each pattern on each backend; hierarchies on four ranks."""
    expected = {(b, p, name) for b in BACKENDS.split(",") for p, name in RINGS_AND_FANS}
    if request.node.callspec.params["verified"] > 3:
        expected |= {(b, "hierarchical", "all_reduce") for b in BACKENDS.split(",")}
    ran = [e["case"] for e in verified if "corrupted" in e]
    assert expected == set(fields_of(ran, "backend", "pattern", "operation"))


# -------------------------------------------------------------------------------- emulated clusters


@pytest.mark.lab
@pytest.mark.mpi
@pytest.mark.usefixtures("forks")
@pytest.mark.timeout(180)
def test_the_algorithm_is_stated(tmp_path):
    """Record our algorithm, and Open MPI's component between hosts, without its log lines."""
    lab = ["--hosts", "2", "--ranks-per-host", "2", "--rate", "none"]
    options = "--collective all_reduce --pattern flat,hierarchical --sizes 4K --backend mpi"
    records = records_from_lab(tmp_path / "run", *options.split(), lab=lab)
    assert all(record.status == "ok" for record in records), records
    results = {record.case.pattern: record for record in records}
    assert "commbench hierarchical" == results["hierarchical"].algorithm
    if results["flat"].library.startswith("Open MPI 5"):
        assert "coll/han" == results["flat"].algorithm
