"""Tests of parsed options: sizes, names, budgets, memory, requests, backends and GPUs."""

import dataclasses
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from builders import make_case

from commbench import Sweep
from commbench.backends import DeviceTrial, count_gpus, has_gpus, try_device
from commbench.cli.options import Settings
from commbench.cli.request import (
    BUFFERS_PER_RANK,
    SizeOptions,
    check_memory,
    check_training_backend,
    choose_training_backend,
    find_budget,
    make_request,
    plan_identity,
    ranks_by_gpus,
    run_header,
    split_names,
    unusable_reason,
    usable_suite,
)
from commbench.collectives.backends import USUAL_BACKENDS
from commbench.collectives.suites import Suite
from commbench.ddp.plan.cases import Terms
from commbench.errors import InputError
from commbench.launch.launchers import EMULATED
from commbench.stats.budgets import BUDGETS, TRAINING_BUDGETS

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"sizes": "8,1K"}, (8, 1024)),
        ({"sizes": "8:64:4"}, (8, 32)),
        ({"min_bytes": "8", "max_bytes": "64", "step_factor": 2}, (8, 16, 32, 64)),
        ({"min_bytes": "8", "max_bytes": "64"}, (8, 16, 32, 64)),
        ({"min_bytes": "1K"}, (1024,)),
        ({"max_bytes": "1K"}, (1024,)),
        ({"min_bytes": "8", "max_bytes": "8", "step_factor": 4}, (8,)),
        ({"step_factor": 2}, (32 * MIB,)),
        ({"osu_range": "4:16"}, (4, 8, 16)),
        ({"osu_range": "16"}, (4, 8, 16)),
        ({"osu_range": ":16"}, (4, 8, 16)),
    ],
)
def test_three_spellings_of_sizes(
    options: dict[str, Any], expected: tuple[int, ...] | None
) -> None:
    """Read sizes as commbench, nccl-tests and OSU spell them."""
    assert expected == SizeOptions(**options).parse()


@pytest.mark.parametrize(
    "options",
    [
        {"sizes": "8", "min_bytes": "8"},
        {"sizes": "8", "osu_range": "8"},
        {"osu_range": "8", "step_factor": 2},
    ],
)
def test_one_spelling_at_a_time(options: dict[str, Any]) -> None:
    """Refuse sizes that were given in several ways."""
    with pytest.raises(InputError, match="several ways"):
        SizeOptions(**options).parse()


@pytest.mark.parametrize(
    "options",
    [
        {"sizes": "8X"},
        {"min_bytes": "64", "max_bytes": "8"},
        {"osu_range": "16:4"},
        {"sizes": "8,,16"},
    ],
)
def test_sizes_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    """Refuse sizes that do not parse and ranges that end before they begin."""
    with pytest.raises(InputError):
        SizeOptions(**options).parse()


def test_names_are_split_at_commas() -> None:
    """Split names at commas, return None for none, and refuse an empty name."""
    assert ("a", "b") == split_names("a, b")
    assert split_names(None) is None
    with pytest.raises(InputError, match="empty name"):
        split_names("a,,b")


def test_budgets_are_found_and_changed() -> None:
    """Return the named budget with other launches or energy time if given; refuse bad values."""
    assert BUDGETS["standard"] == find_budget(BUDGETS, "standard")
    assert dataclasses.replace(BUDGETS["quick"], launches=3) == find_budget(
        BUDGETS, "quick", launches=3
    )
    with pytest.raises(
        InputError, match="Unknown budget 'long'; choose from quick, standard, rigorous"
    ):
        find_budget(TRAINING_BUDGETS, "long")
    with pytest.raises(InputError, match="--launches 0 was asked for"):
        find_budget(BUDGETS, "quick", launches=0)
    assert dataclasses.replace(BUDGETS["quick"], energy_s=2.5) == find_budget(
        BUDGETS, "quick", launches=None, energy_s=2.5
    )
    for seconds in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InputError, match=r"--energy .* give more than 0 seconds"):
            find_budget(BUDGETS, "quick", energy_s=seconds)


