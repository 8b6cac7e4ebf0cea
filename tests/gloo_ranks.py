"""Scripts of tests/ranks on Gloo ranks, each a fork of one process that has imported torch: imports take seconds."""

import json
import multiprocessing
import os
import runpy
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launching import RANKS

#: What a rank imports of torch, and the kernels that select, which numba loads.
IMPORTED_ONCE = ["torch", "torch._dynamo", "commbench.hooks", "commbench.hooks.compression.selection"]
OUTPUTS = ("stdout", "stderr")


def run_gloo_ranks(
    ranks: int, script: str, *arguments: str, store: Path, timeout: float = 250
) -> list[tuple[int, str, str]]:
    """Start a script on ranks that meet in the new file ``store``; return each one's exit status and outputs."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(IMPORTED_ONCE)
    files = [[store.with_name(f"{store.name}-{rank}-{name}") for name in OUTPUTS] for rank in range(ranks)]
    processes = [
        forks.Process(
            target=run_script,
            args=(str(RANKS / script), arguments, rank_environment(rank, ranks, store), files[rank]),
        )
        for rank in range(ranks)
    ]
    end = time.monotonic() + timeout
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(max(0.0, end - time.monotonic()))
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [
        (process.exitcode or 0, *(file.read_text() if file.exists() else "" for file in outputs))
        for process, outputs in zip(processes, files, strict=True)
    ]


def rank_environment(rank: int, ranks: int, store: Path) -> dict[str, str]:
    """Return the environment of a rank that meets the others in the file ``store``."""
    meeting = {"STORE": str(store), "WORLD_SIZE": str(ranks), "RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"}
    return {**os.environ, **meeting, "OMP_NUM_THREADS": "1"}


def run_script(script: str, arguments: Sequence[str], environment: Mapping[str, str], files: Sequence[Path]) -> None:
    """Run a script as a program with this environment; write its standard streams to files."""
    for number, file in zip((1, 2), files, strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")


def found_by(results: list[tuple[int, str, str]]) -> Any:
    """Return what rank 0 printed last, as JSON."""
    assert [0] * len(results) == [status for status, _, _ in results], results
    return json.loads(results[0][1].strip().splitlines()[-1])
