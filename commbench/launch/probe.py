"""Trying out MPI in a process of its own, for `commbench env`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from commbench.errors import InputError
from commbench.launch.launchers import MpirunLauncher, choose_launcher

PROBE_RANKS = 2
TIMEOUT_S = 60


def probe_mpi() -> dict[str, Any]:
    """Start two ranks and tell what they found: library, launcher, seconds in MPI_Init, transport on this host.

    A missing or broken MPI gives ``problem``, a sentence, instead.
    """
    try:
        launcher = choose_launcher(requested="mpirun", oversubscribe=True)
        command = launcher.command(PROBE_RANKS, ["-m", "commbench.launch.probe"])
        done = subprocess.run(
            command,
            env={**os.environ, **launcher.environment()},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except InputError as error:
        return {"problem": str(error)}
    except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
        last = getattr(error, "stderr", "") or str(error)
        return {"problem": f"MPI does not start: {str(last).strip().splitlines()[-1]}"}
    return {"launcher": launcher.mpirun if isinstance(launcher, MpirunLauncher) else launcher.name, **found}


def main() -> None:
    """Be one of the ranks that are tried out."""
    from commbench.communicators.mpi_control import MpiControl

    control = MpiControl()
    if control.rank == 0:
        found = {
            "library": control.library(),
            "init_s": round(control.start.init_s, 3),
            "on_host": control.connections[0] or None,
        }
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    control.close()
    os._exit(0)


if __name__ == "__main__":
    main()
