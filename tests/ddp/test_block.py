"""Tests of blocks and launches of training on real ranks: bytes sent, learning, counts and
refusals.
"""

import dataclasses
import math
from typing import Any

import pytest
from fields import fields_of
from launching import HERE
from trainings import case, launches_of

pytest.importorskip("torch")

from commbench.ddp.devices import EARLY_STEPS, Device
from commbench.ddp.inspect import inspect_workload
from commbench.ddp.plan.cases import COMPILE_MODES, CONFIRM, TrainingCase
from commbench.ddp.plan.layout import case_bucket_bytes
from commbench.ddp.plan.terms import short_blocks
from commbench.ddp.workloads import load_workload

pytestmark = pytest.mark.mpi

STEPS = 7
#: The steps in which DDP waits for a GPU.
SETTLING = 11
#: Elements of the tiny model, in 6 tensors, and of what batch normalisation adds to it.
ELEMENTS, NORM_ELEMENTS, NORM_BUFFER_BYTES = 81_710, 600, 300 * 2 * 4 + 8
#: Gloo's own words around the data of a bucket, and the barriers before and after a block, bytes a
#: step.
AROUND = 1500

PLAIN = case(cap="default")
ALIGNED = "topk:0.1:exchange=aligned:chunk=16"
NAMES = ("passthrough", "fp16", "bf16", "int8", "topk:0.1", "powersgd:1", ALIGNED)
HOOKS = {name: case(name) for name in NAMES}
#: All that is trained in the first launch, by what makes it special.
CASES = {
    "plain": PLAIN,
    "none": case(),
    **HOOKS,
    "list of caps": case("passthrough", "0.01+0.2"),
    "bucket view": case("passthrough", bucket_view=True),
    "fp16 in bucket views": case("fp16", bucket_view=True),
    "static graph": case("passthrough", static_graph=True),
    "accumulation": case("passthrough", accumulation=2),
    "search": case("passthrough", unused_parameters=True),
    "batched copies": case("passthrough", batched_grad_copy=True),
    "partly used": case(workload="partly_used", unused_parameters=True),
    "used in turns": case(workload="takes_turns", unused_parameters=True),
    "partly used topk": case("topk:0.1", workload="partly_used", unused_parameters=True),
    "static and accumulation": case("passthrough", accumulation=2, static_graph=True),
    "amp-bf16": case(precision="amp-bf16"),
    "amp-fp16": case(precision="amp-fp16"),
    "overflow": case(precision="amp-fp16", workload="overflowing"),
    "overflow topk": case("topk:0.1", precision="amp-fp16", workload="overflowing"),
    "broken": case("passthrough", hook_options="broken=yes"),
    "nonsense": case("topk:0.1", hook_options="nonsense=1"),
    "batch norm": case(workload="batch_norm"),
    "batch norm alone": case(workload="batch_norm", broadcast_buffers=False),
    "compiled hook": case("fp16", compile="python_reducer"),
    "compiled small": case("passthrough", "0.1", compile="ddp_optimizer"),
    "scored": case(workload="scored"),
    "local": case("local", "default"),
}
EXACT = (
    "none",
    "passthrough",
    "list of caps",
    "bucket view",
    "static graph",
    "search",
    "batched copies",
)
REFUSED = ("static and accumulation", "broken", "nonsense", "compiled hook", "compiled small")
TWO_BLOCKS = ("plain", "passthrough", "local")
DIVIDED = ("plain", "topk:0.1", "overflow topk", "broken", "scored", "local")
#: What is trained once more on what stands for a GPU.
ON_STAND_IN = (
    "plain",
    *HOOKS,
    "accumulation",
    "overflow",
    "overflow topk",
    "batch norm",
    "scored",
    "local",
    "broken",
)


def some_of(ranks: int) -> tuple[dict[str, TrainingCase], dict[str, Any]]:
    """Return configurations for 1 to all ranks."""
    sizes = range(1, ranks + 1)
    cases = {f"{size} ranks": case(world_size=size) for size in sizes}
    cases |= {f"topk on {size}": case("topk:0.1", world_size=size) for size in sizes}
    return cases | {"local": case("local", "default", world_size=ranks - 1)}, {"steps": 5}