def test_messages_must_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse the first size whose buffers on this host's ranks exceed available memory."""
    available = 4 * BUFFERS_PER_RANK * MIB
    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: type("Memory", (), {"available": available})
    )
    check_memory(
        [make_case(message_bytes=MIB), make_case(backend="nccl", message_bytes=1 << 50)], 4
    )
    with pytest.raises(
        InputError, match=r"about 12 MiB are|12 MiB are available; choose smaller --sizes"
    ):
        check_memory([make_case(message_bytes=MIB + 4)], 4)


def request(**changes: Any) -> Any:
    """Return a request for one case on two ranks."""
    suite = Suite(name="s", sweeps=[Sweep(sizes=[8], backends=["mpi"])])
    settings = Settings(seed=changes.pop("seed", 5), time_limit=changes.pop("time_limit", None))
    budget = changes.pop("budget", BUDGETS["quick"])
    return make_request(suite, settings, budget, **{"ranks": 2, "ranks_here": 2, **changes})


def test_a_request_needs_a_rank() -> None:
    """Refuse zero or negative numbers of ranks."""
    for ranks in (0, -1):
        with pytest.raises(InputError, match=f"-n {ranks} was asked for"):
            request(ranks=ranks)


def test_a_seed_is_drawn_where_none_is_given() -> None:
    """Keep a given seed, also 0, and draw a random one otherwise."""
    assert 0 == request(seed=0).seed
    assert len({request(seed=None).seed for _ in range(5)}) > 1


def test_the_identity_of_a_plan_is_ranks_budget_and_cases() -> None:
    """Identify a plan by ranks, budget and cases, not by seed or limits."""
    same = [
        plan_identity([request(**changes)]) for changes in ({}, {"seed": 6}, {"time_limit": 5.0})
    ]
    assert same[0] == same[1] == same[2]
    assert same[0] != plan_identity([request(ranks=3)])
    assert same[0] != plan_identity([request(budget=BUDGETS["standard"])])
    assert same[0] != plan_identity(
        [request(budget=dataclasses.replace(BUDGETS["quick"], energy_s=2.0))]
    )


def test_the_identity_of_a_plan_counts_all_stages_that_are_known() -> None:
    """Include all planned stages in the identity."""
    first, second = request(), request(ranks=3)
    assert (1, 2) == (plan_identity([first])["cases"], plan_identity([first, second])["cases"])
    assert plan_identity([first, second])["cases_sha256"] != plan_identity([first])["cases_sha256"]


def test_the_identity_of_a_plan_that_trains_has_its_steps_and_threads() -> None:
    """Include the number of steps in the identity, but not the seed."""
    terms = [
        Terms(seed=seed, block_s=0.5, steps=steps) for seed, steps in ((1, 9), (2, 9), (1, 10))
    ]
    identities = [plan_identity([dataclasses.replace(request(), training=each)]) for each in terms]
    assert identities[0] == identities[1]
    assert identities[0] != identities[2]


def test_the_header_says_what_is_to_be_measured() -> None:
    """Write name, seed, plan and further facts into the header of a run."""
    header = run_header("mine", [request()], {"same_layout": {}})
    assert ("mine", 5, plan_identity([request()]), "running", {}) == tuple(
        header[name] for name in ("suite", "seed", "plan", "status", "same_layout")
    )
    assert "same_layout" not in run_header("mine", [request()])


def test_a_missing_backend_is_left_out_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Omit a missing default backend with a sentence, and refuse a named one or an empty suite."""
    monkeypatch.setattr(
        "commbench.cli.request.missing_library",
        lambda name: "gloo needs torch." if name == "gloo" else None,
    )
    suite = Suite(name="s", sweeps=[Sweep(backends=["mpi", "gloo"]), Sweep(backends=["gloo"])])
    usable, sentences = usable_suite(suite, is_named=False)
    assert (("mpi",), 1, ["gloo needs torch."]) == (usable.backends, len(usable.sweeps), sentences)
    with pytest.raises(InputError, match="gloo needs torch"):
        usable_suite(suite, is_named=True)
    with pytest.raises(InputError, match="gloo needs torch"):
        usable_suite(Suite(name="s", sweeps=[Sweep(backends=["gloo"])]), is_named=False)


def test_each_sweep_keeps_its_own_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add no other backend to a sweep after omitting one."""
    monkeypatch.setattr(
        "commbench.cli.request.missing_library",
        lambda name: "gloo needs torch." if name == "gloo" else None,
    )
    suite = Suite(
        name="s", sweeps=[Sweep(backends=["mpi", "gloo"]), Sweep(sizes=[8], backends=["fake"])]
    )
    usable, _ = usable_suite(suite, is_named=False)
    assert [("mpi",), ("fake",)] == [tuple(sweep.backends) for sweep in usable.sweeps]


