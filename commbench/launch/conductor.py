"""The conductor: makes a run's launches with ranks that it starts itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from commbench.errors import InputError
from commbench.launch.clues import Ending
from commbench.launch.events import Listener
from commbench.launch.launchers.base import Launcher
from commbench.launch.ledger import Ledger
from commbench.launch.schedule import Launch, Schedule
from commbench.launch.signals import Interrupts
from commbench.launch.supervisor import Supervisor
from commbench.results import Store
from commbench.results.plan import Stage


def conduct(
    stages: Sequence[Stage],
    store: Store,
    launcher: Launcher,
    display: Listener,
    *,
    fail_fast: bool = False,
) -> int:
    """Measure what ``store`` still lacks of each stage in turn; return the exit code.

    See `commbench.launch.schedule.Schedule` for the launches. The next call tries again what
    failed. The first Ctrl-C lets the case that is being measured come to its end.

    Returns:
        0 done, 3 a rank failed or hung or a case has no launch, 4 wrong data was found, 128 +
        number of the signal that interrupted the run.

    Raises:
        InputError: the ranks find that the request cannot be carried out, or that the run was begun
            elsewhere.
        LaunchError: the results cannot be written.
    """
    ledger = Ledger(store, display, launcher.name)
    interrupts = Interrupts()

    def supervise(launch: Launch) -> Ending:
        return Supervisor(launch, ledger, launcher, interrupts).run()

    make = partial(ledger.carry_out, run=supervise)
    schedule = Schedule(stages, store, display, interrupts, make, fail_fast=fail_fast)
    try:
        with interrupts.noting():  # to the end: a second Ctrl-C must not keep that from run.json
            return ledger.close(schedule.carry_out())
    except InputError as error:
        ledger.refuse(str(error))
        raise
    except BaseException as error:
        ledger.fail(error)
        raise
