"""Tests of operations in a ring, around one rank and in hierarchies: their geometry, and results of real ranks."""

import importlib.util
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from faking import FakeRun, fake_case
from launching import records_from_lab

from commbench.backends.fake import FakeCommunicator
from commbench.collectives.cases import Case, Sweep
from commbench.collectives.composed import (
    COMPOSED,
    MATRIX,
    MATRIX_WINDOW_BYTES,
    _hierarchy,
    operation_in_pattern,
)
from commbench.collectives.operations import OPERATIONS, WINDOW_BYTES, Operation, Shape, window_of
from commbench.collectives.patterns import PATTERNS
from commbench.collectives.primitives import Buffers
from commbench.engine.records import Row
from commbench.errors import UnsupportedError
from commbench.results.summary import _bandwidths

RINGS_AND_FANS = [(p, name) for p in ("ring", "fan-in", "fan-out") for name in COMPOSED[p]]
MIB = 2**20


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_combination_is_offered_or_refused(pattern: str, name: str) -> None:
    """Give an entry of the operation's name, or one sentence that says which operations the pattern is for."""
    if name in COMPOSED.get(pattern, OPERATIONS):
        assert name == operation_in_pattern(name, pattern, 4).name
    else:
        with pytest.raises(UnsupportedError, match=rf"^pattern {pattern} is for .*{name} was asked for; use"):
            operation_in_pattern(name, pattern, 4)


def test_groups_run_the_plain_operation() -> None:
    """Change nothing where a pattern only says who belongs together."""
    for pattern in ("flat", "node", "cross", "split:2", "pairs:inter", "bisection"):
        assert all(OPERATIONS[name] is operation_in_pattern(name, pattern, 4) for name in OPERATIONS)
    assert OPERATIONS["sendrecv"] is operation_in_pattern("sendrecv", "ring", 4)


@pytest.mark.parametrize(("pattern", "name"), RINGS_AND_FANS)
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("root", [0, 1])
def test_pieces_fill_the_buffers(pattern: str, name: str, size: int, root: int) -> None:
    """Cover each rank's inputs and answers without gap or overlap; what arrives was sent by another rank."""
    operation = operation_in_pattern(name, pattern, size)
    for rank in range(size):
        shape = Shape(rank=rank, size=size, elements=12, root=root)
        for pieces, length in (
            (operation.inputs(shape), operation.send(shape)),
            (operation.answer(shape), operation.receive(shape)),
        ):
            ends = [0, *(piece.offset + piece.count for piece in pieces)]
            assert ends[:-1] == [piece.offset for piece in pieces]
            assert ends[-1] == length
        assert rank not in {piece.source for piece in operation.answer(shape)}


class Noting:
    """A backend that notes (from, to, is empty) of every message that one rank sends, and that it awaits."""

    def __init__(self, rank: int, sent: list[Any], received: list[Any]) -> None:
        self.rank = rank
        self.sent = sent
        self.received = received

    def part(self, *_: object) -> str:
        """Return a buffer."""
        return "part"

    def empty(self) -> str:
        """Return an acknowledgement."""
        return "ack"

    def send(self, buffer: str, peer: int) -> None:
        """Note a message."""
        self.sent.append((self.rank, peer, buffer == "ack"))

    def receive(self, buffer: str, peer: int) -> None:
        """Note what is awaited."""
        self.received.append((peer, self.rank, buffer == "ack"))

    def send_receive(self, send: str, target: int, receive: str, source: int) -> None:
        """Note both."""
        self.exchange_window([(send, target)], [(receive, source)], 1)

    def exchange_window(self, sends: Any, receives: Any, _window: int) -> None:
        """Note each peer once."""
        for buffer, peer in sends:
            self.send(buffer, peer)
        for buffer, peer in receives:
            self.receive(buffer, peer)


def sent_and_received(operation: Operation, size: int, root: int) -> tuple[list[Any], list[Any]]:
    """Return what all ranks send and await in one operation."""
    sent: list[Any] = []
    received: list[Any] = []
    for rank in range(size):
        shape = Shape(rank=rank, size=size, elements=12, root=root)
        buffers = Buffers(send="send", receive="receive")
        operation.call(Noting(rank, sent, received), buffers, shape, "")  # type: ignore[arg-type]
    return sent, received


