"""Tests of the rule by which DDP makes buckets, against DDP itself.

Started as a program it is the DDP process: it prints what DDP says of every model and bucket size, as JSON.
"""

import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from effort import cases, repetitions
from gloo_ranks import found_by, run_gloo_ranks
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.layout import MIB, bucket_sizes, caps_bytes, group_by_layout, initial_layout, rebuilt_layout
from commbench.ddp.plan.workload import ParameterFacts, WorkloadFacts

CAPS = ("default", "0.0001", "0.02", "0.5", "1", "4", "25", "1000", "0.001+0.03", "1+5+25", "2+0.01")
#: Workloads of commbench that are looked at too, and their bucket sizes: fewer, for they take longer.
WORKLOAD_CAPS = ("default", "0.5", "5", "25", "1+5+25")
#: Workloads that take long: with all bucket sizes only in the slow test.
HEAVY, HEAVY_CAPS = ("gpt", "mlp", "resnet18", "trace:many-tiny"), ("default", "5")
WORKLOADS = {**dict.fromkeys(("digits", "text"), WORKLOAD_CAPS), **dict.fromkeys(cases([], HEAVY), HEAVY_CAPS)}
#: Replayed in as long as they were recorded in: only in the slow test.
LARGE_TRACES = ("trace:resnet50", "trace:bert-base", "trace:gpt2-small")
LARGE_CAPS = ("default", "25", "1+5+25")

# ------------------------------------------------------------------------------------------- the process with DDP


def layers(*widths: int) -> Callable[[], tuple[Any, Any]]:
    """Return what makes a chain of linear layers, and its input."""

    def make() -> tuple[Any, Any]:
        import torch
        from torch import nn

        return nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(widths))), torch.randn(2, widths[0])

    return make


def mixed_dtypes() -> tuple[Any, Any]:
    """Return a model of four dtypes in turns, and its input."""
    import torch
    from torch import nn

    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float32, torch.float16, torch.float64, torch.float32)

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(90, 90).to(dtype) for dtype in dtypes)

        def forward(self, hidden: Any) -> Any:
            for layer in self.layers:
                hidden = layer(hidden.to(layer.weight.dtype))
            return hidden.float()

    return Mixed(), torch.randn(2, 90)


def out_of_order() -> tuple[Any, Any]:
    """Return a model that uses its layers in another order than it registers them, some frozen, one twice."""
    import torch
    from torch import nn

    class Shuffled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(130, 130) for _ in range(8))
            self.layers[3].requires_grad_(requires_grad=False)

        def forward(self, hidden: Any) -> Any:
            for index in (2, 0, 7, 3, 5, 1, 6, 2, 4):
                hidden = self.layers[index](hidden)
            return hidden

    return Shuffled(), torch.randn(2, 130)


def convolutions() -> tuple[Any, Any]:
    """Return convolutions with batch norm, whose parameters are large and tiny in turns."""
    import torch
    from torch import nn

    blocks = [nn.Sequential(nn.Conv2d(n, 2 * n, 3), nn.BatchNorm2d(2 * n), nn.ReLU()) for n in (3, 6, 12, 24)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.LazyLinear(1000)), torch.randn(2, 3, 12, 12)


MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "tiny": layers(3, 1),
    "wide": layers(100, 1500, 1500, 10),
    "deep": layers(*[64] * 30),
    "huge": layers(64, *[1300] * 5, 64),
    "mixed_dtypes": mixed_dtypes,
    "out_of_order": out_of_order,
    "convolutions": convolutions,
}
STATIC = ("deep", "out_of_order")
#: The bucket sizes of every model and workload.
ASKED = {**dict.fromkeys(MODELS, CAPS), **WORKLOADS}
LARGE = {**dict.fromkeys(LARGE_TRACES, LARGE_CAPS), **dict.fromkeys(HEAVY, WORKLOAD_CAPS)}

Loss = Callable[[Any], Any]


def model_and_loss(name: str) -> tuple[Any, Loss]:
    """Return a model or a workload's model, and what makes its loss of the model that is called."""
    if name in MODELS:
        model, inputs = MODELS[name]()
        model(inputs)  # lazy layers get their shape
        return model, lambda called: called(inputs).sum()
    from commbench.ddp.workloads import load_workload

    batch_size = None if name.startswith("trace:") else 2  # a trace has that of its recording
    workload = load_workload(name, seed=0, rank=0, world_size=1, batch_size=batch_size)
    batch = next(iter(workload.batches))
    return workload.model, lambda called: workload.loss(called, batch)


def observe(model: Any, loss: Loss) -> dict[str, Any]:
    """Return the facts of a model, without DDP."""
    order: list[int] = []
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    handles = [
        parameter.register_post_accumulate_grad_hook(lambda _, index=index: order.append(index))
        for index, parameter in enumerate(trained)
    ]
    loss(model).backward()
    for handle in handles:
        handle.remove()
    return {
        "parameters": [
            {"numel": p.numel(), "itemsize": p.element_size(), "dtype": str(p.dtype).removeprefix("torch.")}
            for p in trained
        ],
        "ready_order": order,
    }