@pytest.fixture(scope="module")
def trained(run_ranks):
    """Return launches on two ranks."""
    return launches_of(
        run_ranks,
        2,
        first=(CASES, {"steps": STEPS}),
        stand_in=(
            {name: CASES[name] for name in ON_STAND_IN},
            {"steps": STEPS, "backend": "stand-in"},
        ),
        settling=(
            {"plain": PLAIN, "topk:0.1": HOOKS["topk:0.1"]},
            {"steps": 2 * SETTLING, "backend": "stand-in"},
        ),
        one_step=({"plain": PLAIN, **HOOKS}, {"steps": 1}),
        divided=(
            {name: dataclasses.replace(CASES[name], phase=CONFIRM) for name in DIVIDED},
            {"steps": STEPS, "blocks": 3},
        ),
        crowded=(
            {name: dataclasses.replace(CASES[name], phase=CONFIRM) for name in TWO_BLOCKS},
            {"steps": STEPS, "blocks": 2, "free_bytes": 10_000, "launch": 1},
        ),
        cut=({"plain": PLAIN, **HOOKS}, {"steps": 1, "most_blocks": 3}),
        some=some_of(2),
        shuffled=(
            {name: CASES[name] for name in TWO_BLOCKS},
            {"blocks": 2, "launch": 4},
        ),
    )


@pytest.fixture(scope="module")
def first(trained):
    """Return the launch of all configurations."""
    return trained["first"]


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def some_train(request, run_ranks):
    """Return a launch on which one, some or all ranks train.

    Three may exceed this machine's cores.
    """
    ranks = request.param
    launches = (
        request.getfixturevalue("trained")
        if ranks == 2
        else launches_of(run_ranks, ranks, some=some_of(ranks))
    )
    return ranks, launches["some"]


def dense_bytes(elements: int, ranks: int = 2) -> float:
    """Return the bytes that a ring all-reduce sends."""
    return 2 * (ranks - 1) / ranks * 4 * elements


@pytest.mark.parametrize("name", [name for name in CASES if name not in REFUSED])
def test_everything_is_trained(first, name):
    """Time every step but the early ones; train the launch's baseline in three blocks. With DDP,
    end with equal bits on both ranks and a lower loss.
    """
    record = first.records[name]
    assert ("ok", "") == (record["status"], record["reason"])
    blocks = 3 if name == "plain" else 1
    assert [STEPS - EARLY_STEPS] * blocks == record["block_lengths"]
    assert (EARLY_STEPS, STEPS) == (record["discarded"], record["block_steps"])
    check_times(record)
    assert record["measuring_s"] > 0
    assert record["peak_memory_bytes"] is None or record["peak_memory_bytes"] > 1e7
    if name != "local":
        assert record["ranks_agree"] is record["parameters_finite"] is True
        losses = record["losses"]
        assert STEPS == len(losses)
        assert all(map(math.isfinite, losses))
        period = 2 if name == "accumulation" else 4  # batches come round again
        assert losses[period] < losses[0]


