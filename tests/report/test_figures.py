"""Tests of all figures together."""

import subprocess
import sys
from pathlib import Path

from builders import STEADY, make_launches
from drawings import run_of, training_run_of
from training_builders import launches_of, make_bucket, make_training_case

from commbench.report.figures import all_figures

RESULTS = Path(__file__).parents[2] / "results"


def make_runs() -> list:  # type: ignore[type-arg] # of runs
    """Return two runs, each with collectives and training."""
    training = [
        *launches_of(20.0, losses=[2.0, 1.0], buckets=[make_bucket()]),
        *launches_of(10.0, make_training_case("fp16", "25"), losses=[2.0, 1.0], buckets=[make_bucket()]),
    ]
    return [training_run_of(training, name, collectives=make_launches(STEADY)) for name in ("old", "new")]


def test_figures_come_in_a_fixed_order_with_names_of_their_own() -> None:
    """Begin with what was decided."""
    drawings = all_figures(make_runs())
    names = [drawing.name for drawing in drawings]

    assert len(set(names)) == len(names)
    assert "buckets" == names[0]
    assert names == [drawing.name for drawing in all_figures(make_runs())]
    assert drawings == all_figures(make_runs())


def test_every_figure_says_what_it_shows() -> None:
    """Give each a title, a caption of sentences and a text for who does not see it."""
    for drawing in all_figures(make_runs()):
        assert drawing.title
        assert drawing.alt
        assert drawing.caption.endswith((".", ")"))
        assert "  " not in drawing.caption
        assert "nan" not in drawing.caption.lower().split()


def test_nothing_measured_is_no_figure() -> None:
    """Draw nothing of an empty run, nor of none."""
    assert [] == all_figures([run_of([])])
    assert [] == all_figures([])


def test_figures_need_no_ranks() -> None:
    """Load neither torch nor MPI nor numba, and matplotlib only to draw; never its global state."""
    code = (
        "import sys, commbench.report.figures as f\n"
        "heavy = {'torch', 'mpi4py', 'numba', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "f.drawing.draw(lambda figure: figure.subplots(), name='a', section='energy', title='', caption='', alt='')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
