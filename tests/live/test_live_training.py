"""Tests of live tuning on two real Gloo ranks: unchanged training, and models that are not
tuned.
"""

from collections.abc import Callable
from typing import Any

import pytest
from gloo_ranks import found_by, run_gloo_ranks

pytest.importorskip("torch")

#: Training loops, see `live_training`.
WAYS = ["plain", "accumulation_views_evaluation", "unused_views_own_hook", "zeroed_late_own_size"]
Check = Callable[..., Any]


@pytest.fixture(scope="module")
def check(forked_python: str, tmp_path_factory: pytest.TempPathFactory) -> Check:
    """Return ``check(name, *arguments)``: the result of a check of `live_training` on two ranks."""

    def run(name: str, *arguments: str) -> Any:
        store = tmp_path_factory.mktemp("live") / "store"
        return found_by(
            run_gloo_ranks(
                forked_python, 2, "live_training.py", ":".join([name, *arguments]), store=store
            )
        )[name]

    return run


@pytest.fixture(scope="module")
def compared(check: Check) -> Any:
    """Return the outcome of each training loop."""
    return check("compare", *WAYS)


@pytest.mark.parametrize("way", WAYS)
def test_a_tuned_training_ends_to_the_bit_as_without(compared: Any, way: str) -> None:
    """Try several settings, conclude alike on both ranks, remove every hook, keep the losses as they
    were, and end with equal parameters and buffers.
    """
    outcome = compared[way]
    assert outcome["same"]
    assert outcome["settings"] > 3
    assert outcome["done"]
    assert len(set(outcome["verdicts"])) == 1
    assert outcome["hooks_left"] == [0, 0]
    assert outcome["least_loss"] > 0


def test_every_live_switch_is_tried(compared: Any) -> None:
    """Turn each switch in some training, but for those that change what a script holds.

    In a short one beside a busy core not every setting has its turn.
    """
    assert {"batched_grad_copy"} == {switch for way in WAYS for switch in compared[way]["switches"]}


def test_accumulation_and_batch_are_noticed(compared: Any) -> None:
    """Record the forward passes of a step and the samples of a pass."""
    assert (1, 8) == (compared["plain"]["accumulation"], compared["plain"]["batch"])
    accumulated = compared["accumulation_views_evaluation"]
    assert (3, 8) == (accumulated["accumulation"], accumulated["batch"])


def test_hooks_are_tried_only_by_name(check: Check) -> None:
    """Try FP16, top-k and a file's hook next to bucket sizes, and flush residuals so that training
    stays close.
    """
    outcome = check("compressed")
    failed = [(hook, reason) for hook, status, reason in outcome["statuses"] if status == "failed"]
    assert [("file_hooks.py:make_nothing", True)] == [
        (hook, "no state" in reason) for hook, reason in failed
    ]
    assert ["file_hooks.py:make_pair", "ok", ""] in outcome["statuses"]
    assert outcome["settings"] > 6
    assert 0 < outcome["apart"] < 0.2


def test_models_are_tuned_one_by_one(check: Check) -> None:
    """Tune the second of two models when the first trains no more, or its tuning is over."""
    outcome = check("in_turn")
    for name in ("sequential", "alternating"):
        messages = outcome[name]["messages"]
        assert 2 == sum(line.startswith("commbench: tuning Net") for line in messages), messages
        assert 0 == outcome[name]["left"]


def test_a_model_is_tuned_once(check: Check) -> None:
    """Give a script the tuning of its model that is under way."""
    assert check("twice") == {"same": True, "messages": 1}


def test_what_cannot_be_tuned_says_why(check: Check) -> None:
    """Train models that cannot be tuned, with one sentence each."""
    outcome = check("refused")
    assert "extends DistributedDataParallel" in outcome["subclass"]
    assert "not one of torch's default hooks" in outcome["own_state"]
    assert "torch.compile" in outcome["compiled"]
    assert "could not be begun" in outcome["unwritable"]
    assert all(1 == len(text.splitlines()) for text in outcome.values())
