"""A run of few cases by the conductor, for tests of how runs end."""

from pathlib import Path
from typing import Any

from builders import read_info, read_records
from fields import fields_of
from launching import Recorder, ScriptLauncher, make_request, open_store

from commbench.collectives.cases import Sweep
from commbench.launch.conductor import conduct
from commbench.launch.launchers.base import Launcher
from commbench.results.plan import RunRequest, single_stage

CASES = Sweep(backends=["mpi"], sizes=[8, 1024], operations=["all_reduce", "broadcast"]).cases(2)
REQUEST = make_request(CASES)
#: Played ranks that measure everything, and what there is then.
ALL = "session()\nfor i in range(len(plan.cases)): measured(i)\nend(is_complete=True)\n"
EVERYTHING = sorted((case.key, launch, "ok") for case in CASES for launch in range(2))


def run(
    path: Path,
    launcher: Launcher | str,
    request: RunRequest = REQUEST,
    display: Recorder | None = None,
    *,
    fail_fast: bool = False,
) -> tuple[int, dict[str, Any], Recorder]:
    """Conduct a run; return exit code, run.json and the display."""
    launcher = ScriptLauncher(launcher) if isinstance(launcher, str) else launcher
    display = display or Recorder()
    with open_store(path, request) as store:
        code = conduct(single_stage(request), store, launcher, display, fail_fast=fail_fast)
    return code, read_info(path), display


def measured(path: Path) -> list[tuple[str, int, str]]:
    """Return (case key, launch, status) of all records."""
    return fields_of(read_records(path), "case.key", "launch", "status")
