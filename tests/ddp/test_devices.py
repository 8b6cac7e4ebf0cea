"""Tests of training devices: the GPU of a rank, transfers to it, and refusals without one."""

import dataclasses
import os
import random
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from fields import fields_of

torch = pytest.importorskip("torch")

from stand_in import SimulatedCuda, StandIn
from threads import run_threads

from commbench.backends.nccl_library import loaded_version
from commbench.backends.torch_calls import find_gpus, torch_version
from commbench.ddp.devices import Device, Gpu, gpus_to_train_on, open_device
from commbench.ddp.inspect import inspect_workload
from commbench.ddp.workloads import load_workload
from commbench.engine.control import Control
from commbench.engine.gpu_clocks import Reading
from commbench.errors import InputError
from commbench.hooks.step_clock import host_clock

pytestmark = pytest.mark.usefixtures("without_nccl_variables")


@pytest.fixture
def with_nccl(monkeypatch):
    """Simulate a torch with NCCL, without NCCL's variables."""
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)


# What is there


OLD = "The NVIDIA driver on your system is too old (found version 11040). Please update it."


@pytest.mark.parametrize(
    ("devices", "lacking", "refusal", "words"),
    [
        (0, "CUDA NCCL", "", "needs a GPU, and torch .* is built without CUDA: install"),
        (0, "", "", "needs a GPU, and torch .* finds none on .*: start commbench where"),
        (0, "", OLD, r'.* finds none on .* \("The .* \(found version 11040\)"\): start'),
        (2, "NCCL", "", "needs NCCL, and torch .* is built without it"),
    ],
)
def test_what_is_missing_is_one_sentence(monkeypatch, devices, lacking, refusal, words):
    """Refuse in one sentence what torch lacks, and say what to do; quote the first sentence of
    CUDA's error about the driver.
    """
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: "CUDA" not in lacking)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: "NCCL" not in lacking)
    cuda = SimulatedCuda(devices, refusal=refusal or "No CUDA GPUs are available")
    with pytest.raises(InputError, match=f"^Backend nccl {words}") as refused:
        gpus_to_train_on(cuda)
    assert str(refused.value).endswith("or train with --backend gloo.")


@pytest.mark.usefixtures("with_nccl")
def test_gpus_are_identified_by_pci_address():
    """Use the UUID or the number of a GPU with an older torch."""
    cuda = SimulatedCuda(2, buses=[0x17, 0xC1])
    assert ["0000:17:00.0", "0000:c1:00.0"] == gpus_to_train_on(cuda)
    for properties, expected in (
        ({"uuid": "GPU-7", "pci_bus_id": 0x17}, ["GPU-7"] * 2),
        ({}, ["0", "1"]),
    ):
        cuda.get_device_properties = lambda _, properties=properties: SimpleNamespace(**properties)
        assert expected == find_gpus("torch-nccl", cuda)


def test_gloo_trains_on_the_host():
    """Use no GPU for Gloo, and set no variable of NCCL."""
    before = dict(os.environ)
    (device,) = run_threads(1, lambda control: open_device("gloo", control, SimulatedCuda(8)))
    assert Device is type(device)
    assert ("cpu", "gloo") == (device.name, device.backend)
    assert (None, None) == (device.numbers, device.ranks_per_gpu)
    assert device.clock is host_clock
    assert (False, 0) == (device.is_serial, device.unsteady_steps)
    assert before == dict(os.environ)


def test_ddp_looks_back_at_ten_steps():
    """DDP records the times of its first ten iterations, each in the next one."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
        noted = []
        for _ in range(20):
            model(torch.ones(1, 3)).sum().backward()
            noted.append(model._get_ddp_logging_data().get("iteration", 0))
    finally:
        torch.distributed.destroy_process_group()
    last = Gpu.unsteady_steps - 1
    assert [*range(last + 1), *[last] * (20 - last - 1)] == noted


@pytest.mark.usefixtures("with_nccl")
@pytest.mark.parametrize(
    ("devices", "numbers", "shared"),
    [(2, [0, 1, 0], 2), (3, [0, 1, 2], 1), (1, [0, 0, 0], 3), (8, [0, 1, 2], 1), (1, [0, 0, 0], 1)],
)
def test_ranks_take_gpus_in_turn(devices, numbers, shared):
    """Assign each rank a GPU and make it torch's current one; report and configure a shared one.

    In the last case each rank sees a GPU of its own as number 0.
    """
    is_own = shared * devices < len(numbers)

    def work(control: Control) -> tuple[Device, int | None]:
        cuda = SimulatedCuda(devices)
        if is_own:
            cuda.buses = [0x17 + control.rank]
        return open_device("nccl", control, cuda), cuda.current

    opened = run_threads(3, work)
    assert numbers == [current for _, current in opened]
    assert [[number] for number in numbers] == [device.numbers for device, _ in opened]
    assert [torch.device("cuda", number) for number in numbers] == [
        device.torch_device for device, _ in opened
    ]
    assert [shared] * 3 == [device.ranks_per_gpu for device, _ in opened]
    names = " | ".join(f"Simulated GPU {number}" for number in sorted(set(numbers)))
    assert [names] * 3 == [device.name for device, _ in opened]
    assert {"nccl"} == {device.backend for device, _ in opened}
    assert all(device.is_serial for device, _ in opened)
    assert f"torch {torch_version()} {loaded_version()}" == opened[0][0].library()
    assert (shared > 1) == ("NCCL_HOSTID" in os.environ)


def test_the_clock_is_that_of_the_gpu_where_it_is():
    """Find a GPU's clock by PCI address; return none if NVML lacks it or on the host."""
    reading = Reading(sm_MHz=1980.0, reasons=0, held_ns={})
    clocks = {"0000:c1:00.0": SimpleNamespace(read=lambda: reading)}
    cuda = SimulatedCuda(2, buses=[0x17, 0xC1])
    assert [None, reading] == [
        Gpu(number, cuda=cuda, find_clock=clocks.get).read_clock() for number in (0, 1)
    ]
    assert Device().read_clock() is None


