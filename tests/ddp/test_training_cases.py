"""Tests of the cases of a training sweep: names, axes, the baseline and the order of blocks."""

import dataclasses
import itertools
import json
from collections import Counter
from typing import Any

import pytest
from fields import fields_of
from hypothesis import assume, given
from hypothesis import strategies as st

from commbench.ddp.plan.cases import (
    COMPILE_MODES,
    SWITCHES,
    TrainingCase,
    TrainingSweep,
    baseline_of,
    canonical_cap,
    switch_words,
)
from commbench.ddp.plan.terms import FEWEST_TIMED, MOST_SHORT_BLOCKS, schedule, short_blocks
from commbench.errors import InputError
from commbench.hooks.registry import parse_hook


def case(**changes: Any) -> TrainingCase:
    """Return plain DDP on two ranks."""
    return TrainingCase(**{"workload": "mlp", "world_size": 2, "batch_per_rank": 32, **changes})


# ---------------------------------------------------------------------------------------- the hooks


@pytest.mark.parametrize(
    ("text", "hook", "density", "options"),
    [
        ("none", "none", None, ""),
        ("fp16", "fp16", None, ""),
        (" bf16 ", "bf16", None, ""),
        ("topk:0.01", "topk", 0.01, ""),
        ("topk:1", "topk", 1.0, ""),
        ("topk:1e-3", "topk", 0.001, ""),
        ("powersgd:2", "powersgd", None, "rank=2"),
        ("powersgd:02", "powersgd", None, "rank=2"),
        ("topk:0.01:values=float16", "topk", 0.01, "values=float16"),
        ("topk:values=float16:0.01:chunk=256", "topk", 0.01, "chunk=256;values=float16"),
        ("powersgd:4:start=10", "powersgd", None, "rank=4;start=10"),
    ],
)
def test_hooks_are_read(text, hook, density, options):
    """Parse name, number and options in any order."""
    assert {"hook": hook, "density": density, "hook_options": options} == parse_hook(text)


@pytest.mark.parametrize(
    "text",
    [
        "gzip",
        "",
        "topk",
        "topk:0.1:0.2",
        "none:1",
        "fp16:0.5",
        "powersgd",
        "topk:0",
        "topk:1.5",
        "topk:-0.1",
        "topk:nan",
        "topk:few",
        "powersgd:0",
        "powersgd:1.5",
        "topk:0.01:values=",
        "topk:0.01:=float16",
        "topk:0.01:values=a;b",
        "powersgd:2:rank=3",
        "topk:0.01:values=float16:values=float32",
    ],
)
def test_bad_hooks_are_refused(text):
    """Refuse a bad hook in one sentence."""
    with pytest.raises(InputError) as caught:
        parse_hook(text)
    assert str(caught.value).endswith(".")


@given(
    hook=st.just("topk"),
    density=st.floats(1e-6, 1).map(lambda value: float(f"{value:.3g}")),
    options=st.fixed_dictionaries(
        {}, optional={"start": st.just("1"), "values": st.just("float16"), "clip": st.just("2.5")}
    ),
)
def test_hook_names_are_read_back(hook, density, options):
    """Parse a hook's name back into the same configuration."""
    text = ":".join([hook, f"{density:g}", *(f"{key}={value}" for key, value in options.items())])
    parsed = case(**parse_hook(text))
    assert parsed == case(**parse_hook(parsed.hook_name))
    assert options == parsed.options


# --------------------------------------------------------------------------------- the bucket sizes


@pytest.mark.parametrize(
    ("text", "cap", "caps_mb"),
    [
        ("default", "default", ()),
        (" default ", "default", ()),
        ("25", "25", (25.0,)),
        ("25.0", "25", (25.0,)),
        (".5", "0.5", (0.5,)),
        ("1+5+25", "1+5+25", (1.0, 5.0, 25.0)),
        ("1.50+ 5", "1.5+5", (1.5, 5.0)),
        ("1e6", "1000000", (1e6,)),
    ],
)
def test_bucket_sizes_have_one_spelling(text, cap, caps_mb):
    """Format equal sizes equally, and return their numbers."""
    assert cap == canonical_cap(text)
    assert caps_mb == case(bucket_cap_mb=cap).caps_mb


@pytest.mark.parametrize(
    "text", ["", "big", "0", "-1", "nan", "inf", "1++5", "1+default", "25MB", "1+0", "1e12"]
)
def test_bad_bucket_sizes_are_refused(text):
    """Refuse sizes that are not above 0, or too large."""
    with pytest.raises(InputError, match="write default, MiB such as 25"):
        canonical_cap(text)


