"""Tests of the emulated cluster: its plan, its refusals, its hosts and links, and that it leaves nothing behind."""

import csv
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import termios
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from launching import MARK, find_marked, wait_until

from commbench.errors import InputError
from commbench.lab import cluster, run_in_lab
from commbench.lab.network import shape_command
from commbench.lab.plan import LabPlan, format_rate, parse_rate

LAB = (sys.executable, "-m", "commbench", "lab", "run")
SECONDS = 120
#: What a program in the lab uses to start a shell line on another host.
ON = "$COMMBENCH_SSH"

needs_namespaces = pytest.mark.lab


# ---------------------------------------------------------------------------------------------------- without a lab


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1gbit", 10**9), ("200mbit", 2 * 10**8), ("2.5Gbit", 25 * 10**8), ("1500 kbit", 1_500_000), ("none", None)],
)
def test_rates_are_bits_per_second(text: str, expected: int | None) -> None:
    """Read rates as tc does, and write them so that they are read back."""
    assert expected == parse_rate(text)
    assert expected == parse_rate(format_rate(expected))


@pytest.mark.parametrize("text", ["", "1", "1gb", "gbit", "-1gbit", "1e3mbit", "999kbit", "101gbit", "0gbit"])
def test_other_rates_are_refused(text: str) -> None:
    """Say what was asked and how to write a rate."""
    with pytest.raises(InputError, match=rf"^The rate '{text}' .*; write a rate such as 1gbit or 200mbit .*\.$"):
        parse_rate(text)


def test_hosts_have_names_addresses_and_slots() -> None:
    """Give every host its own, and list them for programs and launchers; nothing is lost on the way inside."""
    plan = LabPlan.uniform(200, "1gbit", ranks_per_host=2)
    assert 200 == len({host.name for host in plan.hosts}) == len({host.address for host in plan.hosts})
    assert ["127.0.0.1 localhost", "10.99.0.1 host0", "10.99.0.2 host1"] == plan.hosts_file().splitlines()[:3]
    assert ["host0 slots=2", "host1 slots=2"] == plan.hostfile().splitlines()[:2]
    assert plan == LabPlan.from_json(plan.to_json())


@pytest.mark.parametrize(
    ("hosts", "ranks", "sentence"),
    [
        (0, 1, r"^0 emulated hosts were asked for; choose from 1 to 200\.$"),
        (201, 1, r"^201 emulated hosts were asked for; choose from 1 to 200\.$"),
        (2, 0, r"^0 ranks per host were asked for; choose 1 or more\.$"),
    ],
)
def test_impossible_numbers_are_refused(hosts: int, ranks: int, sentence: str) -> None:
    """Say what was asked and what there is to choose from."""
    with pytest.raises(InputError, match=sentence):
        LabPlan.uniform(hosts, "1gbit", ranks_per_host=ranks)


def test_programs_are_led_to_the_emulated_links() -> None:
    """Overrule the machine's own fabric and interfaces, forget its batch system, keep the rest."""
    environ = {"HOME": "/root", "SLURM_JOB_ID": "1", "GLOO_SOCKET_IFNAME": "ens5", "OMPI_MCA_pml": "ucx"}
    environment = LabPlan.uniform(2, "1gbit").environment(environ, Path("/lab"))
    expected = {"HOME": "/root", "GLOO_SOCKET_IFNAME": "eth0", "OMPI_MCA_pml": "ob1", "NCCL_IB_DISABLE": "1"}
    assert expected == {name: environment.get(name) for name in expected}
    assert "/lab/hostfile" == environment["COMMBENCH_HOSTFILE"]
    assert {"hosts": 2, "rate": "1gbit"} == json.loads(environment["COMMBENCH_EMULATED"])
    assert "SLURM_JOB_ID" not in environment


def test_bursts_follow_the_rate_within_bounds() -> None:
    """Let a millisecond pass at once, but always some packets and never a whole message."""
    bursts = [int(shape_command("eth0", rate).split()[9]) for rate in (10**6, 10**9, 10**11)]
    assert [16 * 1024, 125_000, 1024 * 1024] == bursts


