"""Smoke tests of the programs in benchmarks/evidence, which measure commbench itself."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from kept import RESULTS


@pytest.fixture
def two_cores(mpirun):
    """Skip without a core for each of two ranks."""
    if mpirun.slots() < 2:
        pytest.skip("needs two CPUs")


def facts(out: Path, name: str) -> dict[str, object]:
    """Return what a program wrote."""
    found = json.loads((out / f"{name}.json").read_text())
    assert {"argv", "git_commit"} <= found.keys()
    return found


@pytest.mark.mpi
@pytest.mark.usefixtures("forks", "two_cores")
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_accuracy(run_benchmark, tmp_path):
    """Time all cases by all loops; one launch gives no interval, so that nothing is shown."""
    options = "--launches 1 --rounds 1 --chunk 10 --out"
    assert 1 == run_benchmark("accuracy", *options.split(), str(tmp_path / "out")).code
    (launch,) = facts(tmp_path / "out", "accuracy")["launches"]
    assert all(
        {"c", "native", "python"} == set(case["time_us"]) for case in launch["cases"].values()
    )


@pytest.mark.mpi
@pytest.mark.usefixtures("forks", "two_cores")
def test_false_alarms(run_benchmark, tmp_path):
    """Measure both sides; one launch is too few to call any case different."""
    options = "equal --launches 1 --sizes 8 --backends mpi --out"
    done = run_benchmark("false_alarms", *options.split(), str(tmp_path / "out"))
    assert 0 == done.code, done.err
    found = facts(tmp_path / "out", "false_alarms")
    assert (0, 3) == (found["different"], found["cases"])


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_link_that_lost_a_tenth_is_found(run_benchmark, tmp_path):
    """Judge Gloo's all-reduce slower at 900 Mbit/s than at 1 Gbit/s, and nothing at equal rates."""
    pytest.importorskip("torch")
    done = run_benchmark(
        "false_alarms", "planted", "--sizes", "4M,16M", "--out", str(tmp_path / "out")
    )
    assert 0 == done.code, done.out + done.err


def test_peers_names_a_side_that_fails(run_benchmark, tmp_path):
    """End with the last line of the side that failed."""
    words = ["--rounds", "2", "--out", str(tmp_path / "out"), "--as", "nothing", "--", "true"]
    assert "Unknown tool 'nothing'" in run_benchmark("peers", *words).err


@pytest.mark.parametrize("factor", [1.0, 1.04, 1.2, 0.8])
def test_peers_finds_a_ratio_beyond_the_tolerance(load_benchmark, factor):
    """Call a planted factor beyond 5 % different, and no smaller one."""
    theirs = [{("latency", 8): 1.0 + 0.001 * number} for number in range(8)]
    ours = [{key: factor * time_us for key, time_us in times.items()} for times in theirs]
    (case,) = load_benchmark("peers").compare(theirs, ours)
    assert (abs(factor - 1) <= 0.05) == case["is_close"]


@pytest.mark.programs
def test_selection(run_benchmark, tmp_path):
    """Time eight kinds of data."""
    pytest.importorskip("torch")
    options = "--rounds 6 --mib 0.25 --out"
    run_benchmark("selection", *options.split(), str(tmp_path / "out"))
    assert 8 == len(facts(tmp_path / "out", "run")["times_ms"])


@pytest.mark.parametrize("line", ["selection --gpu", "cuda_kernels"])
def test_programs_for_gpus_say_that_they_need_one(run_benchmark, tmp_path, line):
    """End with code 2 and write nothing without a GPU."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = run_benchmark(*line.split(), "--out", str(tmp_path / "out"))
    assert (2, "") == (done.code, done.out)
    assert not (tmp_path / "out").exists()


@pytest.mark.kept
def test_kept_runs_says_how_old_they_are(run_benchmark):
    """Print a line for each run of a theme, and refuse unknown themes."""
    done = run_benchmark("kept_runs", "--list", "--only", "live_costs,live_equal")
    assert 2 == len(done.out.splitlines())
    assert 2 == run_benchmark("kept_runs", "--only", "nonsense").code


def test_kept_runs_are_made_and_compressed(load_benchmark, tmp_path, monkeypatch):
    """Start a command with --out before the command of a training; compress what it wrote."""
    program = load_benchmark("kept_runs")
    started = []

    def run(words: list[str], **_: object) -> "subprocess.CompletedProcess[str]":
        started.append(words)
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(program.subprocess, "run", run)
    assert 0 == program.start("commbench lab run --hosts 2 -- commbench tune -- torchrun x", "new")
    inner = ["commbench", "tune", "--out", "results/new", "--", "torchrun", "x"]
    assert [["commbench", "lab", "run", "--hosts", "2", "--", *inner]] == started
    monkeypatch.undo()
    kept = RESULTS / "links_1gbit_xeon2core_20261128" / "samples.jsonl.gz"
    shutil.copy(kept, tmp_path)
    subprocess.run(["gunzip", tmp_path / kept.name], check=True)
    (tmp_path / ".lock").touch()
    (tmp_path / "figures").mkdir()
    program.compress(tmp_path)
    assert [tmp_path / kept.name] == list(tmp_path.iterdir())
