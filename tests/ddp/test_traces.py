"""Tests of traces: the file, the shipped ones, the recorder, and the replay under autograd and
DDP.
"""

from __future__ import annotations

import codecs
import copy
import dataclasses
import json
import math
import random
import time
from pathlib import Path
from typing import Any

import pytest
from fields import fields_of

from commbench.ddp.traces import SHIPPED, Trace, TracedParameter, load_trace
from commbench.errors import InputError

torch = pytest.importorskip("torch")
pytest.importorskip("numba")

from commbench.ddp.inspect import inspect_workload
from commbench.ddp.models import trainable
from commbench.ddp.workloads import load_workload
from commbench.ddp.workloads.replay import Pace, Replay, pace_for

#: Elements and tensors of the published models.
SIZES = {
    "resnet50": (25_557_032, 161),
    "bert-base": (109_482_240, 199),
    "gpt2-small": (124_439_808, 148),
}


def trace(ready_ms: list[float], *, backward_ms: float = 20.0, device: str = "cpu") -> Trace:
    """Return a trace of parameters with 1, 2, 3, ... rows that are ready at these times."""
    return Trace(
        name="made",
        device=device,
        batch=2,
        forward_ms=5.0,
        backward_ms=backward_ms,
        optimizer_ms=3.0,
        parameters=tuple(
            TracedParameter(
                name=f"layer.{index}.weight", shape=(index + 1, 3), dtype="float32", ready_ms=ready
            )
            for index, ready in enumerate(ready_ms)
        ),
    )


def replay(made: Trace, rank: int = 0) -> Replay:
    """Return the replay of a trace at the pace of its device."""
    return Replay(made, pace_for(made), seed=4, rank=rank)


def shuffled_times(count: int, end_ms: float) -> list[float]:
    """Return evenly spaced ready times in shuffled order."""
    times = [end_ms * (index + 1) / count for index in range(count)]
    random.Random(3).shuffle(times)
    return times


def observed_order(model: Any, loss: Any) -> list[int]:
    """Return parameter indices in the order in which a backward pass accumulates their
    gradients.
    """
    order = []
    handles = [
        parameter.register_post_accumulate_grad_hook(lambda _, index=index: order.append(index))
        for index, parameter in enumerate(model.parameters())
    ]
    loss.backward()
    for handle in handles:
        handle.remove()
    return order


def write(made: Trace, path: Path, **changes: object) -> str:
    """Write a trace as JSON, with other values of some entries; return its path."""
    path.write_text(json.dumps(dataclasses.asdict(made) | changes))
    return str(path)


# The file


def test_ready_order_breaks_ties_by_reverse_registration():
    """Order equal ready times by reverse registration, as a backward pass does."""
    assert (1, 3, 2, 0) == trace([5.0, 1.0, 5.0, 4.0]).ready_order


PARAMETER = {"name": "a", "shape": [2], "dtype": "float32", "ready_ms": 1.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "other"},
        {"version": 2},
        {"device": "tpu"},
        {"batch": 0},
        {"batch": True},
        {"forward_ms": -1.0},
        {"backward_ms": math.nan},
        {"optimizer_ms": "3"},
        {"recorded": None},
        {"parameters": []},
        {"parameters": [PARAMETER] * 2},
        {"parameters": [PARAMETER | {"ready_ms": 20.5}]},
        {"parameters": [PARAMETER | {"shape": [0]}]},
        {"parameters": [PARAMETER | {"dtype": "int8"}]},
    ],
)
def test_unsound_file_is_refused(tmp_path, changes):
    """Refuse a file whose entries are not those of a trace, and name it."""
    path = write(trace([1.0]), tmp_path / "bad.json", **changes)
    with pytest.raises(InputError, match=r"bad\.json is not understood"):
        load_trace(path)


def test_a_file_that_an_editor_of_windows_saved_is_read(tmp_path):
    """Read a trace in UTF-8 with a byte order mark."""
    file = Path(write(trace([1.0]), tmp_path / "saved.json"))
    file.write_bytes(codecs.BOM_UTF8 + file.read_bytes())
    assert trace([1.0]).name == load_trace(str(file)).name