@pytest.mark.parametrize(("pattern", "name"), RINGS_AND_FANS)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_what_is_sent_is_awaited(pattern: str, name: str, size: int) -> None:
    """Match every message with a rank that awaits it, between the ranks that the pattern names."""
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
    """Keep all windows of the busiest rank within the bytes of one; windows of a matrix are short."""
    assert 64 == window_of(operation_in_pattern("bandwidth", "ring", 9), MIB)
    assert 32 == window_of(operation_in_pattern("bibandwidth", "ring", 9), MIB)
    assert WINDOW_BYTES // MIB // 8 == window_of(operation_in_pattern("bandwidth", "fan-in", 9), MIB)
    assert 1 == window_of(operation_in_pattern("bandwidth", "fan-out", 1000), MIB)
    assert MATRIX_WINDOW_BYTES // MIB == window_of(operation_in_pattern("bandwidth", MATRIX, 1000), MIB)


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
    """Count a rank's own messages in a ring and all that pass the root's link in a fan of five ranks."""
    row = Row(operation=operation, pattern=pattern, message_bytes=1000, time_us=1.0, group_size=5)
    assert (expected, expected) == _bandwidths(row)


def test_a_hop_is_the_time_of_one() -> None:
    """Divide a token's way round by the number of ranks."""
    assert 7 == operation_in_pattern("latency", "ring", 7).operations_per_call


def test_sweeps_vary_the_root_of_a_fan() -> None:
    """Make a case for each root where there is one; what makes no sense is a case too, for a row to say so."""
    sweep = Sweep(
        operations=["bandwidth", "all_reduce"], patterns=["ring", "fan-in"], sizes=[8], roots=[0, 2], backends=["mpi"]
    )
    expected = [("bandwidth", "ring", None), ("bandwidth", "fan-in", 0), ("bandwidth", "fan-in", 2)]
    expected += [("all_reduce", "ring", None), ("all_reduce", "fan-in", None)]
    assert expected == [(case.operation, case.pattern, case.root) for case in sweep.cases(3)]


@pytest.mark.parametrize(
    ("hosts", "found"),
    [
        ("aab", "2 on a, 1 on b"),
        ("aa", "2 on a"),
        ("abc", "1 on a, 1 on b, 1 on c"),
        ("abcdef", "1 on a, 1 on b, 1 on c, 1 on d, ..."),
    ],
)
def test_no_hierarchy_is_refused(hosts: str, found: str) -> None:
    """Say where the ranks are, and what to do."""
    with pytest.raises(UnsupportedError, match=rf"on each, and this run has {found}; use pattern flat$"):
        _hierarchy(hosts)


def test_a_hierarchy_is_hosts_and_rails() -> None:
    """Take the ranks of each host, and one of each host for every rail, however they were placed."""
    assert (((0, 1, 2), (3, 4, 5)), ((0, 3), (1, 4), (2, 5))) == _hierarchy("aaabbb")
    assert (((0, 2), (1, 3)), ((0, 1), (2, 3))) == _hierarchy("abab")


