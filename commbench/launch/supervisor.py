"""Runs one launch: starts its ranks, reads their events, ends a hung launch, and returns how it
ended.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from dataclasses import dataclass

from commbench.collectives.backends import MPI_BACKENDS
from commbench.findings import Finding
from commbench.launch.clues import (
    Clue,
    Ending,
    Evidence,
    error_clue,
    exit_clues,
    find_crash_report,
    hang_reason,
    memory_kills,
    name_rank,
    worst,
    written_clues,
)
from commbench.launch.events import (
    FINISH,
    MARK,
    CaseStarted,
    Heartbeat,
    LastCase,
    Listener,
    RankError,
    RankEvent,
    SessionStarted,
    Stack,
    split_line,
)
from commbench.launch.heartbeat import STARTUP_TIMEOUT_S
from commbench.launch.identity import without_rank
from commbench.launch.launcher_output import find_warning
from commbench.launch.launchers.base import Launcher
from commbench.launch.process import STACKS_S, Launched
from commbench.launch.schedule import LEAVING_S, Launch
from commbench.launch.signals import LOOK_S, Interrupts
from commbench.launch.watchdog import Watchdog

#: The program of a rank, without the command line.
PROGRAM = ("-m", "commbench.launch.rank")
#: Seconds that a launch may continue after a rank reported an error.
DOOMED_S = 10.0
#: Seconds for a rank's interpreter to print its stacks.
PRINTING_S = 0.5
#: Lines of stderr kept for the user after a failure.
KEPT_LINES = 200


@dataclass
class Supervisor:
    """One launch."""

    launch: Launch
    """What the ranks carry out."""
    listener: Listener
    """Receives rank 0's events, and notes in the launch how far they are."""
    launcher: Launcher
    """Starts the ranks."""
    interrupts: Interrupts
    """Ends the launch once it has noted a signal."""

    def __post_init__(self) -> None:
        launch = self.launch
        timeout_s = launch.plan.case_timeout_s
        self._startup_s = max(timeout_s, STARTUP_TIMEOUT_S)
        self._watchdog = Watchdog(
            launch.request.ranks, timeout_s, timeout=self._startup_s, begun=time.monotonic()
        )
        self._evidence = Evidence()
        self._kills_before = memory_kills()
        self._finishing = False
        self._doomed_at: float | None = None
        self._stderr: deque[str] = deque(maxlen=KEPT_LINES)
        """Output beside events."""

    def run(self) -> Ending:
        """Start the launch, wait until all of its processes have ended, and return how it ended."""
        program = (*PROGRAM, f"{self._startup_s:g}")
        launcher, plan = self.launcher, self.launch.plan
        if plan.env:
            launcher = launcher.with_env(plan.env)
        command = launcher.command(
            self.launch.request.ranks, program, training=plan.training is not None
        )
        environment = without_rank(launcher.environ) | launcher.environment()
        try:
            launched = Launched(command, environment, plan.to_json())
        except OSError as error:
            numbers = {"program": command[0], "error": str(error.strerror)}
            cause = Finding(code="launcher_not_started", numbers=numbers)
            return Ending(status="failed", cause=cause)
        try:
            return self._watch(launched)
        finally:
            launched.close()

    def _watch(self, launched: Launched) -> Ending:
        last_look = time.monotonic()
        while (returncode := launched.returncode) is None:
            self._handle(launched.next_output(LOOK_S))
            if self.interrupts.number and self._is_over(launched):
                launched.stop(self._handle)
                return Ending.early(self.interrupts.number)
            now = time.monotonic()
            if now - last_look < LOOK_S:
                continue
            last_look = now
            hang = self._watchdog.stuck(now)
            if hang:
                return self._tear_down(launched, hang)
            left_s = self.launch.times.left_s(now, whole=True) + LEAVING_S
            if self.launch.startup_s is None and left_s <= 0:  # ranks that run heed it themselves
                launched.stop(self._handle)
                return Ending.early(0)
            if self._doomed_at is not None and now > self._doomed_at:
                launched.stop(self._handle)
        launched.stop(self._handle)
        return self._judge(returncode)

    def _is_over(self, launched: Launched) -> bool:
        """Return whether a signal ends the launch at once.

        Otherwise tell the ranks, once, to finish their case.
        """
        if self.interrupts.must_end(has_case=self.launch.has_begun):
            return True
        if not self._finishing:
            self._finishing = True
            launched.tell(FINISH)
            self.listener.on(LastCase())
        return False

    def _tear_down(self, launched: Launched, hang: Clue) -> Ending:
        """End a hung launch after its ranks had time to report their stacks."""
        self._evidence.forget_stacks()
        pids = self._watchdog.pids
        launched.ask_for_stacks(pids.values(), by_launcher=self.launcher.forwards_signals)
        launched.drain(STACKS_S, self._handle, until=lambda: self._evidence.located >= pids.keys())
        if hang.code == "no_rank_heard":
            lines, processes = list(self._stderr), self._watchdog.processes
            hang = worst([hang, *written_clues(lines, processes, self._kills_before)])
        hang = worst([hang, *map(error_clue, self._errors())])
        failed_rank = self._evidence.failed_rank(
            hang, self.launch.case, self._watchdog.processes, self._printed(launched, hang)
        )
        stacks = self._evidence.lines()
        is_reached = launched.stop(self._handle)
        if self.launch.is_complete:
            return _complete("ranks_stay", hang)
        return Ending(
            status="hung",
            cause=hang_reason(self._watchdog.timeout, str(hang)),
            failed_rank=failed_rank,
            is_host_lost=hang.is_host_lost and not is_reached,
            output=[*self._stderr, *stacks],
        )

    def _errors(self) -> list[RankError]:
        """Return the errors of ranks in the present case, and those that ended a rank."""
        errors = []
        for error in self._evidence.errors:
            if not error.is_of_case or error.case == self._watchdog.case_number:
                errors.append(error)
        return errors

    def _printed(self, launched: Launched, hang: Clue) -> list[str]:
        """Return the interpreter's report on a rank of this host that cannot report its stacks
        itself.
        """
        pids = self._watchdog.pids
        is_here = hang.host == socket.gethostname()
        if hang.rank not in pids or hang.rank in self._evidence.located or not is_here:
            return []
        before = list(self._stderr)
        self._stderr.clear()
        launched.make_print(pids[hang.rank])
        launched.drain(PRINTING_S, self._handle)
        printed = list(self._stderr)
        self._stderr = deque([*before, *printed], maxlen=KEPT_LINES)
        return printed

    def _judge(self, returncode: int) -> Ending:
        """Return how a launch ended whose launcher has left."""
        for error in sorted(self._evidence.errors, key=lambda error: error.rank):
            if error.is_bad_input:
                message = error.message
                if error.rank:  # rank 0 speaks for all
                    message = f"{name_rank(error.rank, error.host)}: {message}"
                return Ending(status="refused", cause=Finding.stated(message))
        lines = list(self._stderr)
        if returncode == 0 and self.launch.is_complete is False:
            return Ending.early(self.interrupts.number)
        if returncode == 0 and self.launch.is_complete:
            return Ending(status="ok", cause=find_warning(lines))
        clues = exit_clues(
            lines,
            self._errors(),
            returncode,
            self._watchdog.processes,
            kills_before=self._kills_before,
        )
        silent = self._watchdog.silent(time.monotonic(), counts_unheard=False)
        if silent:
            clues.append(silent)
        clue = worst(clues)
        if self.launch.is_complete:
            return _complete("ranks_left_late", clue)
        failed_rank = self._evidence.failed_rank(
            clue, self.launch.case, self._watchdog.processes, find_crash_report(lines)
        )
        output = [*lines, *self._evidence.lines()]
        return Ending(status="failed", cause=clue.reason, failed_rank=failed_rank, output=output)

    def _handle(self, line: str | None) -> None:
        if line is None:
            return
        foreign, event = split_line(line)
        if event is not None:
            self._on(event)
        elif line.startswith(MARK):
            return  # a torn event
        if (
            foreign.strip()
        ):  # also on stdout: there Hydra names the process that died, and mpirun what it lacks
            self._stderr.append(foreign)

    def _on(self, event: RankEvent) -> None:
        """Process an event: keep facts about ranks, forward rank 0's reports of cases."""
        now = time.monotonic()
        match event:
            case Heartbeat():
                self._watchdog.heartbeat(event, now)
                return
            case RankError() | Stack():
                self._evidence.add(event)
                if isinstance(event, RankError) and not event.is_of_case:
                    self._doomed_at = self._doomed_at or now + DOOMED_S
                return
            case SessionStarted(facts=facts):
                for rank in facts["ranks"]:
                    self._watchdog.introduce(rank["rank"], rank["host"], rank["pid"])
            case CaseStarted(index=index):
                case = self.launch.plan.cases[index]
                # Gloo's threads sleep while they wait: their CPU time does not show which rank is
                # idle.
                self._watchdog.case(now, polls=case.backend in MPI_BACKENDS)
        self._watchdog.progress(now)
        self.listener.on(event)


def _complete(code: str, clue: Clue) -> Ending:
    """Return the ending of a launch that has measured everything, with a warning."""
    return Ending(status="ok", cause=Finding(code, numbers={"cause": str(clue)}))
