"""Tests of unmodified trainings of HuggingFace Trainer and Lightning under ``commbench tune --
COMMAND``.
"""

import importlib.util
import re
import sys

import pytest
from fields import fields_of
from launching import assert_code
from live_builders import TORCHRUN, run_python
from places import ROOT

from commbench.results import load_run

pytestmark = [pytest.mark.slow, pytest.mark.mpi, pytest.mark.timeout(300)]

TRAININGS = ROOT / "benchmarks" / "trainings"
STEPS, TUNED = 160, 150
SMALL = ("--width", "128", "--layers", "3", "--batch", "4")
#: Each framework's package, its script, and what starts the ranks; Lightning starts its second rank
#: itself.
FRAMEWORKS = {"transformers": ("trainer.py", TORCHRUN), "lightning": ("lightning_fit.py", ())}


def digests(output: str) -> set[str]:
    """Return the parameter digests that ranks printed, possibly in one line."""
    return set(re.findall(r"\b[0-9a-f]{64}\b", output))


@pytest.mark.parametrize("framework", ["transformers", "lightning"])
def test_an_unmodified_training_is_tuned_and_ends_alike(framework, tmp_path):
    """Train to equal bits with and without tuning, and record the framework."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"needs {framework}")
    script, start = FRAMEWORKS[framework]
    training = [*start, str(TRAININGS / script), "--steps", str(STEPS), *SMALL]
    plain = run_python(training, tmp_path)
    assert_code(plain, 0)
    tune = ["-m", "commbench", "tune", "--steps", str(TUNED), "--out", "tuned", "--"]
    tuned = run_python([*tune, sys.executable, *training], tmp_path)
    assert_code(tuned, 0)
    assert 1 == len(digests(plain.stdout) | digests(tuned.stdout))
    result = load_run(tmp_path / "tuned")
    assert framework == result.info["framework"]
    assert len(set(fields_of(result.training_records, "case.bucket_cap_mb"))) > 1
    assert f"{script} on 2 ranks" in tuned.stderr
    assert "commbench" not in tuned.stdout
