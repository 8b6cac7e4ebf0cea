"""Tests of the command line: messages, exit codes, dry runs, light imports."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from builders import make_case, make_info, make_record
from commands import Command
from launching import has_ended, make_request, wait_until

from commbench.cli.conduct import Place, Settings, Task, carry_out
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import DDP_COLUMNS, TrainingRecord
from commbench.engine.records import COLUMNS
from commbench.launch.lab import LabPlan
from commbench.launch.launchers import MpirunLauncher
from commbench.launch.probe import probe_mpi
from commbench.launch.standalone import AFTER_RANK_0_S
from commbench.launch.tables import write_tables
from commbench.results import Store, load_run
from commbench.results.plan import RunRequest, Stage, single_stage

pytest.importorskip("mpi4py")  # without a launcher every measuring command ends with that sentence


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run -c allreduce", "Unknown operation 'allreduce'; choose from all_reduce"),
        ("run --backend smoke", "Unknown backend 'smoke'; choose from mpi"),
        ("run --dtype float8", "Unknown dtype 'float8'; choose from"),
        ("run --redop mean", "Unknown reduction 'mean'; choose from"),
        ("run --pattern star", "Unknown pattern 'star'"),
        ("run --sync never", "Unknown synchronisation 'never'"),
        ("run --loop endless", "Unknown loop 'endless'"),
        ("run --in-place yes", "Unknown in_place value 'yes'"),
        ("run -c broadcast --root two", "--root two is not a list of ranks"),
        ("run --world-sizes two", "--world-sizes two is not a list of numbers of ranks"),
        ("run -n 2 --world-sizes 2,4", "World size 4 was asked for and this run has 2 ranks"),
        ("run -c broadcast --root 7 -n 2", "Root 7 is not a rank of a run with 2 ranks"),
        ("run slow", "Unknown suite 'slow'"),
        ("run bad.py", "cannot be run (ZeroDivisionError"),
        ("run --budget long", "Unknown budget 'long'; choose from quick, standard, rigorous"),
        ("run --launches 0", "--launches 0 was asked for"),
        ("run --format html", "Unknown format 'html'"),
        ("run --launcher slurm", "Unknown launcher 'slurm'"),
        ("run --launcher /absent/mpirun", "launcher /absent/mpirun is not a program"),
        ("run --launcher torchrun --bind-to core", "torchrun binds no rank"),
        ("run --ranks-per-node 1 -n 2", "--ranks-per-node leaves room for 1"),
        ("run --interface eth99", "--interface eth99 was asked for and this host has"),
        ("run --role boss", "Unknown role 'boss'"),
        ("run --sizes 8X", "size '8X' is not understood"),
        ("run --sizes=-8", "size '-8' is negative"),
        ("run --sizes 0", "Message size 0 is not a positive number of bytes"),
        ("run --sizes 64:8", "ends below its start"),
        ("run --sizes 6", "Message size 6 B is not a multiple of float32's 4 B"),
        ("run --sizes 100000G", "are available; choose smaller --sizes"),
        ("run --sizes 8 -b 8", "Sizes were given in several ways"),
        ("run -b 8 -e 64 -f 1", "factor '1'"),
        ("run -m 64:8", "ends below its start"),
        ("run -n 3", "3 ranks were asked for but there are 2 slots; add --oversubscribe"),
        ("run -n 0", "-n 0 was asked for"),
        ("run -n 2 --case-timeout 0", "timeout"),
        ("run -n 2 --time-limit -1", "time limit"),
        ("run --hostfile absent", "hostfile absent cannot be read"),
        ("run --out foreign -n 2", "--out foreign is no run of commbench and not empty"),
        ("run --out bad.py -n 2", "--out bad.py is not a directory"),
        ("run --env A=", "--env A has no values; write A=a,b,default."),
        ("run --env A=1 --env A=2", "--env A was given twice"),
        ("bench --env API_TOKEN=1,2", "--env API_TOKEN names what may be a secret"),
        ("train --env A=1,1", "--env A has the value 1 twice"),
        ("bench --budget long", "Unknown budget 'long'"),
        ("bench --backend smoke", "Unknown backend 'smoke'"),
        ("bench -n 3 --no-train", "3 ranks were asked for"),
        ("bench --out foreign -n 2 --no-train", "--out foreign is no run of commbench"),
        ("report foreign", "foreign"),
        ("report absent", "There is no absent"),
        ("compare absent foreign", "There is no absent"),
        ("lab run --hosts 0 -- true", "0 emulated hosts were asked for"),
        ("lab run --rate fast -- true", "rate"),
        ("lab run --slow host0 -- true", "write HOST=RATE"),
        ("lab run --slow host9=1gbit -- true", "no emulated host 'host9'"),
        ("lab run --racks 3 -- true", "3 racks were asked for 2 emulated hosts"),
        ("lab run --uplink 1gbit -- true", "one rack has no uplink"),
    ],
)
def test_bad_input_is_one_sentence(commbench: Command, line: str, words: str) -> None:
    """Exit with 2, print one line on stderr that names the problem, and write nothing."""
    before = commbench.files()
    outcome = commbench(line)
    assert (2, "") == (outcome.code, outcome.out)
    assert 1 == outcome.err.count("\n"), outcome.err
    assert outcome.err.startswith("commbench: ")
    assert outcome.err.endswith(".\n")
    assert words in outcome.err
    assert before == commbench.files()


@pytest.fixture
def two_ranks(commbench: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return the command as rank 0 of two ranks started by a person's mpirun."""
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    return commbench


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--launcher mpirun", "--launcher was given to ranks that are started already"),
        ("--hostfile hosts", "--hostfile was given to ranks that are started already"),
        ("--bind-to core", "--bind-to was given to ranks that are started already"),
        ("-n 4", "-n 4 was asked for but the launcher has started 2 ranks"),
        (
            "--backend mpi --env A=1,2",
            "Environment variables are to be varied (--env), but the ranks are started already",
        ),
    ],
)
def test_what_comes_too_late_for_ranks_is_refused(
    two_ranks: Command, option: str, sentence: str
) -> None:
    """Refuse options that running ranks cannot apply, and write nothing."""
    before = two_ranks.files()
    refused = two_ranks(f"run {option} --out mine")
    assert (2, f"commbench: {sentence}") == (
        refused.code,
        refused.err[: len(f"commbench: {sentence}")],
    )
    assert before == two_ranks.files()


def test_a_dry_run_of_ranks_measures_nothing(
    two_ranks: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """List the cases on rank 0 and exit silently on the others."""
    before = two_ranks.files()
    command = "run --dry-run -n 2 -c all_reduce --backend mpi --sizes 8 --out mine"
    listed = two_ranks(command)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    other = two_ranks(command)
    assert listed.err.startswith("mpi all_reduce 8 B float32 sum")
    assert (0, 0, "", before) == (listed.code, other.code, other.out + other.err, two_ranks.files())


@pytest.mark.parametrize(
    "line", ["run --budget long", "run --backend smoke"], ids=["before", "within"]
)
def test_bad_input_of_ranks_is_said_once(
    two_ranks: Command, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """Print the error on rank 0; another rank prints it only if still alive after a delay."""
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    sentence = f"Unknown {line.split()[1].lstrip('-')}"
    assert (True, []) == (two_ranks(line).err.startswith(f"commbench: {sentence}"), waited)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    outcome = two_ranks(line)
    assert (2, [AFTER_RANK_0_S]) == (outcome.code, waited)
    assert outcome.err.startswith(f"commbench: rank 1 on host {os.uname().nodename}: {sentence}")
    assert 1 == len(outcome.err.splitlines())


@pytest.mark.parametrize("line", ["run --bogus", "run -n two", "dance", "compare one"])
def test_a_mistyped_command_line_says_so(commbench: Command, line: str) -> None:
    """Exit with 2 and write nothing to stdout or disk if the line cannot be parsed."""
    before = commbench.files()
    outcome = commbench(line)
    assert (2, "", True) == (outcome.code, outcome.out, bool(outcome.err))
    assert before == commbench.files()


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ("--sizes 8,64", ["8 B", "64 B"]),
        ("-b 8 -e 32 -f 4", ["8 B", "32 B"]),
        ("-m 8:32", ["8 B", "16 B", "32 B"]),
    ],
)
def test_a_dry_run_lists_cases(commbench: Command, sizes: str, expected: list[str]) -> None:
    """List the cases of each spelling of sizes, estimate the time, and write nothing."""
    before = commbench.files()
    outcome = commbench(f"run -c all_reduce --backend mpi -n 2 {sizes} --dry-run --out new")
    *cases, closing = outcome.out.strip().splitlines()
    assert (0, "") == (outcome.code, outcome.err)
    assert [f"mpi all_reduce {size} float32 sum" for size in expected] == cases
    assert closing.startswith(f"{len(expected)} cases on 2 ranks in 6 launches")
    assert closing.endswith("Nothing was measured.")
    assert before == commbench.files()