def test_mpi_under_torchrun_is_sent_to_mpirun() -> None:
    """Name torchrun in the refusal to measure MPI under it."""
    with pytest.raises(InputError, match="not by torchrun; or choose --backend gloo"):
        usable_suite(
            Suite(name="s", sweeps=[Sweep(backends=["mpi"])]), is_named=True, carries_mpi=False
        )


@pytest.mark.parametrize("gpus", [True, False])
def test_nccl_is_measured_without_being_asked_where_there_are_gpus(
    monkeypatch: pytest.MonkeyPatch, gpus: bool
) -> None:
    """Test the GPUs for NCCL by default if there are any, and report failures."""
    monkeypatch.setattr("commbench.cli.request.missing_library", lambda _: None)
    monkeypatch.setattr("commbench.cli.request.has_gpus", lambda: gpus)
    monkeypatch.setattr(
        "commbench.cli.request.try_device",
        lambda name: (
            DeviceTrial(refusal="torch has no NCCL.")
            if name == "torch-nccl"
            else DeviceTrial(gpus=2)
        ),
    )
    usable, sentences = usable_suite(Suite(name="s", sweeps=[Sweep()]), is_named=False)
    expected = (("mpi", "gloo", "nccl"), ["torch has no NCCL."]) if gpus else (("mpi", "gloo"), [])
    assert expected == (usable.backends, sentences)
    alone = Suite(name="s", sweeps=[Sweep(backends=["torch-nccl"])])
    with pytest.raises(InputError, match="torch has no NCCL"):
        usable_suite(alone, is_named=False)
    assert (alone, []) == usable_suite(
        alone, is_named=True
    )  # the ranks may run on other machines: they will say


