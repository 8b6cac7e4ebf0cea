"""Tests of ``commbench tune -- COMMAND``: refusals, start, signals, output and exit codes."""

import contextlib
import dataclasses
import errno
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from builders import make_info
from commands import clear_of_launchers
from labs import start_in_terminal

from commbench.live import command as live_command
from commbench.live.command import SITE, attach_to, name_of
from commbench.live.options import VARIABLE, LiveOptions
from commbench.results import Store
from commbench.system.software import git_commit

pytestmark = pytest.mark.programs

#: Prints what it has got of each signal, until SIGUSR2 ends it.
COUNTER = """
import os, signal, sys, time
got = []
def note(number, _):
    got.append(number)
    os.write(1, b"got %d\\n" % number)  # print raises if it interrupts another print
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, note)
os.write(1, b"up\\n")
while signal.SIGUSR2 not in got:
    time.sleep(0.01)
print("all", *map(int, got), flush=True)
sys.exit(9)
"""
COUNTING = (sys.executable, "-c", COUNTER)
NOTHING = "Nothing was tuned"
#: A command that starts another one, waits for it, and goes on waiting at a signal.
SHELL = ("sh", "-c", 'trap : INT TERM HUP USR1 USR2; "$@"; exit $?', "sh")


@pytest.fixture
def options(tmp_path, monkeypatch):
    """Return options of a tuning with results below the test's directory."""
    clear_of_launchers(monkeypatch)
    return LiveOptions(out=str(tmp_path / "out"), workload="train.py")


def conductor(options: LiveOptions, *command: str) -> list[str]:
    """Return the command of a process that tunes another command."""
    script = f"""
import sys
from commbench.live.command import attach_to
from commbench.live.options import LiveOptions
sys.exit(attach_to({command!r}, LiveOptions(out={options.out!r}, workload="c")))
"""
    return [sys.executable, "-c", script]


def make_run(path: Path, **plan: object) -> None:
    """Write the directory of an empty run."""
    with Store.open(path, {**make_info(), "plan": plan}):
        pass


# ----------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("command", "plan", "words"),
    [
        ("tune", {"cases": 3}, "holds a run that commbench tune -- COMMAND did not write"),
        (
            "tune",
            {"live": True, "workload": "other.py"},
            "/held holds results of other.py, and this is true",
        ),
        (
            "tune",
            {"live": True, "watch": True, "workload": "true"},
            "that commbench tune -- COMMAND did not write",
        ),
        (
            "watch",
            {"live": True, "workload": "true"},
            "holds a run that commbench watch -- COMMAND did not write",
        ),
    ],
)
def test_a_directory_of_another_run_is_refused(commbench, command, plan, words):
    """Refuse the directory of another type of run or training, and leave it unchanged."""
    make_run(commbench.home / "held", **plan)
    before = commbench.files()
    outcome = commbench(f"{command} --out held -- true")
    assert 2 == outcome.code
    assert words in outcome.err
    assert before == commbench.files()


def test_a_deleted_working_directory_is_bad_input(commbench, monkeypatch):
    """Refuse in a sentence to write below a directory that is no longer there."""
    place = commbench.home / "deleted"
    place.mkdir()
    monkeypatch.chdir(place)
    place.rmdir()
    commbench.refuses("tune -- true", "cannot be used (No such file or directory)")


@pytest.fixture
def noted(commbench, monkeypatch):
    """Return ``noted(line)``: the options that a command line passes on, without starting it."""

    def run(line: str) -> LiveOptions:
        handed = []
        attach = "commbench.cli.tune.attach_to"
        monkeypatch.setattr(attach, lambda _, options: handed.append(options) or 0)
        outcome = commbench(line)
        assert (0, "") == (outcome.code, outcome.err)
        return handed[0]

    return run


TUNE = (
    "tune --bucket-cap-mb 5,1+25 --allow none,topk --steps 9 --time-limit 8 --then stop --seed 7"
    " --accept-loss --out of/o -- true -- --seed 1"
)


