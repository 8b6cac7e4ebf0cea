"""Tests of persistent labs: commands on their hosts, status, link changes and their end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from labs import (
    COUNTER,
    FLOWS,
    LAB,
    ON,
    SECONDS,
    assert_signals_arrive,
    heed_interrupts,
    mark,
    start,
    start_in_terminal,
    wait_for_line,
)
from launching import find_marked, wait_until

from commbench.launch.lab import Lab
from commbench.launch.lab.labs import first_process, names

__all__ = ["mark"]  # a fixture

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("forks")]


def lab(*words: str, code: int = 0, **options: object) -> str:
    """Run ``commbench lab`` to its end; return its stdout, or stderr for an expected error."""
    streams = {"stdin": subprocess.DEVNULL, "timeout": SECONDS, **options}
    command = [sys.executable, *LAB[1:], *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **streams)  # type: ignore[call-overload]
    assert code == done.returncode, done.stdout + done.stderr
    return str(done.stderr if code else done.stdout)


@pytest.fixture
def name(mark: str) -> Iterator[str]:
    """Return a lab of two hosts on links without a rate."""
    lab("up", "--rate", "none", "--name", mark)
    yield mark
    if mark in names():
        lab("down", mark)


def begin(
    name: str, *words: str, host: str = "host0", **options: object
) -> "subprocess.Popen[str]":
    """Start a command on a host of a lab."""
    arguments = [*LAB, "exec", "--name", name, "--host", host, "--", *words]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **options}
    return subprocess.Popen(arguments, text=True, **streams)  # type: ignore[call-overload,no-any-return]


def test_a_lab_stays_until_it_is_taken_down(mark: str) -> None:
    """Keep a lab after its terminal closes, until it is taken down."""
    line = f"{' '.join(LAB)} up --rate none --hosts 3 --name {mark}; echo that is all; read word"
    shell, terminal = start_in_terminal("sh", "-c", line)
    output = ""
    while "that is all\r\n" not in output:
        output += os.read(terminal, 4096).decode()
    os.close(terminal)
    assert -signal.SIGHUP == shell.wait(timeout=SECONDS)
    assert "host0\n" == lab("exec", "--name", mark, "--", "hostname")
    assert "host2\n" == lab("exec", "--name", mark, "--host", "host2", "--", "hostname")
    assert f"The emulated cluster {mark} has ended.\n" == lab("down", mark)
    assert mark not in names()
    assert [] == find_marked(mark)


def test_a_lab_whose_start_is_killed_does_not_stay(
    mark: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """End a lab whose `lab up` is killed while ip hangs, and free its name."""
    (tmp_path / "ip").write_text(f"#!/bin/sh\ntouch {tmp_path}/building\nexec sleep 987\n")
    (tmp_path / "ip").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    process = subprocess.Popen([*LAB, "up", "--rate", "none", "--name", mark])
    assert wait_until((tmp_path / "building").exists)
    assert mark in names()
    process.kill()
    process.wait(timeout=SECONDS)
    assert wait_until(lambda: not find_marked(mark))
    assert wait_until(lambda: mark not in names())
    lab("status")  # the next call, whichever, removes the directory


def test_a_command_finds_what_it_would_in_run(name: str) -> None:
    """Give commands the environment, directory, user and files of `lab run`."""
    line = (
        "env | sort | grep -v ^_=; pwd; cat /etc/hosts $COMMBENCH_HOSTFILE; id; ls /sys/class/net;"
        " ls /dev/shm"
    )
    process = start("sh", "-c", line)
    assert process.communicate(timeout=SECONDS)[0] == lab(
        "exec", "--name", name, "--", "sh", "-c", line
    )


def test_signals_reach_a_command(name: str) -> None:
    """Pass each signal of `lab exec` to the command once, and exit with its code."""
    assert_signals_arrive(
        begin(
            name, sys.executable, "-c", COUNTER, start_new_session=True, preexec_fn=heed_interrupts
        )
    )


def sleepers(name: str) -> list[str]:
    """Return the command lines of processes in a lab that sleep for 987 s."""
    return [line for line in find_marked(name) if line == "sleep 987"]


@pytest.mark.parametrize("end", ["return", "kill"])
def test_what_a_command_has_started_ends_with_it(name: str, end: str) -> None:
    """End the processes of a command when it returns or `lab exec` is killed, but not the lab."""
    line = (
        f"setsid sleep 987 > /dev/null & {ON} host1 'setsid sleep 987 > /dev/null 2>&1 &'; echo"
        " there; read word"
    )
    process = begin(name, "sh", "-c", line, stdin=subprocess.PIPE)
    wait_for_line(process, "there")
    assert wait_until(lambda: len(sleepers(name)) == 2)
    if end == "kill":
        process.kill()
    process.communicate("word\n", timeout=SECONDS)
    assert wait_until(lambda: not sleepers(name)), sleepers(name)
    assert "host1\n" == lab("exec", "--name", name, "--host", "host1", "--", "hostname")


def kill_first_process(name: str) -> None:
    """Kill process 1 of a lab."""
    os.kill(first_process(name) or 0, signal.SIGKILL)


def kill_its_parent(name: str) -> None:
    """Kill the parent of process 1 of a lab."""
    psutil.Process(first_process(name)).parent().kill()  # type: ignore[union-attr]


@pytest.mark.parametrize("kill", [kill_first_process, kill_its_parent])
def test_a_killed_lab_leaves_nothing(name: str, kill: Callable[[str], None]) -> None:
    """End the command of a killed lab, and remove the lab's name."""
    process = begin(name, "sh", "-c", "echo there; sleep 987")
    wait_for_line(process, "there")
    kill(name)
    process.communicate(timeout=SECONDS)
    assert 137 == process.returncode
    assert wait_until(lambda: name not in names())
    lab("status", "--name", name, code=2)
    assert wait_until(lambda: not find_marked(name))


