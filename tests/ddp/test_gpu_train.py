"""Tests of training on real GPUs: two ranks, which may share one, with every hook, and a run of the
command.
"""

import csv
import dataclasses
import functools
import math
import sys

import pytest
from fields import fields_of
from launching import succeeded
from test_block import CASES as ON_HOST
from test_block import check_times
from trainings import case, launches_of

torch = pytest.importorskip("torch")

from commbench.engine.energy import LEAST_S, EnergyMeter

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.mpi,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a torch that finds a GPU"),
]

STEPS = 8
#: How far a hook's gradient may be from the mean over ranks.
NEAR = {"none": 1e-5, "passthrough": 1e-5, "fp16": 1e-3, "bf16": 1e-2, "topk:1.0": 1e-5}
HOOKS = (*NEAR, "topk:0.1", "powersgd:1")


KINDS = ("accumulation", "bucket view", "amp-bf16", "overflow", "overflow topk", "batch norm")
CASES = {name: ON_HOST[name] for name in ("plain", *KINDS, "local")}
CASES |= {hook: case(hook) for hook in HOOKS}
CASES = {name: dataclasses.replace(each, backend="nccl") for name, each in CASES.items()}


@pytest.fixture(scope="module")
def trained(run_ranks):
    """Return a launch of all configurations, and a longer one of two."""
    two = {name: CASES[name] for name in ("plain", "topk:0.1")}
    return launches_of(
        functools.partial(run_ranks, python=sys.executable),
        2,
        timeout_s=500,
        first=(CASES, {"steps": STEPS, "backend": "nccl"}),
        long=(two, {"steps": 400, "backend": "nccl", "launch": 1}),
    )


@pytest.fixture(scope="module")
def first(trained):
    """Return the launch of all configurations."""
    return trained["first"]


@pytest.mark.parametrize("name", CASES)
def test_ranks_agree_and_learn(first, name):
    """End with equal bits on both ranks and a lower loss; record parts that add up to the step, and
    buckets in the order ready, sent, done.
    """
    record = first.records[name]
    assert ("ok", "") == (record["status"], record["reason"])
    check_times(record)
    assert sum(record["step_ms"]) < 1e3 * record["measuring_s"]
    assert (name == "local") == (not record["buckets"])
    if name == "local":
        return
    assert record["ranks_agree"] is True
    losses = record["losses"]
    assert STEPS == len(losses)
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[4 if name != "accumulation" else 2] < losses[0]


def test_gradients_are_as_exact_as_the_hook(first):
    """Measure no gradient error without compression, rounding in half precision, more with sparse
    hooks.
    """
    errors = {name: first.records[name]["grad_rel_error"] for name in HOOKS}
    assert [] == [name for name, most in NEAR.items() if not errors[name] <= most], errors
    assert min(errors[name] for name in HOOKS if name not in NEAR) > 0.1


def test_a_density_of_one_is_dense(first):
    """Learn the same as plain DDP at density 1."""
    losses = [first.records[name]["losses"] for name in ("none", "topk:1.0")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_the_scaler_skips_on_all_ranks(first):
    """Skip exactly the step in which one rank overflows."""
    assert [1, 1] == [
        first.records[name]["skipped_steps"] for name in ("overflow", "overflow topk")
    ]


def test_records_name_the_gpu(first):
    """Record the GPU and its allocated memory, and no bytes."""
    record = first.records["plain"]
    assert torch.cuda.get_device_name(0) in record["device"]
    assert record["peak_memory_bytes"] > 4 * 81_710
    assert record["sent_bytes"] is None


@pytest.mark.skipif(
    "gpu" not in EnergyMeter.find().kinds, reason="needs GPUs whose energy NVML tells"
)
def test_energy_of_a_step(trained):
    """Measure a plausible energy per step, below one kilowatt per GPU."""
    for record in trained["long"].records.values():
        step_s = record["measuring_s"] / sum(record["block_lengths"])
        if record["measuring_s"] > 2 * LEAST_S["gpu"]:
            assert "gpu" in record["energy_of"]
            assert 0 < record["energy_J"] < 1000 * (2 + torch.cuda.device_count()) * step_s


def test_the_command_trains_on_gpus(tmp_path):
    """Write rows of the GPU by the command, flagged if ranks share one."""
    words = "-n 2 --oversubscribe --backend nccl --workload mlp --hook none,topk:0.01"
    words += " --bucket-cap-mb default,5 --steps 8 --launches 1 --confirm-launches 1 --out r"
    command = [sys.executable, "-m", "commbench", "train", *words.split()]
    succeeded(*command, cwd=tmp_path, seconds=400)
    with (tmp_path / "r" / "ddp.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert {("nccl", "ok")} == set(fields_of(rows, "backend", "status"))
    shared = 2 if torch.cuda.device_count() < 2 else 1
    assert {(str(shared), shared > 1)} == {
        (row["ranks_per_gpu"], "shared_gpu" in row["flags"].split(";")) for row in rows
    }