@pytest.mark.parametrize(
    ("line", "out", "expected"),
    [
        (
            "tune -- true path/to/my_train.py --out 3",
            "-tune-my_train-",
            {"mode": "tune", "allow": ("none",), "bucket_cap_mb": (), "workload": "my_train.py"},
        ),
        (
            TUNE,
            "/of/o",
            {
                "bucket_cap_mb": ("5", "1+25"),
                "allow": ("none", "topk:0.01"),
                "steps": 9,
                "time_limit_s": 8,
                "then": "stop",
                "seed": 7,
                "accept_loss": True,
            },
        ),
        (
            "watch -- true my_train.py",
            "-watch-my_train-",
            {"mode": "watch", "steps": None, "time_limit_s": None, "then": "go-on"},
        ),
        (
            "watch --steps 9 --time-limit 8 --then stop --out of/o -- true -- --steps 1",
            "/of/o",
            {"steps": 9, "time_limit_s": 8, "then": "stop"},
        ),
    ],
)
def test_options_are_handed_on(noted, line, out, expected):
    """Parse every option before the separator, and none after it; name the directory by the
    script.
    """
    options = noted(line)
    assert expected == {name: getattr(options, name) for name in expected}
    assert out in options.out
    assert Path(options.out).is_absolute()
    assert ["commbench", *line.split()] == [*options.argv]
    assert git_commit(SITE.parent) == options.git_commit


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("torchrun --nproc-per-node 2 train.py --config other.py", "train.py"),
        ("python -m torch.distributed.run -m package.train --lr 1", "package.train"),
        ("accelerate launch --config_file a.yaml --module package.train", "package.train"),
        ("mpirun -n 2 python -m mpi4py train.py", "train.py"),
        ("bash jobs/train.sh 3", "train.sh"),
        ("./train 3", "train"),
    ],
)
def test_a_training_is_named_by_its_script(line, name):
    """Name a training by the script or module behind launchers, else by the program."""
    assert name == name_of(line.split())


# ------------------------------------------------------------------------------------------- output


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill $$", 143)])
def test_the_exit_code_is_that_of_the_command(options, capfd, script, code):
    """Return the command's code, or 128 plus its signal.

    Report in one line that nothing was tuned.
    """
    assert code == attach_to(["sh", "-c", script], options)
    out, err = capfd.readouterr()
    assert not out
    assert 1 == len(err.splitlines())
    assert NOTHING in err


def test_the_exit_code_is_known_although_children_are_ignored(options):
    """Return the command's code if the parent process has left SIGCHLD ignored, in both."""
    script = "import signal, sys; sys.exit(7 if signal.getsignal(signal.SIGCHLD) else 3)"
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert 7 == attach_to([sys.executable, "-S", "-c", script], options)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_command_without_a_locale_gets_none(options, capfd):
    """Keep the variable to this process that Python sets where there is no locale."""
    environment = {"PATH": os.environ["PATH"]}
    subprocess.run(conductor(options, "env"), env=environment, timeout=60, check=True)
    assert "LC_CTYPE" not in capfd.readouterr().out


def test_a_command_may_be_longer_than_a_variable_of_the_environment(options):
    """Start a command of more than the 128 KiB that Linux allows in a variable."""
    command = ["sh", "-c", "exit 5", *(f"/data/shards/training-{n:06}.tar" for n in range(5000))]
    options = dataclasses.replace(options, argv=("commbench", "tune", "--", *command))
    assert 5 == attach_to(command, options)
    argv = LiveOptions.loads(options.dumps()).argv
    assert options.argv[:50] == argv[:50]
    assert "..." == argv[-1]


def test_output_and_input_pass_through_to_the_byte(tmp_path, options):
    """Copy all bytes from stdin to stdout, and print nothing of our own there."""
    data = bytes(range(256)) * 300
    words = conductor(options, "cat")
    done = subprocess.run(words, input=data, capture_output=True, timeout=60, check=False)
    assert (0, data) == (done.returncode, done.stdout)
    assert not (tmp_path / "out").exists()


def test_the_command_inherits_open_files(options, capfd):
    """Let the command read a file that the shell has opened for it, as of ``<(...)``."""
    reader, writer = os.pipe()
    os.write(writer, b"a list\n")
    os.close(writer)
    os.set_inheritable(reader, True)  # noqa: FBT003 - its only argument
    try:
        assert 0 == attach_to(["cat", f"/dev/fd/{reader}"], options)
    finally:
        os.close(reader)
    assert "a list\n" == capfd.readouterr().out


def test_a_command_that_cannot_be_executed_is_bad_input(commbench):
    """Refuse a file that is not executable with the system's reason."""
    program = commbench.home / "broken"
    program.write_text("no program")
    program.chmod(0o755)
    outcome = commbench(f"tune --out o -- {program}")
    assert 2 == outcome.code
    assert "cannot be started (Exec format error)" in outcome.err


def test_a_failure_to_conclude_leaves_the_exit_code(options, monkeypatch, capfd):
    """Report in a line what failed after the training, and return the training's code."""

    def fail(_: LiveOptions) -> list[str]:
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(live_command, "complete", fail)
    assert 4 == attach_to(["sh", "-c", "exit 4"], options)
    assert "could not be completed: [Errno 5] the disk is gone" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_behind_the_command_leaves_the_exit_code(options, monkeypatch, capfd, number):
    """Return the code of a training that a first signal has ended in order."""
    monkeypatch.setattr(live_command, "complete", lambda _: signal.raise_signal(number))
    assert 4 == attach_to(["sh", "-c", "exit 4"], options)
    assert "because a signal came" in capfd.readouterr().err