@given(caps=st.lists(st.floats(1e-4, 1e6), min_size=1, max_size=4))
def test_bucket_sizes_are_read_back(caps):
    """Format a size to nine decimals, so that it parses to the same value."""
    text = canonical_cap("+".join(f"{cap:.12f}" for cap in caps))
    assert text == canonical_cap(text)
    assert pytest.approx(caps, rel=1e-12, abs=0.6e-9) == list(case(bucket_cap_mb=text).caps_mb)


# ----------------------------------------------------------------------------------------- the case


def test_the_case_without_ddp_keeps_model_batch_precision_and_phase():
    """Keep model, batch, precision, phase and accumulation, and reset DDP's settings."""
    local = case(
        hook="topk",
        density=0.1,
        bucket_cap_mb="5",
        bucket_view=True,
        precision="amp-bf16",
        accumulation=2,
    )
    assert case(hook="local", precision="amp-bf16", accumulation=2) == local.local()
    assert local.uses_ddp
    assert not local.local().uses_ddp
    assert local.local() == local.local().local()


def test_keys_tell_cases_apart():
    """Give each configuration and phase its own constant key, which is read back; as in older runs
    it lacks later switches that have their default.
    """
    changes = [
        {},
        {"phase": "confirm"},
        {"bucket_cap_mb": "25"},
        {"density": 0.1},
        *({"compile": mode} for mode in COMPILE_MODES),
        *({switch.name: not switch.default} for switch in SWITCHES),
    ]
    cases = [case(**each) for each in changes]
    assert len(cases) == len(set(fields_of(cases, "key")))
    assert cases == [TrainingCase.from_key(setting.key) for setting in cases]
    assert (
        not {"compile", *(switch.name for switch in SWITCHES[2:])} & json.loads(case().key).keys()
    )


def test_switches_are_swept_and_named():
    """Cross every switch with the others, and name what differs from DDP's default."""
    sweep = TrainingSweep(
        workload="mlp",
        bucket_caps=("default",),
        hooks=("none",),
        broadcast_buffers=(True, False),
        batched_grad_copies=(False, True),
        compile_modes=("", "ddp_optimizer"),
    )
    cases = [each for each in sweep.cases(ranks=2, batch=32) if each.uses_ddp]
    assert 8 == len(cases)
    assert cases[0].is_default
    assert [] == switch_words(cases[0])
    words = ["no broadcast of buffers", "batched copies", "compiled with ddp_optimizer"]
    assert words == switch_words(cases[-1])
    assert " and ".join(words) in str(cases[-1])
    locals_ = {each.compile for each in sweep.cases(ranks=2, batch=32) if not each.uses_ddp}
    assert {"", "local"} == locals_


def test_baseline_looks_for_unused_parameters_only_if_all_do():
    """Compare the search with the default, unless the model needs the search."""
    plain, fp16 = case(unused_parameters=True), case(hook="fp16", unused_parameters=True)
    one = {"bucket_caps": ("default",), "hooks": ("fp16",)}
    both = TrainingSweep(workload="mlp", unused_parameters=(False, True), **one)
    assert [case(), case(hook="fp16"), fp16, case().local()] == both.cases(ranks=2, batch=32)
    needed = TrainingSweep(workload="mlp", unused_parameters=(True,), **one)
    assert [plain, fp16, case().local()] == needed.cases(ranks=2, batch=32)


@pytest.mark.parametrize(
    ("changes", "is_alternative"),
    [
        ({"hook": "fp16"}, True),
        ({"precision": "amp-bf16"}, True),
        ({"accumulation": 4}, True),
        ({"world_size": 4}, False),
        ({"batch_per_rank": 8}, False),
        ({"workload": "gpt"}, False),
    ],
)
def test_alternatives_share_their_group(changes, is_alternative):
    """Group the cases among which a person may choose."""
    assert is_alternative == (case().group == case(**changes).group)


# ---------------------------------------------------------------------------------------- the sweep


def test_sweep_is_the_product_of_its_axes():
    """Return every combination once, the baseline first and local steps last."""
    sweep = TrainingSweep(bucket_caps=("default", "25", "25.0", " 25 "), hooks=("none", "fp16"))
    expected = [
        case(),
        case(bucket_cap_mb="25"),
        case(hook="fp16"),
        case(hook="fp16", bucket_cap_mb="25"),
    ]
    assert [*expected, case().local()] == sweep.cases(ranks=2, batch=32)


