"""Two ranks measure four cases, and one does harm in the third: for tests of how runs end.

``python harmful.py STARTER OUT BACKEND HARM MORE`` is the conductor, or one of its ranks, or a rank
of the launcher that has started it. The harm is Python; MORE adds a stage.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from launching import mpirun

from commbench.collectives.cases import Sweep
from commbench.engine.measure import CaseRun
from commbench.launch import rank
from commbench.launch.conductor import conduct
from commbench.launch.events import Event, Notice, RankOutput
from commbench.launch.identity import identify
from commbench.launch.launchers.mpirun import MpirunLauncher
from commbench.launch.standalone import OwnRank
from commbench.results import Store
from commbench.results.plan import RunRequest
from commbench.results.record_types import AnyRecord, Record
from commbench.stats.budgets import Budget

starter, out, backend, harm, more = sys.argv[1:]
me = identify(os.environ).rank


def interrupt() -> None:
    """Press Ctrl-C: in the terminal of the conductor, or of all ranks."""
    pid = int(os.environ.get("CONDUCTOR", os.getpid()))
    if me == 0 or pid == os.getpid():
        os.kill(pid, signal.SIGINT)
    time.sleep(1)


def be_harmful() -> None:
    """Run the harm in the third visit."""
    visit, seen = CaseRun.visit, []

    def harmed(measurement: CaseRun) -> Record | None:
        seen.append(measurement)
        if len(seen) == 3:
            exec(harm)  # noqa: S102 - a test's own
        return visit(measurement)

    CaseRun.visit = harmed


class HarmfulMpirun(MpirunLauncher):
    """Starts this script as the ranks' program."""

    def command(self, ranks: int, program: Sequence[str], *, training: bool = False) -> list[str]:
        """Return mpirun's command for the script."""
        return super().command(ranks, [sys.argv[0], "rank", *sys.argv[2:]], training=training)


class Display:
    """Prints notices and the output of ranks."""

    def on(self, event: Event) -> None:
        """Print an event."""
        match event:
            case Notice(text=text):
                sys.stderr.write(f"{text}\n")
            case RankOutput(lines=lines):
                sys.stderr.write("\n".join(lines))


def ask(name: str, operations: list[str]) -> RunRequest:
    """Return the request of a stage, without agreed instants, which a busy machine may miss."""
    sweep = Sweep(backends=[backend], sizes=[8, 1024], operations=operations, sync="dissemination")
    budget = Budget(name="quick", launches=1, relative_half_width=0.5, slice_s=0.05)
    timeout_s = float(os.environ.get("CASE_TIMEOUT_S", "60"))
    return RunRequest(
        cases=sweep.cases(2), ranks=2, seed=1, budget=budget, case_timeout_s=timeout_s, name=name
    )


def second(records: Sequence[AnyRecord]) -> RunRequest:
    """Plan a stage by the one before."""
    assert {record.case.operation for record in records} >= {"all_reduce", "broadcast"}
    return ask("second", ["all_gather"])


first = ask("first", ["all_reduce", "broadcast"])
stages = [lambda _: first]
if more:
    stages.append(second)
header = {"plan": {"cases": [case.key for case in first.cases]}}
if starter == "rank":
    be_harmful()
    sys.argv = sys.argv[:1]
    rank.main()
if starter != "conductor":
    be_harmful()
    OwnRank(
        stages,
        identify(os.environ),
        lambda: Store.open(out, header),
        Display(),
        lambda store: Path(f"{out}.finished").write_text(store.info["status"]),
    ).run()
os.environ["CONDUCTOR"] = str(os.getpid())
launcher = HarmfulMpirun(path=mpirun().path, oversubscribe=True)
with Store.open(out, header) as opened:
    sys.exit(conduct(stages, opened, launcher, Display(), fail_fast=True))