# ------------------------------------------------------------------------------- unwritable results


def test_an_unwritable_directory_leaves_the_training_untouched(options, monkeypatch, capfd):
    """Start the command unchanged if the directory is unwritable, and report it in one line."""
    reason = os.strerror(errno.ENOSPC)

    def refuse(**_: object) -> None:
        raise OSError(errno.ENOSPC, reason)

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert 6 == attach_to(["sh", "-c", f'echo "<${VARIABLE}>"; exit 6'], options)
    out, err = capfd.readouterr()
    assert "<>\n" == out
    line = (
        f"commbench: the training is not tuned, because --out {options.out} cannot be written"
        f" ({reason})."
    )
    assert [line] == err.splitlines()


def test_a_host_without_a_temporary_directory_trains_untouched(options, monkeypatch, capfd):
    """Start the command if nothing can be made in any temporary directory, and say so in a line."""

    def refuse(**_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory")

    monkeypatch.setattr("tempfile.TemporaryDirectory", refuse)
    assert 6 == attach_to(["sh", "-c", "exit 6"], options)
    (line,) = capfd.readouterr().err.splitlines()
    assert "is not tuned, because it needs a temporary directory" in line


def test_a_host_whose_command_does_not_conclude_has_no_witness(started):
    """Let rank 0 write its tables if the command beside it is not the first of several."""
    slurm = {"PROCID": "3", "STEP_ID": "0", "STEP_NUM_TASKS": "4", "LOCALID": "0"}
    environ = {f"SLURM_{name}": value for name, value in slurm.items()}
    _, environment = started(["true"], **environ)
    assert "" == LiveOptions.loads(environment[VARIABLE]).witness


# -------------------------------------------------------------------------------------- environment


@pytest.fixture
def started(monkeypatch, stub, tmp_path, options):
    """Return ``started(words, version=..., **environ)``: the command and the environment that would
    start, where the program of the command prints that version.
    """

    def run(
        words: Sequence[str], version: str = "", **environ: str
    ) -> tuple[list[str], dict[str, str]]:
        calls = []
        program = tmp_path / words[0]
        program.write_text(f"#!/bin/sh\necho '{version}'\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.delenv("PYTHONPATH", raising=False)
        monkeypatch.setattr(live_command, "run_command", lambda *started: calls.append(started))
        stub("commbench.live.command._conclude", None)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        attach_to(words, options)
        return calls[0]

    return run


def test_the_environment_reaches_the_ranks(started, options):
    """Put our directory before the person's PYTHONPATH, without an empty part."""
    words, environment = started(["true"])
    assert ["true"] == words
    assert str(SITE) == environment["PYTHONPATH"]
    reached = LiveOptions.loads(environment[VARIABLE])
    assert options == dataclasses.replace(reached, witness="")
    assert not Path(reached.witness).parent.exists()
    _, environment = started(["true"], PYTHONPATH="/own:/other")
    assert f"{SITE}:/own:/other" == environment["PYTHONPATH"]


OPEN_MPI = "mpirun (Open MPI) 5.0.5"
INTEL_MPI = "Intel(R) MPI Library for Linux* OS, Version 2021.13"
ADDED = f"-x PYTHONPATH -x {VARIABLE}"


@pytest.mark.parametrize(
    ("typed", "version", "started_as"),
    [
        ("mpirun -n 2 train.py", OPEN_MPI, f"mpirun {ADDED} -n 2 train.py"),
        (
            "mpirun.openmpi train.py",
            "mpirun.openmpi (OpenRTE) 4.1.2",
            f"mpirun.openmpi {ADDED} train.py",
        ),
        ("prterun train.py", "", f"prterun {ADDED} train.py"),
        ("mpiexec.hydra train.py", INTEL_MPI, "mpiexec.hydra train.py"),
        ("mpirun train.py", "a wrapper of the site", "mpirun train.py"),
        (
            "mpirun -x PYTHONPATH=/own -x OTHER train.py",
            OPEN_MPI,
            f"mpirun -x {VARIABLE} -x PYTHONPATH={SITE}:/own -x OTHER train.py",
        ),
        (
            "mpirun -x PYTHONPATH train.py -x",
            OPEN_MPI,
            f"mpirun -x {VARIABLE} -x PYTHONPATH train.py -x",
        ),
        ("srun --export=ALL,A=1 train.py", "", "srun --export=ALL,A=1 train.py"),
        ("srun --export=NONE train.py", "", f"srun --export=PYTHONPATH,{VARIABLE} train.py"),
        ("srun --export A,B=2 t.py", "", f"srun --export A,B=2,PYTHONPATH,{VARIABLE} t.py"),
        (
            "srun --export=A,PYTHONPATH=/own t.py",
            "",
            f"srun --export=A,PYTHONPATH={SITE}:/own,{VARIABLE} t.py",
        ),
        (
            "srun --export=ALL,PYTHONPATH=/own t.py",
            "",
            f"srun --export=ALL,PYTHONPATH={SITE}:/own t.py",
        ),
    ],
)
def test_launchers_carry_both_variables(started, typed, version, started_as):
    """Add -x only to Open MPI's launcher, extend a restrictive --export of srun, keep what a person
    forwards by herself, and put our directory first in an assigned PYTHONPATH.
    """
    words, _ = started(typed.split(), version=version)
    assert started_as.split() == words


def test_an_export_that_sbatch_was_given_is_widened(started):
    """Extend the variable by which an inner srun inherits --export."""
    _, environment = started(["true"], SLURM_EXPORT_ENV="NONE")
    assert f"PYTHONPATH,{VARIABLE}" == environment["SLURM_EXPORT_ENV"]


@pytest.mark.mpi
def test_a_real_mpirun_takes_the_options(
    options,
    monkeypatch,
    capfd,
    mpirun,
):
    """Start two processes by Open MPI that see both variables."""
    for name, value in mpirun.environment().items():
        monkeypatch.setenv(name, value)
    script = f'echo "${{PYTHONPATH%%:*}} ${{{VARIABLE}:+set}}"'
    words = [mpirun.path, "-n", "2", "--oversubscribe", "--bind-to", "none", "sh", "-c", script]
    assert 0 == attach_to(words, options)
    assert [f"{SITE} set"] * 2 == capfd.readouterr().out.splitlines()


# ------------------------------------------------------------------------------------------ signals


@contextlib.contextmanager
def counting(
    options: LiveOptions, outer: Sequence[str] = (), inner: Sequence[str] = ()
) -> Iterator["subprocess.Popen[str]"]:
    """Tune `COUNTER` without a terminal until it has started.

    A shell may start the conductor, and another one the counter.
    """
    process = subprocess.Popen(
        [*outer, *conductor(options, *inner, *COUNTING)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert "up\n" == process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("send", "outer", "inner"),
    [(os.kill, (), ()), (os.killpg, (), ()), (os.killpg, (), SHELL), (os.killpg, SHELL, SHELL)],
)
def test_each_signal_reaches_the_command_once(options, send, outer, inner):
    """Pass signals to the conductor to the command once; those to the group reach it without, and
    what the command has started.
    """
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
    with counting(options, outer, inner) as process:
        for number in numbers:
            send(process.pid, number)
            assert f"got {int(number)}\n" == process.stdout.readline()
        # communicate would not return what readline has read ahead
        last = process.stdout.readline()
        _, err = process.communicate(timeout=60)
    assert "all " + " ".join(str(int(number)) for number in numbers) == last.strip()
    assert 9 == process.returncode
    assert NOTHING in err


def test_a_signal_before_the_command_starts_reaches_it(options, monkeypatch):
    """Keep a signal that comes too early for the command."""
    start = subprocess.Popen

    def start_late(*words: Any, **settings: Any) -> Any:
        os.kill(os.getpid(), signal.SIGUSR1)
        return start(*words, **settings)

    monkeypatch.setattr("commbench.live.command.subprocess.Popen", start_late)
    assert 128 + signal.SIGUSR1 == attach_to(["sleep", "30"], options)


@pytest.mark.parametrize(("send", "inner"), [(os.kill, ()), (os.killpg, SHELL)])
def test_the_command_ends_with_a_conductor_that_is_killed(options, send, inner):
    """End the training if the conductor is killed, and all processes if its group is."""
    with counting(options, inner=inner) as process:
        send(process.pid, signal.SIGKILL)
        out, _ = process.communicate(timeout=60)
        assert "" == out


def test_ctrl_c_in_a_terminal_reaches_the_command_once(options):
    """Deliver Ctrl-C in a terminal once, and let the command choose how it ends."""
    process, typed = start_in_terminal(*conductor(options, *COUNTING))
    shown = b""

    def wait_for(text: bytes) -> None:
        nonlocal shown
        end = time.monotonic() + 60
        while text not in shown and time.monotonic() < end:
            with contextlib.suppress(OSError):  # the terminal has closed
                shown += os.read(typed, 4096)
        assert text in shown

    wait_for(b"up")
    os.write(typed, b"\x03")
    wait_for(b"got 2")
    process.send_signal(signal.SIGUSR2)
    wait_for(b"all 2 12")
    wait_for(NOTHING.encode())
    assert 9 == process.wait(60)
    os.close(typed)
