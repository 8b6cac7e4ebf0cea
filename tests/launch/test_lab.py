"""Tests of the emulated cluster: its hosts, programs on them, and cleanup."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from builders import read_rows
from labs import (
    COUNTER,
    LAB,
    ON,
    SECONDS,
    finish,
    is_left,
    mark,
    sh,
    start,
    start_in_terminal,
    wait_for_line,
)
from launching import find_marked, wait_until

from commbench.launch.lab import run_in_lab
from commbench.launch.lab.plan import DIRECTORY, LabPlan
from commbench.launch.lab.visit import PASSED_ON

__all__ = ["mark"]  # a fixture

pytestmark = pytest.mark.lab


@pytest.mark.usefixtures("mark")
def test_hosts_know_themselves_and_each_other() -> None:
    """Give each host a name, an address and the others' names; keep the working directory."""
    line = "hostname; pwd; ls /sys/class/net; ip -4 -br address show eth0; getent hosts host2"
    output = sh(f"{line}; {ON} -x root@host1 '{line}'; cat $COMMBENCH_HOSTFILE", hosts=3)
    host0, host1, hostfile = (
        output[: output.index("host1\n")],
        output[output.index("host1\n") :],
        output[-42:],
    )
    for index, text in enumerate((host0, host1)):
        assert [f"host{index}", str(Path.cwd()), "eth0", "lo"] == text.split()[:4]
        assert f" UP 10.99.0.{index + 1}/16 10.99.0.3 host2 " in " ".join(text.split()) + " "
    assert "host0 slots=1\nhost1 slots=1\nhost2 slots=1\n" == hostfile


def test_hosts_share_files_but_no_memory_and_no_network_with_the_machine(
    mark: str, tmp_path: Path
) -> None:
    """Isolate /dev/shm and /etc/hosts of each host from the others and the machine."""
    name, before = (
        f"/dev/shm/{mark}",  # noqa: S108 - what the test is about
        Path("/etc/hosts").read_text(),
    )
    output = sh(
        f"touch {name} {tmp_path}/file; {ON} host1 'ls {name} {tmp_path}'; ip route; ls {name}"
    )
    assert ["file", "10.99.0.0/16", name] == [output.split()[at] for at in (1, 2, -1)], output
    assert not Path(name).exists()
    assert before == Path("/etc/hosts").read_text()


@pytest.mark.mpi
@pytest.mark.usefixtures("mark")
def test_ranks_on_emulated_hosts_meet_over_the_link(tmp_path: Path) -> None:
    """Find the hosts without options, and measure over TCP at most the link's rate."""
    out = tmp_path / "run"
    options = (
        "--collective",
        "bandwidth",
        "--sizes",
        "64K",
        "--backend",
        "mpi",
        "--sync",
        "dissemination",
    )
    more_options = ("--launches", "1", "--launcher", "mpirun", "--out", str(out))
    output = finish(
        start(sys.executable, "-m", "commbench", "run", *options, *more_options, rate="1gbit")
    )
    run = json.loads((out / "run.json").read_text())
    assert (2, 2) == (run["world_size"], run["nodes"]), output
    assert ["host0", "host1"] == [rank["host"] for rank in run["ranks"]]
    (row,) = read_rows(out)
    assert ("ok", "tcp") == (row["status"], row["transport"])
    assert 0.5 < float(row["algbw_GBps"]) / 0.125 < 1.05


@pytest.mark.usefixtures("mark")
@pytest.mark.parametrize(("line", "code"), [("exit 7", 7), ("kill -KILL $$", 137), ("true", 0)])
def test_the_exit_code_is_the_commands(line: str, code: int) -> None:
    """Exit with the command's code, or 128 plus a signal's number."""
    process = start("sh", "-c", line)
    process.communicate(timeout=SECONDS)
    assert code == process.returncode


@pytest.mark.usefixtures("mark")
def test_the_command_has_our_streams() -> None:
    """Connect the command to stdin, stdout and stderr."""
    process = start("cat", stdin=subprocess.PIPE)
    assert ("word", "") == process.communicate("word", timeout=SECONDS)


