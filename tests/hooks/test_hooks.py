"""Tests of hooks without ranks: messages, random draws, memory, thread, options and predicted
bytes.
"""

import math
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launching import finished

torch = pytest.importorskip("torch")

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commbench.errors import InputError, LaunchError
from commbench.hooks import (
    BF16,
    Int8,
    PowerSGD,
    TopK,
    catalogue,
    make_hook,
)
from commbench.hooks.feedback import Memory, Slot
from commbench.hooks.message import kept_elements
from commbench.hooks.ordering import STUCK, CommThread
from commbench.hooks.powersgd import seeded

SHAPES = st.lists(st.lists(st.integers(1, 12), max_size=3).map(tuple), min_size=1, max_size=6)
SELECTIONS = st.builds(
    catalogue.TopK,
    density=st.sampled_from([0.001, 0.01, 0.3, 1.0]),
    values=st.sampled_from(["float32", "float16"]),
    scope=st.sampled_from(["bucket", "parameter"]),
    dense_below=st.sampled_from([0, 5, 10**6]),
    dense_vectors=st.booleans(),
)


# Names and options


def test_options_reach_the_hook():
    """Parse each type of option from text."""
    options = {
        "selection": "exact",
        "values": "float16",
        "feedback": "no",
        "warmup": "0.25,0.06",
        "warmup_steps": "8",
    }
    hook = make_hook("topk", density=0.5, options=options | {"clip": "2.5"})
    typed = make_hook(
        "topk", options={"warmup": "0.25+0.06", "warmup_steps": "8"}
    )  # commas separate hooks there
    assert hook.warmup == typed.warmup
    assert (0.5, False, (0.25, 0.06), 8, 2.5) == (
        hook.density,
        hook.feedback,
        hook.warmup,
        hook.warmup_steps,
        hook.clip,
    )
    assert ("float16", "exact") == (hook.values, hook.selection)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fp16", "density=0.1"),
        ("fp16", "rank=2"),
        ("topk", "colour=red"),
        ("topk", "scope=world"),
        ("topk", "feedback=perhaps"),
        ("topk", "momentum=1"),
        ("topk", "momentum=0.9 feedback=no"),
        ("topk", "warmup=0.5"),
        ("topk", "warmup=2 warmup_steps=3"),
        ("topk", "exchange=ring"),
        ("topk", "exchange=aligned chunk=0"),
        ("topk", "exchange=aligned values=float16"),
        ("topk", "exchange=aligned dense_below=9"),
        ("topk", "chunk=64"),
        ("int8", "block=0"),
        ("int8", "block=2.5"),
        ("powersgd", "rank=two"),
    ],
)
def test_refused_options(name, options):
    """Refuse bad options in one sentence."""
    with pytest.raises(InputError) as caught:
        make_hook(name, options=dict(option.split("=") for option in options.split()))
    assert "\n" not in str(caught.value)


# Messages


@given(SHAPES, SELECTIONS)
def test_messages_hold_every_element_once(shapes, selection):
    """Cover each element of a bucket exactly once by its parts, and lay these out one after
    another.
    """
    message = selection.layout(shapes, selection.density)
    elements = sum(map(math.prod, shapes))
    dense = [i for part in message.dense for i in range(part.start, part.start + part.numel)]
    sparse = [i for part in message.sparse for i in range(part.start, part.start + part.numel)]
    if selection.scope == "bucket" and sparse:
        assert list(range(elements)) == sparse
        assert kept_elements(elements - len(dense), selection.density) == message.sparse[0].k
        sparse = sorted({*sparse} - {*dense})
    assert list(range(elements)) == sorted(dense + sparse)
    end = 0
    for part in (*message.sparse, *message.dense):
        assert (end, 0) == (part.offset, part.nbytes % 4)
        end += part.nbytes
    assert end == message.nbytes


@pytest.mark.parametrize(
    ("numel", "density", "k"),
    [(100, 0.07, 7), (1000, 0.001, 1), (1, 0.001, 1), (0, 0.5, 0), (101, 0.01, 2), (7, 1, 7)],
)
def test_kept_elements(numel, density, k):
    """Round k up, except for binary rounding errors."""
    assert k == kept_elements(numel, density)


def test_seeds_leave_the_global_generator():
    """Draw differently by step, bucket and seed, without torch's global generator."""
    before = torch.random.get_rng_state()
    parts = ((0, 0, "a"), (1, 0, "a"), (0, 1, "a"), (0, 0, "b"))
    draws = {tuple(torch.rand(10, generator=seeded(*each)).tolist()) for each in parts}
    assert 4 == len(draws)
    assert torch.equal(before, torch.random.get_rng_state())


