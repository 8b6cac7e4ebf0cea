"""Tests of the job scripts in benchmarks/launch: run if this machine can, else checked by form."""

import configparser
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from builders import read_info
from launching import NO_OFI, assert_code, finished
from places import ROOT

SCRIPTS = ROOT / "benchmarks" / "launch"
#: What `run` is to measure: as little as there is.
LITTLE = ("--collective", "all_reduce", "--sizes", "8", "--sync", "dissemination")


def run_script(
    name: str, *arguments: str, cwd: Path, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a script in a directory, with this environment as its VENV."""
    inherited = dict(os.environ)
    for variable in os.environ:
        if variable.startswith(("SLURM_", "PBS_")):
            del inherited[variable]
    environment = {**inherited, **NO_OFI, "VENV": sys.prefix, "PYTHONPATH": str(ROOT), **variables}
    return finished("bash", SCRIPTS / name, *arguments, cwd=cwd, env=environment, seconds=200)


@pytest.mark.parametrize(
    "name", ["slurm.sbatch", "pbs.sh", "torchrun.sh", "second_link.sh", "one_gpu.sh"]
)
def test_scripts_are_executable_and_sound(name):
    """Pass bash's syntax check, and be executable."""
    script = SCRIPTS / name
    assert os.access(script, os.X_OK)
    done = finished("bash", "-n", script)
    assert ("", 0) == (done.stderr, done.returncode)


def test_an_installed_commbench_has_them():
    """Install every script."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    patterns = settings["options.data_files"]["share/commbench/benchmarks/launch"].split(",")
    shipped = {file.name for pattern in patterns for file in ROOT.glob(pattern.strip())}
    assert {path.name for path in SCRIPTS.iterdir() if path.is_file()} == shipped


@pytest.mark.mpi
def test_a_pbs_job_measures_on_the_hosts_of_its_node_file(tmp_path):
    """Measure on the hosts of a PBS node file, here this host twice."""
    pytest.importorskip("mpi4py")
    nodes = tmp_path / "nodes"
    nodes.write_text(f"{socket.gethostname()}\n" * 2)
    pbs = {"PBS_NODEFILE": str(nodes), "PBS_O_WORKDIR": str(tmp_path), "PBS_JOBID": "17.server"}
    words = " ".join(("run", *LITTLE, "--backend mpi --launches 1 --bind-to none --oversubscribe"))
    done = run_script("pbs.sh", cwd=Path("/"), ARGS=words, **pbs)
    assert_code(done, 0)
    info = read_info(tmp_path / "results" / "pbs-17")
    assert "complete" == info["status"]
    assert 2 == info["world_size"]
    assert 1 == info["nodes"]


def test_a_script_without_its_environment_says_so(tmp_path):
    """Exit at once if commbench is not installed."""
    pbs = {"PBS_O_WORKDIR": str(tmp_path), "PBS_JOBID": "17.server"}
    done = run_script("pbs.sh", cwd=tmp_path, VENV="/absent", PATH="/usr/bin:/bin", **pbs)
    assert 0 != done.returncode
    assert "commbench" in done.stderr


# --------------------------------------------------------------------------------------- Kubernetes


def test_the_mpijob_has_the_operators_fields():
    """Use fields of the MPI operator, and start commbench on two workers."""
    job = yaml.safe_load((SCRIPTS / "mpijob.yaml").read_text())
    assert ("kubeflow.org/v2beta1", "MPIJob") == (job["apiVersion"], job["kind"])
    spec = job["spec"]
    names = "slotsPerWorker runPolicy mpiImplementation mpiReplicaSpecs sshAuthMountPath"
    assert set(spec) <= {*names.split(), "launcherCreationPolicy"}
    assert "OpenMPI" == spec["mpiImplementation"]
    assert {"Launcher", "Worker"} == set(spec["mpiReplicaSpecs"])
    assert 2 == spec["mpiReplicaSpecs"]["Worker"]["replicas"]
    (launcher,) = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    assert ["commbench", "bench"] == launcher["command"][:2]
