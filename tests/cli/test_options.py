"""Tests of parsed options: sizes, names, budgets, memory, requests, backends; on machines with GPUs
the number of ranks, the training backend, what is left out and why.
"""

import dataclasses
import re
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from builders import make_case, make_info
from networks import LAYERS

from commbench import Sweep
from commbench.backends import DeviceTrial, count_gpus, has_gpus, try_device
from commbench.cli import measure as measuring
from commbench.cli.conduct import default_ranks
from commbench.cli.options import Settings
from commbench.cli.request import (
    BUFFERS_PER_RANK,
    Place,
    check_memory,
    foreign_sizes,
    make_request,
    plan_identity,
    ranks_by_gpus,
    training_backend,
    usable_suite,
)
from commbench.collectives.backends import USUAL_BACKENDS
from commbench.collectives.suites import Suite
from commbench.ddp.devices import Device
from commbench.ddp.plan.terms import Terms
from commbench.errors import InputError
from commbench.launch.launchers.hosts import EMULATED
from commbench.results import Store
from commbench.stats.budgets import BUDGETS

pytest.importorskip("mpi4py")  # without a launcher every measuring command ends with that sentence

MIB = 1024 * 1024


def test_sizes_as_other_tools_spell_them():
    """Read sizes as nccl-tests and OSU spell them: smallest, largest, factor; a range."""
    sizes = {
        (None, None, None, None): None,
        ("8", "64", None, None): (8, 16, 32, 64),
        ("1K", None, None, None): (1024,),
        (None, "1K", None, None): (1024,),
        ("8", "8", 4, None): (8,),
        (None, None, 2, None): (32 * MIB,),
        (None, None, None, "4:16"): (4, 8, 16),
        (None, None, None, ":16"): (4, 8, 16),
    }
    for options, expected in sizes.items():
        assert expected == foreign_sizes(*options)
    with pytest.raises(InputError):
        foreign_sizes("8", "64", 0, None)


def test_messages_must_fit_into_memory(stub):
    """Refuse the first size whose buffers on this host's ranks exceed available memory."""
    memory = SimpleNamespace(total=0, available=4 * BUFFERS_PER_RANK * MIB)
    stub("psutil.virtual_memory", memory)
    on_gpu = make_case(backend="nccl", message_bytes=1 << 50)
    check_memory([make_case(message_bytes=MIB), on_gpu], 4)
    with pytest.raises(InputError, match=r"12 MiB"):
        check_memory([make_case(message_bytes=MIB + 4)], 4)


def test_messages_are_allowed_where_the_memory_is_unknown(monkeypatch):
    """Refuse no size in a service for which systemd hides /proc/meminfo."""
    monkeypatch.setattr("psutil.PROCFS_PATH", "/nowhere")
    check_memory([make_case(message_bytes=1 << 50)], 4)
    assert 0 == Device.free_bytes(None)


def request(**changes: Any) -> Any:
    """Return a request for one case on two ranks."""
    suite = Suite(name="s", sweeps=[Sweep(sizes=[8], backends=["mpi"])])
    settings = Settings(seed=changes.pop("seed", 5), time_limit=changes.pop("time_limit", None))
    budget = changes.pop("budget", BUDGETS["quick"])
    place = Place(**{"ranks": 2, "ranks_here": 2, **changes})
    return make_request(place, suite, settings, budget)[0]


def test_a_seed_is_drawn_where_none_is_given(tmp_path):
    """Keep a given seed, also 0, else that of the run to resume, else draw one."""
    with Store.open(tmp_path / "mine", make_info(seed=7)):
        pass
    resumed = tmp_path / "mine"
    seeds = [Settings(seed=0), Settings(out=resumed), Settings(out=resumed, seed=5)]
    assert [0, 7, 5] == [settings.draw_seed() for settings in seeds]
    assert len({Settings().draw_seed() for _ in range(5)}) > 1


def test_the_identity_of_a_plan_is_what_is_measured():
    """Identify a plan by ranks, budget, cases and steps of all stages, not by seed or limits."""
    budget = dataclasses.replace(BUDGETS["quick"], energy_s=2.0)
    terms = [
        Terms(seed=seed, block_s=0.5, steps=steps) for seed, steps in ((1, 9), (2, 9), (1, 10))
    ]
    trained = [[dataclasses.replace(request(), training=each)] for each in terms]
    others = [[request(ranks=3)], [request(budget=budget)], [request(), request()], trained[2]]
    same = plan_identity([request()])
    assert same == plan_identity([request(seed=6)]) == plan_identity([request(time_limit=5.0)])
    assert plan_identity(trained[0]) == plan_identity(trained[1])
    identities = [same, plan_identity(trained[0]), *map(plan_identity, others)]
    assert all(identities.count(identity) == 1 for identity in identities)


def at(ranks_here: int, *, started: bool = False) -> Place:
    """Return a place of so many ranks, or of an unknown number on this host."""
    return Place(ranks=ranks_here or 2, ranks_here=ranks_here, started=started)


