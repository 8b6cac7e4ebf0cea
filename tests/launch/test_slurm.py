"""Tests on a real Slurm of two nodes: batch script, both starters, ranks of srun, killed ranks,
cancelled jobs.
"""

import contextlib
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from builders import read_info, read_launches, read_records, read_rows
from fields import fields_of
from launching import NO_OFI, assert_code, assert_same_form, succeeded, wait_until
from places import ROOT
from slurm import Cluster, private_slurm

pytestmark = [pytest.mark.slurm, pytest.mark.mpi, pytest.mark.usefixtures("forks")]

pytest.importorskip("mpi4py")
pytest.importorskip("torch")

SCRIPT = str(ROOT / "benchmarks" / "launch" / "slurm.sbatch")
#: Both nodes are this machine: bound, their ranks would share a core.
RUN = "run --collective all_reduce --sync dissemination --bind-to none"
#: Long enough to kill a rank in its midst.
SWEEP = f"{RUN} --sizes 8:64 --launches 2 --case-timeout 20"
#: By one srun for each launch, without a conductor.
DIRECT = "run -c all_reduce --backend gloo"


@pytest.fixture(scope="module")
def cluster():
    """Return a Slurm cluster of two nodes, shared by all tests here."""
    with private_slurm() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def nothing_left(cluster):
    """Fail if a test leaves a step or a task of its jobs."""
    yield
    check_no_tasks(cluster)


def commbench(words: str) -> str:
    """Return the line of a commbench command."""
    return f"{sys.executable} -m commbench {words}"


def submit(cluster: Cluster, out: Path, words: str, **variables: str) -> str:
    """Submit the batch script; return the job id."""
    venv = str(Path(sys.executable).parents[1])
    own = {**NO_OFI, "VENV": venv, "OUT": str(out), "PYTHONPATH": str(ROOT), **variables}
    options = ("--parsable", f"--output={out.with_suffix('.log')}", SCRIPT)
    done = cluster.run("sbatch", *options, *words.split(), env=cluster.environment(**own))
    assert_code(done, 0)
    return done.stdout.strip()


def finish(cluster: Cluster, job: str, out: Path) -> tuple[int, str]:
    """Return the job's exit code and output."""
    code = cluster.wait(job)
    log = out.with_suffix(".log")
    return code, log.read_text() if log.exists() else ""


def run_task(cluster: Cluster, line: str, *words: str, code: int = 0, **variables: str) -> str:
    """Run a Slurm command with commbench in it; return its output."""
    own = {**NO_OFI, "PYTHONPATH": str(ROOT), **variables}
    done = cluster.run(*line.split(), *words, env=cluster.environment(**own))
    assert_code(done, code)
    return done.stdout + done.stderr


def facts(out: Path, names: str) -> list[Any]:
    """Return entries of run.json."""
    info = read_info(out)
    return [info[name] for name in names.split()]


def test_a_batch_job_writes_the_files_of_a_local_run(cluster, tmp_path):
    """Run the shipped script on two nodes by mpirun; it writes the files of a local run."""
    there, here = tmp_path / "there", tmp_path / "here"
    words = f"{RUN} --sizes 8 --launches 1"
    code, output = finish(cluster, submit(cluster, there, words), there)
    assert 0 == code, output
    local = commbench(f"{words} -n 2 --out {here}").split()
    succeeded(*local, env={**os.environ, **NO_OFI})
    assert ["complete", "mpirun", 2, 2] == facts(there, "status launcher nodes world_size")
    assert ["n0", "n1"] == fields_of(facts(there, "ranks")[0], "host")
    assert_same_form(here, there)


def test_tasks_of_srun_are_ranks_and_add_launches(cluster, tmp_path):
    """Add a launch per srun, with Gloo and without MPI, which is refused without PMI."""
    out = tmp_path / "run"
    for _ in range(2):
        task = commbench(f"{DIRECT} --sizes 8 --out {out}")
        run_task(cluster, f"srun -N2 -n2 --kill-on-bad-exit=1 {task}")
    assert ["complete", "slurm", 2] == facts(out, "status launcher nodes")
    assert [0, 1] == [record.launch for record in read_records(out) if record.status == "ok"]
    task = commbench(f"run --backend mpi --out {tmp_path / 'refused'}")
    output = run_task(cluster, f"srun -N1 -n1 {task}", code=2)
    assert "or by srun with the PMI of your MPI (--mpi=pmix or pmi2)" in output
    assert not (tmp_path / "refused").exists()


def test_a_conductor_can_start_its_ranks_by_srun(cluster, tmp_path):
    """Start every launch as a job step; report why MPI is omitted without PMI."""
    out = tmp_path / "run"
    options = f"--sizes 8 --launches 1 --launcher srun --ranks-per-node 1 --out {out}"
    output = run_task(cluster, f"salloc -N2 -n4 {commbench(f'{RUN} {options}')}")
    assert "Left out: Backend mpi needs ranks that MPI sees" in output
    assert ["complete", "srun", 2, 2] == facts(out, "status launcher nodes world_size")
    assert [("gloo", "ok")] == fields_of(read_rows(out), "backend", "status")


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


