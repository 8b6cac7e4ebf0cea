"""Scripts of tests/ranks on Gloo ranks, each a fork of one process that has imported torch."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from launching import RANKS


def run_gloo_ranks(
    python: str, ranks: int, script: str, *arguments: str, store: Path, timeout: float = 250
) -> list[tuple[int, str, str]]:
    """Start a script on ranks that meet in the new file ``store``.

    Return each one's exit status and outputs.
    """
    processes = [
        subprocess.Popen(
            [python, str(RANKS / script), *arguments],
            env=rank_environment(rank, ranks, store),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [
        (process.returncode, *output) for process, output in zip(processes, outputs, strict=True)
    ]


def rank_environment(rank: int, ranks: int, store: Path) -> dict[str, str]:
    """Return the environment of a rank that meets the others in the file ``store``."""
    meeting = {
        "STORE": str(store),
        "WORLD_SIZE": str(ranks),
        "RANK": str(rank),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return {**os.environ, **meeting, "OMP_NUM_THREADS": "1"}


def found_by(results: list[tuple[int, str, str]]) -> Any:
    """Return what rank 0 printed last, as JSON."""
    assert [0] * len(results) == [status for status, _, _ in results], results
    return json.loads(results[0][1].strip().splitlines()[-1])


#: What each check of a hook with a memory must find: a checkpoint resumes with identical bits;
#: a scaler changes no bit, and a skipped step drops all updates; one rank's infinity is seen by
#: all ranks and stays out of the residual.
OF_MEMORIES = {
    "resume": {"parameters": True, "memory": True},
    "scaled": {
        "same memory": True,
        "same parameters": True,
        "memory kept": True,
        "parameters kept": True,
        "goes on": True,
        "agree": True,
        "scale": 512.0,
    },
    "infinite": {"seen by all": True, "kept": True, "clean": True, "goes on": True},
}