def suite_of(*backends: Sequence[str]) -> Suite:
    """Return a suite of one sweep for each choice of backends."""
    return Suite(name="s", sweeps=[Sweep(backends=tuple(names)) for names in backends])


def test_a_missing_backend_is_left_out_unless_asked_for(monkeypatch):
    """Omit a missing default backend from its sweeps; refuse a named one or an empty suite."""
    missing = {"gloo": "gloo needs torch."}
    monkeypatch.setattr("commbench.cli.request.missing_library", missing.get)
    suite = suite_of(["mpi", "gloo"], ["gloo"])
    usable, sentences = usable_suite(suite, at(0), is_named=False)
    assert [("mpi",)] == [tuple(sweep.backends) for sweep in usable.sweeps]
    assert [missing["gloo"]] == sentences
    for refused, is_named in ((suite, True), (suite_of(["gloo"]), False)):
        with pytest.raises(InputError, match="gloo"):
            usable_suite(refused, at(0), is_named=is_named)


def test_mpi_under_torchrun_is_refused():
    """Refuse to measure MPI under torchrun."""
    place = Place(ranks=2, ranks_here=2, carries_mpi=False)
    with pytest.raises(InputError, match="torchrun"):
        usable_suite(suite_of(["mpi"]), place, is_named=True)


def machine(monkeypatch: pytest.MonkeyPatch, gpus: int, refusal: str | None = None) -> None:
    """Simulate a machine with ``gpus`` GPUs for torch, without cupy."""
    missing = {"nccl": "Backend nccl needs cupy."}
    trial = DeviceTrial(gpus=gpus, refusal=refusal)
    monkeypatch.setattr("commbench.cli.request.missing_library", missing.get)
    monkeypatch.setattr("commbench.cli.request.has_gpus", lambda: gpus > 0)
    monkeypatch.setattr("commbench.cli.request.try_device", lambda _: trial)


@pytest.mark.parametrize(
    ("counts", "refusal", "environment", "reason"),
    [
        ((4, 4), None, "", ""),
        ((4, 0), None, "", ""),
        ((0, 2), None, "", ""),
        ((4, 0), "no NCCL.", "", "no NCCL"),
        ((4, 5), None, "", "--ranks-per-node 4"),
        ((4, 1), None, '{"hosts": 2}', "emulated hosts"),
    ],
)
def test_nccl_is_measured_unasked_where_each_rank_has_a_gpu(
    monkeypatch,
    counts,
    refusal,
    environment,
    reason,
):
    """Leave NCCL out with a sentence where it cannot be measured alone, and without one where there
    is no GPU; take it if it is named.
    """
    gpus, ranks_here = counts
    machine(monkeypatch, gpus, refusal)
    monkeypatch.setenv(EMULATED, environment)
    suite = Suite(name="s", sweeps=[Sweep()])
    usable, sentences = usable_suite(suite, at(ranks_here), is_named=False)
    assert (reason == "" and gpus > 0) == ("torch-nccl" in usable.backends)
    assert gpus > 0 or not sentences
    assert reason in " ".join(sentences)
    alone = suite_of(["torch-nccl"])
    assert (alone, []) == usable_suite(alone, at(ranks_here), is_named=True)


@pytest.mark.parametrize(
    ("backends", "gpus", "expected"),
    [
        (USUAL_BACKENDS, 4, 4),
        (USUAL_BACKENDS, 1, None),
        (USUAL_BACKENDS, 0, None),
        (("nccl", "torch-nccl"), 1, 1),
        (("nccl",), 4, None),
        (("mpi", "gloo"), 4, None),
    ],
)
def test_gpus_say_how_many_ranks(monkeypatch, backends, gpus, expected):
    """Return one rank per GPU if several can be used, and one for a single GPU only without other
    backends.
    """
    machine(monkeypatch, gpus)
    assert expected == ranks_by_gpus(backends)


@pytest.mark.parametrize(
    ("requested", "workload", "gpus", "ranks_here", "backend", "reason"),
    [
        ("auto", "mlp", 0, 2, "gloo", ""),
        ("auto", "mlp", 4, 4, "nccl", ""),
        ("auto", "mlp", 4, 5, "gloo", "5 ranks"),
        ("gloo", "mlp", 4, 4, "gloo", ""),
        ("nccl", "mlp", 1, 2, "nccl", ""),
        ("auto", "trace:resnet50", 2, 2, "gloo", "recorded on CPUs"),
        ("nccl", "trace:resnet50", 2, 2, "nccl", ""),
    ],
)
def test_training_is_on_gpus_where_each_rank_has_one(
    monkeypatch,
    *,
    requested,
    workload,
    gpus,
    ranks_here,
    backend,
    reason,
):
    """Train on GPUs by default if each rank has its own, and no trace that was recorded on CPUs;
    else report why not.
    """
    machine(monkeypatch, gpus)
    chosen, sentences = training_backend(at(ranks_here), requested, workload)
    assert (backend, bool(reason)) == (chosen, bool(sentences))
    assert reason in " ".join(sentences)


