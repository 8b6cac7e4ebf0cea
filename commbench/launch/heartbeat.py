"""A rank's heartbeat: a thread that tells what the rank has done so far, even while it hangs in native code."""

from __future__ import annotations

import faulthandler
import os
import socket
import threading
import time
from collections.abc import Callable

from commbench.launch.wire import Heartbeat
from commbench.timing.progress import Progress

INTERVAL_S = 0.5
#: Ranks get at least so long to come together: libraries may be read from a slow disk by all of them at once.
STARTUP_TIMEOUT_S = 60.0


class Heart:
    """Beats every half second.

    Args:
        rank: this rank's number.
        progress: what the timed loops write.
        tell: is given each heartbeat; the default tells nobody.
        timeout_s: time without progress after which ``on_stall`` is called, once; also, after twice that time the
            interpreter prints its stacks and exits by itself, in case that nobody else is left to end it.
        startup_timeout_s: at least so long is waited before the first case.
        on_stall: called from the heartbeat's thread.
    """

    def __init__(
        self,
        rank: int,
        progress: Progress,
        *,
        tell: Callable[[Heartbeat], None] = lambda _: None,
        timeout_s: float | None = None,
        startup_timeout_s: float = STARTUP_TIMEOUT_S,
        on_stall: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank = rank
        self.host = socket.gethostname()
        self.progress = progress
        self.case = -1
        self.timeout_s = timeout_s
        self._startup_timeout_s = startup_timeout_s
        self._tell = tell
        self._on_stall = on_stall
        self._seen = (-1, -1)
        self._seen_at = time.monotonic()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to beat."""
        threading.Thread(target=self._beat_on, name="heartbeat", daemon=True).start()

    def stop(self) -> None:
        """Beat no more, and disarm the net."""
        self._stopped.set()
        faulthandler.cancel_dump_traceback_later()

    def enter(self, index: int, text: str) -> None:
        """Note that the case number ``index``, named ``text``, begins; -1 and no name: the rank starts anew."""
        self.case = index
        self.progress.case = text

    @property
    def limit_s(self) -> float | None:
        """How long the rank may make no progress now."""
        starting = self.timeout_s is not None and self.case < 0
        return max(self.timeout_s or 0.0, self._startup_timeout_s) if starting else self.timeout_s

    def state(self) -> Heartbeat:
        """What the next heartbeat says."""
        entered, left = (int(count) for count in self.progress.counters)
        cpu_ms = time.process_time_ns() // 1_000_000
        return Heartbeat(
            rank=self.rank, host=self.host, pid=os.getpid(), entered=entered, left=left, cpu_ms=cpu_ms, case=self.case
        )

    def _beat_on(self) -> None:
        while not self._stopped.is_set():
            beat = self.state()
            self._tell(beat)
            self._look_for_stall(beat)
            self._stopped.wait(INTERVAL_S)

    def _look_for_stall(self, beat: Heartbeat) -> None:
        now, limit_s = time.monotonic(), self.limit_s
        seen = (beat.case, beat.entered + beat.left)
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
            if limit_s is not None and not self._stopped.is_set():
                faulthandler.dump_traceback_later(2 * limit_s, exit=True)
        elif limit_s is not None and now - self._seen_at > limit_s:
            self._seen_at = float("inf")  # once
            self._on_stall()
