"""Tests of the settings that a live tuning tries."""

import copy

import numpy as np
import pytest
from live_builders import make_facts, make_options

torch = pytest.importorskip("torch")

from commbench.ddp.plan.cases import CONFIRM, SWEEP
from commbench.live.agreement import Measured
from commbench.live.switching import live_switches
from commbench.live.tune import Tune, settings_of
from commbench.results import load_run
from commbench.tuner.experiment import UNTIMED

#: The last layer has no gradients.
MODEL = torch.nn.Sequential(
    torch.nn.Linear(10, 8), torch.nn.Linear(8, 2), torch.nn.Linear(10, 10, bias=False)
)
MODEL[2].requires_grad_(requires_grad=False)


def test_no_copies_in_batches_where_a_script_has_hooks_on_gradients(tmp_path):
    """Try batched copies with the one hook of live tuning, and not with a second one."""
    if not live_switches():
        pytest.skip("needs torch 2.13")
    model = copy.deepcopy(MODEL)
    tried = []
    for _ in range(2):
        model[0].weight.register_post_accumulate_grad_hook(print)
        settings = settings_of(make_facts(), model, make_options(tmp_path))
        tried.append(any(case.batched_grad_copy for case in settings))
    assert [True, False] == tried


@pytest.mark.parametrize("worst", ["nothing", SWEEP, CONFIRM])
def test_a_hook_that_distorts_gradients_is_never_recommended(tmp_path, worst):
    """Recommend the fastest hook, but not if gradients are not finite in a block of any phase."""
    model = torch.nn.Module()
    model.module, model.device = MODEL, torch.device("cpu")
    options = make_options(
        tmp_path / "run", allow=("none", "fp16"), bucket_cap_mb=("default",), steps=4000
    )
    tune = Tune(model, options, make_facts())
    step, bad_blocks = 0, 0
    while block := tune.next_block(step, is_ahead=False):
        hook = tune.settings[block.setting].hook
        steps = UNTIMED + block.steps
        times = np.full((2, steps, 3), [100.0 - 40 * (hook == "fp16"), 1.0, 2.0])
        is_bad = (hook, block.phase) == ("fp16", worst) and block.round == (worst == CONFIRM)
        bad_blocks += is_bad
        tune.add_block(block, Measured(times, step, [8], is_finite=not is_bad))
        step += steps
    setting = tune.finish(step)
    tune.run.close()
    tune.run.wait()
    assert bad_blocks == (worst != "nothing")
    assert (worst == "nothing") == (setting.hook == "fp16")
    row = next(row for row in load_run(tmp_path / "run").training_rows if row.hook == "fp16")
    assert ("failed" if worst == SWEEP else "ok") == row.status
