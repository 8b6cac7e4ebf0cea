"""Tests on a real Slurm of two nodes: batch script, both starters, ranks of srun, killed ranks,
cancelled jobs.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from builders import read_launches, read_records, read_rows
from launching import NO_OFI, wait_until
from slurm import Cluster, private_slurm

pytestmark = [pytest.mark.slurm, pytest.mark.mpi, pytest.mark.usefixtures("forks")]

pytest.importorskip("mpi4py")
pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "benchmarks" / "launch" / "slurm.sbatch")
#: Both nodes are this machine: bound, their ranks would share a core.
RUN = ("run", "--collective", "all_reduce", "--sync", "dissemination", "--bind-to", "none")
#: Long enough to kill a rank in its midst.
SWEEP = (*RUN, "--sizes", "8:4K", "--launches", "2", "--case-timeout", "20")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Return a Slurm cluster of two nodes, shared by all tests here."""
    with private_slurm() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def nothing_left(cluster: Cluster) -> Iterator[None]:
    """Fail if a test leaves a step or a task of its jobs."""
    yield
    assert wait_until(lambda: not cluster.tasks()), cluster.tasks()


def commbench() -> list[str]:
    """Return the prefix of a commbench command."""
    return [sys.executable, "-m", "commbench"]


def submit(cluster: Cluster, out: Path, *arguments: str, **variables: str) -> str:
    """Submit the batch script; return the job id."""
    venv = str(Path(sys.executable).parents[1])
    own = {**NO_OFI, "VENV": venv, "OUT": str(out), "PYTHONPATH": str(ROOT), **variables}
    words = ("--parsable", f"--output={out.with_suffix('.log')}", SCRIPT, *arguments)
    done = cluster.run("sbatch", *words, env=cluster.environment(**own))
    assert 0 == done.returncode, done.stderr
    return done.stdout.strip()


def finish(cluster: Cluster, job: str, out: Path) -> tuple[int, str]:
    """Return the job's exit code and output."""
    code = cluster.wait(job)
    log = out.with_suffix(".log")
    return code, log.read_text() if log.exists() else ""


def run_task(cluster: Cluster, *words: str) -> str:
    """Run a Slurm command with commbench in it that must succeed; return its output."""
    done = cluster.run(*words, env=cluster.environment(**NO_OFI, PYTHONPATH=str(ROOT)))
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout + done.stderr


def info(out: Path) -> dict[str, object]:
    """Return the run.json of a run."""
    content: dict[str, object] = json.loads((out / "run.json").read_text())
    return content


def test_a_batch_job_writes_the_files_of_a_local_run(cluster: Cluster, tmp_path: Path) -> None:
    """Run the shipped script on two nodes by mpirun; it writes the files of a local run."""
    job_run, local_run = tmp_path / "there", tmp_path / "here"
    arguments = (*RUN, "--sizes", "8,64K", "--launches", "1")
    code, output = finish(cluster, submit(cluster, job_run, *arguments), job_run)
    assert 0 == code, output
    local = [*commbench(), *arguments, "-n", "2", "--out", str(local_run)]
    subprocess.run(
        local, env={**os.environ, **NO_OFI}, capture_output=True, timeout=120, check=True
    )
    assert ["complete", "mpirun", 2, 2] == [
        info(job_run)[key] for key in ("status", "launcher", "nodes", "world_size")
    ]
    assert ["n0", "n1"] == [rank["host"] for rank in info(job_run)["ranks"]]  # type: ignore[attr-defined]
    assert {file.name for file in local_run.iterdir()} == {file.name for file in job_run.iterdir()}
    assert info(local_run).keys() == info(job_run).keys()
    names = ("backend", "operation", "message_bytes", "status")
    cases = [[row[name] for name in names] for row in read_rows(job_run)]
    assert cases == [[row[name] for name in names] for row in read_rows(local_run)]
    assert {("mpi", "ok"), ("gloo", "ok")} == {(case[0], case[3]) for case in cases}
    assert read_rows(local_run)[0].keys() == read_rows(job_run)[0].keys()


def test_tasks_of_srun_are_ranks_and_add_launches(cluster: Cluster, tmp_path: Path) -> None:
    """Add a launch per srun, with Gloo and without MPI."""
    out = tmp_path / "run"
    task = (
        "srun",
        "-N2",
        "-n2",
        "--kill-on-bad-exit=1",
        *commbench(),
        "run",
        "-c",
        "all_reduce",
        "--sizes",
        "8",
    )
    for _ in range(2):
        run_task(cluster, *task, "--backend", "gloo", "--out", str(out))
    assert ("complete", "slurm", 2) == tuple(
        info(out)[key] for key in ("status", "launcher", "nodes")
    )
    assert [0, 1] == [record.launch for record in read_records(out) if record.status == "ok"]