def ask_ddp(model: Any, loss: Loss, cap: str, *, static: bool) -> dict[str, list[Any]]:
    """Return what DDP logs of its buckets."""
    from torch.nn.parallel import DistributedDataParallel

    caps = [] if cap == "default" else [float(part) for part in cap.split("+")]
    options = {"bucket_cap_mb_list": caps} if len(caps) > 1 else {"bucket_cap_mb": caps[0]} if caps else {}
    ddp = DistributedDataParallel(model, static_graph=static, **options)
    for _ in range(4 if static else 3):  # it rebuilds in the second forward pass, or the third, and logs in the next
        loss(ddp).backward()
    logged = ddp._get_ddp_logging_data()
    numbers = logged["rebuilt_per_bucket_param_indices"].split(", ")
    return {
        "initial_sizes": [int(size) for size in logged["bucket_sizes"].split(", ")],
        "sizes": [int(size) for size in logged["rebuilt_bucket_sizes"].split(", ")],
        "indices": [[int(index) for index in bucket.split()] for bucket in numbers],
    }


def main() -> None:
    """Print by model its facts, and what DDP says for each bucket size, of those in the argument."""
    import torch
    import torch.distributed as dist

    torch.manual_seed(0)
    torch.set_num_threads(1)  # small models, and perhaps a busy machine
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    seen = {}
    for name, caps in json.loads(sys.argv[1]).items():
        model, loss = model_and_loss(name)
        seen[name] = observe(model, loss) | {
            "ddp": {cap: ask_ddp(model, loss, cap, static=False) for cap in caps},
            "static": {cap: ask_ddp(model, loss, cap, static=True) for cap in caps if name in STATIC},
        }
    sys.stdout.write(json.dumps(seen))
    sys.stdout.flush()
    dist.destroy_process_group()
    os._exit(0)


# -------------------------------------------------------------------------------------------------------- the tests


def look(python: str, caps_by_model: Mapping[str, Sequence[str]], store: Path) -> dict[str, Any]:
    """Return what `main` prints of models and their bucket sizes."""
    pytest.importorskip("torch")
    return dict(found_by(run_gloo_ranks(python, 1, __file__, json.dumps(caps_by_model), store=store)))


