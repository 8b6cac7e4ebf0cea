"""Tests of composed operations in rings, fans and hierarchies: their geometry, and results on real
ranks.
"""

import importlib.util
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from faking import FakeCommunicator, FakeRun, fake_case
from launching import records_from_lab

from commbench.collectives.cases import Case, Sweep
from commbench.collectives.composed import (
    COMPOSED,
    MATRIX,
    MATRIX_WINDOW_BYTES,
    _hierarchy,
    operation_in_pattern,
)
from commbench.collectives.layouts import Shape
from commbench.collectives.operations import WINDOW_BYTES, Operation, window_of
from commbench.collectives.primitives import Buffers, Request
from commbench.engine.records import Row
from commbench.findings import UnsupportedError
from commbench.results.summary import _bandwidths

RINGS_AND_FANS = [(p, name) for p in ("ring", "fan-in", "fan-out") for name in COMPOSED[p]]
MIB = 2**20


@pytest.mark.parametrize(("pattern", "name"), RINGS_AND_FANS)
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("root", [0, 1])
def test_pieces_fill_the_buffers(pattern: str, name: str, size: int, root: int) -> None:
    """Cover each rank's inputs and answers exactly; every answer was sent by another rank."""
    operation = operation_in_pattern(name, pattern, size)
    for rank in range(size):
        shape = Shape(rank=rank, size=size, elements=12, root=root)
        sides = (operation.inputs(shape), operation.answer(shape))
        for pieces, length in zip(sides, operation.counts(shape), strict=True):
            ends = [0, *(piece.offset + piece.count for piece in pieces)]
            assert ends[:-1] == [piece.offset for piece in pieces]
            assert ends[-1] == length
        assert rank not in {piece.source for piece in operation.answer(shape)}


class Noting:
    """A backend that records (from, to, is empty) of the messages that one rank sends and
    awaits.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.sent: list[Any] = []
        self.received: list[Any] = []

    def empty(self) -> str:
        """Return an empty buffer."""
        return "ack"

    def call(self, request: Request) -> None:
        """Record each peer once."""
        for buffer, peer in request.sends:
            self.sent.append((self.rank, peer, buffer == "ack"))
        for buffer, peer in request.receives:
            self.received.append((peer, self.rank, buffer == "ack"))


class Whole:
    """A buffer."""

    def part(self, *_: int) -> str:
        """Return a part of it."""
        return "part"


def sent_and_received(operation: Operation, size: int, root: int) -> tuple[list[Any], list[Any]]:
    """Return the messages that all ranks send and await in one operation."""
    sent: list[Any] = []
    received: list[Any] = []
    for rank in range(size):
        shape = Shape(rank=rank, size=size, elements=12, root=root)
        noting = Noting(rank)
        operation.call(noting, Buffers(send=Whole(), receive=Whole()), shape, "")  # type: ignore[arg-type]
        sent += noting.sent
        received += noting.received
    return sent, received


@pytest.mark.parametrize(("pattern", "name"), RINGS_AND_FANS)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_what_is_sent_is_awaited(pattern: str, name: str, size: int) -> None:
    """Match every message with the rank that awaits it, within the pattern."""
    root = size - 1
    sent, received = sent_and_received(operation_in_pattern(name, pattern, size), size, root)
    assert sorted(sent) == sorted(received)
    data = {(source, target) for source, target, is_empty in sent if not is_empty}
    ring = {(rank, (rank + 1) % size) for rank in range(size)}
    into = {(rank, root) for rank in range(size) if rank != root}
    out = {(target, source) for source, target in into}
    expected = {
        ("ring", False): ring,
        ("ring", True): ring | {(target, source) for source, target in ring},
        ("fan-in", False): into,
        ("fan-out", False): out,
    }
    assert expected.get((pattern, name == "bibandwidth"), into | out) == data


def test_windows_share_the_bytes_in_flight() -> None:
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
def test_bandwidth_is_that_of_the_busiest_rank(operation: str, pattern: str, expected: int) -> None:
    """Count the bytes of the busiest link: a rank's own in a ring, the root's in a fan."""
    row = Row(operation=operation, pattern=pattern, message_bytes=1000, time_us=1.0, group_size=5)
    assert {"algbw_GBps": expected, "busbw_GBps": expected} == _bandwidths(row)


def test_sweeps_vary_the_root_of_a_fan() -> None:
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
    assert expected == [(case.operation, case.pattern, case.root) for case in sweep.cases(3)]


@pytest.mark.parametrize(
    ("hosts", "placement"),
    [
        ("aab", "2 on a, 1 on b"),
        ("aa", "2 on a"),
        ("abc", "1 on a, 1 on b, 1 on c"),
        ("abcdef", "1 on a, 1 on b, 1 on c, 1 on d, ..."),
    ],
)
def test_no_hierarchy_is_refused(hosts: str, placement: str) -> None:
    """Refuse hosts that form no hierarchy, and say what to do."""
    with pytest.raises(
        UnsupportedError, match=rf"on each, and this run has {placement}; use pattern flat$"
    ):
        _hierarchy(hosts)


def test_a_hierarchy_is_hosts_and_rails() -> None:
    """Group the ranks of each host, and one rank per host into each rail."""
    assert (((0, 1, 2), (3, 4, 5)), ((0, 3), (1, 4), (2, 5))) == _hierarchy("aaabbb")
    assert (((0, 2), (1, 3)), ((0, 1), (2, 3))) == _hierarchy("abab")


def test_every_rank_makes_the_divisions_of_a_hierarchy_of_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Create all groups on idle ranks too, because libraries count groups."""
    made: dict[int, list[Any]] = {rank: [] for rank in range(6)}
    split = FakeCommunicator._split

    def _split(self: FakeCommunicator, groups: Any) -> FakeCommunicator | None:
        made[self.rank].append(groups)
        return split(self, groups)

    monkeypatch.setattr(FakeCommunicator, "_split", _split)
    FakeRun(ranks=6, hosts="aabbcc").launch([fake_case(pattern="hierarchical", world_size=4)])
    assert 6 * [[((0, 1, 2, 3),), ((0, 1), (2, 3)), ((0, 2), (1, 3))]] == list(made.values())


