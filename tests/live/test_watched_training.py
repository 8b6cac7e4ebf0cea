"""Trainings on two real Gloo ranks that are watched: they end as without it, and their steps are
explained.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gloo_ranks import found_by, run_gloo_ranks

from commbench.results import load_run

pytest.importorskip("torch")

#: Ways to write a training loop, see `live_training`.
WAYS = ["plain", "accumulation_views_evaluation", "unused_views_own_hook", "late"]
Start = Callable[[str], tuple[Path, list[tuple[int, str, str]]]]


@pytest.fixture(scope="module")
def start(forked_python: str, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """``start(check)``: run a check of `live_training` on two ranks.

    Return its directory, and how each rank ended.
    """

    def run(check: str) -> tuple[Path, list[tuple[int, str, str]]]:
        store = tmp_path_factory.mktemp("watched") / "store"
        return store.parent, run_gloo_ranks(
            forked_python, 2, "live_training.py", check, store=store
        )

    return run


@pytest.fixture(scope="module")
def watched(start: Start) -> Any:
    """What each way of training ends with."""
    return found_by(start(":".join(["watch", *WAYS]))[1])["watch"]


@pytest.mark.parametrize("way", WAYS)
def test_a_watched_training_ends_to_the_bit_as_without(watched: Any, way: str) -> None:
    """Leave nothing of the watching, find each step that was asked for, with parts that all take
    time and add up, and time each bucket unless the script has a hook of its own, which stays.
    """
    found = watched[way]
    assert found["same"]
    assert not found["left"]
    assert 80 == found["steps"]
    assert len(found["parts"]) == 6
    assert all(share > 0 for share in found["parts"].values())
    assert 1 == pytest.approx(sum(found["parts"].values()))
    if way == "unused_views_own_hook":
        assert [["fp16_compress_hook"]] * 2 == found["hooks"]
        assert "the script has a communication hook of its own, which stays" in found["messages"]
        assert not found["buckets"]
    else:
        assert [[], []] == found["hooks"]
        assert found["buckets"], found["messages"]


def test_a_rank_that_waits_for_its_data_is_named(watched: Any) -> None:
    """Find the waiting in the part that names loading data, and the rank that waits as the
    straggler.
    """
    parts = watched["late"]["parts"]
    assert max(parts, key=parts.__getitem__).startswith("other, such as loading data")
    assert 1 == watched["late"]["straggler"]


def test_a_killed_rank_ends_the_training_as_without_watching(start: Start) -> None:
    """Let the other rank end by the same error when a rank is killed, and keep the blocks that were
    over.
    """
    _, alone = start("killed:alone")
    directory, watched = start("killed:watched")
    assert [status for status, _, _ in alone] == [status for status, _, _ in watched]
    errors = [ranks[0][2].splitlines()[-1] for ranks in (alone, watched)]
    assert all("RuntimeError: " in error and "gloo" in error for error in errors), errors
    run = load_run(directory / "run-killed")
    assert ("cut", "the training ended too early") == (
        run.info["status"],
        run.info["reason"],
    )
    assert 20 == len(run.training_records[-1].step_ms)
