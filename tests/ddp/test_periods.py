"""Tests of blocks on real ranks in which ranks exchange parameters once in several steps."""

from typing import Any

import pytest
from launching import RunRanks
from trainings import Launch, case, launches_of

pytest.importorskip("torch")

from commbench.ddp.block import EARLY_STEPS

pytestmark = pytest.mark.mpi

STEPS = EARLY_STEPS + 33
#: Elements of the tiny model, and of what batch normalisation adds to it.
ELEMENTS, NORM_ELEMENTS, NORM_BUFFER_BYTES = 81_710, 600, 300 * 2 * 4 + 8
#: Bytes that a ring all-reduce of the tiny model sends on two ranks.
DENSE = 4 * ELEMENTS
PERIODS = {"localsgd:1": 1, "localsgd:8": 8, "localsgd:5": 5, "localsgd:4:outer=nesterov": 4}
CASES = {
    "plain": case(cap="default"),
    **{name: case(name, "default") for name in PERIODS},
    "small buckets": case("localsgd:8"),
    "accumulation": case("localsgd:8", "default", accumulation=2),
    "search": case("localsgd:8", "default", unused_parameters=True),
    "bucket view": case("localsgd:8", "default", bucket_view=True),
    "batch norm": case("localsgd:8", "default", workload="batch_norm"),
    "batch norm alone": case(
        "localsgd:8", "default", workload="batch_norm", broadcast_buffers=False
    ),
    "scored": case("localsgd:8", "default", workload="scored"),
    "too long": case("localsgd:34", "default"),
    "scaler": case("localsgd:8", "default", precision="amp-fp16"),
    "local": case("local", "default"),
}
REFUSED = {"too long": "unsupported", "scaler": "failed"}
TRAINED = [name for name in CASES if name not in {*REFUSED, "local"}]


@pytest.fixture(scope="module")
def launches(run_ranks: RunRanks) -> Any:
    """Return launches on two ranks: whole blocks, divided ones, found steps, and a dropped
    exchange.
    """
    some = {name: CASES[name] for name in ("plain", "localsgd:8", "scored")}
    return launches_of(
        run_ranks,
        2,
        whole=(CASES, {"steps": STEPS}),
        divided=(some, {"steps": STEPS, "blocks": 3, "divides_blocks": True}),
        found=(
            {"plain": CASES["plain"], "long": case("localsgd:30", "default")},
            {"block_s": 1e-6},
        ),
        dropping=({"localsgd:8": CASES["localsgd:8"]}, {"steps": STEPS, "drops_exchange": True}),
    )


@pytest.fixture(scope="module")
def whole(launches: Any) -> Launch:
    """Return the launch of whole blocks."""
    launch: Launch = launches["whole"]
    return launch


@pytest.mark.parametrize("name", TRAINED)
def test_timed_steps_are_whole_periods(whole: Launch, name: str) -> None:
    """Time a multiple of the period, each step at the mean of its period."""
    record, period = whole.records[name], CASES[name].period
    assert ("ok", "") == (record["status"], record["reason"])
    assert all(33 - 33 % period == length for length in record["block_lengths"])
    periods = [
        record["step_ms"][at : at + period] for at in range(0, len(record["step_ms"]), period)
    ]
    assert all(1 == len(set(steps_ms)) for steps_ms in periods)
    assert len(periods) == len({steps_ms[0] for steps_ms in periods})


@pytest.mark.parametrize("name", PERIODS)
def test_a_step_sends_its_share_of_the_model(whole: Launch, name: str) -> None:
    """Count dense / H bytes at the socket within 1 %, and expect as many."""
    record = whole.records[name]
    assert (DENSE, DENSE / PERIODS[name]) == (
        record["dense_bytes"],
        pytest.approx(record["expected_bytes"], abs=1),
    )
    assert record["expected_bytes"] == pytest.approx(record["sent_bytes"], rel=0.01)


