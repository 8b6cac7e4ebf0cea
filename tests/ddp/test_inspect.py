"""Tests of inspecting a workload: its facts, no side effects, and refusals of what DDP cannot
train.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest
from fields import fields_of
from launching import succeeded

from commbench.ddp.plan.workload import Workload, WorkloadFacts, check_all_used
from commbench.errors import InputError
from commbench.schema import read_as

torch = pytest.importorskip("torch")
pytest.importorskip("numba")


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
    """Return parameters in registration order, gradient order and the workload's batch size."""
    facts = inspect_workload(workload())
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
    assert 6 == facts.batch_size


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
    assert facts == read_as(WorkloadFacts, json.loads(json.dumps(dataclasses.asdict(facts))))


def unused(count: int) -> Any:
    """Return a model with layers that its loss does not use."""
    return torch.nn.ModuleDict(
        {"used": torch.nn.Linear(4, 1)} | {f"idle{i}": torch.nn.Linear(1, 1) for i in range(count)}
    )


def of_used(model: Any, inputs: Any) -> Any:
    """Return a loss that uses one layer of a model."""
    return model["used"](inputs).mean()


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
        ({"loss": lambda _, x: OTHER(x).mean()}, "does not depend on the model"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"steps": 1.5}, "steps is 1.5"),
        ({"evaluate": lambda _: 0.5}, "for the metric ''"),
        ({"evaluate": lambda _: float("nan"), "metric": "accuracy"}, "returned nan"),
        ({"batches": iter([torch.randn(6, 4)])}, "only once"),
        ({"batches": 5}, "batches are of type int"),
        ({"batches": OnePass()}, "do not start over"),
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
    facts = read_as(WorkloadFacts, json.loads(line)["ok"])
    assert ["weight", "bias"] == fields_of(facts.parameters, "name")
    assert 4 == facts.batch_size


@pytest.mark.parametrize("spec", ["nonsense", ""])
def test_command_prints_errors_as_json(capsys, spec):
    """Print a sentence as JSON and exit with the code of bad input."""
    assert 2 == main(json.dumps({"spec": spec}))
    assert f"no workload {spec!r}" in json.loads(capsys.readouterr().out)["error"]


def test_command_names_the_line_that_fails(tmp_path, capsys):
    """Name the line of the person's file where their own code fails."""
    (tmp_path / "mine.py").write_text(
        "import torch\ndef workload():\n"
        "    return torch.nn.Linear(2, 1), lambda m, x: m(x).mean(), Batches()\n"
        "class Batches:\n    def __iter__(self):\n        raise ValueError('no data')\n"
    )
    assert 2 == main(json.dumps({"spec": f"{tmp_path / 'mine.py'}:workload"}))
    error = json.loads(capsys.readouterr().out)["error"]
    assert "ValueError: no data, mine.py line 6" in error


def test_workload_needs_no_torch():
    """Import the workload protocol and the traces without torch."""
    code = (
        "import sys, commbench.ddp.plan.workload, commbench.ddp.traces; sys.exit('torch' in"
        " sys.modules)"
    )
    assert 0 == subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode
