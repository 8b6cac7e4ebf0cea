"""Tests of the workloads: sizes, shared data, learning, and errors in a person's own file."""

from __future__ import annotations

import itertools
import sys
from collections import UserDict
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from threads import run_threads

from commbench.errors import InputError

torch = pytest.importorskip("torch")
pytest.importorskip("numba")

from commbench.ddp.models import default_optimizer, tensors_in
from commbench.ddp.session import check_same_model
from commbench.ddp.workloads import WORKLOADS, load_workload
from commbench.ddp.workloads.sampling import sharded
from commbench.ddp.workloads.vision import load_digits

SIZES = {
    "digits": 76_786,
    "gpt": 5_790_720,
    "mlp": 8_407_050,
    "resnet18": 11_173_962,
    "text": 636_032,
}


@pytest.fixture(autouse=True)
def _one_thread():
    """Compute on one core, as a rank does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def load(
    spec: str, *, seed: int = 1, rank: int = 0, world_size: int = 2, batch_size: int | None = None
) -> Any:
    """Load a workload for one of two ranks."""
    return load_workload(spec, seed=seed, rank=rank, world_size=world_size, batch_size=batch_size)


def first_batches(workload: Any) -> list[Any]:
    """Return the tensors of the first batches, concatenated."""
    found = []
    for batch in itertools.islice(workload.batches, 3):
        found += tensors_in(batch)
    return found


def weights_of(workload: Any) -> list[Any]:
    """Return the parameters of a workload's model."""
    return list(workload.model.parameters())