@pytest.mark.parametrize(
    ("options", "launches"),
    [
        ("", "up to 10 launches"),
        ("--launches 7", "7 launches"),
        ("--budget standard", "10 launches"),
    ],
)
def test_a_quick_bench_makes_more_launches_than_a_quick_run(
    commbench: Command, options: str, launches: str
) -> None:
    """Plan launches beyond the budget only where neither a budget nor their number was named."""
    outcome = commbench(f"bench --no-train --backend mpi -n 2 {options} --dry-run")
    assert (0, "") == (outcome.code, outcome.err)
    assert f"cases on 2 ranks in {launches}, " in outcome.out


@pytest.mark.parametrize(("options", "launches"), [("", 8), ("--budget standard", 10)])
def test_a_quick_bench_makes_more_fresh_launches_than_a_quick_sweep(
    commbench: Command, options: str, launches: int
) -> None:
    """Confirm in eight launches where no budget was named."""
    pytest.importorskip("torch")
    outcome = commbench(f"bench --backend gloo -n 2 {options} --dry-run")
    assert 0 == outcome.code
    assert f"the fastest again in {launches} fresh launches, " in outcome.out


def test_ranks_may_share_cores_on_request(commbench: Command) -> None:
    """Accept more ranks than slots with --oversubscribe."""
    outcome = commbench("run -c all_reduce --backend mpi --sizes 8 -n 5 --oversubscribe --dry-run")
    assert (0, "") == (outcome.code, outcome.err)
    assert "1 case on 5 ranks in 6 launches" in outcome.out


@pytest.mark.parametrize(
    "command", ["", "bench ", "run ", "compare ", "report ", "env ", "lab ", "lab run "]
)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_helps(commbench: Command, command: str, option: str) -> None:
    """Describe every command on stdout."""
    outcome = commbench(command + option)
    assert (0, "") == (outcome.code, outcome.err)
    assert f"commbench {command}[OPTIONS]" in outcome.out


def test_the_version_is_told(commbench: Command) -> None:
    """Print name and version."""
    from commbench import __version__

    outcome = commbench("--version")
    assert (0, f"commbench {__version__}\n") == (outcome.code, outcome.out)


def test_importing_is_light() -> None:
    """Import the package and the command line without numpy or any heavier library."""
    heavy = ("torch", "mpi4py", "numba", "numpy", "pandas", "matplotlib", "scipy")
    for module in ("commbench", "commbench.cli"):
        code = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
        )
        assert "[]" == done.stdout.strip(), module


def test_the_module_runs_like_the_command(tmp_path: Path) -> None:
    """Refuse bad input as a process: exit code 2, one line, nothing written."""
    command = [sys.executable, "-m", "commbench", "run", "-c", "allreduce"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (2, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
    assert done.stderr.startswith("commbench: Unknown operation")
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"status": "running"},
            ["Not finished: it is running, or was killed.", "Results: mine/samples.jsonl"],
        ),
        (
            {"status": "interrupted", "reason": "interrupted by SIGINT"},
            ["Not finished: interrupted by SIGINT."],
        ),
        (
            {"status": "cut", "reason": "the time limit of 5 s was reached"},
            ["Cut short: the time limit of 5 s was re"],
        ),
    ],
)
def test_a_report_says_that_its_run_is_unfinished(
    commbench: Command, fields: dict[str, str], words: list[str]
) -> None:
    """Report why a run is unfinished, how to resume it, and its files."""
    with Store.open(commbench.home / "mine", make_info(**fields)) as store:
        store.append(make_record())
    outcome = commbench("report mine")
    assert 0 == outcome.code
    assert all(part in outcome.out for part in words), outcome.out
    assert "--out mine goes on from there" in outcome.out


def test_a_hint_in_square_brackets_is_shown(
    commbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Print the installation hint literally, square brackets included."""
    monkeypatch.setattr(
        "commbench.cli.report.probe_mpi", lambda: {"problem": "pip install 'commbench[mpi]'"}
    )
    assert "pip install 'commbench[mpi]'" in commbench("env").out


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (subprocess.TimeoutExpired("mpirun", 60, stderr=b"no\nanswer \xff\n"), "answer \ufffd"),
        (
            subprocess.CalledProcessError(1, "mpirun", stderr=" \n"),
            "Command 'mpirun' returned non-zero exit status 1.",
        ),
        (OSError(), "OSError"),
    ],
)
def test_an_mpi_that_does_not_start_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, error: Exception, problem: str
) -> None:
    """Report the last line that MPI printed."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(
        "commbench.launch.probe.choose_launcher", lambda *_: MpirunLauncher(environ={})
    )
    monkeypatch.setattr("commbench.launch.probe.subprocess.run", fail)
    assert {"problem": f"MPI does not start: {problem}"} == probe_mpi()


