"""The processes of one launch: starts them, reads their output by lines, and ends all of them."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import IO

import psutil

from commbench.system.files import parse_fields, read_text

#: Variable in the environment of every process of a launch, with the launch's token. The session
#: alone does not find all processes: torchrun gives each rank its own.
TOKEN = "COMMBENCH_LAUNCH_TOKEN"  # noqa: S105 - not a secret
#: Seconds that the launcher has to end its ranks on all hosts, before ranks on this host are
#: killed.
GRACE_S = 5.0
#: Seconds for output to arrive after its writers have ended; a writer on another host may still
#: run.
REST_S = 1.0
#: Seconds that ranks have to report their stacks.
STACKS_S = 2.0


class Launched:
    """A launcher and the ranks it has started.

    Args:
        command: the launcher's command.
        environment: its whole environment.
        text: the first line of rank 0's stdin, which then stays open; its end shows rank 0 that the
            conductor is gone.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], text: str) -> None:
        self._token = uuid.uuid4().hex
        self._outputs: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        """None: a stream has ended."""
        self._process = subprocess.Popen(
            command,
            env={**environment, TOKEN: self._token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self._open = 2
        """Streams whose end has not been read."""
        threading.Thread(target=self.tell, args=(text,), daemon=True).start()
        for stream in (self._process.stdout, self._process.stderr):
            threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._outputs.put(line.rstrip("\r\n"))
        self._outputs.put(None)

    def tell(self, line: str) -> None:
        """Write a line to rank 0's stdin; return when the pipe has taken it."""
        stdin = self._process.stdin
        # The launcher may have ended first: see its exit status.
        with contextlib.suppress(OSError, ValueError):
            if stdin is not None:
                stdin.write(f"{line}\n")
                stdin.flush()

    def next_output(self, timeout_s: float) -> str | None:
        """Return the next line without its end, in order per stream; None if none comes for
        ``timeout_s``, or a stream ends.
        """
        try:
            output = self._outputs.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if output is None:
            self._open -= 1
        return output

    @property
    def returncode(self) -> int | None:
        """Exit status of the launcher; None while it runs."""
        return self._process.poll()

    def drain(
        self,
        seconds: float,
        handle: Callable[[str | None], None],
        until: Callable[[], bool] = lambda: False,
    ) -> None:
        """Handle output for ``seconds``, or until the launcher has ended and all that was written
        has been read, or ``until`` returns True.
        """
        end = time.monotonic() + seconds
        while (remaining_s := end - time.monotonic()) > 0 and not until():
            if self.returncode is not None and self._open == 0:
                return
            handle(self.next_output(min(remaining_s, 0.05)))

    def ask_for_stacks(self, pids: Collection[int], *, by_launcher: bool) -> None:
        """Make every rank report its stacks: by the launcher if it forwards signals, else only
        ranks on this host, of which ``pids`` has the process numbers.
        """
        for pid in self._members(set()):
            is_reached = pid in pids
            if by_launcher:
                is_reached = self._is_launcher(pid)
            if is_reached:
                _signal(pid, signal.SIGUSR1)

    def _is_launcher(self, pid: int) -> bool:
        """Return whether a process is the launcher: it is in the first process's group and catches
        SIGUSR1. The signal would end a script that has started the launcher.
        """
        try:
            caught = parse_fields(read_text(f"proc/{pid}/status"), ":").get("SigCgt", "0")
            is_caught = bool(int(caught, 16) >> (signal.SIGUSR1 - 1) & 1)
            return is_caught and os.getpgid(pid) == self._process.pid
        except OSError:
            return False

    def make_print(self, pid: int) -> None:
        """Make the interpreter of a rank on this host print its stacks on stderr, even if all
        threads hang.
        """
        if pid in self._members(set()):
            _signal(pid, signal.SIGUSR2)

    def stop(self, handle: Callable[[str | None], None]) -> bool:
        """End the launch: by SIGTERM to the launcher, which reaches other hosts, then by SIGKILL on
        this host. Handle its remaining output: a rank that outlives its launcher holds the streams
        open.

        Return whether the launcher has ended in time, which shows that it reached all hosts.
        """
        seconds = GRACE_S
        if self.returncode is not None:
            seconds = REST_S
        # The group has the launcher and a script around it; each rank has its own group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        self.drain(seconds, handle)
        in_time = self.returncode is not None
        self.kill()
        self.drain(REST_S, handle)
        return in_time

    def close(self) -> None:
        """End the launch if it still runs, and leave nothing behind."""
        if self.returncode is None:
            self.stop(lambda _: None)
        with contextlib.suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._process.wait()

    def kill(self) -> None:
        """Kill all processes of this launch on this host, and wait until they are gone."""
        end = time.monotonic() + GRACE_S
        foreign: set[int] = set()
        while (members := self._members(foreign)) and time.monotonic() < end:
            for pid in members:
                _signal(pid, signal.SIGKILL)
            time.sleep(0.02)
            self._process.poll()

    def _members(self, foreign: set[int]) -> list[int]:
        """Return the living processes of the launch on this host: in the launcher's session, or
        with the token.

        ``foreign``: processes that are known to belong to others, and are not looked at; others
        that are found are added.
        """
        members = []
        for pid in psutil.pids():
            if pid in foreign:
                continue
            with contextlib.suppress(psutil.Error, OSError):
                if self._is_member(psutil.Process(pid)):
                    members.append(pid)
                else:
                    foreign.add(pid)
        return members

    def _is_member(self, process: psutil.Process) -> bool:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        is_in_session = os.getsid(process.pid) == self._process.pid
        return is_in_session or process.environ().get(TOKEN) == self._token


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
