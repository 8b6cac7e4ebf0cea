"""Suites that nobody here wrote end alike with and without commbench: of accelerate and of
torch.
"""

import sys
from pathlib import Path

import pytest
from live_builders import TORCHRUN, run_python

pytest.importorskip("torch")

#: The DDP tests of torch that run on CPUs.
TORCH_TESTS = (
    "DistributedDataParallelCPU",
    "DistributedDataParallelCPU_grad_is_view",
    "DistributedDataParallel_requires_grad",
    "ddp_create_graph",
    "ddp_logging_data_cpu",
    "grads_same_across_ranks_with_no_sync",
    "static_graph_api_cpu",
)
#: The module that a suite needs, and its command, by name; those of accelerate that run on CPUs.
SUITES = {
    **{
        name: ("accelerate", (*TORCHRUN, "-m", f"accelerate.test_utils.scripts.{name}"))
        for name in ("test_script", "test_sync", "test_ops")
    },
    "torch": (
        "expecttest",
        (
            str(Path(__file__).parent / "trainings" / "torch_suite.py"),
            *(f"TorchSuite.test_{name}" for name in TORCH_TESTS),
        ),
    ),
}


def run(words: list[str], directory: Path) -> tuple[int, int]:
    """Return the exit code of a Python command, and how many lines it printed."""
    done = run_python(words, directory, ACCELERATE_USE_CPU="1")
    return done.returncode, len(done.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("mode", ["tune", "watch"])
def test_a_suite_passes(mode, suite, tmp_path):
    """Pass with ``tune --`` and ``watch --`` as without, and print as much."""
    module, training = SUITES[suite]
    pytest.importorskip(module)
    attached = ["-m", "commbench", mode, "--out", "run", "--", sys.executable, *training]
    plain = run(list(training), tmp_path)
    assert plain[0] == 0
    assert run(attached, tmp_path) == plain