# --------------------------------------------------------------------------------------- real ranks

BACKENDS = "mpi,gloo" if importlib.util.find_spec("torch") else "mpi"


@pytest.fixture(scope="module", params=[pytest.param(3, marks=pytest.mark.slow), 4])
def verified(request: pytest.FixtureRequest, run_ranks: Any) -> Any:
    """Return all findings on each number of ranks, from one launch."""
    results = run_ranks(request.param, "verify_patterns.py", BACKENDS, "cases")
    for entry in results["cases"]:
        entry["case"] = Case(**entry["case"])
    return results["cases"]


def refusal(entry: Any, size: int) -> str | None:
    """Return the beginning of the sentence that must refuse a case, or None."""
    case, placed = entry["case"], entry["hosts"][:size]
    if case.pattern == "hierarchical" and placed not in {"ABAB", "AABB"}:
        return (
            "pattern hierarchical needs several hosts with equally many ranks, two or more, on each"
        )
    return "MPI has no avg" if case.backend == "mpi" and case.redop == "avg" else None


@pytest.mark.mpi
@pytest.mark.timeout(180)
def test_results_are_right_and_wrong_ones_are_caught(
    verified: Any, request: pytest.FixtureRequest
) -> None:
    """Find no wrong element in either loop, exactly the flipped one, and missing messages."""
    size = request.node.callspec.params["verified"]
    for entry in verified:
        expected = refusal(entry, size)
        if expected:
            assert entry["refused"].startswith(expected), str(entry["case"])
            continue
        results = {kind: entry.get(kind) for kind in ("refused", "clean", "corrupted")}
        assert {"refused": None, "clean": 0, "corrupted": 1} == results, str(entry["case"])
        assert entry["idle"] > 0 or entry["case"].message_bytes < 64, str(entry["case"])
        assert (0 if entry["case"].backend == "mpi" else None) == entry.get("native"), str(
            entry["case"]
        )


@pytest.mark.mpi
@pytest.mark.timeout(180)
def test_every_combination_ran(verified: Any, request: pytest.FixtureRequest) -> None:
    """Verify each operation of each pattern on each backend; hierarchies on four ranks."""
    expected = {(b, p, name) for b in BACKENDS.split(",") for p, name in RINGS_AND_FANS}
    if request.node.callspec.params["verified"] > 3:
        expected |= {(b, "hierarchical", "all_reduce") for b in BACKENDS.split(",")}
    ran = [e["case"] for e in verified if "corrupted" in e]
    assert expected == {(case.backend, case.pattern, case.operation) for case in ran}


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.timeout(60)
def test_a_hierarchy_of_some_ranks_leaves_the_others_in_step(run_ranks: Any) -> None:
    """Run a hierarchy of four of six ranks, then groups across both sets."""
    results = run_ranks(6, "verify_patterns.py", BACKENDS, "some", timeout=50)["cases"]
    assert 2 * len(BACKENDS.split(",")) == len(results)
    assert all(wrong == 0 < idle for wrong, idle in results), results


# -------------------------------------------------------------------------------- emulated clusters


def by_pattern(records: Any) -> dict[str, Any]:
    """Return the records by pattern."""
    assert all(record.status == "ok" for record in records), records
    return {record.case.pattern: record for record in records}


@pytest.mark.lab
@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.usefixtures("forks")
@pytest.mark.timeout(180)
def test_a_hierarchy_spares_the_link_between_hosts(tmp_path: Path) -> None:
    """Reduce faster hierarchically than flat over links of 50 Mbit/s."""
    pytest.importorskip("torch")
    options = (
        "--collective",
        "all_reduce",
        "--pattern",
        "flat,hierarchical",
        "--sizes",
        "1M",
        "--backend",
        "gloo",
    )
    lab = ("--hosts", "2", "--ranks-per-host", "2", "--rate", "50mbit")
    results = by_pattern(records_from_lab(tmp_path / "run", *options, lab=lab))
    assert median(results["hierarchical"].times_us) < 0.95 * median(results["flat"].times_us)


@pytest.mark.lab
@pytest.mark.mpi
@pytest.mark.usefixtures("forks")
@pytest.mark.timeout(180)
def test_the_algorithm_is_stated(tmp_path: Path) -> None:
    """Record our algorithm, and Open MPI's component between hosts, without its log lines."""
    options = (
        "--collective",
        "all_reduce",
        "--pattern",
        "flat,hierarchical",
        "--sizes",
        "4K",
        "--backend",
        "mpi",
    )
    lab = ("--hosts", "2", "--ranks-per-host", "2", "--rate", "none")
    results = by_pattern(records_from_lab(tmp_path / "run", *options, lab=lab))
    assert "commbench hierarchical" == results["hierarchical"].algorithm
    if results["flat"].library.startswith("Open MPI 5"):
        assert "coll/han" == results["flat"].algorithm