# Memory


def open_bucket(memory: Memory, index: int, **sizes: int) -> Slot:
    """Return the slot of a bucket of vectors."""
    names = {torch.nn.Parameter(torch.zeros(size)): name for name, size in sizes.items()}
    bucket = SimpleNamespace(
        index=lambda: index,
        parameters=lambda: list(names),
        buffer=lambda: torch.zeros(sum(sizes.values())),
    )
    return memory.open(bucket, {id(parameter): name for parameter, name in names.items()})


def residual_in(memory: Memory, index: int, **sizes: int) -> Any:
    """Return the residual of a bucket of vectors."""
    return open_bucket(memory, index, **sizes).residual


def residuals(memory: Memory) -> dict[str, list[float]]:
    """Return the residual of each parameter."""
    return {name: tensor.tolist() for name, tensor in memory.state()["residual"].items()}


def test_memory_moves_with_the_parameters():
    """Keep every parameter's residual when buckets split, merge or reorder."""
    memory = Memory(["residual"])
    residual_in(memory, 0, a=2, b=3, c=1).copy_(torch.arange(6.0))
    assert [5, 0, 1] == residual_in(memory, 0, c=1, a=2).tolist()
    assert [2, 3, 4] == residual_in(memory, 1, b=3).tolist()
    assert [2, 3, 4, 5, 0, 1] == residual_in(memory, 0, b=3, c=1, a=2).tolist()
    assert {"a": [0, 1], "b": [2, 3, 4], "c": [5]} == residuals(memory)


def test_memory_is_loaded_before_buckets_are_known():
    """Keep a loaded residual until its bucket is known, with zeros for the others, and copy it."""
    state = {"residual": {"b": torch.ones(3), "c": torch.full((1,), 2.0)}}
    memory = Memory(["residual"])
    memory.load(state)
    state["residual"]["b"].zero_()
    assert [0, 0, 1, 1, 1] == residual_in(memory, 0, a=2, b=3).tolist()
    assert [2] == memory.state()["residual"]["c"].tolist()


@pytest.mark.parametrize("rejected", [False, True])
def test_memory_takes_all_updates_or_none(rejected):
    """Drop the updates of all buckets if one is rejected."""
    memory = Memory(["residual"])
    memory.can_undo = True
    residual_in(memory, 0, a=1).fill_(7.0)
    residual_in(memory, 1, b=2).fill_(7.0)
    for reason in (False, rejected, False):
        memory.reject(torch.tensor(reason))
    expected = {"a": [0.0], "b": [0.0, 0.0]} if rejected else {"a": [7.0], "b": [7.0, 7.0]}
    assert expected == residuals(memory) == residuals(memory)


def test_memory_scales_by_name():
    """Scale residuals in buckets and those still waiting for one."""
    memory = Memory(["residual"])
    memory.load({"residual": {"a": torch.ones(1), "b": torch.ones(2), "c": torch.ones(1)}})
    open_bucket(memory, 0, a=1, b=2)
    memory.scale("residual", {"b": 3.0, "c": 2.0})
    assert {"a": [1.0], "b": [3.0, 3.0], "c": [2.0]} == residuals(memory)


# The thread


def test_jobs_run_in_order_on_one_thread():
    """Run jobs first in, first out, and return their results."""
    thread, executed = CommThread(), []
    futures = [
        thread.submit(lambda i=i: executed.append((i, threading.get_ident())) or i)
        for i in range(50)
    ]
    assert list(range(50)) == [future.wait() for future in futures]
    assert list(range(50)) == [number for number, _ in executed]
    assert 1 == len({ident for _, ident in executed} - {threading.get_ident()})
    assert thread.close()
    with pytest.raises(InputError, match="after its close"):
        thread.submit(print)


def test_a_failed_job_fails_those_after_it():
    """Return a job's error, and run no later job, because ranks would disagree on the order."""
    thread, executed = CommThread(), []
    failed = thread.submit(lambda: executed[3])
    later = thread.submit(lambda: executed.append("never"))
    with pytest.raises(IndexError):
        failed.wait()
    with pytest.raises(LaunchError, match="list index out of range"):
        later.wait()
    assert thread.close()
    assert [] == executed


