"""Tests of emulated clusters: their hosts, commands on them, signals, links and their end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from fields import fields_of
from labs import (
    FLOWS,
    LAB,
    ON,
    SECONDS,
    begin,
    heed_interrupts,
    lab,
    mark,
    rates,
    running,
    start_in_terminal,
    wait_for_line,
)
from launching import find_marked, finished, wait_until

from commbench.launch.lab.labs import Lab, find_all, run_in_lab
from commbench.launch.lab.plan import LabPlan
from commbench.launch.signals import PASSED_ON

__all__ = ["mark"]  # a fixture

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("forks", "mark")]

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
#: Leaves processes on both hosts that outlive the line.
DAEMONS = f"setsid sleep 987 > /dev/null & {ON} host1 'setsid sleep 987 > /dev/null 2>&1 &'"


@pytest.fixture(scope="module")
def name():
    """Return a lab of two hosts on links without a rate, shared by tests that leave it as it is."""
    name = f"shared-{os.getpid()}"
    lab("up", "--rate", "none", "--name", name)
    yield name
    lab("down", name)


def is_up(name: str) -> bool:
    """Return whether there is a lab of a name."""
    return name in set(fields_of(find_all(), "name"))


def on(name: str, *words: str, host: str = "host0") -> list[str]:
    """Return the words that run a command on a host of a lab."""
    return ["exec", "--name", name, "--host", host, "--", *words]


def fake(folder: Path, program: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a shell script before a program on the PATH."""
    (folder / program).write_text(f"#!/bin/sh\n{text}\n")
    (folder / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_hosts_know_themselves_and_each_other():
    """Give each host a name, an address and the others' names; keep the working directory."""
    line = "hostname; pwd; ls /sys/class/net; ip -4 -br address show eth0; getent hosts host2"
    both = f"{line}; {ON} -x root@host1 '{line}'; cat $COMMBENCH_HOSTFILE"
    output = lab(*running("sh", "-c", both, hosts=3)).split()
    for index, text in enumerate((output[:9], output[9:18])):
        address = f"10.99.0.{index + 1}/16"
        expected = [f"host{index}", str(Path.cwd()), "eth0", "lo", "UP", address]
        assert [*expected, "10.99.0.3", "host2"] == [word for word in text if "@" not in word]
    assert "host0 slots=1 host1 slots=1 host2 slots=1" == " ".join(output[18:])


def test_hosts_share_files_but_no_memory(name, mark, tmp_path):
    """Isolate /dev/shm and /etc/hosts of each host from the others and the machine."""
    memory = f"/dev/shm/{mark}"  # noqa: S108 - what the test is about
    before = Path("/etc/hosts").read_text()
    there = f"{ON} host1 'ls {memory} {tmp_path}'"
    line = f"touch {memory} {tmp_path}/file; {there}; ip route; ls {memory}; rm {memory}"
    output = lab(*on(name, "sh", "-c", line)).split()
    assert "file" in output
    assert ["10.99.0.0/16", memory] == [*output[-10:-8:2], output[-1]]
    assert not Path(memory).exists()
    assert before == Path("/etc/hosts").read_text()


def test_the_exit_code_is_the_commands(name):
    """Exit with the command's code, or 128 plus a signal's number; with ssh's and a sentence for an
    unknown host.
    """
    for line, code in (("exit 7", 7), ("kill -KILL $$", 137), ("true", 0)):
        assert "" == lab(*on(name, "sh", "-c", line), code=code)
    output = lab(*on(name, "sh", "-c", f"{ON} host9 true 2>&1; echo $?"))
    assert "commbench lab: there is no emulated host 'host9'\n255\n" == output


def test_a_machine_whose_tc_fails_says_so(monkeypatch, tmp_path):
    """Exit with 2 and quote the error of tc."""
    fake(tmp_path, "tc", "echo 'Error: Specified qdisc kind is unknown.' >&2; exit 1", monkeypatch)
    errors = lab(*running("true", rate="1gbit"), code=2)
    assert "tc -batch -` said: Error: Specified qdisc kind is unknown; it takes root" in errors
    assert 1 == len(errors.splitlines())


@pytest.mark.parametrize(
    ("words", "number", "code"),
    [
        ("run --rate none -- true", signal.SIGTERM, 143),
        ("run --rate none -- true", signal.SIGINT, 130),
        ("up --rate none", signal.SIGKILL, -9),
    ],
)
def test_a_lab_can_be_ended_while_it_is_built(monkeypatch, tmp_path, words, number, code):
    """Leave nothing when the start is ended while ip hangs."""
    fake(tmp_path, "ip", f"touch {tmp_path}/building\nexec sleep 987", monkeypatch)
    process = begin(*words.split(), preexec_fn=heed_interrupts)
    assert wait_until((tmp_path / "building").exists)
    process.send_signal(number)
    process.communicate(timeout=SECONDS)
    assert code == process.returncode


def test_keys_and_signals_reach_the_command_once():
    """Pass Ctrl-C in a terminal to the command once, as any signal, and exit with its code."""
    command = [sys.executable, *LAB, *running(sys.executable, "-c", COUNTER)]
    process, terminal = start_in_terminal(*command, stdout=subprocess.PIPE)
    wait_for_line(process, "there")
    os.write(terminal, b"\x03")
    wait_for_line(process, "seen 1")
    for seen, number in enumerate((signal.SIGUSR1, signal.SIGUSR1), 2):
        process.send_signal(number)
        wait_for_line(process, f"seen {seen}")
    process.terminate()
    process.communicate(timeout=SECONDS)
    os.close(terminal)
    assert 13 == process.returncode


def test_an_interrupt_without_a_terminal_reaches_the_command(name):
    """Pass SIGINT on where no key has sent it."""
    words = on(name, sys.executable, "-c", COUNTER)
    process = begin(*words, start_new_session=True, preexec_fn=heed_interrupts)
    wait_for_line(process, "there")
    process.send_signal(signal.SIGINT)
    wait_for_line(process, "seen 1")
    process.terminate()
    process.communicate(timeout=SECONDS)
    assert 11 == process.returncode


def test_a_killed_run_leaves_no_process():
    """End all processes of a lab whose `lab run` is killed."""
    process = begin(*running("sh", "-c", f"{DAEMONS}; echo there; sleep 987"))
    wait_for_line(process, "there")
    process.kill()
    process.communicate(timeout=SECONDS)


def test_labs_at_once_do_not_meet():
    """Run two labs with equal host names and addresses independently."""
    words = running("sh", "-c", "touch /run/commbench-lab/mine; echo there; cat")
    first = begin(*words, stdin=subprocess.PIPE)
    wait_for_line(first, "there")
    output = lab(*running("sh", "-c", f"{ON} host1 hostname; ls /run/commbench-lab"))
    assert "host1 agent hostfile hosts pids plan sys" == " ".join(output.split())
    assert ("two", "") == first.communicate("two", timeout=SECONDS)


def test_called_from_python_the_lab_gives_signal_handlers_back():
    """Restore the signal handlers after a lab in this process."""
    before = [signal.getsignal(number) for number in PASSED_ON]
    assert 3 == run_in_lab(LabPlan.parse(1, "none"), ["sh", "-c", "exit 3"])
    assert before == [signal.getsignal(number) for number in PASSED_ON]


# ---------------------------------------------------------------------------------- labs that stay


def test_a_lab_stays_until_it_is_taken_down(mark):
    """Keep a lab after its terminal closes, until it is taken down."""
    me = f"{sys.executable} {' '.join(LAB)}"
    line = f"{me} up --rate none --hosts 3 --name {mark}; echo that is all; read word"
    shell, terminal = start_in_terminal("sh", "-c", line)
    output = ""
    while "that is all\r\n" not in output:
        output += os.read(terminal, 4096).decode()
    os.close(terminal)
    assert -signal.SIGHUP == shell.wait(timeout=SECONDS)
    assert "host0\n" == lab("exec", "--name", mark, "--", "hostname")
    assert "host2\n" == lab(*on(mark, "hostname", host="host2"))
    assert f"The emulated cluster {mark} has ended.\n" == lab("down", mark)
    assert not is_up(mark)
    assert [] == find_marked(mark)


def test_a_command_finds_what_it_would_in_run(name):
    """Give commands the environment, directory, user and files of `lab run`."""
    line = (
        "env | sort | grep -v ^_=; pwd; cat /etc/hosts $COMMBENCH_HOSTFILE; id; ls /sys/class/net;"
        " ls /dev/shm"
    )
    assert lab(*running("sh", "-c", line)) == lab(*on(name, "sh", "-c", line))


@pytest.mark.parametrize("end", ["return", "kill"])
def test_what_a_command_has_started_ends_with_it(name, mark, end):
    """End the processes of a command when it returns or `lab exec` is killed, but not the lab."""

    def sleepers() -> list[str]:
        return [line for line in find_marked(mark) if line == "sleep 987"]

    line = f"{DAEMONS}; echo there; read word"
    process = begin(*on(name, "sh", "-c", line), stdin=subprocess.PIPE)
    wait_for_line(process, "there")
    assert wait_until(lambda: len(sleepers()) == 2)
    if end == "kill":
        process.kill()
    process.communicate("word\n", timeout=SECONDS)
    assert wait_until(lambda: not sleepers()), sleepers()
    assert "host1\n" == lab(*on(name, "hostname", host="host1"))


@pytest.mark.parametrize("end", ["down", "parent"])
def test_a_lab_that_ends_ends_its_commands(mark, end):
    """End the command of a lab that is taken down or killed, and free the lab's name."""
    lab("up", "--rate", "none", "--name", mark)
    process = begin(*on(mark, "sh", "-c", "echo there; sleep 987"))
    wait_for_line(process, "there")
    if end == "down":
        lab("down", mark)
    else:
        psutil.Process(Lab.find(mark).pid).parent().kill()
    process.communicate(timeout=SECONDS)
    assert 137 == process.returncode
    assert wait_until(lambda: not is_up(mark))
    lab("status", "--name", mark, code=2)


def test_status_lists_hosts_and_what_runs(mark):
    """List hosts, addresses, rates, racks and commands with process ids, also of temporary labs."""
    shape = ("--racks", "2", "--slow", "host3=250mbit", "--name", mark)
    words = running("sh", "-c", "echo there; read word", hosts=4, rate="1gbit", flags=shape)
    process = begin(*words, stdin=subprocess.PIPE)
    wait_for_line(process, "there")
    (command,) = Lab.find(mark).running()
    hosts = lab("status", "--name", mark).splitlines()[-4:]
    runs = ["sh", "-c", "'echo", "there;", "read", "word'", f"({command.pid})"]
    assert ["host0", "10.99.0.1", "1gbit", "0", "1", *runs] == hosts[0].split()
    assert ["host3", "10.99.0.4", "250mbit", "1", "1", "nothing"] == hosts[3].split()
    assert "sh" == psutil.Process(command.pid).name()
    process.communicate("word\n", timeout=SECONDS)


def test_what_is_not_there_is_said(name):
    """Refuse an unknown lab, host, command or rate with code 2 in one line."""
    for words in (
        f"up --name {name}",
        "up --name ../x",
        "exec --name absent -- true",
        "down absent",
        f"down {name} --all",
        f"exec --name {name} --host host2 -- true",
        f"exec --name {name} -- absent",
        f"link --name {name} host2 down",
        f"link --name {name} host1 fast",
    ):
        assert 1 == lab(*words.split(), code=2).count("\n")


@pytest.mark.slow
def test_all_labs_that_stay_are_taken_down_at_once():
    """Take all persistent labs down in one call, in a separate process namespace."""
    me = f"{sys.executable} {' '.join(LAB)}"
    line = f"""
        {me} status || exit
        {me} up --rate none > /dev/null || exit
        {me} up --rate none --name other > /dev/null || exit
        {me} exec -- sleep 987 & {me} run --rate none --name mine -- sh -c 'sleep 987' &
        until {me} status --name mine | grep -q 'sleep 987'; do sleep 0.1; done 2> /dev/null
        {me} down --all && {me} status | cut -c-22 | head -1; {me} down mine; {me} status; wait
    """
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", line]
    done = finished(*apart, seconds=SECONDS)
    none = "There is no emulated cluster; `commbench lab up` starts one."
    ended = [f"The emulated cluster {name} has ended." for name in ("lab", "other", "mine")]
    expected = [none, *ended[:2], "mine: 2 emulated hosts", ended[2], none]
    assert expected == done.stdout.splitlines(), done.stderr


# ------------------------------------------------------------------------------------------- links


def test_a_link_is_cut_and_mended(name):
    """Set one host's link down and up, without effect on other hosts or its loopback."""
    reach = (  # nobody serves there
        "timeout 2 bash -c 'exec 3<>/dev/tcp/host1/9' 2>&1 | grep -om1 refused | head -1"
    )
    assert "refused\n" == lab(*on(name, "sh", "-c", reach))
    lab("link", "--name", name, "host1", "down")
    assert "" == lab(*on(name, "sh", "-c", reach))
    assert "refused\n" == lab(*on(name, "sh", "-c", reach, host="host1"))
    assert " cut " in lab("status", "--name", name)
    stated = lab(*on(name, "sh", "-c", "echo $COMMBENCH_EMULATED"))
    assert {"hosts": 2, "rate": "none", "down": ["host1"]} == json.loads(stated)
    lab("link", "--name", name, "host1", "up")
    assert "refused\n" == lab(*on(name, "sh", "-c", reach))


@pytest.mark.slow
def test_a_link_gets_another_rate(name):
    """Change a link's rate and remove it: flows in both directions follow, and new programs see
    it.
    """
    flows = on(name, *FLOWS, "host0:host1", "host1:host0")
    lab("link", "--name", name, "host1", "100mbit")
    assert [True, True] == [70 < rate <= 100 for rate in json.loads(lab(*flows))]
    stated = lab(*on(name, "sh", "-c", "echo $COMMBENCH_EMULATED"))
    assert {"hosts": 2, "rate": "none", "slow": {"host1": "100mbit"}} == json.loads(stated)
    lab("link", "--name", name, "host1", "none")
    assert 200 < sum(json.loads(lab(*flows)))


def fills(rate: float, link: float) -> bool:
    """Return whether the rate is 75 to 110 % of the link's: headers and a busy machine take some,
    bursts add some.
    """
    return 0.75 < rate / link <= 1.1


@pytest.mark.slow
def test_links_and_uplinks_have_their_rates():
    """Limit each direction of a link, share a rack's uplink, slow one host; else leave it open."""
    for flows in rates(
        "host0:host1 host0:host2", "host1:host0 host2:host0", hosts=3, rate="200mbit"
    ):
        assert fills(sum(flows), 200), flows
    (unshaped,) = rates("host0:host1 host0:host2", hosts=3)
    assert 420 < sum(unshaped), unshaped
    flags = ("--slow", "host3=50mbit", "--racks", "2", "--uplink", "100mbit")
    rounds = (
        "host0:host2 host1:host2",
        "host2:host0 host2:host1",
        "host0:host1 host2:host3",
        "host3:host2",
    )
    out, back, inside, (from_slow,) = rates(*rounds, hosts=4, rate="200mbit", flags=flags)
    assert fills(sum(out), 100), out
    assert fills(sum(back), 100), back
    assert fills(inside[0], 200), inside
    assert fills(inside[1], 50), inside
    assert fills(from_slow, 50), from_slow