def test_sweep_always_has_its_baseline():
    """Add plain DDP to each group, at the least accumulation, and the local step of each."""
    sweep = TrainingSweep(
        workload="mlp",
        bucket_caps=("5",),
        hooks=("fp16",),
        precisions=("amp-bf16",),
        accumulations=(4, 2),
        bucket_views=(True,),
        world_sizes=(2, 4),
        batches=(8, 16),
    )
    cases = sweep.cases(ranks=4, batch=32)
    plain = [setting for setting in cases if setting.uses_ddp and setting.hook == "none"]
    expected = [
        case(world_size=ranks, batch_per_rank=batch, accumulation=2)
        for ranks, batch in itertools.product((2, 4), (8, 16))
    ]
    assert expected == plain
    for setting in plain:
        assert setting == next(other for other in cases if other.group == setting.group)
    swept = [setting for setting in cases if setting.uses_ddp]
    assert len(cases) == len(set(cases))
    assert {setting.local() for setting in swept} == set(cases[len(swept) :])


def test_more_ranks_than_started_are_refused():
    """Refuse more ranks than started, and say how to start them."""
    with pytest.raises(InputError, match=r"world size of 8 .* 4 ranks; raise -n"):
        TrainingSweep(world_sizes=(2, 8)).cases(ranks=4, batch=32)


def test_baseline_is_ddp_as_it_comes():
    """Return fp32 without hook, default buckets and the least accumulation as baseline, in the same
    phase.
    """
    changed = {"precision": "amp-fp16", "bucket_cap_mb": "5", "static_graph": True}
    others = [
        case(hook="fp16", accumulation=4, phase="confirm", **changed),
        case(hook="topk", density=0.1, accumulation=2, phase="confirm"),
    ]
    assert case(accumulation=2, phase="confirm") == baseline_of(others)


# ---------------------------------------------------------------------------------------- the order

CASES = TrainingSweep(bucket_caps=("default", "1", "25"), hooks=("none", "fp16")).cases(
    ranks=2, batch=32
)


def test_one_round_has_the_baseline_three_times():
    """Train the baseline first, in the middle and last, and every other case once."""
    order = schedule(CASES, seed=1, launch=0, blocks=1)
    assert Counter({0: 3, **dict.fromkeys(range(1, len(CASES)), 1)}) == Counter(order)
    assert [0, 0, 0] == [order[0], order[len(order) // 2], order[-1]]


@pytest.mark.parametrize(
    "cases",
    [
        [each for each in CASES if each.hook == "fp16"],
        CASES[:1],
        [dataclasses.replace(each, phase="confirm") for each in CASES],
    ],
    ids=["no baseline", "nothing else", "confirmation"],
)
def test_one_round_has_each_case_once(cases):
    """Plan one block per case where the baseline does not show a drift."""
    order = schedule(cases, seed=1, launch=0, blocks=1)
    assert list(range(len(cases))) == sorted(order)


@given(seed=st.integers(0, 1000), launch=st.integers(0, 30), blocks=st.integers(2, 5))
def test_rounds_have_every_case_once(seed, launch, blocks):
    """Train every case once per shuffled round, in an order that a launch repeats."""
    order = schedule(CASES, seed, launch, blocks)
    rounds = [order[i : i + len(CASES)] for i in range(0, len(order), len(CASES))]
    assert [list(range(len(CASES)))] * blocks == [sorted(setting) for setting in rounds]
    assert order == schedule(CASES, seed, launch, blocks)
    assert order != schedule(CASES, seed, launch + 1, blocks)


@given(steps=st.integers(4, 20_000), early=st.integers(0, 11), settling=st.integers(0, 2))
def test_short_blocks_have_all_steps_and_some_are_timed(steps, early, settling):
    """Divide all steps into blocks of which each has timed steps, as equally as whole steps
    allow.
    """
    assume(steps > early)
    lengths = short_blocks(steps, early=early, settling=settling)
    timed = [length - (settling if number else early) for number, length in enumerate(lengths)]
    assert steps == sum(lengths)
    assert len(lengths) <= MOST_SHORT_BLOCKS
    assert min(timed) >= (FEWEST_TIMED if len(lengths) > 1 else 1)
    assert max(timed) - min(timed) <= 1
