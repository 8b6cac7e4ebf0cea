"""Tests of inspecting a workload: its facts, no side effects, and refusals of what DDP cannot
train.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from fields import fields_of
from launching import succeeded

from commbench.ddp.plan.workload import Workload, WorkloadFacts, check_all_used
from commbench.errors import InputError

torch = pytest.importorskip("torch")
pytest.importorskip("numba")

from stand_in import StandIn

from commbench.ddp.inspect import inspect_workload, main


def workload(model: Any = None, loss: Any = None, **others: Any) -> Workload:
    """Return a small valid workload with parts replaced."""
    nn = torch.nn
    model = model or nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2, bias=False)
    )
    loss = loss or (lambda m, x: m(x).square().mean())
    return Workload(
        **{"model": model, "loss": loss, "batches": [torch.randn(6, 4)], "batch_size": 6, **others}
    )


def test_facts_of_a_small_model():
    """Return parameters in registration order, gradient order, buffers and the workload's own
    fields.
    """
    facts = inspect_workload(workload(metric="accuracy", target=0.9, steps=7))
    assert [
        ("0.weight", 32),
        ("0.bias", 8),
        ("1.weight", 8),
        ("1.bias", 8),
        ("3.weight", 16),
    ] == fields_of(facts.parameters, "name", "numel")
    assert {(4, "float32")} == set(fields_of(facts.parameters, "itemsize", "dtype"))
    assert 4 == facts.ready_order[0]
    assert set(range(5)) == set(facts.ready_order)
    assert 2 * 8 * 4 + 8 == facts.buffer_bytes
    assert 6 == facts.batch_size
    assert "accuracy" == facts.metric
    assert 0.9 == facts.target
    assert 7 == facts.steps


def test_dtypes_and_frozen_parameters():
    """Count only trained parameters, each in its own type."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2, dtype=torch.float64))
    model[0].bias.requires_grad_(False)  # noqa: FBT003 - torch's own signature
    facts = inspect_workload(workload(model, lambda m, x: m[1](m[0](x).double()).mean()))
    assert [("0.weight", 4), ("1.weight", 8), ("1.bias", 8)] == fields_of(
        facts.parameters, "name", "itemsize"
    )
    assert ["float32", "float64", "float64"] == fields_of(facts.parameters, "dtype")


def test_model_and_random_numbers_are_left_as_they_were():
    """Restore weights, statistics, gradients and random state."""
    small = workload()
    before = {name: value.clone() for name, value in small.model.state_dict().items()}
    state = torch.random.get_rng_state()
    inspect_workload(small)
    assert all(torch.equal(before[name], value) for name, value in small.model.state_dict().items())
    assert all(parameter.grad is None for parameter in small.model.parameters())
    assert torch.equal(state, torch.random.get_rng_state())


def test_facts_survive_json():
    """Read the facts back from JSON."""
    facts = inspect_workload(workload())
    assert facts == WorkloadFacts.from_json(json.loads(json.dumps(facts.to_json())))


def unused(count: int) -> Any:
    """Return a model with layers that its loss does not use."""
    return torch.nn.ModuleDict(
        {"used": torch.nn.Linear(4, 1)} | {f"idle{i}": torch.nn.Linear(1, 1) for i in range(count)}
    )


def of_used(model: Any, inputs: Any) -> Any:
    """Return a loss that uses one layer of a model."""
    return model["used"](inputs).mean()


def fail(*_: object) -> Any:
    """Raise an error as a person's own code may."""
    raise RuntimeError("shapes\ndo not fit.")


