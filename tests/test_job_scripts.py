"""Tests of the job scripts in benchmarks/launch: each is run where this machine can, and checked by form elsewhere."""

import configparser
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from launching import NO_OFI

from commbench.store import load_run

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "benchmarks" / "launch"
#: What `run` is to measure: as little as there is.
LITTLE = ("--collective", "all_reduce", "--sizes", "8", "--sync", "dissemination")


def run_script(name: str, *arguments: str, cwd: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a script in a directory, with the environment that these tests run in as its VENV."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PBS_"))}
    environment = {**kept, **NO_OFI, "VENV": sys.prefix, "PYTHONPATH": str(ROOT), **variables}
    words = ["bash", str(SCRIPTS / name), *arguments]
    return subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize("name", ["slurm.sbatch", "pbs.sh", "torchrun.sh"])
def test_scripts_are_short_executable_and_sound(name: str) -> None:
    """Let bash read each without running it."""
    script = SCRIPTS / name
    assert os.access(script, os.X_OK)
    assert 50 > len(script.read_text().splitlines())
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, timeout=20, check=False)
    assert ("", 0) == (done.stderr, done.returncode)


@pytest.mark.parametrize("name", ["slurm.sbatch", "pbs.sh", "torchrun.sh", "mpijob.yaml"])
def test_scripts_say_what_to_edit_and_what_comes_out(name: str) -> None:
    """Name the files of a run in the comments."""
    comments = " ".join(line for line in (SCRIPTS / name).read_text().splitlines() if line.lstrip().startswith("#"))
    assert all(word in comments for word in ("run.json", "samples.jsonl", "collectives.csv"))


def test_an_installed_commbench_has_them() -> None:
    """Ship every script."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    patterns = settings["options.data_files"]["share/commbench/benchmarks/launch"].split(",")
    shipped = {file.name for pattern in patterns for file in ROOT.glob(pattern.strip())}
    assert {"slurm.sbatch", "pbs.sh", "torchrun.sh", "mpijob.yaml"} <= shipped


@pytest.mark.mpi
def test_a_pbs_job_measures_on_the_hosts_of_its_node_file(tmp_path: Path) -> None:
    """Run the script as PBS would, with a node file that names this host for each of two ranks."""
    pytest.importorskip("mpi4py")
    nodes = tmp_path / "nodes"
    nodes.write_text(f"{socket.gethostname()}\n" * 2)
    pbs = {"PBS_NODEFILE": str(nodes), "PBS_O_WORKDIR": str(tmp_path), "PBS_JOBID": "17.server"}
    words = " ".join(("run", *LITTLE, "--backend mpi --launches 1 --bind-to none --oversubscribe"))
    done = run_script("pbs.sh", cwd=Path("/"), ARGS=words, **pbs)
    assert 0 == done.returncode, done.stdout + done.stderr
    info = json.loads((tmp_path / "results" / "pbs-17" / "run.json").read_text())
    assert ("complete", 2, 1) == (info["status"], info["world_size"], info["nodes"])


@pytest.mark.slow
def test_torchrun_makes_six_launches(tmp_path: Path) -> None:
    """Run the script on one host: intervals over launches need six."""
    pytest.importorskip("torch")
    done = run_script("torchrun.sh", "run", "--backend", "gloo", *LITTLE, cwd=tmp_path, OUT="mine", INTERFACE="lo")
    assert 0 == done.returncode, done.stdout + done.stderr
    run = load_run(tmp_path / "mine")
    assert ([0, 1, 2, 3, 4, 5], "complete") == ([record.launch for record in run.records], run.info["status"])
    assert "lo" == run.info["environment"]["variables"]["GLOO_SOCKET_IFNAME"]


def test_a_script_without_its_environment_says_so(tmp_path: Path) -> None:
    """End at once where there is no commbench."""
    pbs = {"PBS_O_WORKDIR": str(tmp_path), "PBS_JOBID": "17.server", "VENV": "/absent", "PATH": "/usr/bin:/bin"}
    done = run_script("pbs.sh", cwd=tmp_path, **pbs)
    assert 0 != done.returncode
    assert "commbench" in done.stderr


# ---------------------------------------------------------------------------------------------------- Kubernetes

#: Fields of kubeflow.org/v2beta1 MPIJob, as its resource definition has them.
SPEC = {
    "slotsPerWorker",
    "runLauncherAsWorker",
    "sshAuthMountPath",
    "launcherCreationPolicy",
    "mpiImplementation",
    "mpiReplicaSpecs",
    "runPolicy",
}
RUN_POLICY = {
    "cleanPodPolicy",
    "ttlSecondsAfterFinished",
    "activeDeadlineSeconds",
    "backoffLimit",
    "schedulingPolicy",
    "suspend",
    "managedBy",
}


def parse_keys(text: str) -> dict[str, str]:
    """Dotted paths of a YAML text's mappings and their scalars: enough for a file that uses blocks and no anchors."""
    found: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        match = re.match(r"( *)((?:- )*)([\w./-]+):(?: (.*))?$", line)
        if not match:
            assert not line.strip() or line.lstrip().startswith("#"), line
            continue
        depth = len(match[1]) + len(match[2])
        path = [(at, name) for at, name in path if at < depth]
        path.append((depth, match[3]))
        found[".".join(name for _, name in path)] = match[4] or ""
    return found


def children(found: dict[str, str], parent: str) -> set[str]:
    """Names directly below a path."""
    return {key.removeprefix(f"{parent}.").split(".")[0] for key in found if key.startswith(f"{parent}.")}


def test_the_mpijob_has_the_operators_fields() -> None:
    """Use only fields that the MPI operator knows, and all that a job needs."""
    found = parse_keys((SCRIPTS / "mpijob.yaml").read_text())
    assert ("kubeflow.org/v2beta1", "MPIJob") == (found["apiVersion"], found["kind"])
    assert {"apiVersion", "kind", "metadata", "spec"} == {key.split(".")[0] for key in found}
    assert children(found, "spec") <= SPEC
    assert children(found, "spec.runPolicy") <= RUN_POLICY
    assert found["spec.runPolicy.cleanPodPolicy"] in {"None", "All", "Running"}
    assert found["spec.mpiImplementation"] in {"OpenMPI", "Intel", "MPICH"}
    assert {"Launcher", "Worker"} == children(found, "spec.mpiReplicaSpecs")
    for role in ("Launcher", "Worker"):
        replica = f"spec.mpiReplicaSpecs.{role}"
        assert children(found, replica) <= {"replicas", "restartPolicy", "template"}
        assert {"name", "image", "command"} <= children(found, f"{replica}.template.spec.containers")
    assert found["spec.mpiReplicaSpecs.Launcher.template.spec.containers.command"].startswith("[commbench, bench")


def test_the_mpijob_parses() -> None:
    """Let a YAML library read it, where there is one."""
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((SCRIPTS / "mpijob.yaml").read_text())
    assert 2 == job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]
