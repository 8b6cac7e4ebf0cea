"""Tests of local SGD: its name and options, its bytes, and on real Gloo ranks its parameters after
every step.
"""

import math
from typing import Any

import pytest
from gloo_ranks import found_by, run_gloo_ranks
from training_builders import make_training_case

from commbench.errors import InputError
from commbench.hooks.message import BucketShape
from commbench.hooks.registry import canonical_hook, find_hook, make_hook, parse_hook, split_options
from commbench.tuner.snippet import snippet_of

pytest.importorskip("torch")

SNIPPET = snippet_of(make_training_case("localsgd:2:outer=nesterov", broadcast_buffers=False))


@pytest.fixture(scope="module")
def checked(forked_python: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the results of all checks on two ranks."""
    names = ["compare", "as_ddp", "buffers", "resume", "unused", "foreign_sync", "refused"]
    folder = tmp_path_factory.mktemp("local_sgd")
    (folder / "pasted.py").write_text(SNIPPET)
    names.append(f"pasted:{folder / 'pasted.py'}")
    return found_by(
        run_gloo_ranks(forked_python, 2, "local_sgd.py", *names, store=folder / "store")
    )


# On ranks


@pytest.mark.parametrize(
    ("name", "period"),
    [
        *(
            ("average 1", 1),
            ("average 3", 3),
            ("nesterov 1", 1),
            ("nesterov 3", 3),
            ("nesterov 2, other rates", 2),
        ),
        *(("average 3, in parts", 3), ("nesterov 3, in parts", 3)),
    ],
)
def test_parameters_are_those_of_a_reference(checked: Any, name: str, period: int) -> None:
    """Equal the reference after every step, and all ranks bit for bit after an exchange and no
    other step.
    """
    results = checked["compare"][name]
    assert [] == results["wrong"]
    assert list(range(period, 14, period)) == results["equal"]
    assert 0 == results["buckets"]
    assert ("in parts" in name) == (results["parts"] > 1)


def test_first_steps_are_each_followed_by_an_exchange(checked: Any) -> None:
    """Exchange after steps 1 and 2, and then once in a period of 3."""
    results = checked["compare"]["average 3, start 2"]
    assert [] == results["wrong"]
    assert [1, 2, 3, 6, 9, 12] == results["equal"]


def test_a_dropped_exchange_is_found(checked: Any) -> None:
    """Detect one dropped exchange, which shows that the test above can fail."""
    results = checked["compare"]["dropping"]
    assert 6 == results["wrong"][0]
    assert [3, 9, 12] == results["equal"]


def test_a_forgotten_momentum_is_found(checked: Any) -> None:
    """Detect that the outer momentum is lost, from the second exchange on."""
    assert list(range(6, 14)) == checked["compare"]["forgetful"]["wrong"]


def test_every_step_is_as_under_ddp(checked: Any) -> None:
    """Equal DDP up to rounding at period 1 with plain SGD."""
    assert checked["as_ddp"] < 1e-5


def test_buffers_are_those_of_rank_0_where_ddp_broadcasts_them(checked: Any) -> None:
    """Send rank 0's buffers in exchanges only, and not at all where DDP does not broadcast them."""
    assert [False, True, False, True] == checked["buffers"]["yes"]["equal"]
    assert [False] * 4 == checked["buffers"]["no"]["equal"]
    assert [True, True] == checked["buffers"]["yes"]["unchanged on rank 0"]


@pytest.mark.parametrize("outer", ["average", "nesterov"])
def test_checkpoints_resume(checked: Any, outer: str) -> None:
    """Continue exactly from a checkpoint within a period."""
    assert 0.0 == checked["resume"][outer]


def test_parameters_may_be_unused_on_some_ranks(checked: Any) -> None:
    """Average a layer that a single rank has trained."""
    assert checked["unused"]["agree"]
    assert checked["unused"]["moved"] > 0


def test_gradients_stay_on_their_rank_whatever_other_code_does(checked: Any) -> None:
    """Exchange no gradients where other code has switched DDP's exchange on."""
    assert [False, True, False, True] == checked["foreign_sync"]["equal"]


def test_the_snippet_runs_as_pasted(checked: Any) -> None:
    """Average every second step by the recommended lines alone."""
    assert [False, True, False, True] == checked["pasted"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no optimizer", "was given no optimizer: exchanges follow its steps"),
        ("no optimizer but", "was given a DistributedDataParallel: exchanges"),
        ("scaler", "a rank whose gradients overflow would skip its step and the exchange"),
        ("static graph", "leave out static_graph"),
    ],
)
def test_refused_registrations(checked: Any, name: str, words: str) -> None:
    """Refuse in one sentence what would hang or fail."""
    assert words in checked["refused"][name]