def machine(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    """Simulate a machine with ``gpus`` GPUs for torch, without cupy."""
    missing = {"nccl": "Backend nccl needs cupy."}
    monkeypatch.setattr("commbench.cli.request.missing_library", missing.get)
    monkeypatch.setattr("commbench.cli.request.has_gpus", lambda: gpus > 0)
    monkeypatch.setattr("commbench.cli.request.try_device", lambda _: DeviceTrial(gpus=gpus))


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
def test_gpus_say_how_many_ranks(
    monkeypatch: pytest.MonkeyPatch, backends: Sequence[str], gpus: int, expected: int | None
) -> None:
    """Return one rank per GPU if several can be used, and one for a single GPU only without other
    backends.
    """
    machine(monkeypatch, gpus)
    assert expected == ranks_by_gpus(backends)


@pytest.mark.parametrize(
    ("requested", "gpus", "ranks_here", "expected"),
    [
        ("auto", 0, 2, "gloo"),
        ("auto", 4, 4, "nccl"),
        ("auto", 4, 5, "gloo, though there are GPUs"),
        ("gloo", 4, 4, "gloo"),
        ("nccl", 1, 2, "nccl"),
    ],
)
def test_training_is_on_gpus_where_each_rank_has_one(
    monkeypatch: pytest.MonkeyPatch,
    requested: str,
    gpus: int,
    ranks_here: int | None,
    expected: str,
) -> None:
    """Train on GPUs by default if each rank has its own; else report why not."""
    machine(monkeypatch, gpus)
    backend, sentences = choose_training_backend(requested, ranks_here=ranks_here)
    reason = "this trains over Gloo on CPUs. 5 ranks of a host would share 4 GPUs"
    assert expected == backend + ", though there are GPUs" * sum(
        reason in sentence for sentence in sentences
    )


def test_emulated_hosts_do_not_share_a_gpu_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Omit NCCL on emulated hosts by default, but allow it if named."""
    machine(monkeypatch, 4)
    monkeypatch.setenv(EMULATED, '{"hosts": 2}')
    usable, sentences = usable_suite(
        Suite(name="s", sweeps=[Sweep()]), is_named=False, ranks_here=1
    )
    assert "torch-nccl" not in usable.backends
    assert ["emulated hosts" in sentence for sentence in sentences].count(True) == 1
    assert "gloo" == choose_training_backend("auto", ranks_here=1)[0]
    assert unusable_reason("torch-nccl") is None


def test_what_is_no_training_backend_is_refused() -> None:
    """Refuse an unknown training backend; list the valid ones."""
    assert "auto" == check_training_backend("auto")
    with pytest.raises(
        InputError, match="Unknown training backend 'mpi'; choose from auto, gloo, nccl"
    ):
        check_training_backend("mpi")


@pytest.mark.parametrize("ranks_here", [4, 5, None])
def test_ranks_that_would_share_gpus_leave_nccl_out(
    monkeypatch: pytest.MonkeyPatch, ranks_here: int | None
) -> None:
    """Omit NCCL if ranks would share GPUs, unless it is named or the only backend."""
    machine(monkeypatch, 4)
    usable, sentences = usable_suite(
        Suite(name="s", sweeps=[Sweep()]), is_named=False, ranks_here=ranks_here
    )
    shares = ranks_here == 5
    assert ("torch-nccl" in usable.backends) == (not shares)
    reason = (
        "5 ranks of a host would share 4 GPUs: start 4 on each (--ranks-per-node 4), or let them"
        " share by --back"
    )
    assert shares == any(sentence.startswith(reason) for sentence in sentences)
    alone = Suite(name="s", sweeps=[Sweep(backends=["torch-nccl"])])
    assert (alone, []) == usable_suite(alone, is_named=False, ranks_here=ranks_here)
    assert (alone, []) == usable_suite(alone, is_named=True, ranks_here=ranks_here)


def test_ranks_that_run_may_each_see_a_gpu_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the GPUs of the host, not those visible to one started rank."""
    machine(monkeypatch, 1)
    monkeypatch.setattr(
        "commbench.cli.request.gpu_addresses", lambda: ["0000:17:00.0", "0000:65:00.0"]
    )
    chosen = [
        choose_training_backend("auto", ranks_here=ranks, started=True)[0] for ranks in (2, 3)
    ]
    assert ["nccl", "gloo"] == chosen
    assert "gloo" == choose_training_backend("auto", ranks_here=2)[0]


def test_what_cannot_be_imported_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Extract the cause from cupy's import banner, and say what to install."""
    banner, cause = "=" * 64, "ImportError: libcublas.so.13: no such file"
    message = f"\n{banner}\nFailed to import CuPy.\n\nOriginal error:\n  {cause}\n{banner}\n"
    (tmp_path / "cupy").mkdir()
    (tmp_path / "cupy" / "__init__.py").write_text(f"raise ImportError({message!r})")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    for name in ("cupy", "commbench.backends.cupy_device"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    pattern = (
        rf"Backend nccl needs cupy, which cannot be imported \({cause}\): pip install .*\[cuda13\]"
    )
    with pytest.raises(InputError, match=pattern):
        count_gpus("nccl")
    refusal = try_device.__wrapped__("nccl").refusal  # not the answer of an earlier test
    assert re.match(pattern, refusal or "")


def test_gpus_that_are_tried_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the number of GPUs from the last line of the trial process."""
    done = subprocess.CompletedProcess([], 0, stdout="a library says hello\n4\n", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert DeviceTrial(gpus=4) == try_device.__wrapped__("nccl")


@pytest.mark.usefixtures("forks")
def test_a_gpu_is_tried_in_a_process_of_its_own() -> None:
    """Report in one sentence what a machine without a GPU lacks."""
    if has_gpus():
        pytest.skip("this machine has a GPU")
    pytest.importorskip("torch")
    assert re.fullmatch(
        r"Backend torch-nccl needs a (GPU|torch built for CUDA), .*\.",
        try_device("torch-nccl").refusal or "",
    )
