"""One rank of a launch: opens the backends, measures or trains the planned cases, and leaves
cleanly.

The conductor starts ``python -m mpi4py -m commbench.launch.rank``: rank 0 reads the plan as one
line on stdin and answers with events on stdout. The heavy parts of the command line are never
loaded here.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import itertools
import os
import signal
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from commbench.backends import connect_control, open_backend
from commbench.collectives.cases import shuffled
from commbench.ddp.plan.terms import Terms
from commbench.engine.communicator import Communicator
from commbench.engine.control import Control, gather_everywhere
from commbench.engine.energy import EnergyMeter, own_meter
from commbench.engine.matrix import time_slices
from commbench.engine.measure import CaseRun
from commbench.engine.sampling import is_due, repeatable, rounds_of_launch
from commbench.engine.session import Session
from commbench.engine.timing.clocks import GlobalClock, open_clock
from commbench.errors import CommbenchError, InputError
from commbench.findings import Finding
from commbench.launch.events import (
    FINISH,
    CaseFinished,
    CasesEnded,
    CaseStarted,
    EventWriter,
    Heartbeat,
    Listener,
    RankError,
    Stack,
    claim_stdout,
    say,
)
from commbench.launch.facts import (
    Carrier,
    Place,
    are_oversubscribed,
    collect_session,
    own_place,
    refuse_unlike_software,
)
from commbench.launch.heartbeat import STARTUP_TIMEOUT_S, Heart, stack_of_error
from commbench.launch.identity import Identity, identify, rendezvous_variables
from commbench.launch.signals import DEADLY, SignalFeed
from commbench.results.info import Energy
from commbench.results.plan import LaunchPlan
from commbench.results.record_types import AnyRecord
from commbench.system.env import variables_of
from commbench.system.user_files import failure
from commbench.system.variables import relevant_variables

if TYPE_CHECKING:
    from commbench.ddp.devices import Device

#: Name among ``libraries`` of the NCCL that torch calls to exchange gradients between GPUs.
TORCH_NCCL = "torch-nccl"


class RankProcess(Heart, ABC):
    """This process as one rank: its heart, its signals, the launches that it makes in turn, and its
    end.

    Backends that it has opened stay open for the next launch.

    Args:
        identity: this rank.
        startup_s: seconds for all ranks to come together.
    """

    code = 0
    """Exit status of a rank that has done its work."""
    caught: Sequence[signal.Signals] = (signal.SIGUSR1, *DEADLY)
    """Signals that `on_signal` is told of."""
    control: Control
    """The ranks, once they are connected."""
    plan: LaunchPlan
    """Of the present launch."""
    listener: Listener | None
    """Receives events, on rank 0; None elsewhere."""
    launch_begun: float
    refusal = ""
    """Why this rank cannot make the present case, for which other ranks may wait."""
    visits: Iterator[int]
    """Numbers of visits and blocks, which show the rank that is behind; cases come in turns."""

    def __init__(self, identity: Identity, startup_s: float = STARTUP_TIMEOUT_S) -> None:
        self.identity = identity
        self.variables = relevant_variables(os.environ)
        """See `commbench.launch.facts.collect_session`."""
        self.opened: dict[str, Communicator] = {}
        """The open backends by name."""
        super().__init__(
            identity.rank,
            startup_s=startup_s,
            leave_with_parent=bool(identity.launcher),
            signals=SignalFeed(self.caught),
        )

    @abstractmethod
    def work(self) -> None:
        """Make all launches."""

    @abstractmethod
    def leave_off(self) -> bool:
        """Return whether to begin no further case, on rank 0."""

    def refuse(self, text: str) -> None:
        """Report, on rank 0, why nothing can be measured."""
        self.report(self.error_of(InputError(text)))

    def refuse_case(self, reason: Finding) -> None:
        """Report why this rank cannot make the present case."""
        error = self.error_of(CommbenchError(str(reason)))
        self.report(dataclasses.replace(error, is_of_case=True))

    def run(self) -> NoReturn:
        """Connect the ranks, check that they run the same software, work and leave.

        An error on one rank ends all.

        Leave by `os._exit`: at Python's own exit, threads of Gloo that still run abort one process
        in ten. MPI is finalised before, as mpirun reports a failure otherwise.
        """
        self.start()
        faulthandler.enable()
        # also works if the heartbeat hangs: see `Supervisor`
        faulthandler.register(signal.SIGUSR2, all_threads=True)
        control: Control | None = None
        try:
            identity = self.identity
            if identity.launcher == "slurm" and not identity.carries_mpi:
                os.environ.update(rendezvous_variables(identity, os.environ))
            control = connect_control(
                identity.launcher, identity.world_size, carries_mpi=identity.carries_mpi
            )
            refusal = refuse_unlike_software(control)
            if refusal:
                self.code = InputError.exit_code
                if control.rank == 0:
                    self.refuse(refusal)
            else:
                self.control = control
                self.work()
                for communicator in self.opened.values():
                    communicator.close()
            control.close()
        # The others would wait for this rank for ever.
        except BaseException as error:  # noqa: BLE001
            self._end_all(error, control)
        self.stop()
        leave(self.code)

    def _end_all(self, error: BaseException, control: Control | None) -> NoReturn:
        """Report the error and end every rank.

        An error of commbench is one sentence and shows no traceback.
        """
        code = 1
        if isinstance(error, CommbenchError):
            code = error.exit_code
        else:
            traceback.print_exception(error)
            sys.stderr.flush()
        self.report(self.error_of(error))
        if control is not None:
            control.abort(code)
        leave(code)

    def error_of(self, error: BaseException) -> RankError:
        """Return the event that states an error of this rank."""
        message = str(error)
        stack = []
        if not isinstance(error, CommbenchError):
            message, stack = failure(error), stack_of_error(error.__traceback__)
        return RankError(
            rank=self.rank,
            host=self.host,
            case=self.case,
            message=message,
            is_bad_input=isinstance(error, InputError),
            stack=stack,
        )

    # Launches

    def make_launch(self, plan: LaunchPlan, listener: Listener | None = None) -> None:
        """Measure or train all cases of ``plan``, the same on every rank; collective.

        Raises:
            InputError: a backend cannot be opened.
        """
        self.limit(plan.case_timeout_s)
        self.enter(-1, "")
        self.plan, self.listener = plan, listener
        self.launch_begun, self.visits = time.monotonic(), itertools.count()
        control = self.control
        # before any library moves this rank to other CPUs
        places = gather_everywhere(control, own_place(control.rank))
        carriers = self._open_backends()
        device = None
        if plan.training:
            from commbench.ddp.devices import open_device

            device = open_device(plan.trainings[0].backend, control)  # of all cases
            if device.ranks_per_gpu:
                carriers[TORCH_NCCL] = device
        varied = variables_of(plan.env)
        variables = {name: value for name, value in self.variables.items() if name not in varied}
        session = collect_session(control, places, carriers, variables, varied)
        meter = own_meter(control)
        clock = GlobalClock()
        if plan.training is None:
            clock = open_clock(control, [place.clock for place in places])
        if listener and session:
            session.facts["energy"] = Energy(
                counted=list(meter.kinds),
                missing={str(kind): why for kind, why in meter.missing.items()},
            )
            if device:
                from commbench.ddp.session import fast_selection

                selection = fast_selection(plan.trainings, device)
                if selection:
                    session.facts["fast_selection"] = selection
            else:
                session.facts["clock"] = clock.facts
            listener.on(session)
        if plan.training and device:
            is_complete = self._train(plan.training, device, meter)
            device.close()
        else:
            is_complete = self._measure(places, clock, meter)
        if listener:
            listener.on(CasesEnded(is_complete=is_complete))

    def _open_backends(self) -> dict[str, Carrier]:
        """Open the backends that the plan needs; return them by name.

        Training needs Gloo, over NCCL for everything but the gradients.
        """
        names = {case.backend for case in self.plan.collectives}
        if self.plan.training:
            names = {"gloo"}
        for name in sorted(names - self.opened.keys()):
            self.opened[name] = open_backend(name, self.control)
        return {name: self.opened[name] for name in sorted(names)}

    def _measure(self, places: Sequence[Place], clock: GlobalClock, meter: EnergyMeter) -> bool:
        """Measure collectives in rounds, the first in the planned order.

        Return whether all were measured.
        """
        control, progress, budget = self.control, self.progress, self.plan.budget
        session = Session(
            control=control,
            budget=budget,
            progress=progress,
            clock=clock,
            oversubscribed=are_oversubscribed(places),
            hosts=[place.host for place in places],
            meter=meter,
        )
        progress.take_stalls()  # from loading libraries off a slow disk
        settings = [self.plan.fixed.get(case.key) for case in self.plan.collectives]
        rounds = rounds_of_launch(settings, budget)
        runs: dict[int, CaseRun] = {}
        order = list(range(len(settings)))
        for round_number in range(rounds + repeatable(rounds)):
            if round_number:
                order = shuffled(range(len(settings)), self.plan.launch, round_number)
            for index in order:
                case = self.plan.collectives[index]
                run = runs.get(index)
                if run and not is_due(run.visits_made, run.settings.visits, round_number, rounds):
                    continue
                if self.is_out_of_time(time_slices(case, control.size) / rounds):
                    is_left_off = control.broadcast_int(int(self.leave_off()))
                    return round_number > 0 and not is_left_off
                if run is None:
                    run = runs[index] = CaseRun(
                        case,
                        self.opened[case.backend],
                        session,
                        self.plan.launch,
                        settings[index],
                    )
                self._begin_case(index)
                record = run.visit()
                share = 1 / run.settings.visits
                if record is not None and record.disturbed > 0:
                    share = 0.0  # it is repeated
                self._finish_case(record, share=share)
        return True

    def _train(self, terms: Terms, device: Device, meter: EnergyMeter) -> bool:
        """Train configurations in turns, in the order that ``terms`` fix.

        Return whether all were trained.
        """
        from commbench.ddp.session import TrainingLaunch

        cases, search = self.plan.trainings, None
        if terms.search_s is not None and self.control.rank == 0:
            from commbench.tuner.screening import Search

            seed = f"{terms.seed}:{self.plan.launch}"
            search = Search(cases, seconds=terms.search_s, seed=seed, withheld=terms.withheld)
        launch = TrainingLaunch(
            cases=cases,
            terms=terms,
            launch=self.plan.launch,
            control=self.control,
            device=device,
            progress=self.progress,
            meter=meter,
            on_begin=self._begin_case,
            on_record=self._finish_case,
            on_refusal=self.refuse_case,
            is_out_of_time=lambda: self.is_out_of_time(1 / terms.blocks),
            search=search,
        )
        return launch.train()

    def is_out_of_time(self, slices: float = 1.0) -> bool:
        """Return whether no further case is wanted, or ``slices`` would begin too late.

        Rank 0 decides for all.
        """
        budget = self.plan.budget
        ends_s = time.monotonic() - self.launch_begun + slices * budget.slice_s + budget.energy_s
        is_over = self.leave_off() or ends_s > self.plan.deadline_s
        return bool(self.control.broadcast_int(int(is_over)))

    def _begin_case(self, index: int) -> None:
        """Begin a case once rank 0 has reported it: the conductor must know the case of a rank that
        dies.
        """
        self.enter(next(self.visits), str(self.plan.cases[index]))
        self.refusal = ""
        if self.listener:
            self.listener.on(CaseStarted(index=index))
        self.control.broadcast_int(index)

    def _finish_case(self, record: AnyRecord | None, *, share: float = 1.0) -> None:
        if self.listener and record:
            self.listener.on(CaseFinished(record=record, share=share))


class PipedRank(RankProcess):
    """A rank that the conductor has started.

    Args:
        startup_s: seconds for all ranks to come together.
    """

    def __init__(self, startup_s: float) -> None:
        self._stdout = claim_stdout()
        self._is_last_case = threading.Event()
        super().__init__(identify(os.environ, "rank"), startup_s)

    def work(self) -> None:
        """Make the launch that the conductor has planned."""
        text, listener = "", None
        if self.control.rank == 0:
            text, listener = self._read_plan(), EventWriter(self._stdout)
        self.make_launch(LaunchPlan.from_json(self.control.broadcast(text)), listener)

    def leave_off(self) -> bool:
        """Return whether the conductor wants no further case."""
        return self._is_last_case.is_set()

    def _read_plan(self) -> str:
        """Return the plan from stdin, which stays open while the conductor lives.

        This rank ends when stdin closes.
        """
        # A process that this one forks, such as one that loads data, closes sys.stdin, and would
        # wait for ever while a thread reads that object.
        lines = os.fdopen(0, encoding="utf-8", closefd=False)
        text = lines.readline()

        def follow_conductor() -> None:
            while line := lines.readline():
                if line.strip() == FINISH:
                    self._is_last_case.set()
            # A launcher that ends this rank because of another one comes here first.
            self.report_stacks()
            os._exit(1)

        threading.Thread(target=follow_conductor, name="conductor", daemon=True).start()
        return text

    def report(self, event: Heartbeat | Stack | RankError) -> None:
        """Tell the conductor."""
        say(event)


def main() -> NoReturn:
    """Be a rank that the conductor has started.

    The argument is the time in seconds for all ranks to come together.
    """
    startup_s = STARTUP_TIMEOUT_S
    if len(sys.argv) > 1:
        startup_s = float(sys.argv[1])
    PipedRank(startup_s).run()


def leave(code: int) -> NoReturn:
    """Flush the output and end this process at once."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
