"""Tests of what the Makefile would install; nothing is installed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def dry_run(*variables: str) -> subprocess.CompletedProcess[str]:
    """What ``make install`` would do in an environment that is not there."""
    command = ["make", "--dry-run", "install", "VENV=not-there", "MPI=system", *variables]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("variables", "extra"),
    [
        (["GPUS="], ""),
        (["GPUS=/dev/nvidia0", "DRIVER=580"], ",cuda13"),
        (["GPUS=/dev/nvidia0", "DRIVER=575"], ",cuda12"),
        (["GPUS=/dev/nvidia0", "DRIVER=470"], ""),
        (["GPUS=/dev/nvidia0", "DRIVER="], ""),
        (["GPUS=/dev/nvidia0", "DRIVER=580", "CUDA=none"], ""),
        (["GPUS=", "CUDA=12"], ",cuda12"),
    ],
    ids=" ".join,
)
def test_the_driver_says_for_which_cuda_to_install(variables: list[str], extra: str) -> None:
    """Install cupy and NCCL for the CUDA that the driver takes, or that was asked for, and none without a GPU."""
    done = dry_run(*variables)
    assert 0 == done.returncode, done.stderr
    assert [f"mpi,torch{extra}"] == re.findall(r"'\.\[(.*?)\]'", done.stdout)
    assert f"touch not-there/.commbench-system-wheel{extra.replace(',', '-')}\n" in done.stdout


def test_an_unknown_cuda_is_refused() -> None:
    """Name those there are."""
    done = dry_run("CUDA=11")
    assert 2 == done.returncode
    assert "CUDA=11 is not known; choose auto, 12, 13 or none" in done.stderr


def test_a_path_in_the_environment_is_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not stumble over what a site keeps in a variable of that name."""
    monkeypatch.setenv("CUDA", "/opt/cuda")
    assert 0 == dry_run("GPUS=").returncode


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023", "535"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs)", "580"),
        ("580.65.06", "580"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure of it.", ""),
        ("GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)", ""),
    ],
)
def test_the_driver_is_read_from_the_kernel_or_nvidia_smi(said: str, version: str) -> None:
    """Find the first number of its version, and none where there is none."""
    (script,) = re.findall(r"\| (sed -n .*) \| head", (ROOT / "Makefile").read_text(encoding="utf-8"))
    found = subprocess.run(["sh", "-c", script], input=f"{said}\n", capture_output=True, text=True, check=True)
    assert version == found.stdout.strip()