def test_a_conductor_can_start_its_ranks_by_srun(cluster: Cluster, tmp_path: Path) -> None:
    """Start every launch as a job step; report why MPI is omitted without PMI."""
    out = tmp_path / "run"
    options = (
        *RUN,
        "--sizes",
        "8",
        "--launches",
        "1",
        "--launcher",
        "srun",
        "--ranks-per-node",
        "1",
    )
    output = run_task(cluster, "salloc", "-N2", "-n4", *commbench(), *options, "--out", str(out))
    assert "Left out: Backend mpi needs ranks that MPI sees" in output
    assert ("complete", "srun", 2, 2) == tuple(
        info(out)[key] for key in ("status", "launcher", "nodes", "world_size")
    )
    assert [("gloo", "ok")] == [(row["backend"], row["status"]) for row in read_rows(out)]


def test_mpi_without_pmi_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    """Refuse MPI without PMI, say what to do, and write nothing."""
    task = (
        "srun",
        "-N1",
        "-n1",
        *commbench(),
        "run",
        "--backend",
        "mpi",
        "--out",
        str(tmp_path / "run"),
    )
    done = cluster.run(*task)
    assert 2 == done.returncode
    assert "or by srun with the PMI of your MPI (--mpi=pmix or pmi2)" in done.stderr
    assert not (tmp_path / "run").exists()


def find_rank(cluster: Cluster, rank: str) -> psutil.Process | None:
    """Return the process of a rank that a conductor started."""
    for process in cluster.processes():
        with contextlib.suppress(psutil.Error):
            environ = process.environ()
            number = environ.get("OMPI_COMM_WORLD_RANK", environ.get("SLURM_PROCID"))
            if (
                "commbench.launch.rank" in process.cmdline()
                and process.name().startswith("python")
                and number == rank
            ):
                return process
    return None


def measured(out: Path) -> int:
    """Return the number of records."""
    samples = out / "samples.jsonl"
    return len(samples.read_text().splitlines()) if samples.exists() else 0


def check_resumed(cluster: Cluster, out: Path, *arguments: str) -> None:
    """Submit the job again and check that every case was measured once per launch."""
    code, output = finish(cluster, submit(cluster, out, *arguments), out)
    assert (0, "complete") == (code, info(out)["status"]), output
    counts = Counter(
        (record.launch, record.case.key) for record in read_records(out) if record.status == "ok"
    )
    assert {1} == set(counts.values())
    assert 2 * len(read_rows(out)) == len(counts)


@pytest.mark.parametrize(
    ("backend", "launcher"),
    [("mpi", "mpirun"), pytest.param("gloo", "srun", marks=pytest.mark.slow)],
)
def test_a_killed_rank_is_named_and_the_job_resumes(
    cluster: Cluster, tmp_path: Path, backend: str, launcher: str
) -> None:
    """Name the killed rank, exit with 3, leave no process, and resume."""
    out = tmp_path / "run"
    arguments = (*SWEEP, "--backend", backend, "--launcher", launcher, "--fail-fast")
    job = submit(cluster, out, *arguments)
    assert wait_until(lambda: measured(out) > 2, 60), finish(cluster, job, out)
    victim = find_rank(cluster, "1")
    assert victim is not None
    victim.send_signal(signal.SIGKILL)
    code, output = finish(cluster, job, out)
    assert (3, "partial") == (code, info(out)["status"]), output
    # mpirun may hear first of rank 0 that has lost its partner, and then names no signal.
    assert re.search(
        "^rank 1 on host n1 (was killed by signal 9|has died)", str(info(out)["reason"])
    ), output
    assert wait_until(lambda: not cluster.tasks()), cluster.tasks()
    check_resumed(cluster, out, *arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code"),
    [(("--signal=TERM", "--batch"), 143), ((), None)],
    ids=["as before the time limit", "scancel"],
)
def test_a_job_that_is_ended_is_kept_and_resumes(
    cluster: Cluster, tmp_path: Path, how: tuple[str, ...], code: int | None
) -> None:
    """Keep the measurements of a cancelled job, and resume."""
    out = tmp_path / "run"
    arguments = (*SWEEP, "--backend", "mpi")
    job = submit(cluster, out, *arguments)
    assert wait_until(lambda: measured(out) > 2, 60), finish(cluster, job, out)
    cluster.run("scancel", *how, job)
    ended, output = finish(cluster, job, out)
    assert code in {None, ended}, output
    assert "interrupted" == info(out)["status"], output
    assert "SIGTERM" in str(info(out)["reason"]), output
    assert wait_until(lambda: not cluster.tasks()), cluster.tasks()
    check_resumed(cluster, out, *arguments)