@pytest.mark.usefixtures("mark")
def test_an_unknown_host_is_not_reached() -> None:
    """Fail with ssh's exit code and a sentence for an unknown host."""
    assert "255\nthere is no emulated host 'host9'\n" in sh(
        f"{ON} host9 true 2> /run/commbench-lab/said; echo $?; cut -d: -f2- /run/commbench-lab/said"
        " | cut -c2-"
    )


@pytest.mark.usefixtures("mark")
def test_a_machine_whose_tc_fails_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Exit with 2 and quote the error of tc."""
    (tmp_path / "tc").write_text(
        "#!/bin/sh\necho 'Error: Specified qdisc kind is unknown.' >&2\nexit 1\n"
    )
    (tmp_path / "tc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    process = start("true", rate="1gbit")
    _, errors = process.communicate(timeout=SECONDS)
    assert 2 == process.returncode
    assert "tc -batch -` said: Error: Specified qdisc kind is unknown; it takes root" in errors
    assert 1 == len(errors.splitlines())


# ---------------------------------------------------------------------------------- nothing is left


def test_daemons_end_with_the_command(mark: str) -> None:
    """End daemons on all hosts when the command exits."""
    assert "bye\n" == sh(
        f"setsid sleep 987 > /dev/null & {ON} host1 'setsid sleep 987 > /dev/null 2>&1 &'; echo bye"
    )
    assert wait_until(lambda: not find_marked(mark))


@pytest.mark.usefixtures("mark")
def test_a_lab_can_be_ended_while_it_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Exit at once on SIGTERM while ip hangs, with the code for it."""
    (tmp_path / "ip").write_text(f"#!/bin/sh\ntouch {tmp_path}/building\nexec sleep 987\n")
    (tmp_path / "ip").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    process = start("true")
    assert wait_until((tmp_path / "building").exists)
    process.terminate()
    process.communicate(timeout=SECONDS)
    assert 143 == process.returncode


@pytest.mark.usefixtures("mark")
def test_keys_reach_the_command_once() -> None:
    """Pass Ctrl-C in a terminal to the command once, and wait for it."""
    command = [sys.executable, "-c", COUNTER]
    process, terminal = start_in_terminal(
        *LAB, "run", "--rate", "none", "--", *command, stdout=subprocess.PIPE
    )
    wait_for_line(process, "there")
    os.write(terminal, b"\x03")
    wait_for_line(process, "seen 1")
    process.send_signal(signal.SIGUSR1)
    wait_for_line(process, "seen 2")
    process.terminate()
    process.communicate(timeout=SECONDS)
    os.close(terminal)
    assert 12 == process.returncode


def test_a_killed_lab_leaves_no_process_and_its_directory_to_the_next(mark: str) -> None:
    """End all processes of a killed lab; the next lab removes its directory."""
    process = start("sh", "-c", f"{ON} host1 'sleep 987 &'; echo there; sleep 987")
    wait_for_line(process, "there")
    process.kill()
    process.communicate(timeout=SECONDS)
    assert wait_until(lambda: not find_marked(mark))
    assert [] == list(DIRECTORY.iterdir())
    assert "next\n" == sh("echo next")
    assert not is_left()


@pytest.mark.usefixtures("mark")
def test_labs_at_once_do_not_meet() -> None:
    """Run two labs with equal names and addresses independently."""
    first = start("cat", stdin=subprocess.PIPE)
    assert "one\n" == sh("echo one > /run/commbench-lab/file; cat /run/commbench-lab/file")
    second = start("sh", "-c", f"{ON} host1 hostname; ls /run/commbench-lab")
    assert "agent\nhostfile\nhosts\npids\nplan\nsys\n" == finish(second).replace("host1\n", "", 1)
    assert ("two", "") == first.communicate("two", timeout=SECONDS)


@pytest.mark.usefixtures("mark")
def test_called_from_python_the_lab_gives_signal_handlers_back() -> None:
    """Restore the signal handlers after a lab in this process."""
    before = [signal.getsignal(number) for number in PASSED_ON]
    assert 3 == run_in_lab(LabPlan.parse(1, "none"), ["sh", "-c", "exit 3"])
    assert before == [signal.getsignal(number) for number in PASSED_ON]
