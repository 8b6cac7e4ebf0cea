"""Tests of suites: lookup, content, and replacement of axes."""

from pathlib import Path

import pytest
from fields import fields_of

from commbench import Sweep
from commbench.collectives.cases import all_cases
from commbench.collectives.suites import Suite, known_suites, load_suite
from commbench.errors import InputError


def write(path: Path, text: str) -> Path:
    """Write a suite file."""
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", known_suites())
def test_our_own_suites_load(name):
    """Load each shipped suite with cases."""
    suite = load_suite(name)
    assert name == suite.name
    assert all_cases(suite.sweeps, 2)


def test_messages_of_training_follow_the_model(monkeypatch):
    """Scale messages of training with the model: weights fourfold, activations twofold at twice the
    width.
    """
    sizes = []
    for hidden in ("512", "1024"):
        monkeypatch.setenv("COMMBENCH_HIDDEN", hidden)
        sweeps = load_suite("parallelism").sweeps
        sizes.append({sweep.operations[0]: int(sweep.sizes[0]) for sweep in sweeps})
    narrow, wide = sizes
    factors = {
        "all_reduce": 2,
        "sendrecv": 2,
        "all_gather": 4,
        "reduce_scatter": 4,
        "all_to_all": 2,
    }
    assert factors == {name: wide[name] / narrow[name] for name in narrow}
    assert 1024 * 1024 * 4 == wide["all_reduce"]
    assert 12 * 1024**2 * 4 // 2 == wide["all_gather"]


def test_a_person_s_own_file_is_a_suite(tmp_path, monkeypatch):
    """Load one sweep or a list from a file, named after it, and stay in the working directory."""
    monkeypatch.chdir(tmp_path)
    suite = load_suite(
        str(write(tmp_path / "mine.py", "from commbench import Sweep\nSUITE = Sweep(sizes='8')\n"))
    )
    two = load_suite(
        str(
            write(
                tmp_path / "two.py",
                "import os; from commbench import Sweep; os.chdir('/')\n"
                "SUITE = [Sweep(sizes=[8]), Sweep(sizes=[16])]\n",
            )
        )
    )
    assert "mine" == suite.name
    assert [(8,)] == fields_of(suite.sweeps, "sizes")
    assert [[8], [16]] == fields_of(two.sweeps, "sizes")
    assert tmp_path.resolve() == Path.cwd()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SUITE = []",
        "SUITE = 'all_reduce'",
        "SUITE = 3",
        "SUITE = 1 / 0",
        "import sys; sys.exit(0)",
        "raise OSError('two\\nlines.')",
        "def",
        *(
            f"from commbench import Sweep\nSUITE = Sweep({axis})"
            for axis in (
                "operations=['sum']",
                "operations=None",
                "roots=1",
                "roots=['0']",
                "in_place=None",
                "buffers=(name for name in ['hot'])",
            )
        ),
    ],
)
def test_a_file_that_is_no_suite_is_refused(tmp_path, text):
    """Refuse an invalid file on one line; name the option to whoever gives an operation in place of
    a suite.
    """
    with pytest.raises(InputError) as caught:
        load_suite(str(write(tmp_path / "bad.py", text)))
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="-c all_reduce"):
        load_suite("all_reduce")


def test_axes_are_replaced_in_every_sweep():
    """Replace the given axes in every sweep and keep the rest."""
    suite = Suite(
        name="s", sweeps=[Sweep(sizes=[8], backends=["mpi"]), Sweep(sizes=[16], dtypes=["int8"])]
    )
    changed = suite.override({"backends": ("gloo",)})
    assert [(8,), (16,)] == [tuple(sweep.sizes) for sweep in changed.sweeps]
    assert ("gloo",) == changed.backends
    assert [("float32",), ("int8",)] == [tuple(sweep.dtypes) for sweep in changed.sweeps]