@pytest.mark.slow
def test_the_script_can_do_without_a_conductor(cluster: Cluster, tmp_path: Path) -> None:
    """Make six launches by srun with DIRECT=1."""
    out = tmp_path / "run"
    arguments = ("run", "-c", "all_reduce", "--sizes", "8", "--backend", "gloo")
    code, output = finish(cluster, submit(cluster, out, *arguments, DIRECT="1"), out)
    assert 0 == code, output
    assert ([*range(6)], "ok") == (read_launches(out), read_rows(out)[0]["status"])


@pytest.mark.slow
def test_ended_tasks_of_srun_leave_a_partial_run(cluster: Cluster, tmp_path: Path) -> None:
    """Record how a cancelled srun launch ended, and complete it on resume."""
    out = tmp_path / "run"
    options = (
        "run",
        "-c",
        "all_reduce",
        "--sizes",
        "8:256K",
        "--backend",
        "gloo",
        "--out",
        str(out),
    )
    task = ("srun", "-N2", "-n2", "--job-name=cancelled", *commbench(), *options)
    process = cluster.start(*task, env=cluster.environment(**NO_OFI, PYTHONPATH=str(ROOT)))
    assert wait_until(lambda: measured(out) > 2, 60)
    cluster.run("scancel", "--name=cancelled")
    process.communicate(timeout=60)
    assert "partial" == info(out)["status"]
    assert wait_until(lambda: not cluster.tasks()), cluster.tasks()
    run_task(cluster, *task)
    counts = Counter(record.case.key for record in read_records(out) if record.status == "ok")
    assert ("complete", {1}) == (info(out)["status"], set(counts.values()))


@pytest.mark.parametrize("export", ["--export=NONE", "--export=HOME,PATH", "--export=ALL"])
def test_a_training_under_tune_gets_what_attaches_it(
    cluster: Cluster, tmp_path: Path, export: str
) -> None:
    """Pass both variables of live tuning to srun's tasks, whatever srun exports."""
    script = 'echo "$SLURM_PROCID ${PYTHONPATH%%:*} ${COMMBENCH_TUNE:+set}"'
    tune = (*commbench(), "tune", "--out", str(tmp_path / "out"), "--")
    out = run_task(
        cluster, "salloc", "-Q", "-N2", *tune, "srun", export, "-n", "2", "/bin/sh", "-c", script
    )
    site = ROOT / "commbench" / "live" / "site"
    assert {f"0 {site} set", f"1 {site} set"} == {
        line for line in out.splitlines() if line.endswith(" set")
    }


#: A fork would not read the ``sitecustomize.py`` that attaches commbench.
PYTHON = sys.executable
#: A training that takes its rank from Slurm and prints a digest of its parameters.
TRAINING = """
import hashlib, os, torch
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
store = f"file://{os.environ['STORE']}"
rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)]))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in range(120):
    model(torch.randn(16, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
bits = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
print("rank", rank, hashlib.sha256(bits).hexdigest(), flush=True)
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_a_training_is_tuned_inside_and_outside_srun(cluster: Cluster, tmp_path: Path) -> None:
    """Tune a training on two nodes.

    Its parameters end as without tuning, and the run names its ranks' hosts.
    """
    (tmp_path / "train.py").write_text(TRAINING)
    training, srun = (PYTHON, str(tmp_path / "train.py")), ("srun", "-N2", "-n2")
    digests = []
    for place in ("untuned", "outside", "inside"):
        tune = (*commbench(), "tune", "--steps", "100", "--out", str(tmp_path / place), "--")
        words = {
            "untuned": (*srun, *training),
            "outside": ("salloc", "-Q", "-N2", *tune, *srun, *training),
            "inside": (*srun, *tune, *training),
        }[place]
        variables = {
            "STORE": str(tmp_path / f"store-{place}"),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }
        done = cluster.run(*words, env=cluster.environment(**variables))
        assert 0 == done.returncode, done.stdout + done.stderr
        digests.append(
            sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
        )
        if place != "untuned":
            assert (tmp_path / place / "run.json").exists(), done.stderr
            assert (2, 2) == tuple(info(tmp_path / place)[key] for key in ("world_size", "nodes"))
            assert info(tmp_path / place)["status"] in {"complete", "cut"}
            assert (tmp_path / place / "recommendation.json").exists()
    assert 2 == len(digests[0])
    assert digests[0] == digests[1] == digests[2]
