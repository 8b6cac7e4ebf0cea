"""Tests of the command line: messages, exit codes, dry runs, light imports."""

import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from builders import make_info, make_record
from kept import RESULTS
from launching import has_ended, succeeded, wait_until
from networks import LAYERS

from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.errors import InputError
from commbench.launch.lab.plan import LabPlan
from commbench.launch.launchers.mpirun import MpirunLauncher
from commbench.launch.probe import probe_hooks, probe_mpi
from commbench.launch.standalone import AFTER_RANK_0_S
from commbench.launch.tables import write_tables
from commbench.results import Store
from commbench.results.plan import Stage

pytest.importorskip("mpi4py")  # without a launcher every measuring command ends with that sentence


@pytest.fixture
def two_ranks(commbench, monkeypatch):
    """Return the command as rank 0 of two ranks started by a person's mpirun."""
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    return commbench


@pytest.mark.parametrize(
    "option",
    [
        "--launcher mpirun",
        "--hostfile hosts",
        "--bind-to core",
        "-n 4",
        "--env A=1,2 --backend mpi",
        "--soak 1h --backend mpi",
    ],
)
def test_what_comes_too_late_for_ranks_is_refused(two_ranks, option):
    """Refuse options that running ranks cannot apply, and write nothing."""
    two_ranks.refuses(f"run {option} --out mine", option.split(maxsplit=1)[0])


def test_a_dry_run_of_ranks_measures_nothing(two_ranks, monkeypatch):
    """List the cases on rank 0 and exit silently on the others."""
    before = two_ranks.files()
    command = "run --dry-run -n 2 -c all_reduce --backend mpi --sizes 8 --out mine"
    listed = two_ranks(command)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    other = two_ranks(command)
    assert listed.err.startswith("mpi all_reduce 8 B float32 sum")
    assert 0 == listed.code
    assert 0 == other.code
    assert "" == other.out + other.err
    assert before == two_ranks.files()


@pytest.mark.parametrize("line", ["run --budget long", "run --backend smoke"])
def test_bad_input_of_ranks_is_said_once(two_ranks, monkeypatch, line):
    """Print the error on rank 0; another rank prints it only if still alive after a delay."""
    waited = []
    monkeypatch.setattr("time.sleep", waited.append)
    assert (2, []) == (two_ranks(line).code, waited)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    outcome = two_ranks(line)
    assert (2, [AFTER_RANK_0_S]) == (outcome.code, waited)
    assert outcome.err.startswith(f"commbench: rank 1 on host {os.uname().nodename}: ")
    assert 1 == len(outcome.err.splitlines())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("-b 8 -e 32 -f 4", ["8 B float32 sum", "32 B float32 sum"]),
        ("-m 4:8", ["4 B float32 sum", "8 B float32 sum"]),
        (
            "--sizes 8 --buffers hot,rotated",
            ["8 B float32 sum", "8 B float32 sum in rotated buffers"],
        ),
    ],
)
def test_a_dry_run_lists_cases(commbench, options, expected):
    """List the cases of each spelling of sizes and each axis, and write nothing."""
    before = commbench.files()
    line = f"run -c all_reduce --backend mpi -n 5 --oversubscribe {options} --dry-run --out new"
    outcome = commbench(line)
    *cases, hosts, closing = outcome.out.strip().splitlines()
    assert 0 == outcome.code
    assert "" == outcome.err
    assert before == commbench.files()
    assert f"2 slots a host: {os.uname().nodename}" == hosts
    assert [f"mpi all_reduce {words}" for words in expected] == cases
    assert closing.startswith("2 cases on 5 ranks in 6 launches")


def test_the_version_is_told(commbench):
    """Print name and version."""
    from commbench import __version__

    outcome = commbench("--version")
    assert (0, f"commbench {__version__}\n") == (outcome.code, outcome.out)


def test_importing_is_light():
    """Import the command line without numpy or any heavier library, and what reads a host with
    numpy alone.
    """
    code = (
        "import sys, commbench.cli; print(*{'numpy', 'jinja2'} & {*sys.modules});"
        " import commbench.report.advice;"
        " print(*{'torch', 'mpi4py', 'numba', 'pandas', 'matplotlib'} & {*sys.modules})"
    )
    assert ["", ""] == succeeded(sys.executable, "-c", code).splitlines()