def refuse(monkeypatch: pytest.MonkeyPatch, *, user: int = 0, missing: str = "", rate: str = "1gbit") -> str:
    """Return the sentence with which a machine like this refuses a lab."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == missing else f"/bin/{name}")
    with pytest.raises(InputError) as refused:
        run_in_lab(2, rate, ["absent"])
    return str(refused.value)


def test_a_machine_that_lacks_something_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name what is missing and what brings it; tc is needed for shaping only."""
    assert "needs root and this is user 1000; put sudo before" in refuse(monkeypatch, user=1000)
    assert "the program ip, which was not found; install iproute2." in refuse(monkeypatch, missing="ip")
    assert "the program tc, which was not found; install iproute2" in refuse(monkeypatch, missing="tc")
    assert "the program unshare, which was not found; install util-linux." in refuse(monkeypatch, missing="unshare")
    monkeypatch.setattr(cluster, "PROGRAMS", {})
    assert "'absent' was not found; give its path" in refuse(monkeypatch, missing="absent")


def test_no_command_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say where it goes."""
    monkeypatch.setattr(cluster, "_check_machine", lambda _: None)
    with pytest.raises(InputError, match="write it after --"):
        run_in_lab(2, "1gbit", [])


# ---------------------------------------------------------------------------------------------------------- in a lab


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Mark all processes started from here on; when done, no process, link or directory of a lab may be left."""
    links = psutil.net_if_addrs().keys()
    token = uuid.uuid4().hex
    monkeypatch.setenv(MARK, token)
    yield token
    assert wait_until(lambda: not find_marked(token)), find_marked(token)
    assert links == psutil.net_if_addrs().keys()
    assert not is_left()


