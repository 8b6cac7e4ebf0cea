"""A lab that is up, found by its name: what it consists of, what runs there, its links, its end."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import psutil

from commbench.errors import InputError
from commbench.launch.lab import registry
from commbench.launch.lab.network import change_link
from commbench.launch.lab.plan import DIRECTORY, PLAN, STAYS, HostPlan, LabPlan, parse_rate
from commbench.launch.lab.signals import PASSED_ON, caught
from commbench.launch.lab.visit import Running, check_command, running, visit


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A lab that is up; whatever is asked of it is looked up now."""

    name: str
    pid: int
    """Of its first process."""

    @classmethod
    def find(cls, name: str = registry.DEFAULT_NAME) -> Lab:
        """Return the lab of a name.

        Raises:
            InputError: there is none.
        """
        if pid := registry.first_process(name):
            return cls(name=name, pid=pid)
        option = "" if name == registry.DEFAULT_NAME else f" --name {name}"
        others = ", ".join(lab.name for lab in find_all())
        there = f" (there is {others})" if others else ""
        raise InputError(
            f"There is no emulated cluster called {name!r}{there}; start it by `commbench lab up{option}`."
        )

    @contextlib.contextmanager
    def _there(self) -> Iterator[None]:
        """Say in a sentence that the lab has ended while it was looked at.

        Raises:
            InputError: it has.
        """
        try:
            yield
        except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess) as error:
            raise InputError(f"The emulated cluster {self.name!r} has just ended; start it again.") from error

    @property
    def _files(self) -> Path:
        """The lab's own directory, as its processes see it."""
        return Path(f"/proc/{self.pid}/root{DIRECTORY}")

    @property
    def plan(self) -> LabPlan:
        """What the lab consists of now.

        Raises:
            InputError: it has just ended, here and elsewhere.
        """
        with self._there(), (self._files / PLAN).open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            return LabPlan.from_json(file.read())

    @property
    def stays(self) -> bool:
        """Whether it is up until it is taken down; else it ends with the command that it was made for."""
        return (self._files / STAYS).exists()

    @property
    def since(self) -> datetime:
        """When it was begun, in local time."""
        with self._there():
            return datetime.fromtimestamp(psutil.Process(self.pid).create_time()).astimezone()

    def running(self) -> list[Running]:
        """The commands that run there."""
        with self._there():
            return running(self.pid)

    def execute(self, command: Sequence[str], *, host: str | None = None) -> int:
        """Run a command on a host, by default the first one; return its exit code, 128 + n after signal n.

        When it ends, or this process does, all that it has started ends. Signals to this process are passed on.

        Raises:
            InputError: no such host or command.
        """
        check_command(command)
        plan = self.plan
        with caught(PASSED_ON) as signals:
            return visit(self.pid, plan, plan.host(host).name, command, signals)

    def set_link(self, host: str, state: str) -> None:
        """Cut a host's link (``down``), mend it (``up``), or give it another rate, while the lab runs.

        What runs there already has read what the lab was like; what is started from now on reads what it is like now.

        Raises:
            InputError: no such host, a state that is not understood, or a machine that cannot.
        """
        with self._there(), (self._files / PLAN).open("r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            plan = LabPlan.from_json(file.read())
            before = plan.host(host)
            after = _changed_link(before, state)
            holder = json.loads((self._files / "pids").read_text(encoding="utf-8"))[before.name]
            lab = ("nsenter", f"--target={self.pid}")
            on_host = (*lab, "--pid", "--mount", "--", "nsenter", f"--target={holder}", "--net", "--")
            change_link(before, after, on_switch=(*lab, "--net", "--"), on_host=on_host)
            file.seek(0)
            file.truncate()
            file.write(plan.with_host(after).to_json())

    def end(self) -> None:
        """End the lab and everything that runs there; return when it has gone."""
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess), contextlib.ExitStack() as handles:
            ending = [os.pidfd_open(pid) for pid in (psutil.Process(self.pid).ppid(), self.pid)]
            for handle in ending:
                handles.callback(os.close, handle)
            signal.pidfd_send_signal(ending[-1], signal.SIGKILL)
            for handle in ending:
                select.select([handle], [], [])


def find_all() -> list[Lab]:
    """Return all labs that are up, sorted by name."""
    found = ((name, registry.first_process(name)) for name in registry.names())
    return [Lab(name=name, pid=pid) for name, pid in found if pid]


def _changed_link(host: HostPlan, state: str) -> HostPlan:
    if state in {"up", "down"}:
        return replace(host, is_up=state == "up")
    try:
        return replace(host, rate_bps=parse_rate(state))
    except InputError as error:
        raise InputError(f"{str(error).rstrip('.')}; or up or down.") from error