class SparseTable(torch.nn.Module):
    """A model whose embedding has sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 4, sparse=True)

    def forward(self, inputs: Any) -> Any:
        """Look up some rows."""
        return self.table(torch.arange(3)).sum() + inputs.sum()


#: A loss of this model has gradients that training never sees.
OTHER = torch.nn.Linear(4, 2)


def holding_a_result() -> torch.nn.Module:
    """Return a model that torch cannot copy, as it keeps a tensor with a history."""
    model = torch.nn.Linear(4, 2)
    model.doubled = model.weight * 2
    return model


class OnePass:
    """Batches with one iterator, which is at its end after the first pass."""

    def __init__(self) -> None:
        self.iterator = iter([torch.randn(6, 4)] * 2)

    def __iter__(self) -> Any:
        """Return the same iterator each time."""
        return self.iterator


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"model": SparseTable()}, "The parameter table.weight got a sparse gradient"),
        ({"loss": lambda m, x: m(x)}, "a tensor of shape (6, 2)"),
        ({"loss": lambda m, x: m(x).mean().item()}, "returned a value of type float"),
        ({"loss": lambda m, x: m(x).mean().detach()}, "does not depend on the model"),
        ({"loss": lambda _, x: OTHER(x).mean()}, "does not depend on the model"),
        ({"model": holding_a_result()}, "Copying the model"),
        ({"loss": fail}, "RuntimeError: shapes do not fit, test_inspect.py line"),
        ({"loss": "mse"}, "loss is 'mse'"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"steps": 1.5}, "steps is 1.5"),
        ({"evaluate": lambda _: 0.5}, "for the metric ''"),
        ({"evaluate": lambda _: float("nan"), "metric": "accuracy"}, "returned nan"),
        ({"evaluate": fail, "metric": "accuracy"}, "evaluate failed (RuntimeError"),
        (
            {"batches": [torch.randn(6, 4), torch.randn(6, 5)]},
            "The loss of a batch failed (RuntimeError",
        ),
        ({"evaluate": 0.5}, "evaluate is 0.5"),
        ({"optimizer": fail}, "optimizer failed"),
        (
            {"optimizer": lambda parameters: len(list(parameters))},
            "optimizer returned a value of type int",
        ),
        ({"batches": iter([torch.randn(6, 4)])}, "only once"),
        ({"batches": OnePass()}, "do not start over"),
        ({"model": "resnet"}, "of type str"),
    ],
)
def test_misuse_is_one_sentence(parts, says):
    """Refuse in one sentence what DDP cannot train, with the reason."""
    with pytest.raises(InputError) as caught:
        inspect_workload(workload(**parts))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unused_parameters_are_named():
    """Name the parameters without a gradient, and take them as ready when the backward pass
    begins.
    """
    facts = inspect_workload(workload(model=unused(1), loss=of_used))
    assert ("idle0.weight", "idle0.bias") == facts.unused
    assert {2, 3} == set(facts.ready_order[:2])
    assert sorted(facts.ready_order) == [0, 1, 2, 3]
    with pytest.raises(
        InputError, match=r"The parameters idle0\.weight, idle0\.bias got no gradient"
    ):
        check_all_used(facts.unused)
    assert () == inspect_workload(workload()).unused


def test_failing_backward_is_one_sentence():
    """Name the place of a failing backward pass."""

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, value: Any) -> Any:
            return value.clone()

        @staticmethod
        def backward(_ctx: Any, _gradient: Any) -> Any:
            fail()

    with pytest.raises(InputError, match="backward pass failed"):
        inspect_workload(workload(loss=lambda m, x: Broken.apply(m(x).mean())))


def test_wrapped_model_is_refused():
    """Refuse a model inside DDP, and ask for the bare one."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(InputError, match="DistributedDataParallel"):
            inspect_workload(workload(DistributedDataParallel(torch.nn.Linear(4, 1))))
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("forks")
def test_command_prints_facts_and_nothing_else(tmp_path):
    """Print one line of JSON from a separate process, although the person's file prints at its
    start and end, and leaves a thread.
    """
    (tmp_path / "mine.py").write_text(
        "import atexit, threading, time, torch\natexit.register(print, 'bye')\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\nprint('hello')\n"
        "def workload(batch_size=3):\n"
        "    return torch.nn.Linear(2, 1), lambda m, x: m(x).mean(), [torch.ones(batch_size, 2)]\n"
    )
    arguments = json.dumps({"spec": f"{tmp_path / 'mine.py'}:workload", "batch": 4})
    command = (sys.executable, "-m", "commbench.ddp.inspect", arguments)
    (line,) = succeeded(*command).splitlines()
    facts = WorkloadFacts.from_json(json.loads(line)["ok"])
    assert ["weight", "bias"] == fields_of(facts.parameters, "name")
    assert 4 == facts.batch_size


@pytest.mark.parametrize("spec", ["nonsense", ""])
def test_command_prints_errors_as_json(capsys, spec):
    """Print a sentence as JSON and exit with the code of bad input."""
    assert 2 == main(json.dumps({"spec": spec}))
    assert f"no workload {spec!r}" in json.loads(capsys.readouterr().out)["error"]


def test_command_names_the_line_of_batches_that_fail(tmp_path):
    """End with the line of the person's file where iterating the batches fails."""
    (tmp_path / "mine.py").write_text(
        "import torch\ndef workload():\n"
        "    return torch.nn.Linear(2, 1), lambda m, x: m(x).mean(), Batches()\n"
        "class Batches:\n    def __iter__(self):\n        raise ValueError('no data')\n"
    )
    with pytest.raises(SystemExit, match=r"ValueError: no data, mine.py line 6"):
        main(json.dumps({"spec": f"{tmp_path / 'mine.py'}:workload"}))


def test_workload_needs_no_torch():
    """Import the workload protocol and the traces without torch."""
    code = (
        "import sys, commbench.ddp.plan.workload, commbench.ddp.traces; sys.exit('torch' in"
        " sys.modules)"
    )
    assert 0 == subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode


def test_an_error_on_a_gpu_names_the_device(stub, tmp_path, capsys):
    """Suggest CPUs if a workload fails on a GPU, but not on CPUs."""
    stub("commbench.ddp.inspect.gpus_to_train_on", ["one"])
    stub("commbench.ddp.inspect.Gpu", StandIn())
    own = tmp_path / "own.py"
    own.write_text(
        "import torch\nfrom commbench.ddp.plan.workload import Workload\ndef fail(model, batch):\n "
        "   raise RuntimeError('not the same device')\ndef workload(**_):\n    return"
        " Workload(model=torch.nn.Linear(2, 2), loss=fail, batches=[torch.ones(1, 2)],"
        " batch_size=1)\n"
    )
    for gpu, suggests_cpus in (0, True), (None, False):
        assert 2 == main(json.dumps({"spec": f"{own}:workload", "gpu": gpu}))
        error = json.loads(capsys.readouterr().out)["error"]
        assert "not the same device" in error
        assert suggests_cpus == error.endswith("--backend gloo trains on CPUs.")