def test_ranks_that_run_may_each_see_a_gpu_of_their_own(monkeypatch, stub):
    """Count the GPUs of the host, not those visible to one started rank."""
    machine(monkeypatch, 1)
    stub("commbench.cli.request.gpu_addresses", ["0000:17:00.0", "0000:65:00.0"])
    places = at(2, started=True), at(3, started=True), at(2)
    chosen = [training_backend(place, "auto", "mlp")[0] for place in places]
    assert ["nccl", "gloo", "gloo"] == chosen


def test_what_cannot_be_imported_is_one_sentence(monkeypatch, tmp_path):
    """Extract the cause from cupy's import banner, and say what to install."""
    cause = "ImportError: libcublas.so.13: no such file"
    message = f"\nFailed to import CuPy.\n\nOriginal error:\n  {cause}\n"
    (tmp_path / "cupy.py").write_text(f"raise ImportError({message!r})")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("cupy", "commbench.backends.cupy_device"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(InputError, match=rf"cannot be imported \({cause}\): pip install .*cuda13"):
        count_gpus("nccl")


@pytest.mark.usefixtures("forks")
def test_a_gpu_is_tried_in_a_process_of_its_own():
    """Report in one sentence what a machine without a GPU lacks."""
    if has_gpus():
        pytest.skip("this machine has a GPU")
    pytest.importorskip("torch")
    assert re.fullmatch(
        r"Backend torch-nccl needs a (GPU|torch built for CUDA), .*\.",
        try_device("torch-nccl").refusal or "",
    )


def test_gpus_that_are_tried_are_counted(stub):
    """Read the number of GPUs from the last line of the trial process."""
    done = subprocess.CompletedProcess([], 0, stdout="a library says hello\n4\n", stderr="")
    stub("subprocess.run", done)
    assert DeviceTrial(gpus=4) == try_device.__wrapped__("nccl")


def test_ranks_follow_the_gpus_of_this_machine():
    """Start one rank per GPU up to the number of CPUs, unless ranks or hosts are given."""

    def ranks(
        *, slots: int = 64, is_local: bool = True, limit: int | None = None, gpus: int | None = 4
    ) -> int:
        launcher = SimpleNamespace(slots=lambda: slots, is_local=is_local, limit=lambda: limit)
        return default_ranks(launcher, lambda: gpus)

    assert [4, 2, 16] == [ranks(), ranks(slots=2), ranks(gpus=16)]
    assert [8, 2] == [ranks(gpus=None), ranks(gpus=None, slots=2)]
    assert [64, 3] == [ranks(is_local=False), ranks(limit=3)]


def test_a_first_run_on_a_single_gpu_measures_it(commbench, monkeypatch, stub):
    """Measure and train over NCCL on each number of GPUs; let two ranks share only a single GPU.

    Three ranks on two GPUs leave NCCL out, because a rank on each would measure more.
    """
    stub("commbench.cli.measure.try_device", DeviceTrial(gpus=1))
    stub("commbench.cli.train.probe_workload", LAYERS)
    words = "--oversubscribe --dry-run --confirm-launches 3"
    for gpus, ranks in ((1, 2), (2, 2), (2, 3)):
        machine(monkeypatch, gpus)
        stub("commbench.cli.request.missing_library", None)
        output = " ".join(commbench(f"bench -n {ranks} {words}").out.split())
        assert (gpus < ranks) == ("Left out:" in output)
        assert (gpus == 1) == ("a second one is missing" in output)
        assert "in 3 confirmation launches" in output
        assert (ranks == 2) == ("nccl all_reduce" in output)
        assert (ranks == 2) == ("5 MiB buckets, 2 ranks over NCCL, batch" in output)


@pytest.mark.parametrize(
    ("backends", "expected"),
    [
        (None, "auto"),
        (("mpi",), None),
        (("mpi", "gloo"), "gloo"),
        (("nccl",), "nccl"),
        (("mpi", "torch-nccl"), "nccl"),
        (("gloo", "nccl"), "auto"),
    ],
)
def test_bench_trains_over_what_it_measures(backends, expected):
    """Train over the measured backend, Gloo or NCCL, and not at all if only MPI is measured."""
    assert expected == measuring._trains_over(backends)


def test_bench_measures_collectives_where_nothing_can_be_trained_over_nccl(commbench, stub):
    """Omit the training with a sentence if this host has no GPU."""
    stub("commbench.cli.measure.try_device", DeviceTrial(refusal="torch finds no GPU."))
    outcome = commbench("bench --backend mpi,torch-nccl -n 2 --dry-run")
    assert 0 == outcome.code
    assert "Left out: torch finds no GPU." in outcome.out
    assert "torch-nccl all_reduce" in outcome.out
    assert "mlp" not in outcome.out


@pytest.mark.parametrize("command", ["train", "tune"])
def test_training_on_a_single_gpu_takes_a_number_of_ranks(commbench, monkeypatch, command):
    """Refuse to share a single GPU unless the number of ranks is given."""
    machine(monkeypatch, 1)
    ended = commbench(f"{command} --backend nccl --out mine")
    assert 2 == ended.code
    assert "this machine has 1 GPU for them; give -n 2 to have both share it" in ended.err