@pytest.mark.parametrize("option", ["", " --fail-fast"])
@pytest.mark.parametrize("command", ["bench", "run"])
def test_failing_fast_is_for_who_asks(
    commbench: Command, monkeypatch: pytest.MonkeyPatch, command: str, option: str
) -> None:
    """Stop at the first failure only with --fail-fast; pass the suite as one stage."""
    calls: list[tuple[int, bool]] = []

    def note(stages: Sequence[Stage], *_: object, fail_fast: bool) -> int:
        (stage,) = stages
        request = stage([])
        assert isinstance(request, RunRequest)
        calls.append((request.ranks, fail_fast))
        return 3

    monkeypatch.setattr("commbench.cli.conduct.conduct", note)
    assert 3 == commbench(f"{command} -n 2 --backend mpi --out mine{option}").code
    assert [(2, bool(option))] == calls


@pytest.mark.parametrize(
    ("code", "status"), [(3, "partial"), (130, "interrupted"), (0, "cut"), (0, "complete")]
)
def test_why_a_run_did_not_finish_is_on_stderr(
    commbench: Command, monkeypatch: pytest.MonkeyPatch, code: int, status: str
) -> None:
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


def test_without_training_collectives_have_all_of_the_time(
    commbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give collectives the whole time limit if training is unavailable."""
    limits: list[float | None] = []

    def note(stages: Sequence[Stage], *_: object, **__: object) -> int:
        limits.extend(request.time_limit_s for stage in stages if (request := stage([])))
        return 0

    monkeypatch.setattr("commbench.cli.conduct.conduct", note)
    monkeypatch.setattr("commbench.cli.measure.unusable_reason", lambda _: "No torch.")
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
def test_a_command_that_is_ended_leaves_no_child(number: signal.Signals) -> None:
    """End child processes on a signal, and exit with 128 plus its number."""
    command = [sys.executable, "-c", WAITING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout
        child = int(waiting.stdout.readline())
        waiting.send_signal(number)
        assert 128 + number == waiting.wait(60)
    assert wait_until(lambda: has_ended(child))


def make_settings(**changes: Any) -> Settings:
    """Return the settings of a command without options."""
    fields = {
        **dict.fromkeys(("ranks", "time_limit", "out", "hostfile", "launcher", "seed", "role")),
        **dict.fromkeys(("launcher_arg", "ranks_per_node", "bind_to", "interface")),
        **dict.fromkeys(("oversubscribe", "fail_fast", "dry_run"), False),
        "case_timeout": 60.0,
        "style": "table",
    }
    return Settings(**{**fields, **changes})


def test_a_task_is_concluded_before_it_is_printed(
    commbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plan for the given ranks, and run the task's conclusion before the run is closed."""
    out = commbench.home / "mine"
    monkeypatch.setattr("commbench.cli.conduct.conduct", lambda *_, **__: 0)

    def plan(place: Place) -> Task:
        assert Place(ranks=2, ranks_here=2) == place
        request = make_request([make_case()], ranks=place.ranks)
        return Task(
            name="mine",
            requests=[request],
            stages=single_stage(request),
            left_out=["No GPU."],
            conclude=lambda store: store.update(concluded=True),
        )

    assert 0 == carry_out(make_settings(out=out), plan)
    assert load_run(out).info["concluded"]


def test_a_dry_run_lists_every_stage_that_is_known(
    commbench: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """List the cases and the extent of every planned stage, and write nothing."""

    def plan(place: Place) -> Task:
        requests = [
            make_request([make_case(message_bytes=8 * size)], ranks=place.ranks, launches=size)
            for size in (1, 2)
        ]
        return Task(name="mine", requests=requests, stages=[], seconds=90.0)

    assert 0 == carry_out(make_settings(dry_run=True, out=commbench.home / "mine"), plan)
    *cases, closing = capsys.readouterr().out.splitlines()
    assert ["mpi all_reduce 8 B float32 sum", "mpi all_reduce 16 B float32 sum"] == cases
    assert closing.startswith(
        "1 case on 2 ranks in 1 launch, then 1 case on 2 ranks in 2 launches, about 1"
    )
    assert not (commbench.home / "mine").exists()


def test_the_seed_of_a_run_is_kept(commbench: Command) -> None:
    """Use the given seed, else the seed of the resumed run, else none."""
    with Store.open(commbench.home / "mine", make_info(seed=7)):
        pass
    resumed = {"out": commbench.home / "mine"}
    seeds = [
        make_settings(**changes).seed_or_resumed()
        for changes in ({}, {"seed": 5}, resumed, {**resumed, "seed": 5})
    ]
    assert [None, 5, 7, 5] == seeds


def make_mixed(path: Path, *, collectives: bool) -> None:
    """Write a run with training and optionally collectives."""
    cases = [
        TrainingCase(workload="tiny", world_size=2, batch_per_rank=8, hook=hook)
        for hook in ("none", "fp16")
    ]
    with Store.open(path, make_info(status="complete")) as store:
        for record in [make_record()] if collectives else []:
            store.append(record)
        for case in cases:
            store.append(
                TrainingRecord(case=case, launch=0, step_ms=[5.0, 6.0, 7.0], block_lengths=[3])
            )
        write_tables(store)


@pytest.mark.parametrize(("collectives", "file"), [(False, "ddp.csv"), (True, "collectives.csv")])
def test_a_report_shows_training(commbench: Command, *, collectives: bool, file: str) -> None:
    """Print training results, next to collectives if there are any."""
    make_mixed(commbench.home / "mine", collectives=collectives)
    outcome = commbench("report mine")
    assert (0, "") == (outcome.code, outcome.err)
    assert ("fp16" in outcome.out, "all_reduce" in outcome.out) == (True, collectives)
    assert f"Results: mine/{file}" in outcome.out
    assert "Not finished" not in outcome.out


def test_training_is_printed_as_csv_and_not_as_other_tools_do(commbench: Command) -> None:
    """Print collectives.csv, then ddp.csv; report that training has no OSU format."""
    make_mixed(commbench.home / "trained", collectives=False)
    make_mixed(commbench.home / "both", collectives=True)
    assert (commbench.home / "trained" / "ddp.csv").read_text() == commbench(
        "report trained --format csv"
    ).out
    lines = commbench("report both --format csv").out.splitlines()
    assert {0: ",".join(COLUMNS), 3: ",".join(DDP_COLUMNS)} == {
        number: lines[number] for number in (0, 3)
    }
    assert "have no place in this format" in commbench("report trained --format osu").out


@pytest.mark.parametrize(
    "line", ["run -- true", "up", "exec -- true", "status", "link host0 down", "down", "down --all"]
)
def test_every_lab_command_needs_root(
    commbench: Command, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """Refuse lab commands without root in one sentence, with the command to use."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    outcome = commbench(f"lab {line}")
    sentence = (
        "commbench: An emulated cluster needs root and this is user 1000; "
        'put sudo env PATH="$PATH" before the command.\n'
    )
    assert (2, "", sentence) == (outcome.code, outcome.out, outcome.err)


def test_a_lab_runs_what_follows_the_dashes(
    commbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the command after the dashes unchanged, and return its exit code."""
    calls: list[Any] = []

    def note(plan: LabPlan, command: Sequence[str], name: str | None) -> int:
        calls.append((plan, list(command), name))
        return 7

    monkeypatch.setattr("commbench.cli.lab.run_in_lab", note)
    shape = (
        "--ranks-per-host 2 --slow host1=1mbit --slow host2=none --racks 3 --uplink none --name"
        " mine"
    )
    assert (
        7
        == commbench(
            f"lab run --hosts 3 --rate 200mbit {shape} -- commbench bench -n 6 --seed 1"
        ).code
    )
    slow = ["host1=1mbit", "host2=none"]
    plan = LabPlan.parse(3, "200mbit", ranks_per_host=2, slow=slow, racks=3, uplink="none")
    assert [(plan, ["commbench", "bench", "-n", "6", "--seed", "1"], "mine")] == calls


def test_cadences_and_buffers_are_axes_of_a_run(commbench: Command) -> None:
    """List every cadence and buffer mode, and refuse an unknown one in one sentence."""
    outcome = commbench(
        "run -c all_reduce --backend mpi --sizes 8 -n 2 --cadence isolated,pipelined --buffers"
        " hot,rotated --dry-run"
    )
    assert (0, "") == (outcome.code, outcome.err)
    named = [f"mpi all_reduce 8 B float32 sum{words}" for words in ("", " pipelined")]
    assert [
        name + words for name in named for words in ("", " in rotated buffers")
    ] == outcome.out.splitlines()[:4]
    outcome = commbench("run -c all_reduce --backend mpi --sizes 8 -n 2 --cadence slow --dry-run")
    assert (2, "") == (outcome.code, outcome.out)
    assert (
        "Unknown cadence 'slow'; choose from isolated, pipelined, graph, persistent." in outcome.err
    )
