"""Tests of the packages that the Makefile chooses to install; nothing is installed."""

import re
import shutil
import subprocess

import pytest
from launching import assert_code, finished, succeeded
from places import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def dry_run(*variables: str) -> subprocess.CompletedProcess[str]:
    """Return the dry run of ``make install`` into an environment that does not exist."""
    line = "make --dry-run install VENV=not-there MPI=system"
    return finished(*line.split(), *variables, cwd=ROOT)


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
def test_the_driver_decides_the_cuda_version(variables, extra):
    """Install cupy and NCCL for the CUDA that the driver supports or the user requests.

    Neither without a GPU.
    """
    done = dry_run(*variables)
    assert_code(done, 0)
    assert [f"mpi,torch{extra}"] == re.findall(r"'\.\[(.*?)\]'", done.stdout)
    assert f"touch not-there/.commbench-system-wheel{extra.replace(',', '-')}\n" in done.stdout


def test_an_unknown_cuda_is_refused():
    """Name the possible values."""
    done = dry_run("CUDA=11")
    assert 2 == done.returncode
    assert "CUDA=11 is not known; choose auto, 12, 13 or none" in done.stderr


def test_a_path_in_the_environment_is_ignored(monkeypatch):
    """Ignore a variable CUDA of the site that holds a path."""
    monkeypatch.setenv("CUDA", "/opt/cuda")
    assert 0 == dry_run("GPUS=").returncode


@pytest.mark.parametrize(
    ("report", "version"),
    [
        (
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32"
                " UTC 2023"
            ),
            "535",
        ),
        (
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build "
                " (dvs)"
            ),
            "580",
        ),
        ("580.65.06", "580"),
        (
            (
                "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make"
                " sure of it."
            ),
            "",
        ),
        ("GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)", ""),
    ],
)
def test_the_driver_is_read_from_the_kernel_or_nvidia_smi(report, version):
    """Return the major version of the driver; nothing if the report has none."""
    (script,) = re.findall(
        r"\| (sed -n .*) \| head", (ROOT / "Makefile").read_text(encoding="utf-8")
    )
    assert version == succeeded("sh", "-c", script, input=f"{report}\n").strip()