# Names, options and bytes


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("localsgd:8", "period=8"),
        ("localsgd:08", "period=8"),
        ("localsgd:4:outer=nesterov", "outer=nesterov;period=4"),
        (
            "localsgd:4:outer_momentum=0.5:outer=nesterov",
            "outer=nesterov;outer_momentum=0.5;period=4",
        ),
    ],
)
def test_options_are_canonical(text: str, options: str) -> None:
    """Write the period among the sorted options, and read the name back."""
    fields = parse_hook(text)
    assert ("localsgd", None, options) == (
        fields["hook"],
        fields["density"],
        fields["hook_options"],
    )
    assert fields == parse_hook(canonical_hook(text))
    assert int(split_options(options)["period"]) == find_hook("localsgd").period(
        split_options(options)
    )


@pytest.mark.parametrize("number", ["0", "-1", "2.5", "x", "", "²", "1e3"])
def test_the_period_is_a_positive_whole_number(number: str) -> None:
    """Refuse any other period in one sentence."""
    with pytest.raises(
        InputError,
        match=r"The period of hook .* is not a whole number above 0; write e.g. localsgd:8",
    ):
        parse_hook(f"localsgd:{number}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"period": "0"}, "a whole number of at least 1"),
        ({"start": "-1"}, "start -1: they are numbers of steps"),
        ({"outer": "adam"}, "average or nesterov"),
        ({"outer_lr": "0.5"}, "need outer=nesterov"),
        ({"outer": "nesterov", "outer_lr": "0"}, "outer_lr 0 and outer_momentum 0.9"),
        ({"outer": "nesterov", "outer_momentum": "1"}, "above 0 and below 1"),
        ({"outer": "nesterov", "outer_momentum": "nan"}, "outer_momentum nan"),
    ],
)
def test_refused_options(options: dict[str, str], words: str) -> None:
    """Refuse bad options in one sentence."""
    with pytest.raises(InputError, match=words):
        make_hook("localsgd", options=options)


def test_a_name_without_a_period_is_refused() -> None:
    """Ask for the period, and refuse it twice."""
    with pytest.raises(InputError, match="write localsgd:PERIOD"):
        parse_hook("localsgd")
    with pytest.raises(InputError, match="names something twice"):
        parse_hook("localsgd:8:period=4")


@pytest.mark.parametrize(("period", "ranks"), [(1, 2), (8, 2), (8, 4), (3, 7)])
def test_a_step_sends_its_share_of_an_exchange(period: int, ranks: int) -> None:
    """Send what a dense all-reduce sends, once in a period."""
    hook = make_hook("localsgd", options={"period": str(period)})
    dense = 2 * (ranks - 1) / ranks * 4 * 10_000
    assert hook is not None
    assert math.isclose(dense / period, hook.wire_bytes(10_000, ranks), abs_tol=0.5)
    (message,) = hook.messages(BucketShape(elements=10_000, world_size=ranks))
    assert ("all_reduce", 40_000 / period) == (message.operation, message.message_bytes)


def test_it_is_lossy_and_makes_no_buckets() -> None:
    """Count as lossy; have no buckets, whatever their size, and no prediction."""
    case = make_training_case("localsgd:8", "25")
    assert ("lossy", "parameters") == (
        find_hook("localsgd").effect,
        find_hook("localsgd").exchanges,
    )
    assert (False, False, 8) == (case.makes_buckets, case.is_predicted, case.period)
    assert 1 == make_training_case("topk:0.01").period == make_training_case("local").period
