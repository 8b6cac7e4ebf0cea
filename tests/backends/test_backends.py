"""Tests of the MPI and Gloo backends on real ranks: right results, and detection of wrong ones."""

import importlib.util
import itertools
import re
from statistics import median

import pytest
from conducting import run
from fields import fields_of
from launching import make_request, mpirun
from verifying import possible, read_cases, surprises

from commbench.collectives.cases import Sweep
from commbench.collectives.datatypes import DTYPES
from commbench.results import load_run
from commbench.stats import ratio_interval

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(180)]

BACKENDS = "mpi,gloo" if importlib.util.find_spec("torch") else "mpi"
#: How the sentence begins where an MPI library has no 16-bit floats to reduce in, as some have.
LACKING = "this MPI library has no"


@pytest.fixture(
    scope="module", params=[1, 3, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 4))]
)
def verified(request, run_ranks):
    """Return all findings on 1 and 3 ranks, and on 2 and 4 with the slow tests, from one launch
    each.
    """
    results = read_cases(run_ranks(request.param, "verify_all.py", BACKENDS))
    return {"size": request.param, **results}


def test_results_are_right_and_wrong_ones_are_caught(verified):
    """Find no wrong element in either loop, exactly the flipped one, and missing communication.

    Refuse exactly the missing operations, with the reason. Corrupt each operation in each type on
    at least one backend.
    """
    size = verified["size"]
    entries = [
        entry
        for entry in verified["cases"]
        if not entry.get("refused", "").startswith(LACKING)
        or entry["case"].dtype not in {"float16", "bfloat16"}
    ]
    assert [] == surprises(entries, size)
    done = {(e["case"].operation, e["case"].dtype) for e in verified["cases"] if "corrupted" in e}
    names = possible(size) | {"iall_reduce", "iall_gather"}
    dtypes = DTYPES if "gloo" in BACKENDS else ("float64", "float32", "int32", "int8")
    assert {(name, dtype) for name in names for dtype in dtypes} <= done


def test_barriers_wait_and_persistent_requests_need_a_new_library(
    verified,
):
    """Count the ranks that leave an idle barrier early, and none in a real one; name the library,
    its version and the missing function.
    """
    expected = {"real": 0, "idle": verified["size"] - 1}
    assert {
        "mpi": {**expected, "persistent": 0},
        **dict.fromkeys(BACKENDS.split(",")[1:], expected),
    } == verified["barrier"]
    sentence = (
        r"\S.* \d+\.\d+.* has no MPI_Allreduce_init, which came with MPI 4\.0; use --cadence"
        r" isolated"
    )
    assert re.fullmatch(sentence, verified["old"])


@pytest.mark.usefixtures("forks")
def test_persistent_requests_are_compared_with_blocking_calls(tmp_path):
    """Measure both in each launch with right data and the same loop; state the ratio."""
    operations, cadences = ["all_reduce", "barrier"], ["isolated", "persistent"]
    sweep = Sweep(
        backends=["mpi"],
        operations=operations,
        sizes=[1024],
        cadences=cadences,
        sync="dissemination",
    )
    code, *_ = run(tmp_path, mpirun(), make_request(sweep.cases(2)))
    loaded = load_run(tmp_path)
    rows = {(row.operation, row.cadence): row for row in loaded.rows}
    assert 0 == code
    assert set(itertools.product(operations, cadences)) == set(rows)
    assert {("ok", 0, "native", 2)} == set(
        fields_of(rows.values(), "status", "wrong", "loop", "launches")
    )
    for operation in operations:
        times_us = (
            [
                median(r.times_us)
                for r in loaded.records
                if (r.case.operation, r.case.mode) == (operation, cadence)
            ]
            for cadence in cadences
        )
        ratio, interval = ratio_interval(*times_us)
        # beside a busy core a barrier of 0.5 us waits for a time slice of some ms; a wrong unit is
        # a factor of 1e6
        assert 1e-5 < ratio < 1e5, (
            f"{operation}: persistent / blocking {ratio} [{interval.low}, {interval.high}]"
        )