def submit_measuring(cluster: Cluster, out: Path, words: str) -> str:
    """Submit a job; return its number when it has measured something."""
    job = submit(cluster, out, words)
    assert wait_until(lambda: measured(out) > 2, 60), finish(cluster, job, out)
    return job


def check_no_tasks(cluster: Cluster) -> None:
    """Wait for the end of all steps and tasks."""
    assert wait_until(lambda: not cluster.tasks()), cluster.tasks()


def check_resumed(cluster: Cluster, out: Path, words: str) -> None:
    """Submit the job again and check that every case was measured once per launch."""
    code, output = finish(cluster, submit(cluster, out, words), out)
    assert [0, "complete"] == [code, *facts(out, "status")], output
    counts = Counter(
        (record.launch, record.case.key) for record in read_records(out) if record.status == "ok"
    )
    assert {1} == set(counts.values())
    assert 2 * len(read_rows(out)) == len(counts)


@pytest.mark.parametrize(
    ("backend", "launcher"),
    [("mpi", "mpirun"), pytest.param("gloo", "srun", marks=pytest.mark.slow)],
)
def test_a_killed_rank_is_named_and_the_job_resumes(cluster, tmp_path, backend, launcher):
    """Name the killed rank, exit with 3, leave no process, and resume."""
    out = tmp_path / "run"
    words = f"{SWEEP} --backend {backend} --launcher {launcher} --fail-fast"
    job = submit_measuring(cluster, out, words)
    victim = find_rank(cluster, "1")
    victim.send_signal(signal.SIGKILL)
    code, output = finish(cluster, job, out)
    status, reason = facts(out, "status reason")
    assert (3, "partial") == (code, status), output
    # mpirun may hear first of rank 0 that has lost its partner, and then names no signal.
    assert re.search("^rank 1 on host n1 (was killed by signal 9|has died)", reason), output
    check_no_tasks(cluster)
    check_resumed(cluster, out, words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code"),
    [(("--signal=TERM", "--batch"), 143), ((), None)],
    ids=["as before the time limit", "scancel"],
)
def test_a_job_that_is_ended_is_kept_and_resumes(cluster, tmp_path, how, code):
    """Keep the measurements of a cancelled job, and resume."""
    out = tmp_path / "run"
    words = f"{SWEEP} --backend mpi"
    job = submit_measuring(cluster, out, words)
    cluster.run("scancel", *how, job)
    ended, output = finish(cluster, job, out)
    assert code in {None, ended}, output
    status, reason = facts(out, "status reason")
    assert ("interrupted", True) == (status, "SIGTERM" in reason), output
    check_no_tasks(cluster)
    check_resumed(cluster, out, words)


@pytest.mark.slow
def test_the_script_can_do_without_a_conductor(cluster, tmp_path):
    """Make six launches by srun with DIRECT=1."""
    out = tmp_path / "run"
    job = submit(cluster, out, f"{DIRECT} --sizes 8", DIRECT="1")
    code, output = finish(cluster, job, out)
    assert 0 == code, output
    assert [*range(6)] == read_launches(out)
    assert "ok" == read_rows(out)[0]["status"]


@pytest.mark.parametrize("export", ["--export=NONE", "--export=HOME,PATH", "--export=ALL"])
def test_a_training_under_tune_gets_what_attaches_it(cluster, tmp_path, export):
    """Pass both variables of live tuning to srun's tasks, whatever srun exports."""
    script = 'echo "$SLURM_PROCID ${PYTHONPATH%%:*} ${COMMBENCH_TUNE:+set}"'
    tune = commbench(f"tune --out {tmp_path / 'out'} --")
    line = f"salloc -Q -N2 {tune} srun {export} -n 2 /bin/sh -c"
    lines = run_task(cluster, line, script).splitlines()
    site = ROOT / "commbench" / "live" / "site"
    assert {f"0 {site} set", f"1 {site} set"} == {each for each in lines if each.endswith(" set")}


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
def test_a_training_is_tuned_inside_and_outside_srun(cluster, tmp_path):
    """Tune a training on two nodes.

    Its parameters end as without tuning, and the run names its ranks' hosts.
    """
    (tmp_path / "train.py").write_text(TRAINING)
    training, srun = f"{PYTHON} {tmp_path / 'train.py'}", "srun -N2 -n2"
    digests = []
    for place in ("untuned", "outside", "inside"):
        out = tmp_path / place
        tune = commbench(f"tune --steps 100 --out {out} --")
        line = {
            "untuned": f"{srun} {training}",
            "outside": f"salloc -Q -N2 {tune} {srun} {training}",
            "inside": f"{srun} {tune} {training}",
        }[place]
        store = {"STORE": str(tmp_path / f"store-{place}"), "OMP_NUM_THREADS": "1"}
        output = run_task(cluster, line, **store)
        digests.append(sorted(re.findall(r"^rank \d \w{64}$", output, re.MULTILINE)))
        if place != "untuned":
            assert [2, 2] == facts(out, "world_size nodes")
            assert facts(out, "status")[0] in {"complete", "cut"}
            assert (out / "recommendation.json").exists()
    assert 2 == len(digests[0])
    assert digests[0] == digests[1] == digests[2]
