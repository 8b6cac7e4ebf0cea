"""Tests of concurrent groups on real ranks: formed, verified and timed separately."""

import importlib.util
import itertools

import numpy as np
import pytest
from fields import fields_of

from commbench.collectives.cases import Case

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(180)]

BACKENDS = ["mpi", *(["gloo"] if importlib.util.find_spec("torch") else [])]
#: By placement of four ranks on hosts: the groups that each pattern must make; a digit is a rank.
GROUPS = {
    "even": {
        "node": "02 13",
        "cross": "01 23",
        "split:2": "01 23",
        "stride:2": "02 13",
        "pairs:intra": "02 13",
        "pairs:inter": "01 23",
        "bisection": "01 23",
        "ranks:0+2": "02",
    },
    "uneven": {
        "node": "12",
        "cross": "013",
        "split:2": "01 23",
        "stride:2": "02 13",
        "pairs:intra": "12",
        "pairs:inter": "01",
        "bisection": "02 13",
        "ranks:0+2": "02",
    },
}
#: Each backend and each placement by default; all combinations in the slow tests.
DEFAULT = (BACKENDS[0], "even"), (BACKENDS[-1], "uneven")
RUNS = [
    pytest.param(run, id="-".join(run), marks=[] if run in DEFAULT else pytest.mark.slow)
    for run in itertools.product(BACKENDS, GROUPS)
]


@pytest.fixture(scope="module", params=RUNS)
def verified(request, run_ranks):
    """Return all findings of a backend on ranks of one placement, and the backend and placement."""
    backend, placement = request.param
    return {"placement": placement, **run_ranks(4, "verify_groups.py", backend, placement)}


def refusal(case: Case) -> str:
    """Return the beginning of the sentence that must refuse a case, or an empty text."""
    reducing = {"all_reduce", "iall_reduce", "reduce"}
    refused = case.backend == "gloo" and case.operation in reducing and not case.in_place
    return "torch.distributed reduces in place only" if refused else ""


def test_every_operation_is_right_in_every_group(verified):
    """Find no wrong element in any operation and pattern, in the timed loop and in plain calls."""
    entries = verified["cases"]
    for entry in entries:
        assert entry.get("refused", "") == refusal(Case(**entry["case"])), entry["case"]
        assert not entry.get("clean"), entry["case"]
        assert not entry.get("native"), entry["case"]
    made = {}
    for entry in entries:
        if "groups" in entry:
            groups = ["".join(map(str, group)) for group in entry["groups"]]
            made[entry["case"]["pattern"]] = " ".join(groups)
    assert GROUPS[verified["placement"]] == made


def test_wrong_results_are_found_in_their_group(verified):
    """Count one changed element in its rank's group and in no other, and wrong elements in every
    group without communication; hold the ranks of each group in a real barrier.
    """
    checks = [entry["corrupted"] for entry in verified["cases"] if "corrupted" in entry]
    assert len(checks) > 80
    assert fields_of(checks, "expected") == fields_of(checks, "found")

    assert [] == [e["case"] for e in verified["cases"] if "idle" in e and 0 in e["idle"]]

    for pattern, counts in verified["barriers"].items():
        assert [0] * len(counts["late"]) == counts["real"], pattern
        assert counts["late"] == counts["idle"], pattern


def test_records_hold_every_group_and_all_together(verified):
    """Time groups in the same repetitions; all together take at least the slowest's time.

    A late overlap may lack.
    """
    overlaps = []
    for record in verified["records"]:
        groups, pattern = record["groups"], record["case"]["pattern"]
        assert "ok" == record["status"], record["reason"]
        assert len(GROUPS[verified["placement"]][pattern].split()) == len(groups)
        assert {len(record["times_us"])} == {len(group["times_us"]) for group in groups}
        slowest = np.max(fields_of(groups, "times_us"), axis=0)
        assert (np.array(record["times_us"]) >= slowest).all()
        assert 0 < np.median(slowest)
        assert [0] * len(groups) == fields_of(groups, "wrong")
        assert all(group["transport"] for group in groups), (record["case"]["operation"], pattern)
        if record["case"]["operation"] == "iall_gather":
            overlaps.append(record["overlap"])
    assert overlaps
    assert all(overlap["pure_us"] > 0 for overlap in overlaps if overlap)


def test_sizes_are_rounded_for_each_group(verified):
    """Round 4096 B up to a multiple of three shares for groups of three."""
    sizes = {
        (record["case"]["operation"], group["group_size"]): group["message_bytes"]
        for record in verified["records"]
        for group in record["groups"]
    }
    assert 4096 == sizes["iall_gather", 2]
    if verified["placement"] == "uneven":
        assert 4104 == sizes["iall_gather", 3]
        assert 4096 == sizes["all_reduce", 3]
