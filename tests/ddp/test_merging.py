"""Tests of merging samples of blocks made by hand into records with known fields."""

import json
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fields import fields_of
from numpy.typing import NDArray
from training_builders import make_training_case

torch = pytest.importorskip("torch")

from commbench.ddp.block import NOT_FINITE, BlockSamples, Training
from commbench.ddp.devices import EARLY_STEPS
from commbench.ddp.merging import merge
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import Bucket, TrainingRecord
from commbench.ddp.plan.workload import Workload
from commbench.ddp.step_times import STAMPS
from commbench.engine.energy import EnergyMeter, Kind
from commbench.engine.records import Clocks

MS = 1_000_000
#: Of two ranks in one step, milliseconds since the backward began: ready, start, done, encode and
#: decode of a bucket.
RANK_0 = ((1.0, 2.0, 5.0, 0.5, 0.25), (3.0, 4.0, 8.0, 0.5, 0.75))
RANK_1 = ((1.5, 3.0, 5.0, 0.25, 0.0), (2.0, 5.0, 8.5, 0.25, 0.0))
#: Forward, backward, optimiser and step in milliseconds, of two timed steps on two ranks.
TIMES_0 = ((1.0, 4.0, 1.0, 6.0), (1.0, 5.0, 1.0, 7.0))
TIMES_1 = ((2.0, 3.0, 0.5, 6.5), (2.0, 6.0, 2.0, 9.0))
JUNK = (1e3, 1e3, 1e3, 1e3)
PLAIN = Workload(
    model=torch.nn.Linear(499, 1),
    loss=lambda *_: None,
    batches=[],
    batch_size=1,
    metric="accuracy",
    target=0.9,
)

Buckets = Sequence[Sequence[float]]


def make_stamps(buckets: Buckets, scale: float = 1.0) -> NDArray[np.float64]:
    """Return the stamps of a step's buckets in ns."""
    return scale * MS * np.array(buckets, dtype=float).reshape(-1, STAMPS)


def make_samples(timed: Any, buckets: Buckets = (), **changes: Any) -> BlockSamples:
    """Return samples of a block with absurd early steps.

    Bucket times of the second timed step are tripled.
    """
    watched = [make_stamps(buckets, 2 * n + 1) for n in range(len(timed))]
    fields = {
        "times": np.array([*[JUNK] * EARLY_STEPS, *timed]) / 1e3,
        "metrics": [],
        "watched": watched,
        "early_steps": EARLY_STEPS,
        "bucket_bytes": [1000] * len(buckets),
        "bucket_tensors": [2] * len(buckets),
        "digest": 7,
        "skipped": 0,
        "metered_s": 0.0,
        "seconds": 1.0,
    }
    return BlockSamples(**{**fields, **changes})


def make_ranks(**changes: Any) -> list[BlockSamples]:
    """Return a block of both ranks."""
    return [make_samples(TIMES_0, RANK_0, **changes), make_samples(TIMES_1, RANK_1, **changes)]


def merged(
    blocks: Sequence[Sequence[BlockSamples]], case: TrainingCase | None = None, workload: Any = None
) -> TrainingRecord:
    """Return the merged record."""
    return merge(
        case or make_training_case("topk:0.1"), blocks, workload or PLAIN, launch=3, seed=11
    )


def test_times_are_of_the_slowest_rank():
    """Take each step and part from the slowest rank, without early steps."""
    record = merged([make_ranks()])
    assert [6.5, 9.0] == record.step_ms
    assert ([2], EARLY_STEPS) == (record.block_lengths, record.discarded)
    assert (2.0, 5.0, 1.5) == pytest.approx(
        (record.forward_ms, record.backward_ms, record.optimizer_ms)
    )
    assert 3 == record.launch
    assert 11 == record.seed
    assert "ok" == record.status
    assert 500 == record.parameters
    assert (None, []) == (record.clocks, record.flags)


def test_every_time_of_a_bucket():
    """Return medians over two steps, the second three times as long: twice the first's times."""
    names = ("ready_ms", "start_ms", "done_ms", "comm_ms", "skew_wait_ms", "compress_ms")
    expected = [(3.0, 6.0, 10.0, 4.0, 0.75, 1.0), (6.0, 10.0, 17.0, 6.5, 0.25, 1.5)]
    assert [
        Bucket(size_bytes=1000, parameters=2, **dict(zip(names, times, strict=True)))
        for times in expected
    ] == merged([make_ranks()]).buckets


def test_communication_that_overlaps_counts_once():
    """Add overlapping communication once per rank, on the rank with least exposed time."""
    record = merged([make_ranks()])
    assert 2 * 5.25 == record.comm_ms
    assert 2 * (5.5 - 5.25) / 2 == record.skew_wait_ms
    assert 2 * (2.0 + 0.5) / 2 == record.compress_ms
    assert 2 * (1.0 + 0.5) / 2 == record.encode_ms


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        (((1, 2), (3, 5)), 3.0),
        (((1, 6), (2, 3)), 5.0),
        (((3, 5), (1, 2)), 3.0),
        (((1, 4), (4, 6)), 5.0),
    ],
    ids=["apart", "one within the other", "the later first", "touching"],
)
def test_the_union_of_intervals(intervals, expected):
    """Count each instant once, in any order of intervals."""
    buckets = [(0, start, end, 0, 0) for start, end in intervals]
    assert expected == merged([[make_samples([TIMES_0[0]], buckets)]]).comm_ms


