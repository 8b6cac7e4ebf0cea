"""Tests of the experiment of a live tuning, on simulated machines."""

from training_builders import make_training_case

from commbench.ddp.plan.cases import CONFIRM
from commbench.tuner.experiment import Experiment

SETTINGS = [make_training_case(cap=cap) for cap in ("default", "1", "5", "50")]


def test_a_clear_gain_is_found() -> None:
    """Confirm the setting that is 1.3 times as fast, and say that it is decided."""
    experiment = Experiment(SETTINGS, seed=0, max_steps=None)
    made = 0
    while block := experiment.next_block(made, None):
        made += 2 + block.steps
        experiment.add(block, [100.0 / (1.3 if block.setting == 2 else 1.0)] * block.steps)
    assert (experiment.ending, block) == ("decided", None)
    assert experiment.finalists == [2]
    assert experiment._stage.phase == CONFIRM
    assert made < 200