# What is moved


class Pair(NamedTuple):
    """A part of a batch."""

    inputs: Any
    labels: Any


@dataclasses.dataclass(frozen=True)
class Sample:
    """A part of a batch."""

    inputs: Any
    name: str


class Encoding(dict[str, Any]):
    """A batch with its own ``to`` method."""

    moved_to: Any = None

    def to(self, device: Any) -> Any:
        """Record the device."""
        self.moved_to = device
        return self


def test_every_tensor_of_a_batch_is_copied():
    """Copy tensors in tuples, lists, dicts and dataclasses, and keep other values."""
    ones = torch.ones(2)
    batch = [Pair(ones, [ones, "x"]), {"a": ones, "b": (ones, 3)}, Sample(ones, "name"), None, 1.5]
    device = StandIn()
    moved = device.moved(batch)
    assert 5 == device.copied
    assert [Pair, dict, Sample, type(None), float] == [type(part) for part in moved]
    assert torch.equal(ones, moved[0].inputs)
    assert "x" == moved[0].labels[1]
    assert 3 == moved[1]["b"][1]
    assert "name" == moved[2].name
    assert 1.5 == moved[4]
    assert ones is batch[2].inputs


def test_what_can_move_itself_does():
    """Call ``to`` of models and batches, and copy nothing on the host."""
    device, encoding, model = StandIn(), Encoding(ids=torch.ones(1)), torch.nn.Linear(2, 1)
    assert encoding is device.moved((encoding, 3))[0]
    assert torch.device("cpu") == encoding.moved_to
    assert model is device.moved(model)
    assert 0 == device.copied
    batch = [torch.ones(2)]
    assert batch is Device().moved(batch)


# What is asked of it


def test_a_gpu_is_asked_for_its_own_figures():
    """Read memory and random state of the GPU, and count no bytes."""
    device = StandIn()
    device.reset_peak_memory()
    device.wait()
    assert (1, 1) == (device.cuda.peak_resets, device.cuda.waits)
    assert 123_000_000 == device.peak_memory_bytes()
    assert device.sent_bytes() is None
    assert 4 == len(device.random_state())


@pytest.mark.parametrize("make", [Device, StandIn])
def test_random_numbers_come_again(make):
    """Restore the state of torch's, Python's and numpy's generators."""
    device, drawn = make(), []
    state = device.random_state()
    for _ in range(2):
        drawn.append((torch.rand(3).tolist(), random.random(), np.random.random()))  # noqa: NPY002
        device.set_random_state(state)
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    "name", ["digits", pytest.param("trace:many-tiny", marks=pytest.mark.slow)]
)
def test_workloads_are_tried_out_on_a_gpu(name):
    """Train equal steps on the simulated GPU, with evaluation."""
    pytest.importorskip("numba")
    device = StandIn()
    facts = inspect_workload(load_workload(name, seed=0, rank=0, world_size=1), device)
    assert device.copied >= 2
    host_facts = inspect_workload(load_workload(name, seed=0, rank=0, world_size=1))
    assert fields_of(host_facts.parameters, "name") == fields_of(facts.parameters, "name")
    assert host_facts.ready_order == facts.ready_order


def test_the_log_of_nccl_is_removed(monkeypatch, tmp_path):
    """Remove our NCCL log, and keep a person's own."""
    for name, is_kept in (("commbench-nccl-1-1.log", False), ("mine.log", True)):
        log = tmp_path / name
        log.write_text("NCCL INFO\n")
        monkeypatch.setenv("NCCL_DEBUG_FILE", str(log))
        Device().close()
        assert log.exists()
        StandIn().close()
        assert is_kept == log.exists()
