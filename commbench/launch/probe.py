"""Probes in processes of their own: MPI for `commbench env`, a workload before it is trained."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from commbench.collectives.backends import TRAINING_BACKENDS
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.errors import InputError
from commbench.hooks.registry import find_file_hooks
from commbench.launch.identity import identify
from commbench.launch.launcher_output import last_line
from commbench.launch.launchers.base import Placement
from commbench.launch.launchers.choice import choose_launcher
from commbench.schema import JsonObject, read_as
from commbench.system.env import safe_path

PROBE_RANKS = 2
TIMEOUT_S = 60
#: A user's own workload may read its data first.
WORKLOAD_TIMEOUT_S = 600


def probe_mpi() -> JsonObject:
    """Start two ranks.

    Return their findings: library, launcher, seconds in MPI_Init, transport on this host.

    A missing or broken MPI gives ``problem``, a sentence, instead.
    """
    try:
        launcher = choose_launcher("mpirun", Placement(oversubscribe=True))
        command = launcher.command(PROBE_RANKS, ["-m", "commbench.launch.probe"])
        done = subprocess.run(
            command,
            env={**os.environ, **launcher.environment()},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except InputError as error:
        return {"problem": str(error)}
    except (subprocess.TimeoutExpired, OSError) as error:
        return {"problem": f"MPI does not start: {error}"}
    report = _answer(done)
    if report is None:
        return {"problem": f"MPI does not start: {_last_words(done)}"}
    return {"launcher": launcher.path, **report}


def _answer(done: subprocess.CompletedProcess[str]) -> JsonObject | None:
    """Return the JSON object in the last line of a program's stdout; None without one."""
    try:
        answer: JsonObject = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return answer


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    """Return the signal that ended a program, else the last line of its stderr or its exit
    status.
    """
    if done.returncode < 0:
        return f"{signal.strsignal(-done.returncode)}, signal {-done.returncode}"
    return last_line(done.stderr.splitlines()) or f"it ended with status {done.returncode}"


def probe_workload(
    workload: str, batch: int | None = None, hooks: Sequence[str] = (), *, backend: str = "gloo"
) -> WorkloadFacts:
    """Make a workload and train it for a few steps without DDP, in a process of its own.

    Return its facts.

    Args:
        workload: as ``--workload`` names it.
        batch: samples per rank; None: the workload's own number.
        hooks: as ``--hook`` names them; they are made, too.
        backend: that it will be trained over; for one on GPUs it is tried out on a GPU of this
            host.

    Raises:
        InputError: it cannot be made, or not be trained with DDP, or a hook cannot be made, or
            there is no GPU.
    """
    arguments: JsonObject = {"spec": workload, "batch": batch, "hooks": hooks}
    if TRAINING_BACKENDS[backend].uses_gpu:
        arguments["gpu"] = identify(os.environ).local_rank
    # The probe may take a minute. Only a terminal shows it: a log of bad input holds nothing but
    # its sentence.
    if sys.stderr.isatty() and identify(os.environ).rank == 0:
        sys.stderr.write(f"Trying out workload {workload} ...\n")
    return read_as(WorkloadFacts, _inspected(arguments, f"Workload {workload}"))


def probe_hooks(hooks: Sequence[str]) -> None:
    """Import the user's own hooks in a process of its own; without any do nothing.

    Raises:
        InputError: a hook cannot be imported, or is none.
    """
    file_hooks = find_file_hooks(hooks)
    if file_hooks:
        _inspected({"hooks": file_hooks}, f"Hook {', '.join(file_hooks)}")


def _inspected(arguments: JsonObject, subject: str) -> JsonObject:
    """Return the answer of `commbench.ddp.inspect` to these arguments."""
    if importlib.util.find_spec("torch") is None:
        raise InputError(
            "Training needs PyTorch, which is not installed: pip install 'commbench[torch]'."
        )
    one_thread = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "commbench.ddp.inspect", json.dumps(arguments)],
            env={**os.environ, **one_thread, **safe_path()},
            capture_output=True,
            text=True,
            timeout=WORKLOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(
            f"{subject} has made no local step in {WORKLOAD_TIMEOUT_S} s; choose a smaller batch."
        ) from None
    answer = _answer(done)
    if answer is None:
        raise InputError(f"{subject} cannot be tried out: {_last_words(done)}")
    if "error" in answer:
        raise InputError(str(answer["error"]))
    facts: JsonObject = answer["ok"]
    return facts


def main() -> None:
    """Be a rank of the probe of MPI."""
    from commbench.backends.mpi_control import MpiControl

    control = MpiControl()
    if control.rank == 0:
        report = {
            "library": control.library(),
            "init_s": round(control.init_s, 3),
            "on_host": control.connections[0] or None,
        }
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()
    control.close()
    os._exit(0)


if __name__ == "__main__":
    main()