def test_down_ends_commands_too(name: str) -> None:
    """End running commands when the lab is taken down, and free its name."""
    process = begin(name, "sh", "-c", "echo there; sleep 987")
    wait_for_line(process, "there")
    lab("down", name)
    process.communicate(timeout=SECONDS)
    assert 137 == process.returncode
    lab("up", "--rate", "none", "--name", name)


def test_status_lists_hosts_and_what_runs(mark: str) -> None:
    """List hosts, addresses, rates, racks and commands with process ids, also of temporary labs."""
    shape = ("--racks", "2", "--slow", "host3=250mbit", "--name", mark)
    process = start(
        "sh",
        "-c",
        "echo there; read word",
        hosts=4,
        rate="1gbit",
        flags=shape,
        stdin=subprocess.PIPE,
    )
    wait_for_line(process, "there")
    (command,) = Lab.find(mark).running()
    _, _, *hosts = lab("status", "--name", mark).splitlines()
    runs = ["sh", "-c", "'echo", "there;", "read", "word'", f"({command.pid})"]
    assert ["host0", "10.99.0.1", "1gbit", "0", "1", *runs] == hosts[0].split()
    assert ["host3", "10.99.0.4", "250mbit", "1", "1", "nothing"] == hosts[3].split()
    assert "sh" == psutil.Process(command.pid).name()
    lab("link", "--name", mark, "host1", "down")
    assert "cut" == lab("status", "--name", mark).splitlines()[3].split()[2]
    process.communicate("word\n", timeout=SECONDS)


def test_what_is_not_there_is_said(name: str) -> None:
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
@pytest.mark.usefixtures("mark")
def test_all_labs_that_stay_are_taken_down_at_once() -> None:
    """Take all persistent labs down in one call, in a separate network namespace."""
    me = " ".join(LAB)
    line = f"""
        {me} status && {me} up --rate none > /dev/null && {me} up --rate none --name other > /dev/null || exit
        {me} exec -- sleep 987 & {me} run --rate none --name mine -- sh -c 'sleep 987' &
        until {me} status --name mine | grep -q 'sleep 987'; do sleep 0.1; done 2> /dev/null
        {me} down --all && {me} status | cut -c-22 | head -1; {me} down mine; {me} status; wait
    """
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", line],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    none = "There is no emulated cluster; `commbench lab up` starts one."
    ended = [f"The emulated cluster {name} has ended." for name in ("lab", "other", "mine")]
    assert [
        none,
        *ended[:2],
        "mine: 2 emulated hosts",
        ended[2],
        none,
    ] == done.stdout.splitlines(), done.stderr


def test_a_link_is_cut_and_mended(name: str) -> None:
    """Set one host's link down and up, without effect on other hosts or its loopback."""
    reach = (  # nobody serves there
        "timeout 2 bash -c 'exec 3<>/dev/tcp/host1/9' 2>&1 | grep -om1 refused | head -1"
    )
    assert "refused\n" == lab("exec", "--name", name, "--", "sh", "-c", reach)
    lab("link", "--name", name, "host1", "down")
    assert "" == lab("exec", "--name", name, "--", "sh", "-c", reach)
    assert "refused\n" == lab("exec", "--name", name, "--host", "host1", "--", "sh", "-c", reach)
    assert " cut " in lab("status", "--name", name)
    stated = lab("exec", "--name", name, "--", "sh", "-c", "echo $COMMBENCH_EMULATED")
    assert {"hosts": 2, "rate": "none", "down": ["host1"]} == json.loads(stated)
    lab("link", "--name", name, "host1", "up")
    assert "refused\n" == lab("exec", "--name", name, "--", "sh", "-c", reach)


@pytest.mark.slow
def test_a_link_gets_another_rate(name: str) -> None:
    """Change a link's rate and remove it: flows in both directions follow, and new programs see
    it.
    """
    flows = ("exec", "--name", name, "--", *FLOWS, "host0:host1", "host1:host0")
    lab("link", "--name", name, "host1", "100mbit")
    assert [True, True] == [70 < rate <= 100 for rate in json.loads(lab(*flows))]
    stated = lab("exec", "--name", name, "--", "sh", "-c", "echo $COMMBENCH_EMULATED")
    assert {"hosts": 2, "rate": "none", "slow": {"host1": "100mbit"}} == json.loads(stated)
    lab("link", "--name", name, "host1", "none")
    assert 200 < sum(json.loads(lab(*flows)))