def equal(first: list[Any], second: list[Any]) -> bool:
    """Return whether two lists contain equal tensors."""
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def train(workload: Any, steps: int) -> list[float]:
    """Train without DDP and return the losses."""
    optimizer = (workload.optimizer or default_optimizer)(workload.model.parameters())
    losses = []
    for batch in itertools.islice(workload.batches, steps):
        optimizer.zero_grad()
        loss = workload.loss(workload.model, batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


# What comes with commbench


def test_a_mapping_that_loads_its_values_is_not_asked_for_them():
    """Find the tensors in dicts of all kinds without their methods."""

    class Lazy(UserDict[str, Any]):
        def values(self) -> Any:
            raise AssertionError

    assert [8] == list(tensors_in([Lazy(x=torch.tensor(8))]))


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_made_by_its_arguments(name):
    """Return the documented number of parameters and the requested batch; share weights but no data
    among ranks, and repeat both with the seed, without a draw from torch's global generator.
    """
    before = torch.random.get_rng_state()
    one, same = load(name), load(name)
    chosen, other = load(name, rank=1, batch_size=3), load(name, seed=2)
    assert torch.equal(before, torch.random.get_rng_state())
    weights, data = weights_of(one), first_batches(one)
    assert SIZES[name] == sum(parameter.numel() for parameter in weights)
    assert 3 == chosen.batch_size
    assert [3, one.batch_size] == [len(each[0]) for each in (first_batches(chosen), data)]
    assert equal(weights, weights_of(same))
    assert equal(weights, weights_of(chosen))
    assert not equal(weights, weights_of(other))
    assert equal(data, first_batches(same))
    assert equal(data, first_batches(one))
    assert not equal(data, first_batches(load(name, rank=1)))
    assert not equal(data, first_batches(other))


@pytest.mark.parametrize(
    ("name", "batch_size", "steps", "falls_to"),
    [
        pytest.param("gpt", 1, 12, 0.98, marks=pytest.mark.slow),
        ("mlp", 32, 25, 0.85),
        pytest.param("resnet18", 4, 32, 0.7, marks=pytest.mark.slow),
        pytest.param("text", 8, 25, 0.8, marks=pytest.mark.slow),
    ],
)
def test_loss_falls(name, batch_size, steps, falls_to):
    """Lower the loss within a few steps."""
    losses = train(load(name, seed=2, batch_size=batch_size, world_size=1), steps)
    first, last = sum(losses[:5]), sum(losses[-5:])
    assert last < falls_to * first


@pytest.mark.slow
def test_digits_reaches_its_target():
    """Reach the stated accuracy in the stated steps, and evaluate without side effects."""
    workload = load("digits", world_size=1)
    train(workload, workload.steps)
    weights = [parameter.detach().clone() for parameter in weights_of(workload)]
    assert ("accuracy", 0.97) == (workload.metric, workload.target)
    assert workload.evaluate(workload.model) >= workload.target
    assert workload.model.training
    assert equal(weights, weights_of(workload))


def test_digits_data_is_whole():
    """Ship 1797 images with values from 0 to 1 and 170 to 190 of each digit."""
    images, labels = load_digits()
    assert (1797, 1, 8, 8) == tuple(images.shape)
    assert 0.0 == float(images.min())
    assert 1.0 == float(images.max())
    counts = torch.bincount(labels).tolist()
    assert 10 == len(counts)
    assert all(170 <= count <= 190 for count in counts)


def test_text_evaluates_held_out_bytes():
    """Start near the entropy of a uniform guess, in nats per byte."""
    workload = load("text")
    assert "nats_per_byte" == workload.metric
    assert 5.0 < workload.evaluate(workload.model) < 6.1


def test_shards_cover_an_epoch_without_overlap():
    """Give each sample to one rank per epoch, in varying order; whole batches of too few, too."""
    ranks = [
        iter(sharded(24, 3, lambda i: i.tolist(), seed=5, rank=rank, ranks=2)) for rank in range(2)
    ]
    for _ in range(2):
        assert list(range(24)) == sorted(
            index for rank in ranks for _ in range(4) for index in next(rank)
        )
    again = iter(sharded(24, 3, lambda i: i.tolist(), seed=5, rank=0, ranks=2))
    eight = list(itertools.islice(again, 8))
    assert eight[:4] != eight[4:]
    few = next(iter(sharded(10, 4, lambda i: i.tolist(), seed=5, rank=3, ranks=4)))
    assert 4 == len(few)
    assert set(few) <= set(range(10))


# Names


def test_unknown_name_lists_the_known():
    """List the workloads, the traces and the form of a person's own."""
    with pytest.raises(InputError) as caught:
        load("resnet19")
    assert all(
        name in str(caught.value) for name in (*WORKLOADS, "trace:resnet50", "file.py:callable")
    )


# A person's own

SOUND = """
import torch
def workload(seed, rank):
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 1)
    return model, lambda m, x: m(x).square().mean(), [torch.full((5, 3), float(rank + 1))] * 2
"""


def own(folder: Path, code: str, name: str = "workload") -> str:
    """Write a person's file and return the workload's name."""
    (folder / "mine.py").write_text(code)
    return f"{folder / 'mine.py'}:{name}"


def test_own_tuple_becomes_a_workload(tmp_path, monkeypatch):
    """Accept (model, loss, batches), with the batch size of the first batch, from a file that
    imports its neighbours and itself.
    """
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_mine.py").write_text("WIDTH = 3")
    code = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    code += "import beside_mine\n@dataclass\nclass A:\n    x: int = beside_mine.WIDTH\n"
    workload = load(own(tmp_path, f"{code}{SOUND}"), rank=1)
    assert (5, None, "") == (workload.batch_size, workload.steps, workload.metric)
    assert 2.0 == float(first_batches(workload)[0][0, 0])
    assert 5 == load(own(tmp_path, f"{code}{SOUND}"), batch_size=5).batch_size


def test_own_example_loads_and_learns():
    """Load and train the documented example."""
    spec = f"{ROOT / 'benchmarks' / 'own_model.py'}:workload"
    losses = train(load(spec, batch_size=32), 40)
    assert 32 == load(spec, batch_size=32).batch_size
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_own_workload_passes_and_gets_only_what_it_names(tmp_path):
    """Accept a Workload, and pass a function the arguments it names, or all."""
    code = """
import torch
from commbench.ddp.plan.workload import Workload
def workload(**given):
    model = torch.nn.Linear(1, 1)
    batches = [sorted(given.items())]
    size = given["batch_size"]
    return Workload(model=model, loss=print, batches=batches, batch_size=size, steps=9)
"""
    workload = load(own(tmp_path, code), seed=3, rank=1, world_size=4, batch_size=7)
    assert (7, 9) == (workload.batch_size, workload.steps)
    assert [("batch_size", 7), ("rank", 1), ("seed", 3), ("world_size", 4)] == next(
        iter(workload.batches)
    )


def test_batch_in_a_dict_is_measured(tmp_path):
    """Return the batch size of tensors in a dict."""
    code = (
        SOUND.replace("[torch.full", "[{'x': torch.full")
        .replace("1))] * 2", "1))}] * 2")
        .replace("m(x)", "m(x['x'])")
    )
    assert 5 == load(own(tmp_path, code)).batch_size


BODY = "import torch\ndef workload():\n    "
LINEAR = f"{BODY}m = torch.nn.Linear(3, 1)\n    "
LOSS = "lambda m, x: m(x).mean()"


@pytest.mark.parametrize(
    "code",
    [
        "import nothing_of_this_name",
        "def workload(:",
        "raise SystemExit(3)",
        "workload = 3",
        "other = 3",
        "def other(): pass",
        f"{BODY}raise ValueError('no data\\nhere')",
        f"{BODY}return 7",
        f"{BODY}return 7, 8",
        f"{LINEAR}return m, {LOSS}, iter([torch.ones(1)])",
        f"{LINEAR}return m, {LOSS}, (x for x in [torch.ones(1)])",
        f"{LINEAR}return m, {LOSS}, []",
        f"{BODY}return torch.nn.Linear(1, 1, dtype=torch.cfloat), {LOSS}, [torch.ones(1)]",
        (
            f"{LINEAR}m = torch.nn.Sequential(m, torch.nn.Linear(1, 1, device='meta')); return"
            f" m, {LOSS}, [m]"
        ),
        "def workload(width): pass",
        "def workload(seed, /): pass",
    ],
)
def test_misuse_is_one_sentence(tmp_path, code):
    """Refuse an invalid file in one sentence that names the file or its part."""
    with pytest.raises(InputError) as caught:
        load(own(tmp_path, code))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "batch_size", "words"),
    [
        ("absent.py:workload", None, "no file"),
        ("mine.py", None, r"write .*mine\.py:workload"),
        ("mine.py:", None, r"write .*mine\.py:workload"),
        ("mine.py:workload", 4, "makes batches of 5"),
        ("mine.py:needing", None, "missing 1 required positional argument"),
    ],
)
def test_what_to_correct_is_named(tmp_path, spec, batch_size, words):
    """Refuse a missing file or function name, and a batch size that is not accepted or required."""
    own(tmp_path, f"{SOUND}def needing(batch_size): pass")
    with pytest.raises(InputError, match=words):
        load(f"{tmp_path}/{spec}", batch_size=batch_size)


def test_a_failed_import_is_not_kept(tmp_path):
    """Load the corrected file after a failed import."""
    with pytest.raises(InputError):
        load(own(tmp_path, "1 / 0"))
    assert 5 == load(own(tmp_path, SOUND)).batch_size
    assert all(name != "mine" for name in sys.modules)


def test_ranks_that_make_other_models_are_refused():
    """Name the first rank whose parameters differ from rank 0's."""
    models = [torch.nn.Linear(3, 1), torch.nn.Linear(3, 1), torch.nn.Linear(3, 2)]
    run_threads(2, lambda control: check_same_model(control, models[control.rank]))
    with pytest.raises(InputError, match="rank 2"):
        run_threads(3, lambda control: check_same_model(control, models[control.rank]))
    models[1].requires_grad_(requires_grad=False)
    with pytest.raises(InputError, match="rank 1"):
        run_threads(2, lambda control: check_same_model(control, models[control.rank]))