@pytest.mark.parametrize(
    ("status", "reason"),
    [("running", ""), ("interrupted", "interrupted by SIGINT"), ("cut", "the limit of 5 s")],
)
def test_a_report_says_that_its_run_is_unfinished(commbench, status, reason):
    """Report why a run is unfinished, how to resume it, and its files."""
    with Store.open(commbench.home / "mine", make_info(status=status, reason=reason)) as store:
        store.append(make_record())
    outcome = commbench("report mine")
    assert 0 == outcome.code
    for words in (reason or "running", "Results: mine", "--out mine"):
        assert words in outcome.out


@pytest.mark.parametrize(
    ("printed", "problem"), [("answer \ufffd\n", "answer \ufffd"), (" \n", "status 1")]
)
def test_an_mpi_that_does_not_start_is_a_sentence(stub, printed, problem):
    """Report the last line that MPI printed on stderr, else its exit status."""
    done = subprocess.CompletedProcess("mpirun", 1, stdout="", stderr=printed)
    stub("commbench.launch.probe.choose_launcher", MpirunLauncher(environ={}))
    stub("commbench.launch.probe.subprocess.run", done)
    assert probe_mpi()["problem"].endswith(problem)


@pytest.mark.parametrize(
    ("line", "is_fast"), [("bench", False), ("bench --fail-fast", True), ("run --fail-fast", True)]
)
def test_failing_fast_is_for_who_asks(commbench, monkeypatch, line, *, is_fast):
    """Stop at the first failure only with --fail-fast; return the conductor's code."""
    calls = []

    def note(*_: object, fail_fast: bool) -> int:
        calls.append(fail_fast)
        return 3

    monkeypatch.setattr("commbench.cli.conduct.conduct", note)
    assert 3 == commbench(f"{line} -n 2 --backend mpi --out mine").code
    assert [is_fast] == calls


@pytest.mark.parametrize(
    ("code", "status"), [(3, "partial"), (130, "interrupted"), (0, "cut"), (0, "complete")]
)
def test_why_a_run_did_not_finish_is_on_stderr(commbench, monkeypatch, code, status):
    """Print why a run failed on stderr, and a cut by the time limit with the results."""

    def end(_stages: Sequence[Stage], store: Store, *_: object, **__: object) -> int:
        store.append(make_record())
        store.update(status=status, reason="it is over")
        return code

    monkeypatch.setattr("commbench.cli.conduct.conduct", end)
    outcome = commbench("run -n 2 --backend mpi --sizes 8 --out mine")
    assert code == outcome.code
    assert ("Not finished: it is over." in outcome.err) == (code != 0)
    assert ("Cut short: it is over." in outcome.out) == (status == "cut")
    assert "Not finished" not in outcome.out


def test_without_training_collectives_have_all_of_the_time(commbench, monkeypatch, stub):
    """Give collectives the whole time limit if training is unavailable."""
    limits = []

    def note(stages: Sequence[Stage], *_: object, **__: object) -> int:
        limits.extend(request.time_limit_s for stage in stages if (request := stage([])))
        return 0

    monkeypatch.setattr("commbench.cli.conduct.conduct", note)
    stub("commbench.cli.measure.unusable_reason", "No torch.")
    assert 0 == commbench("bench -n 2 --time-limit 100").code
    assert [100.0] == limits


