"""Tests of what both record types share."""

import dataclasses
import json

import pytest
from builders import make_case, make_record
from training_builders import make_training_record

from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.errors import InputError
from commbench.findings import Finding
from commbench.results.record_types import (
    Records,
    blank_record,
    read_record,
)

STOPPED = Finding(code="rank_stopped", subject="rank 1")
CASES = [
    make_case(),
    TrainingCase(workload="tiny", world_size=2, batch_per_rank=8, hook="topk", density=0.01),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_blank_record_is_of_its_cases_kind(case):
    """Record the case, the launch and the reason; read it back by its kind, and not without."""
    record = blank_record(case, launch=3, status="hung", reason=STOPPED)
    assert case == record.case
    assert 3 == record.launch
    assert "hung" == record.status
    assert ("rank 1 is stopped", "rank_stopped") == (record.reason, record.reason_code)
    assert isinstance(record, TrainingRecord) == isinstance(case, TrainingCase)
    data = json.loads(json.dumps(record.to_json()))
    assert type(record) is type(read_record(data))
    del data["kind"]
    with pytest.raises(InputError):
        read_record(data)


@pytest.mark.parametrize(("backend", "device"), [("gloo", "cpu"), ("nccl", "")])
def test_a_blank_record_names_no_gpu(backend, device):
    """Leave the device empty if no rank reported it."""
    case = TrainingCase(workload="tiny", world_size=2, batch_per_rank=8, backend=backend)
    record = blank_record(case, launch=0, status="hung", reason=STOPPED)
    assert device == record.device


@pytest.mark.parametrize("kind", ["matrix", None, ["training"]])
def test_an_unknown_kind_is_refused(kind):
    """Refuse an unknown record type, and list the known ones."""
    with pytest.raises(InputError, match="kind must be collective or training, and is"):
        read_record({**make_record().to_json(), "kind": kind})


@pytest.mark.parametrize(
    "changes",
    [{"step_ms": []}, {"block_lengths": [20, 0]}, {"block_at": [5, 30]}, {"rounds": [0, 1]}],
    ids=str,
)
def test_blocks_fit_their_steps(changes):
    """Refuse a record whose lists do not fit together, so that no table or figure fails."""
    data = make_training_record().to_json()
    assert read_record({**data, "block_at": [5], "rounds": [0]})
    with pytest.raises(InputError, match="length"):
        read_record({**data, **changes})


def test_visits_and_joined_blocks_fit_as_well():
    """Refuse visits without their times, and a block that lacks what the other blocks have."""
    with pytest.raises(InputError, match="visit_lengths"):
        read_record({**make_record(visit_lengths=[2]).to_json(), "times_us": []})
    first, second = (make_training_record(block=number, rounds=[number]) for number in (1, 2))
    assert [1, 2] == list(Records([first, second])[0].rounds)
    with pytest.raises(InputError, match="rounds"):
        Records([dataclasses.replace(first, rounds=()), second])
