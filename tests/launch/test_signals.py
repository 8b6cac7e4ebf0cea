"""Tests of signals to the conductor: the current measurement is kept, and the run resumes."""

import os
import signal
import sys
import threading
import time

import pytest
from conducting import ALL, EVERYTHING, measured, run
from launching import Recorder, ScriptLauncher

from commbench.launch import ledger
from commbench.launch.process import GRACE_S, Launched
from commbench.launch.signals import DEADLY, FROM_KEYS, Interrupts, deferring
from commbench.results import Store

pytestmark = pytest.mark.usefixtures("forks", "mark")


#: Measures two cases and begins a third that never ends.
ENDLESS = "session(); measured(0); measured(1)\nbegin(2); time.sleep(600)"


def test_a_signal_interrupts_and_the_run_resumes(tmp_path):
    """Write the table, exit with 128 plus the signal's number, and resume on the next call."""
    display = Recorder(lambda: signal.raise_signal(signal.SIGUSR1), when=3)
    code, info, _ = run(tmp_path, ENDLESS, display=display)
    assert (128 + signal.SIGUSR1, "interrupted") == (code, info["status"])
    assert "interrupted by SIGUSR1" == info["reason"]
    assert ["ok", "ok"] == [status for _, _, status in measured(tmp_path)]
    assert (tmp_path / "collectives.csv").exists()
    assert 0 == run(tmp_path, ALL)[0]
    assert EVERYTHING == sorted(measured(tmp_path))
    assert signal.default_int_handler is signal.getsignal(signal.SIGINT)


def test_ctrl_c_before_the_first_case_stops_at_once(tmp_path):
    """Stop at once on Ctrl-C before the first case."""
    begun = time.monotonic()
    launcher = ScriptLauncher("time.sleep(600)")
    threading.Timer(1.0, os.kill, [os.getpid(), signal.SIGINT]).start()
    assert 130 == run(tmp_path, launcher)[0]
    assert time.monotonic() - begun < 45
    assert 1 == launcher.started


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT, signal.SIGINT])
def test_signals_that_are_ignored_stay_ignored(number):
    """Ignore SIGHUP under nohup and SIGQUIT in a script's background, but not SIGINT there."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        interrupts = Interrupts()
        with interrupts.noting():
            signal.raise_signal(number)
            assert (number == signal.SIGINT) == bool(interrupts.number)
        assert signal.SIG_IGN == signal.getsignal(number)
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [*FROM_KEYS, *DEADLY, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_that_end_a_run_are_noted(number):
    """Note keys, ends and announcements of schedulers; only Ctrl-C waits for the case."""
    interrupts = Interrupts()
    before = signal.signal(number, signal.SIG_DFL)  # a job in the background ignores keys
    try:
        with interrupts.noting():
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)
    assert number == interrupts.number
    assert (number == signal.SIGINT) != interrupts.must_end(has_case=True)


def test_a_second_ctrl_c_does_not_keep_the_end_from_the_record(tmp_path, monkeypatch):
    """Record the interrupt although a second signal arrives while the summary is written."""
    write = ledger.write_tables

    def impatient(store: Store) -> None:
        signal.raise_signal(signal.SIGINT)
        write(store)

    monkeypatch.setattr(ledger, "write_tables", impatient)
    display = Recorder(lambda: signal.raise_signal(signal.SIGTERM), when=1)
    ended, info, _ = run(tmp_path, "session(); measured(0)\ntime.sleep(600)", display=display)
    assert (143, "interrupted") == (ended, info["status"])


#: A launcher that prints a line for each signal that it forwards, and ends at SIGTERM.
FORWARDING = """
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"forwarded\\n"))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_signals_reach_a_launcher_behind_a_script():
    """Send signals past a site's script around mpirun, which SIGUSR1 would end, as SIGTERM does."""
    wrapped = ["sh", "-c", '"$@"; true', "mpirun", sys.executable, "-c", FORWARDING]
    launched = Launched(wrapped, os.environ, "")
    assert "ready" == launched.next_output(60)
    launched.ask_for_stacks([], by_launcher=True)
    assert "forwarded" == launched.next_output(60)
    begun = time.monotonic()
    assert launched.stop(lambda _: None)
    assert time.monotonic() - begun < GRACE_S
    launched.close()


def test_handlers_of_a_program_learn_of_signals_at_the_end():
    """Put off each handler, and raise what the first one raises when all have been called."""
    calls = []

    def note(number: int, _: object) -> None:
        calls.append(number)

    def raise_signals() -> None:
        with deferring():
            for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGUSR2):
                signal.raise_signal(number)
            assert not calls

    before = [signal.signal(number, note) for number in (signal.SIGUSR1, signal.SIGUSR2)]
    try:
        with pytest.raises(KeyboardInterrupt):
            raise_signals()
        assert {signal.SIGUSR1, signal.SIGUSR2} == set(calls)
        assert signal.getsignal(signal.SIGUSR1) is note
    finally:
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGUSR2, before[1])