def test_steps_with_other_buckets_are_left_out():
    """Exclude steps with unequal numbers of buckets across ranks or steps."""
    ranks = make_ranks()
    expected = merged([ranks])
    for samples, odd in zip(ranks, (RANK_0, RANK_1[:1]), strict=True):
        for buckets in (odd, RANK_0[:1]):
            samples.watched.append(make_stamps(buckets, scale=50))
    record = merged([ranks])
    assert expected.buckets == record.buckets
    assert expected.comm_ms == record.comm_ms


def test_blocks_are_put_together():
    """Concatenate the steps of all blocks, with medians over all."""
    slow = make_samples(10 * np.array(TIMES_0), RANK_0, seconds=2.0, skipped=2)
    first, second = make_ranks()
    second.skipped = 1
    record = merged([[first], [second], [slow]])
    assert [6.0, 7.0, 6.5, 9.0, 60.0, 70.0] == record.step_ms
    assert ([2, 2, 2], 3) == (record.block_lengths, record.skipped_steps)
    assert 4.0 == record.measuring_s
    assert 5.5 == pytest.approx(record.backward_ms)
    in_order = sorted([2.75, 8.25, 2.0, 6.0, 2.75, 8.25])
    assert (in_order[2] + in_order[3]) / 2 == record.buckets[0].comm_ms


def test_losses_and_metrics_come_from_the_first_block():
    """Return the mean loss over ranks of the first block, and its metric if evaluated."""
    first = [
        make_samples(TIMES_0, losses=[4.0, 2.0], metrics=[(1, 0.5)]),
        make_samples(TIMES_0, losses=[2.0, 1.0]),
    ]
    later = [make_samples(TIMES_0, losses=[9.0, 9.0]) for _ in range(2)]
    record = merged([first, later])
    assert [3.0, 1.5] == record.losses
    assert [(1, 0.5)] == record.metrics
    assert ("accuracy", 0.9) == (record.metric_name, record.target)
    without = merged([later])
    assert "" == without.metric_name
    assert without.target is None
    assert () == without.metrics


def test_what_ranks_count_is_put_together():
    """Average sent bytes over the ranks that count them; return the largest memory, and the
    gradient error of the block that measured it.
    """
    counted = ((100.0, 70), (None, 90), (120.0, None))
    ranks = [
        make_samples(TIMES_0, sent_bytes=sent, peak_memory_bytes=peak) for sent, peak in counted
    ]
    last = make_samples(TIMES_0, sent_bytes=140.0, expected_bytes=90.0, grad_rel_error=0.25)
    record = merged([ranks, [last]])
    assert (120.0, 90.0) == (record.sent_bytes, record.expected_bytes)
    assert 2 * (2 - 1) / 2 * 4 * 500 == record.dense_bytes
    assert (0.25, 90) == (record.grad_rel_error, record.peak_memory_bytes)
    without = merged([[make_samples(TIMES_0)]])
    values = (without.sent_bytes, without.grad_rel_error, without.peak_memory_bytes)
    assert (None, None, None) == values


def test_a_disagreement_in_any_block_is_recorded():
    """Compare checksums within each block."""
    same = [make_ranks(digest=1), make_ranks(digest=2)]
    assert merged(same).ranks_agree is True
    same[0][1].digest = 3
    assert merged(same).ranks_agree is False
    assert merged(same).parameters_finite is True
    same[1][0].digest = same[1][1].digest = NOT_FINITE
    assert merged(same).ranks_agree is False
    assert merged(same).parameters_finite is False
    same[0][1].digest = 1
    assert merged(same).ranks_agree is None


@pytest.mark.parametrize(("value", "trainable"), [(1.0, True), (math.nan, True), (math.inf, False)])
def test_parameters_that_are_not_finite_have_no_checksum(value, trainable):
    """Find a value that is not finite among the trainable parameters only."""
    model = torch.nn.Linear(3, 1)
    model.bias = torch.nn.Parameter(torch.tensor([value]), requires_grad=trainable)
    training = SimpleNamespace(inner=model)
    assert (Training.digest(training) == NOT_FINITE) == math.isnan(value)


def test_without_ddp_there_is_nothing_to_exchange():
    """Leave communication fields empty without DDP."""
    record = merged([[make_samples(TIMES_0), make_samples(TIMES_1)]], make_training_case("local"))
    assert [6.5, 9.0] == record.step_ms
    names = ["comm", "skew_wait", "compress", "encode"]
    assert [None] * 4 == [getattr(record, f"{name}_ms") for name in names]
    assert (None, None) == (record.dense_bytes, record.ranks_agree)
    assert not record.buckets


