"""Tests of commands on machines with GPUs: number of ranks, training backend, what is left out and
why.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from commands import Command
from networks import LAYERS

from commbench.backends import DeviceTrial
from commbench.cli import measure as measuring
from commbench.cli.conduct import default_ranks

pytest.importorskip("mpi4py")  # without a launcher every measuring command ends with that sentence


def test_ranks_follow_the_gpus_of_this_machine() -> None:
    """Start one rank per GPU up to the number of CPUs, unless ranks or hosts are given."""

    def ranks(
        *, slots: int = 64, is_local: bool = True, limit: int | None = None, gpus: int | None = 4
    ) -> int:
        launcher: Any = SimpleNamespace(slots=lambda: slots, is_local=is_local, limit=lambda: limit)
        return default_ranks(launcher, lambda: gpus)

    assert [4, 2, 16] == [ranks(), ranks(slots=2), ranks(gpus=16)]
    assert [8, 2] == [ranks(gpus=None), ranks(gpus=None, slots=2)]
    assert [64, 3] == [ranks(is_local=False), ranks(limit=3)]


def test_a_first_run_on_a_single_gpu_measures_it(
    commbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measure and train over NCCL on each number of GPUs; let two ranks share only a single GPU.

    Three ranks on two GPUs leave NCCL out, because a rank on each would measure more.
    """
    monkeypatch.setattr("commbench.cli.request.has_gpus", lambda: True)
    monkeypatch.setattr("commbench.cli.request.missing_library", lambda _: None)
    monkeypatch.setattr("commbench.cli.measure.try_device", lambda _: DeviceTrial(gpus=1))
    monkeypatch.setattr("commbench.cli.train.probe_workload", lambda *_, **__: LAYERS)
    words = "--oversubscribe --dry-run --confirm-launches 3"
    for gpus, ranks in ((1, 2), (2, 2), (2, 3)):
        monkeypatch.setattr(
            "commbench.cli.request.try_device", lambda _, gpus=gpus: DeviceTrial(gpus=gpus)
        )
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
def test_bench_trains_over_what_it_measures(
    backends: Sequence[str] | None, expected: str | None
) -> None:
    """Train over the measured backend, Gloo or NCCL, and not at all if only MPI is measured."""
    assert expected == measuring._trains_over(backends)


def test_bench_measures_collectives_where_nothing_can_be_trained_over_nccl(
    commbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Omit the training with a sentence if this host has no GPU."""
    monkeypatch.setattr(
        "commbench.cli.measure.try_device", lambda _: DeviceTrial(refusal="torch finds no GPU.")
    )
    outcome = commbench("bench --backend mpi,torch-nccl -n 2 --dry-run")
    assert 0 == outcome.code
    assert "Left out: torch finds no GPU." in outcome.out
    assert "torch-nccl all_reduce" in outcome.out
    assert "mlp" not in outcome.out


@pytest.mark.parametrize("command", ["train", "tune"])
def test_training_on_a_single_gpu_takes_a_number_of_ranks(
    commbench: Command, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Refuse to share a single GPU unless the number of ranks is given."""
    monkeypatch.setattr("commbench.cli.request.has_gpus", lambda: True)
    monkeypatch.setattr("commbench.cli.request.try_device", lambda _: DeviceTrial(gpus=1))
    ended = commbench(f"{command} --backend nccl --out mine")
    assert 2 == ended.code
    assert "this machine has 1 GPU for them; give -n 2 to have both share it" in ended.err
