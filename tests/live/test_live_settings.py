"""Tests of the settings that a live tuning tries."""

import copy
from pathlib import Path

import pytest
from live_builders import make_facts, make_options

torch = pytest.importorskip("torch")

from commbench.live.switching import live_switches
from commbench.live.tune import settings_of

#: 106 elements with a gradient, 100 without.
MODEL = torch.nn.Sequential(
    torch.nn.Linear(10, 8), torch.nn.Linear(8, 2), torch.nn.Linear(10, 10, bias=False)
)
MODEL[2].requires_grad_(requires_grad=False)
ALIGNED = "topk:0.1:chunk={}:exchange=aligned"


@pytest.mark.parametrize("chunk", [106, 107, 206])
def test_a_chunk_larger_than_the_model_is_not_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], chunk: int
) -> None:
    """Leave out a hook for which the model is too small, with one sentence.

    Frozen parameters do not count.
    """
    hook = ALIGNED.format(chunk)
    options = make_options(tmp_path, allow=("none", "fp16", hook))
    settings = settings_of(make_facts(), MODEL, options)
    is_tried = chunk == 106
    assert {"none", "fp16", *([hook] if is_tried else [])} == {case.hook_name for case in settings}
    reason = f"Hook topk was given chunk {chunk}, the model has 106 elements: give a smaller chunk."
    expected = f"commbench: {hook} is not tried: {reason}"
    assert ([] if is_tried else [expected]) == capsys.readouterr().err.splitlines()


def test_no_copies_in_batches_where_a_script_has_hooks_on_gradients(tmp_path: Path) -> None:
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