def test_one_rank_waits_for_nobody():
    """Return no skew and no expected bytes for one rank."""
    record = merged([[make_samples(TIMES_0, RANK_0)]], make_training_case("topk:0.1", world_size=1))
    assert 2 * 5.25 == record.comm_ms
    assert 0.0 == record.skew_wait_ms
    assert 0.0 == record.dense_bytes
    assert [0.0, 0.0] == fields_of(record.buckets, "skew_wait_ms")


@pytest.mark.parametrize(
    ("steps", "early", "discarded"),
    [(1, 3, 0), (2, 3, 1), (3, 3, 2), (4, 3, 3), (39, 3, 3), (20, 8, 8), (60, 8, 8)],
)
def test_blocks_lose_the_early_steps_that_ranks_state(steps, early, discarded):
    """Keep at least one step of a short block."""
    times = np.full((steps, 4), 0.001)
    record = merged([[make_samples(TIMES_0, times=times, watched=[], early_steps=early)]])
    assert discarded == record.discarded
    assert [steps - discarded] == record.block_lengths


def test_long_blocks_lose_what_is_not_settled():
    """Discard each block's own warm-up: at least the early steps, at most half."""
    noise = np.random.default_rng(0).normal(1e-3, 1e-6, 60)
    step_s = {
        "steady": noise,
        "late": np.where(np.arange(60) < 15, 3e-3, noise),
        "never": np.linspace(3e-3, 1e-3, 60),
    }
    ranks = {
        name: [make_samples(TIMES_0, times=np.repeat(seconds[:, None], 4, axis=1), watched=[])]
        for name, seconds in step_s.items()
    }
    lengths = merged(list(ranks.values())).block_lengths
    assert 60 - EARLY_STEPS >= lengths[0] > 45 >= lengths[1] >= 40
    assert 30 <= lengths[2] <= 57
    record = merged([ranks["steady"], ranks["late"]])
    assert 60 - record.block_lengths[1] == record.discarded
    assert sum(record.block_lengths) == len(record.step_ms)


# --------------------------------------------------------------------------------------- the energy


def energy_of_blocks(
    *blocks: tuple[float, float | None, float | None], kinds: Sequence[Kind] = ("cpu",)
) -> Any:
    """Return energy and counters of blocks of given seconds and joules of the two ranks'
    machines.
    """
    ranks = [
        [
            make_samples(TIMES_0, RANK_0, metered_s=seconds, energy_J=joules_0),
            make_samples(TIMES_1, RANK_1, metered_s=seconds, energy_J=joules_1),
        ]
        for seconds, joules_0, joules_1 in blocks
    ]
    record = merge(make_training_case(), ranks, PLAIN, meter=EnergyMeter({}, kinds), launch=0)
    return record.energy_J, record.energy_of


@pytest.mark.parametrize(
    ("blocks", "kinds", "expected"),
    [
        ([(0.06, 6.0, 2.0), (0.06, 8.0, 0.0)], ("cpu",), (4.0, "cpu")),
        ([(0.06, 6.0, 2.0)], ("cpu",), (None, "")),
        ([(1.0, 6.0, 2.0)], ("cpu", "gpu"), (None, "")),
        ([(2.0, 6.0, 2.0)], ("cpu", "gpu"), (4.0, "cpu+gpu")),
        ([(1.0, 6.0, 2.0), (1.0, None, 2.0)], ("cpu",), (None, "")),
        ([(1.0, 0.0, 0.0)], ("cpu",), (None, "")),
    ],
    ids=["all blocks", "too short", "too short for a GPU", "GPU", "no answer", "no change"],
)
def test_the_energy_of_a_step_is_that_of_all_blocks(blocks, kinds, expected):
    """Divide the joules of all machines and blocks by the steps, after the least time of the
    slowest counter, and if each counter answered and changed.
    """
    assert expected == pytest.approx(energy_of_blocks(*blocks, kinds=kinds))


# --------------------------------------------------------------------------------------- the clocks


@pytest.mark.parametrize(("flags", "slowed_by"), [(["throttled"], ("heat",)), ([], ())])
def test_a_gpu_that_was_slowed_down_in_any_block_is_flagged(flags, slowed_by):
    """Return the range of clocks and all slowdowns over ranks and blocks."""
    steady = Clocks(sm_low_MHz=1900.0, sm_high_MHz=1980.0)
    slow = Clocks(sm_low_MHz=1200.0, sm_high_MHz=1300.0, slowed_by=slowed_by)
    first = make_ranks(clocks=steady)
    second = [
        make_samples(TIMES_0, RANK_0, clocks=steady),
        make_samples(TIMES_1, RANK_1, clocks=slow),
    ]
    record = merge(make_training_case(), [first, second], PLAIN, launch=0)
    assert flags == record.flags
    assert Clocks(sm_low_MHz=1200.0, sm_high_MHz=1980.0, slowed_by=slowed_by) == record.clocks
    written = json.dumps(record.to_json())
    assert written == json.dumps(TrainingRecord.from_json(json.loads(written)).to_json())