def test_every_rank_makes_the_divisions_of_a_hierarchy_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide in the same steps on ranks that stand aside: libraries count the groups that a process has made."""
    made: dict[int, list[Any]] = {rank: [] for rank in range(6)}
    split = FakeCommunicator._split

    def _split(self: FakeCommunicator, groups: Any) -> FakeCommunicator | None:
        made[self.rank].append(groups)
        return split(self, groups)

    monkeypatch.setattr(FakeCommunicator, "_split", _split)
    FakeRun(ranks=6, hosts="aabbcc").launch([fake_case(pattern="hierarchical", world_size=4)])
    assert 6 * [[((0, 1, 2, 3),), ((0, 1), (2, 3)), ((0, 2), (1, 3))]] == list(made.values())


def test_a_hierarchical_message_can_be_divided() -> None:
    """Round the message up to one element a rank."""
    (case,) = Sweep(patterns=["hierarchical"], sizes=[20], backends=["mpi"]).cases(4)
    assert 32 == case.message_bytes


# ------------------------------------------------------------------------------------------------------- real ranks

BACKENDS = "mpi,gloo" if importlib.util.find_spec("torch") else "mpi"


@pytest.fixture(scope="module", params=[pytest.param(3, marks=pytest.mark.slow), 4])
def verified(request: pytest.FixtureRequest, run_ranks: Any) -> Any:
    """All findings on so many ranks, from one launch."""
    found = run_ranks(request.param, "verify_patterns.py", BACKENDS, "cases")
    for entry in found["cases"]:
        entry["case"] = Case(**entry["case"])
    return found["cases"]


def refusal(entry: Any, size: int) -> str | None:
    """Return the sentence, or its beginning, that must refuse a case; None for one that must work."""
    case, placed = entry["case"], entry["hosts"][:size]
    if case.pattern == "hierarchical" and placed not in {"ABAB", "AABB"}:
        return "pattern hierarchical needs several hosts with equally many ranks, two or more, on each"
    return "MPI has no avg" if case.backend == "mpi" and case.redop == "avg" else None


@pytest.mark.mpi
@pytest.mark.timeout(180)
def test_results_are_right_and_wrong_ones_are_caught(verified: Any, request: pytest.FixtureRequest) -> None:
    """Find nothing wrong in the loops of either kind, one element that was flipped, and what was never sent."""
    size = request.node.callspec.params["verified"]
    for entry in verified:
        expected = refusal(entry, size)
        if expected:
            assert entry["refused"].startswith(expected), str(entry["case"])
            continue
        found = {kind: entry.get(kind) for kind in ("refused", "clean", "corrupted")}
        assert {"refused": None, "clean": 0, "corrupted": 1} == found, str(entry["case"])
        assert entry["idle"] > 0 or entry["case"].message_bytes < 64, str(entry["case"])
        assert (0 if entry["case"].backend == "mpi" else None) == entry.get("native"), str(entry["case"])


@pytest.mark.mpi
@pytest.mark.timeout(180)
def test_every_combination_ran(verified: Any, request: pytest.FixtureRequest) -> None:
    """Verify each offered operation of each pattern on each backend; a hierarchy needs four ranks here."""
    expected = {(b, p, name) for b in BACKENDS.split(",") for p, name in RINGS_AND_FANS}
    if request.node.callspec.params["verified"] > 3:
        expected |= {(b, "hierarchical", "all_reduce") for b in BACKENDS.split(",")}
    ran = [e["case"] for e in verified if "corrupted" in e]
    assert expected == {(case.backend, case.pattern, case.operation) for case in ran}


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.timeout(60)
def test_a_hierarchy_of_some_ranks_leaves_the_others_in_step(run_ranks: Any) -> None:
    """Divide four of six ranks by levels; groups of ranks of both kinds find each other afterwards."""
    found = run_ranks(6, "verify_patterns.py", BACKENDS, "some", timeout=50)["cases"]
    assert 2 * len(BACKENDS.split(",")) == len(found)
    assert all(wrong == 0 < idle for wrong, idle in found), found


# ------------------------------------------------------------------------------------------------- emulated clusters


def by_pattern(records: Any) -> dict[str, Any]:
    """Return the records by pattern."""
    assert all(record.status == "ok" for record in records), records
    return {record.case.pattern: record for record in records}


@pytest.mark.lab
@pytest.mark.mpi
@pytest.mark.usefixtures("forks")
@pytest.mark.timeout(180)
def test_a_hierarchy_spares_the_link_between_hosts(tmp_path: Path) -> None:
    """Reduce faster by levels than flat on Gloo, where two hosts of two ranks share links of 50 Mbit/s."""
    pytest.importorskip("torch")
    what = ("--collective", "all_reduce", "--pattern", "flat,hierarchical", "--sizes", "1M", "--backend", "gloo")
    lab = ("--hosts", "2", "--ranks-per-host", "2", "--rate", "50mbit")
    found = by_pattern(records_from_lab(tmp_path / "run", *what, lab=lab))
    assert median(found["hierarchical"].times_us) < 0.95 * median(found["flat"].times_us)


@pytest.mark.lab
@pytest.mark.mpi
@pytest.mark.usefixtures("forks")
@pytest.mark.timeout(180)
def test_the_algorithm_is_stated(tmp_path: Path) -> None:
    """Name ours, and the component of Open MPI between hosts; what the library says of itself reaches nobody."""
    what = ("--collective", "all_reduce", "--pattern", "flat,hierarchical", "--sizes", "4K", "--backend", "mpi")
    lab = ("--hosts", "2", "--ranks-per-host", "2", "--rate", "none")
    found = by_pattern(records_from_lab(tmp_path / "run", *what, lab=lab))
    assert "commbench hierarchical" == found["hierarchical"].algorithm
    if found["flat"].library.startswith("Open MPI 5"):
        assert "coll/han" == found["flat"].algorithm