def test_file_of_another_kind_is_refused(tmp_path):
    """Refuse what is absent, no file, no text, no JSON or no object."""
    contents = {"noise": b"\xff\xfe\x00", "broken": b"{", "list": b"[1]"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for name in ("absent", "", *contents):
        with pytest.raises(InputError):
            load_trace(str(tmp_path / name))


# The shipped ones


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_trace_is_sound(name):
    """Ship traces that load, state their recording, spread gradients over the backward pass, and
    have the published numbers of elements and tensors.
    """
    shipped = load_trace(name)
    assert name == shipped.name
    assert {"how", "cpu", "threads", "torch", "batch"} <= shipped.recorded.keys()
    ready = fields_of(shipped.parameters, "ready_ms")
    assert min(ready) < 0.3 * shipped.backward_ms
    assert max(ready) > 0.9 * shipped.backward_ms
    assert 0 < shipped.forward_ms < shipped.backward_ms
    size = sum(parameter.numel for parameter in shipped.parameters), len(ready)
    assert SIZES.get(name, size) == size


# The recorder


def test_recorded_trace_is_read_back(tmp_path, load_benchmark):
    """Record parameters in the order of registration, ready in reverse order, and save them."""
    record_traces = load_benchmark("record_traces")
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    data = torch.randn(5, 8)
    made = record_traces.record(model, lambda m, x: m(x).square().mean(), data, name="sequential")
    record_traces.save(made, tmp_path / "made.json")
    read = load_trace(str(tmp_path / "made.json"))
    shapes = {parameter.name: parameter.shape for parameter in read.parameters}
    assert shapes == {"0.weight": (16, 8), "0.bias": (16,), "2.weight": (4, 16), "2.bias": (4,)}
    assert {2, 3} == set(read.ready_order[:2])
    assert ("sequential", "cpu", 5) == (read.name, read.device, read.batch)


def test_replay_can_be_recorded_again(load_benchmark):
    """Record a replay with the order of its trace."""
    original = trace(shuffled_times(8, 16.0))
    model = replay(original)
    record = load_benchmark("record_traces").record
    again = record(model, lambda m, x: m(x), torch.zeros(2, 1), name="again", steps=3)
    assert original.ready_order == again.ready_order


# The replay


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_replay_keeps_order_and_times(device, load_benchmark):
    """Release gradients in recorded order, none early, and end shortly after the recorded time."""
    made = trace(shuffled_times(12, 60.0), backward_ms=80.0, device=device)
    model = replay(made)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    local_step = load_benchmark("record_traces").local_step
    steps = [local_step(model, lambda m, x: m(x), None, optimizer) for _ in range(3)]
    names = [made.parameters[index].name for index in made.ready_order]
    assert [names] * 3 == [list(step.ready_ms) for step in steps]
    due = {parameter.name: parameter.ready_ms for parameter in made.parameters}
    for step in steps:
        assert all(ready > 0.9 * due[name] for name, ready in step.ready_ms.items())
    fastest = min(steps, key=lambda step: step.forward_ms + step.backward_ms)
    assert 0.9 * 85 < fastest.forward_ms + fastest.backward_ms < 6 * 85


def test_busy_replay_uses_the_core_and_sleeping_does_not():
    """Use CPU time in a CPU trace and almost none in a GPU trace."""

    def cpu_share(device: str) -> float:
        made = trace([100.0], backward_ms=100.0, device=device)
        model = replay(made)
        value = model(None)
        begun = time.thread_time()
        value.backward()
        return (time.thread_time() - begun) / 0.1

    assert cpu_share("cpu") > 0.8
    assert cpu_share("cuda") < 0.3


def test_work_between_gradients_is_added():
    """Delay later gradients by a hook's work on the core."""
    made = trace([10.0, 9.0, 8.0, 7.0, 6.0], backward_ms=10.0)
    model = replay(made)

    def compress(_: object) -> None:
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(compress)
    value = model(None)
    begun = time.thread_time()
    value.backward()
    assert time.thread_time() - begun > 0.9 * 0.11


def gradients(model: Replay, passes: int = 1) -> list[Any]:
    """Return copies of the gradients after some backward passes."""
    for _ in range(passes):
        model(None).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_replayed_gradients_are_the_ranks_own_and_stay_so():
    """Draw each rank's own Gaussian gradients, whatever happened to the last ones; add those of
    micro-batches; and reuse their memory in every pass, without a copy by autograd.
    """
    made = trace([1.0, 2.0], backward_ms=2.0)
    model = replay(made)
    before = gradients(model)
    assert not torch.equal(before[0], gradients(replay(made, rank=1))[0])
    places = [parameter.grad.data_ptr() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad.fill_(7.0)
        parameter.grad = None
    assert all(map(torch.equal, before, gradients(model)))
    assert places == [parameter.grad.data_ptr() for parameter in model.parameters()]
    assert all(map(torch.allclose, [3 * gradient for gradient in before], gradients(model, 2)))


@pytest.mark.parametrize("names", [("a", "a.b"), ("forward",), ("a.x", "b.x", "a.y"), ("a..b",)])
def test_impossible_names_are_one_sentence(names):
    """Refuse names that no model can have, or not in this order."""
    parameters = tuple(
        TracedParameter(name=name, shape=(2,), dtype="float32", ready_ms=1.0) for name in names
    )
    made = dataclasses.replace(trace([1.0]), parameters=parameters)
    with pytest.raises(InputError, match="cannot be replayed"):
        Replay(made, Pace(), seed=0, rank=0)


def test_copy_of_a_replay_works_alone():
    """Replay a deep copy without effect on the original."""
    made = trace(shuffled_times(6, 3.0), backward_ms=3.0)
    model = replay(made)
    twin = copy.deepcopy(model)
    assert list(made.ready_order) == observed_order(twin, twin(None))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_replay_under_ddp_reduces_in_recorded_order():
    """Rebuild DDP's buckets in recorded order, with the gradients of the replay."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    made = trace(shuffled_times(10, 3.0), backward_ms=3.0)
    model = Replay(made, Pace(), seed=4, rank=0)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        wrapped = DistributedDataParallel(model, bucket_cap_mb=1e-5)
        for _ in range(3):
            wrapped.zero_grad(set_to_none=True)
            wrapped(torch.zeros(2, 1)).backward()
        logged = wrapped._get_ddp_logging_data()
    finally:
        dist.destroy_process_group()
    order = [int(index) for index in logged["prev_iteration_grad_ready_order_indices"].split(",")]
    assert list(made.ready_order) == order
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_trace_workload_is_inspected_like_a_model(tmp_path):
    """Load a trace by its file, return its batch, order and sizes, and refuse another batch."""
    made = trace(shuffled_times(6, 3.0), backward_ms=3.0)
    spec = f"trace:{write(made, tmp_path / 'made.json')}"
    workload = load_workload(spec, seed=0, rank=0, world_size=1, batch_size=2)
    facts = inspect_workload(workload)
    assert made.ready_order == facts.ready_order
    sizes = [fields_of(each.parameters, "numel") for each in (made, facts)]
    assert sizes[0] == sizes[1]
    assert 2 == facts.batch_size
    with pytest.raises(InputError, match="recorded with 2"):
        load_workload(spec, seed=0, rank=0, world_size=1, batch_size=3)


def test_replayed_optimizer_takes_its_time_and_moves_the_parameters(load_benchmark):
    """Spend the recorded time in the optimiser's step, and change the parameters."""
    workload = load_workload("trace:many-tiny", seed=0, rank=0, world_size=1)
    assert workload.optimizer is not None
    optimizer = workload.optimizer(workload.model.parameters())
    batch = next(iter(workload.batches))
    local_step = load_benchmark("record_traces").local_step
    step = local_step(workload.model, workload.loss, batch, optimizer)
    assert step.optimizer_ms > 0.9 * load_trace("many-tiny").optimizer_ms
    assert all(
        bool(parameter.detach().abs().sum() > 0) for parameter in trainable(workload.model).values()
    )
