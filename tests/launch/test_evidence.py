"""Tests of the evidence about a failed rank in run.json, collected from reports of ranks."""

from commbench.collectives.cases import Sweep
from commbench.findings import Finding
from commbench.launch.diagnosis import Diagnosis, Evidence, find_crash_report
from commbench.launch.events import MAIN, RankError, Stack

CASE = Sweep(backends=["gloo"], sizes=[8]).cases(4)[0]
PROCESSES = {rank: (f"n{rank}", 100 + rank) for rank in range(4)}
STOPPED = Diagnosis(
    rank=1, host="n1", state="is stopped", reason=Finding.stated("rank 1 on host n1 is stopped")
)
LOOP = "commbench/timing/loops.py:8 in run"


def stack(rank: int, *frames: str, thread: str = MAIN, inside: bool = True) -> Stack:
    """Return a stack report of a rank."""
    return Stack(rank=rank, host=f"n{rank}", thread=thread, stack=list(frames), inside=inside)


def test_a_failed_rank_has_all_evidence() -> None:
    """State rank, process, case and state, and group the other ranks by stack."""
    evidence = Evidence()
    for message in (
        stack(0, LOOP),
        stack(2, LOOP),
        stack(3, LOOP, inside=False),
        stack(3, "x.py:1 in y", thread="t"),
    ):
        evidence.add(message)
    failed = evidence.failed_rank(STOPPED, CASE, PROCESSES, [])
    waiting = "all_reduce of gloo, at run (commbench/timing/loops.py:8)"
    other = f"synchronising or preparing for {waiting}"
    assert {
        "rank": 1,
        "host": "n1",
        "pid": 101,
        "case": str(CASE),
        "state": "is stopped",
        "stack": [],
        "others": [{"ranks": [0, 2], "in": waiting}, {"ranks": [3], "in": other}],
    } == failed.to_json()
    assert f"Ranks 0, 2 were in {waiting}; rank 3 was in {other}" == failed.waiting
    assert {0, 2, 3} == evidence.located
    assert [
        "rank 3 on host n3, thread t, most recent call first:",
        "  x.py:1 in y",
    ] == evidence.lines()[-2:]


def test_the_stack_of_the_failed_rank_has_three_sources() -> None:
    """Prefer the stack of an error to a requested one, and that to a crash dump."""
    evidence = Evidence()
    dumped = ["Thread 0x0 (most recent call first):", '  File "lib.py", line 7 in spin']
    assert ["lib.py:7 in spin"] == evidence.failed_rank(STOPPED, CASE, PROCESSES, dumped).stack
    evidence.add(stack(1, LOOP))
    assert [LOOP] == evidence.failed_rank(STOPPED, CASE, PROCESSES, dumped).stack
    evidence.add(
        RankError(
            rank=1,
            host="n1",
            case=0,
            error="ValueError",
            message="boom",
            stack=["mine.py:3 in work"],
        )
    )
    assert ["mine.py:3 in work"] == evidence.failed_rank(STOPPED, CASE, PROCESSES, dumped).stack


def test_without_a_failed_rank_every_rank_is_among_the_others() -> None:
    """List every rank among the others if no rank failed."""
    evidence = Evidence()
    evidence.add(stack(0, LOOP))
    failed = evidence.failed_rank(
        Diagnosis(rank=None, reason=Finding(code="no_rank_stands_out")), None, PROCESSES, []
    )
    assert (None, None, "", [0]) == (failed.rank, failed.pid, failed.case, failed.others[0].ranks)


def test_stacks_of_before_do_not_count() -> None:
    """Discard stacks reported before the current request."""
    evidence = Evidence()
    evidence.add(stack(0, LOOP))
    evidence.forget_stacks()
    assert ([], "") == (
        evidence.lines(),
        evidence.failed_rank(STOPPED, CASE, PROCESSES, []).waiting,
    )


def test_what_a_crash_has_printed_begins_with_its_head() -> None:
    """Return a crash report from its first line on."""
    assert [] == find_crash_report(["warning"])
    assert ["Fatal Python error: Aborted", "x"] == find_crash_report(
        ["warning", "Fatal Python error: Aborted", "x"]
    )