@pytest.mark.parametrize("name", ["small buckets", "accumulation", "search", "bucket view"])
def test_other_settings_send_the_same(whole: Launch, name: str) -> None:
    """Send the same bytes, and make no buckets, with any other setting."""
    record = whole.records[name]
    assert whole.records["localsgd:8"]["sent_bytes"] == pytest.approx(
        record["sent_bytes"], rel=0.01
    )
    assert ([], [], None) == (record["bucket_bytes"], record["buckets"], record["comm_ms"])


def test_buffers_are_sent_in_exchanges(whole: Launch) -> None:
    """Send rank 0's buffers once in a period, unless DDP broadcasts none."""
    with_buffers, alone = whole.records["batch norm"], whole.records["batch norm alone"]
    elements = 4 * (ELEMENTS + NORM_ELEMENTS)
    assert elements / 8 == pytest.approx(alone["expected_bytes"], abs=1)
    assert (elements + NORM_BUFFER_BYTES / 2) / 8 == pytest.approx(
        with_buffers["expected_bytes"], abs=1
    )
    for record in (with_buffers, alone):
        assert record["expected_bytes"] == pytest.approx(record["sent_bytes"], rel=0.015)


def test_a_dropped_exchange_is_found(launches: Any) -> None:
    """Count too few bytes if one of four exchanges is dropped, and find other parameters if it is
    the last.
    """
    record = launches["dropping"].records["localsgd:8"]
    assert ("wrong", False) == (record["status"], record["ranks_agree"])
    assert record["sent_bytes"] == pytest.approx(0.75 * record["expected_bytes"], rel=0.02)


@pytest.mark.parametrize("name", TRAINED)
def test_ranks_agree_after_the_last_exchange(whole: Launch, name: str) -> None:
    """State agreement of parameters, a loss for each step, and no error of gradients that are not
    exchanged.
    """
    record = whole.records[name]
    assert record["ranks_agree"] is True
    assert STEPS == len(record["losses"])
    assert record["losses"][-1] < record["losses"][0]
    assert (record["grad_rel_error"] is None) == (name != "plain")


def test_period_1_learns_as_ddp(whole: Launch) -> None:
    """Have the losses of DDP at period 1 with plain SGD, and others at period 8."""
    plain = whole.records["plain"]["losses"]
    assert plain == pytest.approx(whole.records["localsgd:1"]["losses"], rel=1e-4)
    assert plain != pytest.approx(whole.records["localsgd:8"]["losses"], rel=1e-4)
    assert plain[:1] == whole.records["localsgd:8"]["losses"][:1]


def test_the_metric_is_of_equal_parameters(whole: Launch, launches: Any) -> None:
    """Evaluate after exchanges only, and after the last one."""
    for launch in (whole, launches["divided"]):
        assert [8, 16, 24, 32] == [step for step, _ in launch.records["scored"]["metrics"]]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "too long",
            "hook localsgd:34 exchanges once in 34 steps, and a block has only 33 timed steps",
        ),
        ("scaler", "a rank whose gradients overflow would skip its step and the exchange"),
    ],
)
def test_a_refusal_fails_only_its_case(whole: Launch, name: str, words: str) -> None:
    """Record the reason of a case without a whole period, or with a GradScaler."""
    record = whole.records[name]
    assert REFUSED[name] == record["status"]
    assert words in record["reason"]


def test_short_blocks_have_whole_periods(launches: Any) -> None:
    """Divide blocks into ones of a period or more."""
    record = launches["divided"].records["localsgd:8"]
    assert 3 < len(record["block_lengths"])
    assert all(length >= 8 and length % 8 == 0 for length in record["block_lengths"])
    assert record["ranks_agree"] is True
    assert launches["whole"].records["localsgd:8"]["losses"] == pytest.approx(
        record["losses"], rel=1e-6
    )


def test_blocks_are_long_enough_for_the_longest_period(launches: Any) -> None:
    """Find a number of steps that holds a period, whatever the time of a block."""
    records = launches["found"].records
    assert [30] == records["long"]["block_lengths"]
    assert EARLY_STEPS + 30 == records["plain"]["block_steps"] == records["long"]["block_steps"]
