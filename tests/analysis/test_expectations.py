"""Tests of expectations: their grammar, the four outcomes, and what never passes."""

import pytest
from builders import make_case, make_record
from fields import fields_of
from kept import RESULTS
from training_builders import run_of

from commbench.analysis.expectations import METRICS, Outcome, judge, parse_expectation, worst
from commbench.errors import InputError
from commbench.results import Run, load_run

MIB = 1 << 20
#: Not understood, each with words of the sentence about it.
BAD = {
    "": "form",
    "latency": "form",
    "latency@8 time <= 3us": "form",
    "latency@8[: time <= 3us": "form",
    "latency@8[backend=mpi] time <= 3us": "form",
    "latency@8: time 3us": "form",
    "latency@8: time => 3us": "form",
    "latency@: time <= 3us": "size ''",
    "latency@x: time <= 3us": "size 'x'",
    "latency@8:4: time <= 3us": "8:4",
    "latency@8:16:32: time <= 3us": "8:16:32",
    "latency@8[backend]: time <= 3us": "'backend'",
    "latency@8[backend=]: time <= 3us": "'backend='",
    "latency@8[backnd=mpi]: time <= 3us": "'backnd=mpi'",
    "latncy@8: time <= 3us": "Unknown operation 'latncy'",
    "latency@8: tim <= 3us": "Unknown metric 'tim'",
    "latency@8: time = 3us": "Unknown comparison '='",
    "latency@8: time <= us": "no number",
    "latency@8: time <= 3": "unit of time",
    "latency@8: time <= 0.8*link": "unit of time",
    "latency@8: time <= 3us or so": "unit of time",
    "latency@8: step <= 3ms": "step is no metric of latency",
    "train: time <= 3us": "time is no metric of train",
    "train@8: step <= 3ms": "no sizes",
    "bandwidth@16M: busbw >= 0.8*lnk": "*link",
    "bandwidth@16M: busbw >= -3GB/s": "no number",
    "wrong = none": "no number",
    "transport = ": "a word",
    "transport >= sm": "Unknown comparison '>='",
    "stragglers = few": "a word",
}


@pytest.mark.parametrize("text", BAD)
def test_what_is_not_understood_is_named_in_one_sentence(text):
    """Name the text and its mistake in a sentence."""
    with pytest.raises(InputError) as raised:
        parse_expectation(text)
    sentence = str(raised.value)
    assert sentence.startswith(f"--expect {text.strip()!r}: ")
    assert BAD[text] in sentence
    assert 1 == sentence.count(". ") + sentence.endswith(".")


@pytest.mark.parametrize(
    ("text", "unit", "bound"),
    [
        ("latency@8: time <= 3us", "us", 3.0),
        ("latency@8:time<3ms", "us", 3000.0),
        ("busbw >= 8Gbit/s", "GB/s", 1.0),
        ("algbw > 500MB/s", "GB/s", 0.5),
        ("train: step <= 0.1s", "ms", 100.0),
        ("speedup >= 1.05", "", 1.05),
    ],
)
def test_units_are_those_of_the_columns(text, unit, bound):
    """Convert the bound to the unit of the column."""
    expectation = parse_expectation(text)
    assert unit == METRICS[expectation.metric].unit
    assert bound == pytest.approx(expectation.bound)


def make_run(
    *times_us: float, reason: str = "", transport: str = "sm", wrong: int | None = 0
) -> Run:
    """Return a run of an all_reduce of 1 MiB with a launch for each time.

    One that failed if there is a reason.
    """
    case = make_case(message_bytes=MIB)
    records = [
        make_record(case, launch=launch, time_us=time, transport=transport, wrong=wrong)
        for launch, time in enumerate(times_us)
    ]
    if reason:
        records = [make_record(case, status="failed", reason=reason)]
    return run_of(records)


STEADY = (99.5, 99.8, 100.0, 100.1, 100.2, 100.4)
WIDE = (60.0, 80.0, 100.0, 120.0, 140.0, 190.0)


#: Of steady launches.
ANSWERS = {
    "all_reduce@1M: time <= 101us": "met",
    "all_reduce@1M: time <= 99us": "not met",
    "all_reduce@1M: time >= 101us": "not met",
    "all_reduce@1M: busbw >= 10GB/s": "met",
    "all_reduce@1M: busbw >= 11GB/s": "not met",
    "all_reduce@2M: time <= 1s": "not tested",
    "all_reduce@1M,2M: time <= 1s": "not tested",
    "all_reduce@8:64M: time <= 1s": "met",
    "all_reduce@1M[backend=gloo]: time <= 1s": "not tested",
    "all_reduce@1M[world_size=2,in_place=true]: time <= 1s": "met",
    "broadcast: time <= 1s": "not tested",
    "train: step <= 1s": "not tested",
    "wrong = 0": "met",
    "transport = sm": "met",
    "stragglers = none": "not tested",
}