DENSE, NORM = dense_bytes(ELEMENTS), dense_bytes(ELEMENTS + NORM_ELEMENTS)
#: Bytes that a rank sends in a step by theory, within 2 %.
EXPECTED = {
    **dict.fromkeys(("plain", "none", "passthrough", "accumulation"), DENSE),
    **dict.fromkeys(("fp16", "bf16"), DENSE / 2),
    "topk:0.1": 0.2 * DENSE,
    "int8": (1 + 4 / 256) / 4 * DENSE,  # a scale of 4 bytes for 256 elements
    ALIGNED: (0.1 + 1 / 16) * DENSE,  # a norm for 16 elements, and a tenth of the chunks
    "powersgd:1": 6336.0,  # the factors of each matrix, and the vectors
    "search": DENSE + dense_bytes(6),  # an integer for each parameter
    "batch norm": NORM + NORM_BUFFER_BYTES / 2,  # this rank's share of the broadcast
    "batch norm alone": NORM,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_sent_bytes_match_the_theory_of_the_hook(first, name):
    """Count bytes on the wire within 5 % of theory, except Gloo's headers."""
    record = first.records[name]
    assert record["dense_bytes"] in {DENSE, NORM}
    assert EXPECTED[name] == pytest.approx(record["expected_bytes"], rel=2e-2)
    reach = 0.05 * record["expected_bytes"] + AROUND * 2
    assert record["sent_bytes"] == pytest.approx(record["expected_bytes"], abs=reach)


def test_parameters_may_be_unused_everywhere_or_on_some_ranks(first):
    """Average the gradients of a model with a layer that no rank uses and one that a single rank
    uses.
    """
    record = first.records["partly used"]
    assert record["grad_rel_error"] == pytest.approx(0.0, abs=1e-6)
    assert 10 == sum(bucket["parameters"] for bucket in record["buckets"])
    assert first.records["partly used topk"]["grad_rel_error"] > 0.05


def test_without_their_broadcast_buffers_are_not_sent(first):
    """Learn the same: batch normalisation trains with the statistics of its batch."""
    with_them, alone = first.records["batch norm"], first.records["batch norm alone"]
    assert alone["sent_bytes"] < with_them["sent_bytes"]
    assert with_them["losses"] == alone["losses"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", COMPILE_MODES)
def test_compiled_training_learns_the_same(run_ranks, mode):
    """Train the compiled DDP object in each mode, with the losses of the plain one up to
    rounding.
    """
    cases = {"plain": PLAIN, "compiled": case(cap="default", compile=mode)}
    cases["local"] = cases["compiled"].local()
    records = launches_of(run_ranks, 2, timeout_s=280, compiled=(cases, {"steps": STEPS}))[
        "compiled"
    ].records
    assert [("ok", "")] * 3 == fields_of(records.values(), "status", "reason")
    assert records["plain"]["losses"] == pytest.approx(records["compiled"]["losses"], rel=1e-4)
    assert records["compiled"]["grad_rel_error"] == pytest.approx(0.0, abs=1e-5)
    assert (mode == "python_reducer") == (not records["compiled"]["bucket_bytes"])


def test_gradients_are_as_exact_as_the_hook(first):
    """Measure no gradient error without compression, rounding with half precision, more with sparse
    hooks.
    """
    errors = {name: first.records[name]["grad_rel_error"] for name in CASES}
    assert [0.0] * len(EXACT) == pytest.approx([errors[name] for name in EXACT], abs=1e-6)
    assert 1e-5 < errors["fp16"] < 1e-3 < errors["bf16"] < 1e-2
    assert 1e-3 < errors["int8"] < 3e-2
    assert min(errors["topk:0.1"], errors["powersgd:1"]) > 0.1
    assert None is errors["local"]


def test_blocks_of_a_launch_start_with_the_same_weights_and_data(trained, first):
    """Start blocks of a launch with equal losses, and another launch with others."""
    fp32 = [
        name for name, each in CASES.items() if each.workload == "tiny" and each.precision == "fp32"
    ]
    alike = [name for name in fp32 if name not in {*REFUSED, "local", "accumulation"}]
    starts = {first.records[name]["losses"][0] for name in alike}
    assert 1 == len(starts)
    later = {trained["crowded"].records[name]["losses"][0] for name in ("plain", "passthrough")}
    assert 1 == len(later)
    assert starts.isdisjoint(later)
    assert 5 == first.records["plain"]["seed"]
    assert 6 == trained["crowded"].records["plain"]["seed"]


def test_exact_configurations_learn_the_same(first):
    """Produce the same losses with any bucket sizes."""
    for name in EXACT:
        assert first.records["plain"]["losses"] == pytest.approx(
            first.records[name]["losses"], rel=1e-5
        )


def test_buckets_match_the_rule_of_ddp(first):
    """Record the predicted size and a time of each bucket, also for hook none."""
    spec = f"{HERE / 'ranks' / 'train_workloads.py'}:tiny"
    facts = inspect_workload(load_workload(spec, seed=0, rank=0, world_size=1))
    for name in (
        "plain",
        "none",
        *HOOKS,
        "list of caps",
        "bucket view",
        "static graph",
        "search",
        "accumulation",
    ):
        record = first.records[name]
        predicted = case_bucket_bytes(CASES[name], facts)
        assert (
            list(predicted) == record["bucket_bytes"] == fields_of(record["buckets"], "size_bytes")
        )
        assert 6 == sum(bucket["parameters"] for bucket in record["buckets"])
    assert 2 == len(first.records["none"]["buckets"])


def test_a_hook_is_called_once_a_bucket_and_step(first):
    """Call a hook only in the last backward pass of a step."""
    for name in ("passthrough", "accumulation", "bucket view", "topk:0.1", "powersgd:1"):
        for (block,) in first.seen[name]:
            assert [2] * (STEPS - EARLY_STEPS) == block, name


def test_accumulation_takes_several_batches(first):
    """Return the mean loss over the batches of a step."""
    plain, record = first.records["plain"], first.records["accumulation"]
    assert plain["losses"][0] != record["losses"][0]


def test_mixed_precision_counts_skipped_steps(first):
    """Skip a step on all ranks if one overflows, and no other step."""
    for name in ("overflow", "overflow topk"):
        record = first.records[name]
        assert 1 == record["skipped_steps"]
        assert record["losses"][2] > 1e4
        assert record["losses"][3] < 10
    for name in ("amp-bf16", "amp-fp16", "plain"):
        assert 0 == first.records[name]["skipped_steps"]
    for name in ("amp-bf16", "amp-fp16"):
        losses = first.records[name]["losses"]
        assert losses == pytest.approx(first.records["plain"]["losses"], rel=0.01)
        assert losses != first.records["plain"]["losses"]


def test_without_ddp_nothing_is_sent(first):
    """Time local steps without communication."""
    record = first.records["local"]
    nothing = (
        "sent_bytes",
        "expected_bytes",
        "dense_bytes",
        "ranks_agree",
        "comm_ms",
        "grad_rel_error",
    )
    assert [None] * len(nothing) == [record[name] for name in nothing]
    assert [] == record["losses"]
    assert [] == record["buckets"]
    assert [] == record["bucket_bytes"]


def test_a_metric_is_taken_along_the_way(first):
    """Evaluate the metric during a block without changing the training."""
    record = first.records["scored"]
    assert ("error", 0.0) == (record["metric_name"], record["target"])
    assert list(range(1, STEPS + 1)) == [step for step, _ in record["metrics"]]
    assert record["metrics"][-1][1] < record["metrics"][0][1]
    assert first.records["none"]["losses"] == pytest.approx(record["losses"], rel=1e-6)


@pytest.mark.parametrize(
    ("launch", "name", "status", "words"),
    [
        ("first", "broken", "failed", "Hook short returned a tensor of shape"),
        ("stand_in", "broken", "failed", "Hook short returned a tensor of shape"),
        ("first", "nonsense", "failed", "has no option 'nonsense'"),
        ("first", "static and accumulation", "unsupported", "static graph accumulates"),
    ],
)
def test_a_failure_on_all_ranks_fails_only_its_case(trained, launch, name, status, words):
    """Record the reason of a failed case, and the device; train the others."""
    record = trained[launch].records[name]
    assert status == record["status"]
    assert words in record["reason"]
    assert [] == record["step_ms"]
    assert ("Simulated" in record["device"]) == (launch == "stand_in")


def test_every_block_is_begun_and_every_step_counted(trained, first):
    """Count the blocks: three of the baseline, and two of each configuration with two blocks, each
    trained from the initial weights where the trainings do not fit into memory together.
    """
    assert first.finished
    assert sorted([0, 0, *range(len(CASES))]) == sorted(first.begun)
    assert 0 == first.begun[0]
    assert 0 == first.begun[-1]
    two = trained["crowded"]
    assert sorted([0, 1, 2] * 2) == sorted(two.begun)
    assert [STEPS - EARLY_STEPS] * 2 == two.records["plain"]["block_lengths"]
    steps = len(TWO_BLOCKS) * 2 * STEPS
    assert [2 * steps, steps] == two.counters
    assert two.records["plain"]["grad_rel_error"] is None
    assert [] == two.records["plain"]["buckets"]
    assert 2 == len(two.records["passthrough"]["buckets"])


def test_divided_blocks_are_one_training(trained, first):
    """Train as without division, to the last bit of every loss, whatever trains in between.

    Time more rounds.
    """
    divided = trained["divided"]
    lengths = short_blocks(3 * STEPS, early=EARLY_STEPS, settling=Device.settling_steps)
    assert len(lengths) > 3
    assert divided.finished
    assert [len(lengths)] * (len(DIVIDED) - 1) == [
        divided.begun.count(i) for i in range(len(DIVIDED)) if i != 3
    ]
    for name in DIVIDED:
        record, whole = divided.records[name], first.records[name]
        assert (whole["status"], whole["losses"], whole["metrics"]) == tuple(
            record[field] for field in ("status", "losses", "metrics")
        )
        if record["status"] == "ok":
            timed = [
                lengths[0] - EARLY_STEPS,
                *(length - Device.settling_steps for length in lengths[1:]),
            ]
            assert (timed, 3 * STEPS, STEPS) == tuple(
                record[field] for field in ("block_lengths", "total_steps", "block_steps")
            )
            assert whole["ranks_agree"] == record["ranks_agree"]
            assert record["peak_memory_bytes"] is None
    assert divided.records["topk:0.1"]["sent_bytes"] == pytest.approx(
        first.records["topk:0.1"]["sent_bytes"], rel=0.1
    )


def test_one_step_is_enough(trained):
    """Time a single step before DDP has its final buckets, and count no bytes."""
    for name in ("plain", *HOOKS):
        record = trained["one_step"].records[name]
        assert "ok" == record["status"]
        assert 0 == record["discarded"]
        assert 1 == record["block_steps"]
        assert record["sent_bytes"] is None
        whole = trained["first"].records[name]
        assert record["expected_bytes"] in {whole["expected_bytes"], None}


def test_time_runs_out_between_blocks(trained):
    """Stop before the fourth block, and keep the finished ones."""
    cut = trained["cut"]
    assert not cut.finished
    assert 3 == len(cut.begun)
    trained_by_then = {["plain", *HOOKS][index] for index in cut.begun} - {"plain"}
    assert trained_by_then == {name for name, record in cut.records.items() if record}


def test_steps_fill_the_time_of_a_block(trained):
    """Choose one number of steps for all configurations from the baseline, which is timed before
    the first block, whatever its configuration.
    """
    shuffled = trained["shuffled"]
    assert "plain" != TWO_BLOCKS[shuffled.begun[0]]
    (steps,) = set(fields_of(shuffled.records.values(), "block_steps"))
    assert steps >= EARLY_STEPS + 3
    for record in shuffled.records.values():
        assert all(steps >= length + EARLY_STEPS for length in record["block_lengths"])
    blocks = {
        name: [len(of_rank) for of_rank in by_rank] for name, by_rank in shuffled.seen.items()
    }
    assert {"plain": [3, 3], "passthrough": [2, 2], "local": [2, 2]} == blocks


@pytest.fixture(scope="module")
def on_stand_in(trained):
    """Return the launch on a stand-in for a GPU, with every call except CUDA's."""
    return trained["stand_in"]


def test_nothing_waits_for_a_gpu_inside_a_step(on_stand_in):
    """Record six marks per step and five per bucket, and read them between steps."""
    counts = on_stand_in.device
    assert 0 == counts["inside"]
    blocks, steps = len(on_stand_in.begun), len(on_stand_in.begun) * STEPS
    bucket_events = sum(sum(block) for name in HOOKS for block in on_stand_in.seen[name][0])
    assert (
        counts["events"] > 6 * (steps - STEPS) + 5 * bucket_events
    )  # a block of a broken hook makes fewer steps
    assert counts["waits"] > counts["events"]
    assert counts["copied"] > steps
    assert blocks == counts["peak_resets"]


@pytest.mark.parametrize("name", ["plain", "topk:0.1"])
def test_steps_in_which_ddp_waits_for_a_gpu_are_not_timed(trained, name):
    """Exclude steps in which DDP itself waits for the GPU."""
    record = trained["settling"].records[name]
    assert SETTLING == record["discarded"]
    assert 2 * SETTLING == record["block_steps"]
    assert {SETTLING} == set(record["block_lengths"])
    assert record["buckets"]


@pytest.mark.parametrize("name", [name for name in ON_STAND_IN if name != "broken"])
def test_a_gpu_trains_as_a_host(first, on_stand_in, name):
    """Produce the losses, buckets and gradient error of the host's launch; record the GPU, its
    memory and all times, and no bytes.
    """
    host, device = first.records[name], on_stand_in.records[name]
    assert "ok" == device["status"]
    assert host["ranks_agree"] == device["ranks_agree"]
    assert host["losses"] == pytest.approx(device["losses"], rel=1e-6)
    assert host["metrics"] == [
        [step, pytest.approx(value, rel=1e-6)] for step, value in device["metrics"]
    ]
    for field in ("skipped_steps", "bucket_bytes", "expected_bytes", "block_lengths", "parameters"):
        assert host[field] == device[field], field
    if host["grad_rel_error"] is not None:
        assert host["grad_rel_error"] == pytest.approx(device["grad_rel_error"], rel=1e-3, abs=1e-6)
    fields = ("device", "peak_memory_bytes", "sent_bytes")
    assert ["Simulated GPU 0", 123_000_000, None] == [device[field] for field in fields]
    clocks = {"sm_low_MHz": 1980.0, "sm_high_MHz": 1980.0, "slowed_by": []}
    assert clocks.items() <= device["clocks"].items()
    check_times(device)
    assert (name == "local") == (not device["buckets"])


def check_times(record: dict[str, Any]) -> None:
    """Compare the times of parts and buckets with each other."""
    parts = [record[f"{part}_ms"] for part in ("forward", "backward", "optimizer")]
    assert all(0 < part < max(record["step_ms"]) for part in parts)
    for bucket in record["buckets"]:
        assert 0 < bucket["ready_ms"] <= bucket["start_ms"] <= bucket["done_ms"]
        assert min(bucket["comm_ms"], bucket["skew_wait_ms"], bucket["compress_ms"]) >= 0


def test_some_of_the_ranks_train(some_train):
    """Train on some ranks with their bytes and equal bits, and leave the others idle."""
    ranks, launch = some_train
    for size in range(1, ranks + 1):
        record = launch.records[f"{size} ranks"]
        assert ("ok", True) == (record["status"], record["ranks_agree"])
        assert dense_bytes(ELEMENTS, size) == pytest.approx(record["expected_bytes"])
        assert dense_bytes(ELEMENTS, size) == pytest.approx(
            record["sent_bytes"], rel=0.05, abs=AROUND
        )
        assert [1] * size + [0] * (ranks - size) == [
            len(blocks) for blocks in launch.seen[f"topk on {size}"]
        ]
        record = launch.records[f"topk on {size}"]
        assert (size - 1) * 8 * 0.1 * ELEMENTS == pytest.approx(record["expected_bytes"], rel=0.01)
        assert record["expected_bytes"] == pytest.approx(
            record["sent_bytes"], rel=0.05, abs=2 * AROUND
        )
    assert 0 == launch.records["1 ranks"]["skew_wait_ms"]
    assert "ok" == launch.records["local"]["status"]
    assert [1] * (ranks - 1) + [0] == [len(blocks) for blocks in launch.seen["local"]]