def is_left() -> bool:
    """Whether the directory of labs is there although no lab lives."""
    try:
        handle = os.open(cluster.DIRECTORY, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
    except FileNotFoundError:
        return False
    except BlockingIOError:  # somebody else's lab
        os.close(handle)
        return False
    return True


def start(*command: str, hosts: int = 2, rate: str = "none", **options: object) -> "subprocess.Popen[str]":
    """Start a lab that runs the command."""
    arguments = [*LAB, "--hosts", str(hosts), "--rate", rate, "--", *command]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(arguments, text=True, **streams)  # type: ignore[call-overload,no-any-return]


def finish(process: "subprocess.Popen[str]") -> str:
    """Return what a lab wrote; it must have gone well."""
    output, errors = process.communicate(timeout=SECONDS)
    assert 0 == process.returncode, output + errors
    return output


def sh(line: str, **options: object) -> str:
    """Run a shell line on the first host of a lab; return what it wrote."""
    return finish(start("sh", "-c", line, **options))


@needs_namespaces
@pytest.mark.usefixtures("mark")
def test_hosts_know_themselves_and_each_other() -> None:
    """Give each host a name, an address and names of the others; a program stays in its directory."""
    line = "hostname; pwd; ls /sys/class/net; ip -4 -br address show eth0; getent hosts host2"
    output = sh(f"{line}; {ON} -x root@host1 '{line}'; cat $COMMBENCH_HOSTFILE", hosts=3)
    host0, host1, hostfile = output[: output.index("host1\n")], output[output.index("host1\n") :], output[-42:]
    for index, text in enumerate((host0, host1)):
        assert [f"host{index}", str(Path.cwd()), "eth0", "lo"] == text.split()[:4]
        assert f" UP 10.99.0.{index + 1}/16 10.99.0.3 host2 " in " ".join(text.split()) + " "
    assert "host0 slots=1\nhost1 slots=1\nhost2 slots=1\n" == hostfile


@needs_namespaces
def test_hosts_share_files_but_no_memory_and_no_network_with_the_machine(mark: str, tmp_path: Path) -> None:
    """Write under /dev/shm of one host: neither the others nor the machine see it; /etc/hosts stays as it was."""
    name, before = f"/dev/shm/{mark}", Path("/etc/hosts").read_text()  # noqa: S108 - what the test is about
    output = sh(f"touch {name} {tmp_path}/file; {ON} host1 'ls {name} {tmp_path}'; ip route; ls {name}")
    assert ["file", "10.99.0.0/16", name] == [output.split()[at] for at in (1, 2, -1)], output
    assert not Path(name).exists()
    assert before == Path("/etc/hosts").read_text()


@needs_namespaces
@pytest.mark.usefixtures("mark")
def test_links_have_the_rate_in_each_direction() -> None:
    """Send to two hosts at once, then receive from both: all of it passes one link of 200 Mbit/s; unshaped, faster."""
    program = [sys.executable, str(Path(__file__).parent / "ranks" / "two_flows.py")]
    shaped = json.loads(finish(start(*program, hosts=3, rate="200mbit")))
    unshaped = json.loads(finish(start(*program, hosts=3, rate="none")))
    for direction in ("out", "in"):
        assert 100 < shaped[direction] < 210, shaped
        assert 420 < unshaped[direction], unshaped


@needs_namespaces
@pytest.mark.mpi
@pytest.mark.usefixtures("mark")
def test_ranks_on_emulated_hosts_meet_over_the_link(tmp_path: Path) -> None:
    """Let the conductor find the hosts by itself: two nodes, TCP between them, and no more than the link's rate."""
    out = tmp_path / "run"
    what = ("--collective", "bandwidth", "--sizes", "64K", "--backend", "mpi", "--sync", "dissemination")
    how = ("--launches", "1", "--launcher", "mpirun", "--out", str(out))
    output = finish(start(sys.executable, "-m", "commbench", "run", *what, *how, rate="1gbit"))
    run = json.loads((out / "run.json").read_text())
    assert (2, 2) == (run["world_size"], run["nodes"]), output
    assert ["host0", "host1"] == [rank["host"] for rank in run["ranks"]]
    (row,) = csv.DictReader((out / "collectives.csv").read_text().splitlines())
    assert ("ok", "tcp") == (row["status"], row["transport"])
    assert 0.5 < float(row["algbw_GBps"]) / 0.125 < 1.05


@needs_namespaces
@pytest.mark.usefixtures("mark")
@pytest.mark.parametrize(("line", "code"), [("exit 7", 7), ("kill -KILL $$", 137), ("true", 0)])
def test_the_exit_code_is_the_commands(line: str, code: int) -> None:
    """Hand the code on, as a shell does for a signal."""
    process = start("sh", "-c", line)
    process.communicate(timeout=SECONDS)
    assert code == process.returncode


@needs_namespaces
@pytest.mark.usefixtures("mark")
def test_the_command_has_our_streams() -> None:
    """Let the command read and write as if there were no lab."""
    process = start("cat", stdin=subprocess.PIPE)
    assert ("word", "") == process.communicate("word", timeout=SECONDS)


@needs_namespaces
@pytest.mark.usefixtures("mark")
def test_an_unknown_host_is_not_reached() -> None:
    """Fail as ssh does, with a sentence."""
    assert "255\nthere is no emulated host 'host9'\n" in sh(
        f"{ON} host9 true 2> /run/commbench-lab/said; echo $?; cut -d: -f2- /run/commbench-lab/said | cut -c2-"
    )


@needs_namespaces
@pytest.mark.usefixtures("mark")
def test_a_machine_whose_tc_fails_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """End with the code for bad input and one sentence with tc's own words."""
    (tmp_path / "tc").write_text("#!/bin/sh\necho 'Error: Specified qdisc kind is unknown.' >&2\nexit 1\n")
    (tmp_path / "tc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    process = start("true", rate="1gbit")
    _, errors = process.communicate(timeout=SECONDS)
    assert 2 == process.returncode
    assert "tc -batch -` said: Error: Specified qdisc kind is unknown; it takes root" in errors
    assert 1 == len(errors.splitlines())


# ------------------------------------------------------------------------------------------------ nothing is left


@needs_namespaces
def test_daemons_end_with_the_command(mark: str) -> None:
    """Start processes on both hosts that leave their parents and outlive the command: nothing outlives the lab."""
    assert "bye\n" == sh(f"setsid sleep 987 > /dev/null & {ON} host1 'setsid sleep 987 > /dev/null 2>&1 &'; echo bye")
    assert wait_until(lambda: not find_marked(mark))


@needs_namespaces
@pytest.mark.usefixtures("mark")
def test_a_lab_can_be_ended_while_it_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Send SIGTERM while ip hangs: the lab ends at once, with the code for it."""
    (tmp_path / "ip").write_text(f"#!/bin/sh\ntouch {tmp_path}/building\nexec sleep 987\n")
    (tmp_path / "ip").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    process = start("true")
    assert wait_until((tmp_path / "building").exists)
    process.terminate()
    process.communicate(timeout=SECONDS)
    assert 143 == process.returncode


def wait_for_line(process: "subprocess.Popen[str]", expected: str) -> None:
    """Wait until a lab's command has written a line."""
    assert process.stdout is not None
    assert expected == process.stdout.readline().strip()


#: Says when it is there, then counts signals until it is told to end.
COUNTER = """
import signal, sys
awaited = {signal.SIGINT, signal.SIGUSR1, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
seen = 0
print("there", flush=True)
while signal.sigwait(awaited) != signal.SIGTERM:
    seen += 1
    print("seen", seen, flush=True)
sys.exit(10 + seen)
"""


def heed_interrupts() -> None:
    """Undo what a shell does to its background jobs: they, and the tests among them, ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@needs_namespaces
@pytest.mark.usefixtures("mark")
def test_signals_are_passed_on() -> None:
    """Send signals to the lab: its command gets each once and chooses the exit code."""
    process = start(sys.executable, "-c", COUNTER, start_new_session=True, preexec_fn=heed_interrupts)
    wait_for_line(process, "there")
    for count, number in enumerate((signal.SIGINT, signal.SIGUSR1), start=1):
        process.send_signal(number)
        wait_for_line(process, f"seen {count}")
    process.terminate()
    process.communicate(timeout=SECONDS)
    assert 12 == process.returncode


@needs_namespaces
@pytest.mark.usefixtures("mark")
def test_keys_reach_the_command_once() -> None:
    """Press Ctrl-C in a terminal that the lab runs in: the command gets one signal, and the lab waits for it."""
    ours, theirs = os.openpty()

    def take_terminal() -> None:
        heed_interrupts()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    process = start(sys.executable, "-c", COUNTER, stdin=theirs, start_new_session=True, preexec_fn=take_terminal)
    wait_for_line(process, "there")
    os.write(ours, b"\x03")
    wait_for_line(process, "seen 1")
    process.send_signal(signal.SIGUSR1)
    wait_for_line(process, "seen 2")
    process.terminate()
    process.communicate(timeout=SECONDS)
    os.close(ours)
    os.close(theirs)
    assert 12 == process.returncode


@needs_namespaces
def test_a_killed_lab_leaves_no_process_and_its_directory_to_the_next(mark: str) -> None:
    """Kill the lab outright: what ran in it ends by itself, and the next lab removes the directory."""
    process = start("sh", "-c", f"{ON} host1 'sleep 987 &'; echo there; sleep 987")
    wait_for_line(process, "there")
    process.kill()
    process.communicate(timeout=SECONDS)
    assert wait_until(lambda: not find_marked(mark))
    assert [] == list(cluster.DIRECTORY.iterdir())
    assert "next\n" == sh("echo next")
    assert not is_left()


@needs_namespaces
@pytest.mark.usefixtures("mark")
def test_labs_at_once_do_not_meet() -> None:
    """Run two labs side by side: the same names and addresses, but each has its own, and one may end first."""
    first = start("cat", stdin=subprocess.PIPE)
    assert "one\n" == sh("echo one > /run/commbench-lab/file; cat /run/commbench-lab/file")
    second = start("sh", "-c", f"{ON} host1 hostname; ls /run/commbench-lab")
    assert "agent\nhostfile\nhosts\npids\nsys\n" == finish(second).replace("host1\n", "", 1)
    assert ("two", "") == first.communicate("two", timeout=SECONDS)


@needs_namespaces
@pytest.mark.usefixtures("mark")
def test_called_from_python_the_lab_gives_signal_handlers_back() -> None:
    """Run a lab in this process; afterwards signals are handled as before."""
    before = [signal.getsignal(number) for number in cluster.PASSED_ON]
    assert 3 == run_in_lab(1, "none", ["sh", "-c", "exit 3"])
    assert before == [signal.getsignal(number) for number in cluster.PASSED_ON]
