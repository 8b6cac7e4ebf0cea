"""Live tuning on two real Gloo ranks: a training ends as without it, and what cannot be tuned runs untouched."""

from collections.abc import Callable
from typing import Any

import pytest
from effort import cases
from gloo_ranks import found_by, run_gloo_ranks

pytest.importorskip("torch")

#: Ways to write a training loop, see `live_training`.
WAYS = cases(
    ["plain", "accumulation_views", "unused_views", "zeroed_late", "own_hook", "evaluation", "own_size"],
    ["views", "accumulation", "static_graph", "unused", "kept_views", "scaler"],
)
Check = Callable[..., Any]


@pytest.fixture(scope="module")
def check(forked_python: str, tmp_path_factory: pytest.TempPathFactory) -> Check:
    """``check(name, *arguments)``: what a check of `live_training` finds on two ranks."""

    def run(name: str, *arguments: str) -> Any:
        store = tmp_path_factory.mktemp("live") / "store"
        return found_by(
            run_gloo_ranks(forked_python, 2, "live_training.py", ":".join([name, *arguments]), store=store)
        )[name]

    return run


@pytest.fixture(scope="module")
def compared(check: Check) -> Any:
    """What each way of training ends with."""
    return check("compare", *WAYS)


@pytest.mark.parametrize("way", WAYS)
def test_parameters_end_to_the_bit_as_without_tuning(compared: Any, way: str) -> None:
    """Compare parameters and buffers on both ranks after a training with and one without tuning."""
    assert compared[way]["same"]


@pytest.mark.parametrize("way", WAYS)
def test_several_settings_are_tried_and_nothing_stays(compared: Any, way: str) -> None:
    """Find several settings in the run, the same conclusion on both ranks, and no hook of the tuning at the end."""
    found = compared[way]
    assert found["settings"] > 3
    assert found["done"]
    assert found["verdicts"][0] == found["verdicts"][1]
    assert found["hooks_left"] == [0, 0]


def test_accumulation_and_batch_are_noticed(compared: Any) -> None:
    """Find the forward passes of a step and the samples of a pass in the records."""
    assert (1, 8) == (compared["plain"]["accumulation"], compared["plain"]["batch"])
    assert (3, 8) == (compared["accumulation_views"]["accumulation"], compared["accumulation_views"]["batch"])


def test_hooks_are_tried_only_by_name(check: Check) -> None:
    """Try FP16 and top-k beside bucket sizes; unsent gradients are sent when top-k leaves, so training stays close."""
    found = check("compressed")
    assert found["settings"] > 5
    assert 0 < found["apart"] < 0.2


def test_models_are_tuned_one_by_one(check: Check) -> None:
    """Leave the first of two models when the second one trains, and tune that one."""
    found = check("in_turn")
    for name in ("sequential", "alternating"):
        assert any("another DDP model of the script trains" in line for line in found[name]["messages"])
        assert 1 == sum(line.startswith("commbench: tuning Net") for line in found[name]["messages"]) - (
            name == "sequential"
        )
        assert 0 == found[name]["left"]
        assert found[name]["restored"]


def test_uneven_inputs_end_the_tuning(check: Check) -> None:
    """Leave a training alone from its join() on: ranks without data cannot take part in a switch."""
    found = check("uneven")
    assert found["same"]
    assert any("join()" in line for line in found["messages"])


def test_copies_and_checkpoints_hold_nothing_of_the_tuning(check: Check) -> None:
    """Copy and save a DDP object while it is tuned."""
    assert [0, 0] == check("copied")["left"]


def test_what_cannot_be_tuned_says_why(check: Check) -> None:
    """Train models that cannot be tuned, each with one sentence."""
    found = check("refused")
    assert "extends DistributedDataParallel" in found["subclass"]
    assert "may keep a state for each bucket" in found["own_state"]
    assert "torch.compile" in found["compiled"]
    assert "could not be begun" in found["unwritable"]
    assert all(1 == len(text.splitlines()) for text in found.values())
