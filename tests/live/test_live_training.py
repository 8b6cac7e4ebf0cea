"""Trainings on two real Gloo ranks that are tuned or watched: they end as without it, models that
are not tuned say why, and watched steps are explained.
"""

import pytest
from gloo_ranks import found_by, run_gloo_ranks

from commbench.results import load_run

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(600)

#: Training loops that are tuned and those that are watched, see `live_training`.
TUNED = ["plain", "accumulation_views_evaluation", "unused_views_own_hook", "zeroed_late_own_size"]
WATCHED = [*TUNED[:3], "late"]


@pytest.fixture(scope="module")
def found(forked_python, tmp_path_factory):
    """Return the result of each check of `live_training` on two ranks."""
    store = tmp_path_factory.mktemp("live") / "store"
    loops = [":".join(["compare", *TUNED]), ":".join(["watch", *WATCHED])]
    checks = [*loops, "compressed", "in_turn", "refused", "twice"]
    script = "live_training.py"
    return found_by(run_gloo_ranks(forked_python, 2, script, *checks, store=store, timeout=500))


@pytest.mark.parametrize("way", TUNED)
def test_a_tuned_training_ends_to_the_bit_as_without(found, way):
    """Try several settings, conclude alike on both ranks, remove every hook, keep the losses as
    they were, and end with equal parameters and buffers.
    """
    outcome = found["compare"][way]
    assert outcome["same"]
    assert outcome["settings"] > 2
    assert outcome["done"]
    assert len(set(outcome["verdicts"])) == 1
    assert outcome["hooks_left"] == [0, 0]
    assert outcome["least_loss"] > 0


def test_every_live_switch_is_tried(found):
    """Turn each switch in some training, but for those that change what a script holds.

    In a short one beside a busy core not every setting has its turn.
    """
    switches = set()
    for outcome in found["compare"].values():
        switches.update(outcome["switches"])
    assert {"batched_grad_copy"} == switches


def test_accumulation_and_batch_are_noticed(found):
    """Record the forward passes of a step and the samples of a pass."""
    for way, expected in ((TUNED[0], (1, 8)), (TUNED[1], (3, 8))):
        outcome = found["compare"][way]
        assert expected == (outcome["accumulation"], outcome["batch"])


def test_hooks_are_tried_only_by_name(found):
    """Try FP16, top-k and a file's hook next to bucket sizes, and flush residuals so that training
    stays close.
    """
    outcome = found["compressed"]
    failed = [(hook, reason) for hook, status, reason in outcome["statuses"] if status == "failed"]
    assert [("file_hooks.py:make_nothing", True)] == [
        (hook, "no state" in reason) for hook, reason in failed
    ]
    assert ["file_hooks.py:make_pair", "ok", ""] in outcome["statuses"]
    assert outcome["settings"] > 4
    assert 0 < outcome["apart"] < 0.2


def test_models_are_tuned_one_by_one(found):
    """Tune the second of two models when the first trains no more, or its tuning is over."""
    for outcome in found["in_turn"].values():
        messages = outcome["messages"]
        assert 2 == sum(line.startswith("commbench: tuning Net") for line in messages), messages
        assert 0 == outcome["left"]


def test_a_model_is_tuned_once(found):
    """Give a script the tuning of its model that is under way."""
    assert {"same": True, "messages": 1} == found["twice"]


def test_what_cannot_be_tuned_says_why(found):
    """Train models that cannot be tuned, with one sentence each."""
    reasons = {
        "subclass": "extends DistributedDataParallel",
        "own_state": "not one of torch's default hooks",
        "compiled": "torch.compile",
        "unwritable": "could not be begun",
    }
    for name, reason in reasons.items():
        (line,) = found["refused"][name].splitlines()
        assert reason in line


@pytest.mark.parametrize("way", WATCHED)
def test_a_watched_training_ends_to_the_bit_as_without(found, way):
    """Leave nothing of the watching, find each step that was asked for, with parts that all take
    time and add up, and time each bucket unless the script has a hook of its own, which stays.
    """
    outcome = found["watch"][way]
    assert outcome["same"]
    assert not outcome["left"]
    assert 80 == outcome["steps"]
    assert len(outcome["parts"]) == 6
    assert all(share > 0 for share in outcome["parts"].values())
    assert 1 == pytest.approx(sum(outcome["parts"].values()))
    if way == "unused_views_own_hook":
        assert [["fp16_compress_hook"]] * 2 == outcome["hooks"]
        assert "the script has a communication hook of its own, which stays" in outcome["messages"]
        assert not outcome["buckets"]
    else:
        assert [[], []] == outcome["hooks"]
        assert outcome["buckets"], outcome["messages"]


def test_a_rank_that_waits_for_its_data_is_named(found):
    """Find the waiting in the part that names loading data, and the rank that waits as the
    straggler.
    """
    parts = found["watch"]["late"]["parts"]
    assert max(parts, key=parts.__getitem__).startswith("other, such as loading data")
    assert 1 == found["watch"]["late"]["straggler"]


def test_a_killed_rank_ends_the_training_as_without_watching(forked_python, tmp_path):
    """Let the other rank end by the same error when a rank is killed, and keep the blocks that were
    over.
    """
    statuses = []
    for how in ("alone", "watched"):
        check, store = f"killed:{how}", tmp_path / how
        ends = run_gloo_ranks(forked_python, 2, "live_training.py", check, store=store)
        statuses.append([status for status, _, _ in ends])
        error = ends[0][2].splitlines()[-1]
        assert "RuntimeError: " in error
        assert "gloo" in error
    assert statuses[0] == statuses[1]
    run = load_run(tmp_path / "run-killed")
    assert "cut" == run.info["status"]
    assert "the training ended too early" == run.info["reason"]
    assert 20 == len(run.training_records[-1].step_ms)
