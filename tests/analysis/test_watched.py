"""What is said of a watched training: parts of a step, the straggler, and the bound."""

import random

import pytest
from fields import fields_of
from training_builders import make_training_case

from commbench.analysis.watched import find_straggler, parts_of, watched_findings
from commbench.ddp.plan.records import TrainingRecord


def make_computing_ms(
    factors: list[float], *, groups: int = 20, noise: float = 0.02
) -> list[list[float]]:
    """Return steps without exposed communication of ranks that take these factors of 40 ms."""
    generator = random.Random(7)
    return [
        [40 * factor * generator.lognormvariate(0, noise) for factor in factors]
        for _ in range(groups)
    ]


@pytest.mark.parametrize(
    ("factors", "slow"),
    [
        ([1, 1.5], 1),
        ([1.5, 1], 0),
        ([1, 1], None),
        ([1, 1.05], None),
        ([1, 1, 1.4, 1], 2),
        ([1, 1, 1, 1], None),
    ],
)
def test_the_slow_rank_is_named(factors, slow):
    """Name a rank that is 1.4 times as slow or more, and none that is slower by less than the
    smallest relevant.
    """
    assert slow == find_straggler(make_computing_ms(factors))


def test_few_groups_name_nobody():
    """Name no rank of two after five groups: chance is not excluded."""
    assert find_straggler(make_computing_ms([1, 1.5], groups=5)) is None
    assert find_straggler([]) is None


def make_record(**changes: object) -> TrainingRecord:
    """Return the record of a watched training: five steps of 100 ms on average, and two ranks."""
    fields = {
        "case": make_training_case(),
        "launch": 0,
        "step_ms": (90.0, 90.0, 90.0, 90.0, 140.0),
        "forward_ms": 30.0,
        "backward_ms": 60.0,
        "exposed_comm_ms": 20.0,
        "optimizer_ms": 6.0,
        "computing_ms": make_computing_ms([1, 1.5], noise=0.0),
    }
    return TrainingRecord(**{**fields, **changes})


INFO = {
    "argv": ["commbench", "watch", "--out", "o", "--", "torchrun", "my train.py", "--", "x"],
    "ranks": [{"rank": 0, "host": "n1"}, {"rank": 1, "host": "n2"}],
}


def test_what_is_said_has_its_numbers():
    """State the mean step, the range of ranks, the straggler with its delay, and the bound."""
    exposed, step, ranks, straggler, bound = watched_findings(make_record(), INFO)
    assert {"share": 0.2} == exposed.numbers
    assert (100.0, 90.0, 5) == tuple(step.numbers.values())
    assert pytest.approx((0, 40.0, 1, 60.0)) == tuple(ranks.numbers.values())
    assert ("watched_straggler", "rank 1 on n2") == (straggler.code, straggler.subject)
    assert pytest.approx(20.0) == straggler.numbers["late_ms"]
    command = "torchrun 'my train.py' -- x"
    assert {"gain": 1.25, "command": command} == bound.numbers
    even = watched_findings(make_record(computing_ms=make_computing_ms([1, 1])), INFO)
    assert "watched_even" == even[3].code


@pytest.mark.parametrize(
    ("broadcast_ms", "parts_ms"),
    [(None, [30.0, 40.0, 20.0, 6.0, 4.0]), (3.0, [3.0, 30.0, 40.0, 20.0, 6.0, 1.0])],
)
def test_parts_add_up_to_the_mean_step(broadcast_ms, parts_ms):
    """Give the rest of the mean step a part of its own, so that the parts sum to the step; name
    the broadcast where the model has buffers.
    """
    parts = parts_of(make_record(broadcast_ms=broadcast_ms))
    assert parts_ms == pytest.approx(fields_of(parts, "ms"))
    assert 1 == pytest.approx(sum(part.share for part in parts))