#: The command line while it waits for a child of its own.
WAITING = """
import subprocess, sys
from commbench import cli
cli.app = lambda: subprocess.run(["sh", "-c", "echo $$; exec sleep 600"])
cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_ended_leaves_no_child(number):
    """End child processes on a signal, and exit with 128 plus its number."""
    command = [sys.executable, "-c", WAITING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout
        child = int(waiting.stdout.readline())
        waiting.send_signal(number)
        assert 128 + number == waiting.wait(60)
    assert wait_until(lambda: has_ended(child))


def make_mixed(path: Path, *, collectives: bool) -> None:
    """Write a run with training and optionally collectives."""
    with Store.open(path, make_info(status="complete")) as store:
        if collectives:
            store.append(make_record())
        for hook in ("none", "fp16"):
            case = TrainingCase(workload="tiny", world_size=2, batch_per_rank=8, hook=hook)
            store.append(TrainingRecord(case=case, launch=0, step_ms=[5.0] * 3, block_lengths=[3]))
        write_tables(store)


@pytest.mark.parametrize(
    ("collectives", "style", "file"),
    [(True, "csv", "collectives.csv"), (False, "csv", "ddp.csv"), (False, "osu", None)],
)
def test_a_report_shows_training(commbench, *, collectives, style, file):
    """Print training results, next to collectives if there are any; in another format
    collectives.csv, else ddp.csv, and name on stderr the one that is left out.
    """
    make_mixed(commbench.home / "mine", collectives=collectives)
    outcome = commbench("report mine")
    assert (0, "") == (outcome.code, outcome.err)
    assert "fp16" in outcome.out
    assert ("all_reduce" in outcome.out) == collectives
    assert "Results: mine\n" in outcome.out
    assert "Not finished" not in outcome.out
    outcome = commbench(f"report mine --format {style}")
    expected = (commbench.home / "mine" / file).read_text() if file else ""
    assert (0, expected) == (outcome.code, outcome.out)
    assert ("mine/ddp.csv" in outcome.err) == (file != "ddp.csv")


def test_a_lab_runs_what_follows_the_dashes(commbench, monkeypatch):
    """Run the command after the dashes unchanged, and return its exit code."""
    calls = []

    def note(plan: LabPlan, command: Sequence[str], name: str | None) -> int:
        calls.append((plan, list(command), name))
        return 7

    monkeypatch.setattr("commbench.cli.lab.run_in_lab", note)
    shape = "--ranks-per-host 2 --slow host1=1mbit --slow host2=none --racks 3 --uplink none"
    line = f"lab run --hosts 3 --rate 200mbit {shape} --name mine -- commbench bench -n 6 --seed 1"
    assert 7 == commbench(line).code
    slow = ["host1=1mbit", "host2=none"]
    plan = LabPlan.parse(3, "200mbit", ranks_per_host=2, slow=slow, racks=3, uplink="none")
    assert [(plan, ["commbench", "bench", "-n", "6", "--seed", "1"], "mine")] == calls


@pytest.mark.parametrize(
    ("options", "launches", "fresh"),
    [("", "6", 8), ("--launches 7", "7", 8), ("--budget standard", "10", 10)],
)
def test_a_quick_bench_confirms_in_more_launches_than_its_budget(
    commbench,
    stub,
    options,
    launches,
    fresh,
):
    """Confirm in more launches only where neither a budget nor their number was named."""
    pytest.importorskip("torch")
    stub("commbench.cli.train.probe_workload", LAYERS)
    outcome = commbench(f"bench --backend gloo -n 2 {options} --dry-run")
    assert (0, "") == (outcome.code, outcome.err)
    assert f"cases on 2 ranks in {launches} launches, " in outcome.out
    assert f"the fastest again in {fresh} confirmation launches, " in outcome.out


def test_a_tuning_reads_compressed_samples(commbench, monkeypatch):
    """Know the workload from the run, instead of trying it again."""
    shutil.copytree(RESULTS / "tune_resnet18_batch1_1gbit_xeon2core_20261128", commbench.home / "r")
    monkeypatch.setattr("commbench.cli.tune.probe_workload", None)
    outcome = commbench("tune --workload resnet18 -n 2 --out r --dry-run")
    assert (0, "") == (outcome.code, outcome.err)
    assert "To choose from: fp16" in outcome.out


def test_who_reads_may_have_enough():
    """Exit silently with code 141 when the reader of stdout closes the pipe."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "commbench", "--help"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert done.returncode == 128 + signal.SIGPIPE
    assert done.stderr == b""


def test_output_may_lack_letters(commbench, monkeypatch):
    """Print a name that the encoding of stdout lacks."""
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding="ascii"))
    line = "run --dry-run -c all_reduce --sizes 8 --backend mpi -n 2 --oversubscribe --env A=\u00f6"
    assert 0 == commbench(line).code
    assert b"under A=\\xf6\n" in output.getvalue()


def test_a_full_disk_behind_stdout_is_a_sentence():
    """End with one sentence and code 3 if stdout cannot be written, also where stderr cannot."""
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "commbench", "--help"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
        silent = subprocess.run(command, stdout=full, stderr=full, check=False)
    assert (3, 1) == (done.returncode, done.stderr.count(b"\n"))
    assert 3 == silent.returncode


def test_output_may_be_closed(commbench):
    """Run a command in a process without standard output and error, as some services have it."""
    line = f"{sys.executable} -m commbench tune --out {commbench.home}/run -- sh -c 'exit 4'"
    assert 4 == subprocess.run(["sh", "-c", f"{line} >&- 2>&-"], check=False).returncode


def test_a_probe_names_the_signal_that_ended_it(tmp_path):
    """Name the signal in place of the last line that the person's code wrote."""
    hook = tmp_path / "hook.py"
    hook.write_text("import os, sys\nprint('a line', file=sys.stderr)\nos.kill(os.getpid(), 11)\n")
    with pytest.raises(InputError, match="signal 11"):
        probe_hooks([f"{hook}:mine"])