def outcome_of(run: Run, text: str) -> str:
    """Return the outcome of an expectation."""
    [answer] = judge(run, [parse_expectation(text)])
    return str(answer.outcome)


@pytest.mark.parametrize("text", ANSWERS)
def test_only_what_is_shown_is_met(text):
    """Call an expectation met only if the whole interval of a row that exists lies on its side."""
    assert ANSWERS[text] == outcome_of(make_run(*STEADY), text)


@pytest.mark.parametrize(
    ("run", "text", "outcome"),
    [
        (make_run(*WIDE), "all_reduce@1M: time <= 120us", "not shown"),
        (make_run(*WIDE), "all_reduce@1M: busbw >= 9GB/s", "not shown"),
        (make_run(STEADY[0]), "all_reduce@1M: time <= 200us", "not shown"),
        (make_run(STEADY[0]), "all_reduce@1M: time <= 99us", "not shown"),
        (make_run(reason="It hung."), "all_reduce@1M: time <= 1s", "not tested"),
        (make_run(*STEADY, wrong=None), "wrong = 0", "not tested"),
        (make_run(*STEADY, wrong=3), "wrong = 0", "not met"),
        (make_run(*STEADY, transport="tcp/eth0"), "transport = tcp", "met"),
        (make_run(*STEADY, transport="tcp/eth0"), "transport = sm", "not met"),
        (make_run(*STEADY, transport=""), "transport = sm", "not tested"),
    ],
)
def test_what_a_run_does_not_show_is_not_met(run, text, outcome):
    """Call wide intervals and one launch not shown, and what failed or is unknown not tested."""
    assert outcome == outcome_of(run, text)


def test_the_worst_row_counts():
    """Prefer not met to not tested, not tested to not shown, and not shown to met."""
    assert ["not met", "not tested", "not shown", "met"] == sorted(Outcome, key=list(Outcome).index)
    assert Outcome.NOT_TESTED is worst(list(Outcome)[1:])
    assert Outcome.NOT_TESTED is worst([])


@pytest.mark.parametrize(("link", "outcome"), [("", "met"), ("1gbit", "met"), ("4gbit", "not met")])
def test_a_link_at_a_quarter_of_its_stated_rate_fails(link, outcome):
    """Take the rate that the run states, or that of the option."""
    run = load_run(RESULTS / "links_1gbit_xeon2core_20261128")
    expectation = parse_expectation("bandwidth@16M[backend=mpi]: busbw >= 0.85*link")
    [answer] = judge(run, [expectation], link)
    assert outcome == answer.outcome


def test_a_named_straggler_fails():
    """Find the slow host of the kept matrix."""
    run = load_run(RESULTS / "matrix_slow_host_xeon2core_20261128")
    [answer] = judge(run, [parse_expectation("stragglers = none")])
    assert "not met" == answer.outcome
    assert "host3" in str(answer.rows[0].value)


def test_training_is_held_against_its_rows():
    """Judge steps and speedups; the row that speedups are relative to has none of its own."""
    run = load_run(RESULTS / "train_resnet18_batch1_1gbit_xeon2core_20261128")
    texts = [
        "train[hook=fp16]: speedup >= 1.3",
        "train[hook=none,bucket_cap_mb=default]: step <= 1s",
        "speedup > 100",
    ]
    answers = judge(run, [parse_expectation(text) for text in texts])
    assert ["met", "met", "not met"] == fields_of(answers, "outcome")
    assert all(finding.low is not None for finding in answers[2].rows)


def test_a_link_without_a_rate_is_bad_input():
    """Refuse to judge by a rate that nobody states."""
    expectation = parse_expectation("all_reduce@1M: busbw >= 0.8*link")
    with pytest.raises(
        InputError,
        match=r"The link's rate is unknown for mpi all_reduce 1 MiB: .*give --link 200gbit",
    ):
        judge(make_run(*STEADY), [expectation])
    with pytest.raises(InputError, match="--link fast is not understood"):
        judge(make_run(*STEADY), [expectation], "fast")
