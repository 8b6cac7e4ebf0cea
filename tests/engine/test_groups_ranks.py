"""Tests of groups that run at the same time, on real ranks: divided, verified each, timed each."""

import importlib.util
from collections.abc import Mapping
from statistics import median
from typing import Any

import pytest

from commbench.collectives.cases import Case

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(180)]

BACKENDS = ["mpi", *(["gloo"] if importlib.util.find_spec("torch") else [])]
#: By placement of four ranks on hosts: what each pattern must make of them.
GROUPS = {
    "even": {
        "node": [[0, 2], [1, 3]],
        "cross": [[0, 1], [2, 3]],
        "split:2": [[0, 1], [2, 3]],
        "stride:2": [[0, 2], [1, 3]],
        "pairs:intra": [[0, 2], [1, 3]],
        "pairs:inter": [[0, 1], [2, 3]],
        "bisection": [[0, 1], [2, 3]],
    },
    "uneven": {
        "node": [[1, 2]],
        "cross": [[0, 1, 3]],
        "split:2": [[0, 1], [2, 3]],
        "stride:2": [[0, 2], [1, 3]],
        "pairs:intra": [[1, 2]],
        "pairs:inter": [[0, 1]],
        "bisection": [[0, 2], [1, 3]],
    },
}


@pytest.fixture(scope="module", params=BACKENDS)
def verified(request: pytest.FixtureRequest, run_ranks: Any) -> tuple[str, Mapping[str, Any]]:
    """The backend, and all findings by placement, from one launch."""
    found = run_ranks(4, "verify_groups.py", request.param)
    return request.param, found


def refusal(case: Case) -> str:
    """Return the beginning of the sentence that must refuse a case."""
    reducing = {"all_reduce", "iall_reduce", "reduce"}
    refused = case.backend == "gloo" and case.operation in reducing and not case.in_place
    return "torch.distributed reduces in place only" if refused else ""


@pytest.mark.parametrize("placement", GROUPS)
def test_every_operation_is_right_in_every_group(verified: Any, placement: str) -> None:
    """Find no wrong element in any operation and pattern, in the loop that times it and in plain calls."""
    _, found = verified
    entries = found[placement]["cases"]
    assert [] == [entry["case"] for entry in entries if entry.get("refused", "") != refusal(Case(**entry["case"]))]
    assert [] == [entry["case"] for entry in entries if entry.get("clean", 0) or entry.get("native", 0)]
    assert GROUPS[placement] == {e["case"]["pattern"]: e["groups"] for e in entries if "groups" in e}


@pytest.mark.parametrize("placement", GROUPS)
def test_a_corrupted_element_is_found_in_its_group(verified: Any, placement: str) -> None:
    """Count the one element that was changed on one rank in that rank's group and in no other."""
    _, found = verified
    checks = [entry["corrupted"] for entry in found[placement]["cases"] if "corrupted" in entry]
    assert len(checks) > 80
    assert [check["expected"] for check in checks] == [check["found"] for check in checks]


@pytest.mark.parametrize("placement", GROUPS)
def test_groups_that_do_nothing_are_caught(verified: Any, placement: str) -> None:
    """Find wrong elements in every group where no group communicated."""
    _, found = verified
    assert [] == [e["case"] for e in found[placement]["cases"] if "idle" in e and 0 in e["idle"]]


@pytest.mark.parametrize("placement", GROUPS)
def test_barriers_hold_each_group(verified: Any, placement: str) -> None:
    """Let no rank leave a real barrier before the last of its group, and count those that leave without one."""
    _, found = verified
    for pattern, counts in found[placement]["barriers"].items():
        assert [0] * len(counts["late"]) == counts["real"], pattern
        assert counts["late"] == counts["idle"], pattern


@pytest.mark.parametrize("placement", GROUPS)
def test_records_hold_every_group_and_all_together(verified: Any, placement: str) -> None:
    """Time each group in the same repetitions; all together take as long as the slowest of them at least.

    An overlap is missing if a busy machine lets all its repetitions start late.
    """
    _, found = verified
    overlaps = []
    for record in found[placement]["records"]:
        groups, pattern = record["groups"], record["case"]["pattern"]
        assert "ok" == record["status"], record["reason"]
        assert len(GROUPS[placement][pattern]) == len(groups)
        assert {len(record["times_us"])} == {len(group["times_us"]) for group in groups}
        slowest = [max(times) for times in zip(*(group["times_us"] for group in groups), strict=True)]
        assert all(whole >= part for whole, part in zip(record["times_us"], slowest, strict=True))
        assert 0 < median(slowest)
        assert all(group["transport"] and group["wrong"] == 0 for group in groups)
        if record["case"]["operation"] == "iall_gather":
            overlaps.append(record["overlap"])
    assert overlaps
    assert all(overlap["pure_us"] > 0 for overlap in overlaps if overlap)


@pytest.mark.parametrize("placement", GROUPS)
def test_sizes_are_rounded_for_each_group(verified: Any, placement: str) -> None:
    """Round 4096 B up to a multiple of three shares where three hosts make a group of three."""
    _, found = verified
    sizes = {
        (record["case"]["operation"], group["group_size"]): group["message_bytes"]
        for record in found[placement]["records"]
        for group in record["groups"]
    }
    assert {4096} == {size for (name, ranks), size in sizes.items() if name == "iall_gather" and ranks == 2}
    if placement == "uneven":
        assert (4104, 4096) == (sizes["iall_gather", 3], sizes["all_reduce", 3])