@pytest.fixture(scope="module")
def seen(forked_python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What DDP does with every model."""
    return look(forked_python, ASKED, tmp_path_factory.mktemp("ddp") / "store")


def columns(model: dict[str, Any]) -> tuple[list[int], list[int], list[str]]:
    """Return numels, itemsizes and dtypes."""
    parameters = model["parameters"]
    return tuple([p[key] for p in parameters] for key in ("numel", "itemsize", "dtype"))  # type: ignore[return-value]


@pytest.mark.parametrize(("name", "cap"), [(name, cap) for name, caps in ASKED.items() for cap in caps])
def test_rebuilt_buckets_are_those_of_ddp(seen: dict[str, Any], name: str, cap: str) -> None:
    """Put the same parameters into the same buckets as DDP, in the order of sending."""
    check_rebuilt(seen[name], cap)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_rebuilt_buckets_of_large_traces_are_those_of_ddp(forked_python: str, tmp_path: Path, name: str) -> None:
    """Do so for models of up to half a gigabyte."""
    model = look(forked_python, {name: LARGE[name]}, tmp_path / "store")[name]
    for cap in LARGE[name]:
        check_rebuilt(model, cap)


def check_rebuilt(model: dict[str, Any], cap: str) -> None:
    """Compare our layout with that of DDP."""
    numels, itemsizes, dtypes = columns(model)
    layout = rebuilt_layout(numels, itemsizes, dtypes, model["ready_order"], caps_bytes(cap))
    assert model["ddp"][cap]["indices"] == [list(bucket) for bucket in layout]
    assert model["ddp"][cap]["sizes"] == list(bucket_sizes(layout, numels, itemsizes))


@pytest.mark.parametrize("name", STATIC)
def test_static_graph_makes_the_same_buckets(seen: dict[str, Any], name: str) -> None:
    """Apply one rule with a static graph and without."""
    sizes = [{cap: ddp["sizes"] for cap, ddp in seen[name][kind].items()} for kind in ("ddp", "static")]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(("name", "cap"), [(name, cap) for name, caps in ASKED.items() for cap in caps])
def test_first_step_has_the_initial_buckets(seen: dict[str, Any], name: str, cap: str) -> None:
    """Start with one bucket a dtype, or with those of a list."""
    numels, itemsizes, dtypes = columns(seen[name])
    layout = initial_layout(numels, itemsizes, dtypes, cap)
    assert seen[name]["ddp"][cap]["initial_sizes"] == list(bucket_sizes(layout, numels, itemsizes))


def test_models_tell_bucket_sizes_apart(seen: dict[str, Any]) -> None:
    """Have models on which the default, a list and plain numbers differ, else the tests above show little."""
    for one, other in (("default", "25"), ("default", "1"), ("1+5+25", "default"), ("0.001+0.03", "0.02")):
        models = [seen[name]["ddp"] for name in MODELS]
        assert any(model[one]["sizes"] != model[other]["sizes"] for model in models)


DTYPES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}


@settings(max_examples=repetitions(60))
@given(data=st.data())
def test_any_parameters_are_assigned_as_torch_does(data: st.DataObject) -> None:
    """Follow torch's own function for any sizes, dtypes, order and caps."""
    torch = pytest.importorskip("torch")
    parameters = data.draw(
        st.lists(st.tuples(st.integers(1, 3000), st.sampled_from(sorted(DTYPES))), min_size=1, max_size=20)
    )
    order = data.draw(st.permutations(range(len(parameters))))
    caps = data.draw(st.lists(st.integers(0, 20_000), min_size=1, max_size=4))
    tensors = [torch.empty(numel, dtype=getattr(torch, dtype)) for numel, dtype in parameters]
    theirs, _ = torch.distributed._compute_bucket_assignment_by_size([tensors[i] for i in order], caps, [], list(order))
    numels, dtypes = zip(*parameters, strict=True)
    ours = rebuilt_layout(numels, [DTYPES[dtype] for dtype in dtypes], dtypes, order, caps)
    assert theirs == [list(bucket) for bucket in ours]


def test_default_is_not_25() -> None:
    """Know the small first bucket of the default, which 25 and lists do not have."""
    assert [MIB, 25 * MIB] == caps_bytes("default")
    assert [25 * MIB] == caps_bytes("25")
    assert [MIB, 5 * MIB, 25 * MIB] == caps_bytes("1+5+25")
    assert [MIB // 2] == caps_bytes("0.5")


def test_default_is_that_of_torch() -> None:
    """Use the size of the first bucket that torch has."""
    torch = pytest.importorskip("torch")
    assert caps_bytes("default")[0] == torch.distributed._DEFAULT_FIRST_BUCKET_BYTES


# ------------------------------------------------------------------------------------------------ one for several


def case(cap: str = "default", **changes: Any) -> TrainingCase:
    """Return a configuration on two ranks."""
    return TrainingCase(**{"workload": "mlp", "world_size": 2, "batch_per_rank": 32, "bucket_cap_mb": cap, **changes})


def facts(*sizes_mb: float) -> WorkloadFacts:
    """Return a workload with parameters of these sizes (MiB), the last ready first."""
    parameters = tuple(
        ParameterFacts(
            name=f"p{i}", numel=math.ceil(size * MIB / 4), itemsize=4, dtype="float32", ready_ms=len(sizes_mb) - i
        )
        for i, size in enumerate(sizes_mb)
    )
    return WorkloadFacts(
        parameters=parameters,
        ready_order=tuple(reversed(range(len(parameters)))),
        buffer_bytes=0,
        batch_size=32,
        forward_ms=1.0,
        backward_ms=2.0,
        optimizer_ms=0.1,
        metric="",
        target=None,
        steps=None,
    )


def test_same_buckets_are_measured_once() -> None:
    """Measure one of the bucket sizes that give each layer its own bucket."""
    groups = group_by_layout([case("0.5"), case("1"), case("4"), case("5")], facts(4, 4, 4))
    assert {"0.5": "0.5", "1": "0.5", "4": "0.5", "5": "5"} == {
        one.bucket_cap_mb: other.bucket_cap_mb for one, other in groups.items()
    }


def test_default_represents_its_equals() -> None:
    """Measure DDP's default where another bucket size gives the same, wherever it stands."""
    groups = group_by_layout([case("25"), case("100"), case("default")], facts(0.1, 0.2))
    assert {case("default")} == set(groups.values())
    assert [case("25"), case("100"), case("default")] == list(groups)


def test_other_settings_stay_apart() -> None:
    """Merge nothing that differs in more than the bucket size."""
    cases = [
        case("25"),
        case("25", hook="fp16"),
        case("25", hook="topk", density=0.1),
        case("25", hook="topk", density=0.01),
        case("25", bucket_view=True),
        case("25", accumulation=2),
        case("25", world_size=4),
        case("25").local(),
    ]
    assert {one: one for one in cases} == group_by_layout(cases, facts(1, 2))


def test_steps_without_ddp_have_no_buckets() -> None:
    """Leave the step without DDP alone, also beside a default with the same name of buckets."""
    cases = [case("1"), case("1").local()]
    assert {one: one for one in cases} == group_by_layout(cases, facts(0.1))


if __name__ == "__main__":
    main()
