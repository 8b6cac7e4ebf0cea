"""Tests of all figures together."""

import subprocess
import sys
from collections.abc import Sequence

import pytest
from builders import STEADY, make_launches
from drawings import run_of, training_run_of
from training_builders import launches_of, make_bucket, make_training_case

from commbench.report.figures import all_figures
from commbench.report.figures.drawing import Drawing


def make_runs() -> list:  # type: ignore[type-arg] # of runs
    """Return two runs, each with collectives and training."""
    training = [
        *launches_of(20.0, losses=[2.0, 1.0], buckets=[make_bucket()]),
        *launches_of(
            10.0, make_training_case("fp16", "25"), losses=[2.0, 1.0], buckets=[make_bucket()]
        ),
    ]
    return [
        training_run_of(training, name, collectives=make_launches(STEADY))
        for name in ("old", "new")
    ]


@pytest.fixture(scope="module")
def drawings() -> Sequence[Drawing]:
    """Return all figures of two runs."""
    return all_figures(make_runs())


def test_figures_come_in_a_fixed_order_with_names_of_their_own(drawings: Sequence[Drawing]) -> None:
    """Draw figures in a fixed order, with distinct names, decisions first."""
    names = [drawing.name for drawing in drawings]
    assert len(set(names)) == len(names)
    assert "buckets" == names[0]


def test_every_figure_says_what_it_shows(drawings: Sequence[Drawing]) -> None:
    """Give each figure a title, a caption and an alternative text."""
    assert all(drawing.title and drawing.alt and drawing.caption for drawing in drawings)


def test_nothing_measured_is_no_figure() -> None:
    """Draw nothing for an empty run, or without runs."""
    assert [] == all_figures([run_of([])])
    assert [] == all_figures([])


@pytest.mark.programs
def test_figures_need_no_ranks() -> None:
    """Draw without torch, MPI and numba, and without matplotlib's global state."""
    code = (
        "import sys, commbench.report.figures as f\nheavy = {'torch', 'mpi4py', 'numba',"
        " 'matplotlib'} & set(sys.modules)\nassert not heavy, heavy\ntexts = dict(title='',"
        " caption='', alt='')\nf.drawing.Drawing(paint=lambda figure: figure.subplots(), name='a',"
        " section='energy', **texts).png\nassert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