@pytest.mark.parametrize(
    ("job", "status"),
    [
        pytest.param("lambda: None", 0, marks=pytest.mark.slow),
        pytest.param("threading.Event().wait", STUCK, marks=pytest.mark.programs),
    ],
)
def test_the_thread_lets_the_process_end(job, status):
    """Exit with 0 despite an idle thread, and with its own status in a blocked collective."""
    program = f"""if True:
        import threading
        from commbench.hooks.ordering import CommThread
        CommThread().submit({job})
        print("flushed")
    """
    ended = finished(sys.executable, "-c", program)
    assert status == ended.returncode
    assert "flushed\n" == ended.stdout
    assert "" == ended.stderr


# Predicted bytes


def ring(nbytes: int, ranks: int) -> int:
    """Return the bytes that a ring all-reduce sends."""
    return 2 * (ranks - 1) * nbytes // ranks


MANY, TENSORS = [(1000, 1000)], [(50, 40), (50,)]


@pytest.mark.parametrize(
    ("hook", "shapes", "expected"),
    [
        (BF16(), MANY, ring(2_000_000, 4)),
        (TopK(density=0.01), MANY, 3 * 10_000 * 8),
        (TopK(density=0.01, values="float16"), MANY, 3 * 10_000 * 6),
        (TopK(dense_below=1_000_001), MANY, ring(4_000_000, 4)),
        (TopK(density=0.01, exchange="aligned"), MANY, ring(4 * (3907 + 40 * 256), 4)),
        (PowerSGD(rank=4), MANY, ring(4 * 4 * 2000, 4)),
        (Int8(), MANY, ring(1_000_000 + 4 * 4 * 977, 4)),  # 977 blocks of a shard
        (TopK(density=0.1, scope="parameter"), TENSORS, 3 * 8 * (200 + 5)),
        (
            TopK(density=0.1, scope="parameter", dense_vectors=True),
            TENSORS,
            3 * (8 * 200 + 4 * 50),
        ),
        (TopK(density=0.1, dense_below=51), TENSORS, 3 * (8 * 200 + 4 * 50)),
        (PowerSGD(rank=2), TENSORS, ring(4 * (2 * (50 + 40) + 50), 4)),
        (PowerSGD(rank=2, min_compression_rate=30), TENSORS, ring(4 * 2050, 4)),
        (PowerSGD(rank=2, values="bfloat16"), TENSORS, ring(2 * (2 * (50 + 40) + 50), 4)),
    ],
)
def test_wire_bytes(hook, shapes, expected):
    """Predict the bytes that four ranks send."""
    assert expected == hook.wire_bytes(shapes, 4)
    assert 0 == hook.wire_bytes(shapes, 1)


# State


def test_a_loaded_step_has_its_density():
    """Send the density of the step that was loaded, not of the steps before."""
    hook = TopK(density=0.1, warmup=(0.5,), warmup_steps=5)
    hook._group = SimpleNamespace(size=lambda: 1)
    kept = []
    for step in (0, 9):
        hook.load_state_dict(hook.state_dict() | {"step": step})
        slot = open_bucket(hook.memory, 0, a=100)
        kept.append(hook.channel_of(slot, torch.zeros(100)).payload.sparse[0].k)
    assert [50, 10] == kept


def test_fresh_state_is_of_the_hook():
    """Refuse the state of another hook or version."""
    hook = PowerSGD()
    hook.load_state_dict(PowerSGD().state_dict())
    for other in (
        TopK(selection="exact").state_dict(),
        PowerSGD().state_dict() | {"version": 2},
        {},
    ):
        with pytest.raises(InputError, match="powersgd, version 1, can only load its own"):
            hook.load_state_dict(other)


@pytest.fixture
def alone():
    """Let this process be a group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e20, 1e30])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("powersgd", {}),
        ("powersgd", {"values": "bfloat16"}),
        ("topk", {"clip": "0.5", "dense_below": "999"}),
    ],
)
def test_squares_that_float32_cannot_hold_change_nothing(name, options, scale):
    """Send matrices of rank 1 by PowerSGD whatever their scale, and clip large gradients to the
    limit.
    """
    model = DistributedDataParallel(torch.nn.Linear(24, 32, bias=False))
    hook = make_hook(name, options=options)
    hook.register(model)
    gradient = torch.outer(torch.linspace(1, 2, 32), torch.linspace(-1, 1, 24))
    for _ in range(5):  # two are sent whole
        model.zero_grad()
        (model(torch.eye(24)) * gradient.T).sum().mul(scale).backward()
    hook.close()
    norm = float(model.module.weight.grad.double().norm())
    expected = scale * float(gradient.norm())
    if "clip" in options:
        expected = min(0.5, expected)
    assert expected == pytest.approx(norm, rel=0.02)
