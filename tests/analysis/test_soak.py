"""Tests of what a soak shows: planted spikes, stalls, failures and drift, and nothing in plain
noise.
"""

from datetime import datetime, timezone
from typing import Any

import pytest
from effort import repetitions, slack
from fields import fields_of
from soaks import BEGUN_S, at_s, even, soak_info, soak_records, waiting_for
from training_builders import run_of

from commbench.analysis.soak import Soak, soak_results
from commbench.engine.records import Interruption, Record, Stall
from commbench.results import Run

SIMULATIONS = repetitions(100)


def as_run(records: list[Record], **info: Any) -> Run:
    """Return a run held in memory."""
    return run_of(records, **{**soak_info(), **info})


def result_of(records: list[Record], **info: Any) -> Soak:
    """Return the results of a soak."""
    soak = soak_results(as_run(records, **info))
    assert soak
    return soak


def test_a_run_without_points_is_no_soak():
    """Return nothing for another run."""
    assert soak_results(as_run([])) is None


def test_the_time_line_has_a_line_for_each_visit():
    """State when each visit began, its times and its slowest rank with the host, in the order of
    time.
    """
    timeline = result_of(soak_records(launches=2, visits=3)[::-1]).timeline
    assert 6 == len(timeline)
    first, second, third, fourth, *_ = timeline
    assert ("2026-11-25T04:00:00.000Z", "2026-11-25T04:00:20.000Z") == (first.time, second.time)
    assert (0.0, 40.0, 63.0) == (first.elapsed_s, third.elapsed_s, fourth.elapsed_s)
    assert (0, 1, "n0") == (first.launch, first.slowest_rank, first.slowest_host)


def test_what_is_said_of_a_soak():
    """State the extent, each event with who caused it, and the drift."""
    stall = Stall(rank=3, at_s=at_s(7, 3), lasted_s=5.0)
    extent, event, drift = result_of(soak_records(stalls={(7, 3): [stall]})).findings()
    assert "soak_extent" == extent.code
    assert 1 == extent.numbers["spikes"]
    assert 0 == extent.numbers["failures"]
    assert ("soak_spike", "rank 3 on host n1") == (event.code, event.subject)
    assert ("soak_drift_unclear", {"cases": 1}) == (drift.code, drift.numbers)
    slower = result_of(soak_records(launches=40, visits=4, change=0.1)).findings()
    assert ["soak_extent", "soak_drift_slower"] == fields_of(slower, "code")


def test_plain_noise_has_neither_events_nor_drift():
    """Find nothing in at least 95 of 100 soaks of noise, with interruptions by the operating system
    in 1 or 30 %.
    """
    for tail in (0.01, 0.3):
        soaks = [result_of(soak_records(seed, tail=tail)) for seed in range(SIMULATIONS)]
        assert (0.95 - slack(0.95, 100)) * SIMULATIONS <= sum(not soak.events for soak in soaks)
        assert (0.95 - slack(0.95, 100)) * SIMULATIONS <= sum(
            soak.drifts[0].verdict not in {"slower", "faster"} for soak in soaks
        )


def test_a_planted_drift_is_named_with_its_interval():
    """Find 10 % over 40 launches in at least 95 of 100 soaks.

    The interval holds it in 90 or more.
    """
    found = held = 0
    for seed in range(SIMULATIONS):
        (drift,) = result_of(soak_records(seed, launches=40, visits=4, change=0.1)).drifts
        found += drift.verdict == "slower"
        low, high = drift.change_percent_ci_low, drift.change_percent_ci_high
        held += (low or 0.0) <= 10 <= (high or 0.0)
    assert found >= (0.95 - slack(0.95, 100)) * SIMULATIONS
    assert held >= (0.9 - slack(0.9, 100)) * SIMULATIONS


@pytest.mark.parametrize(
    ("launches", "cases", "verdict"),
    [(5, 1, "inconclusive"), (6, 20, "inconclusive"), (7, 20, "slower")],
)
def test_few_launches_show_no_drift(launches, cases, verdict):
    """State that five launches are too few for a trend, and six for those of 20 cases: one of 360
    orders of six launches only rises or only falls.
    """
    records = []
    for size in range(cases):
        records += soak_records(launches=launches, visits=1, change=0.9, message_bytes=8 + size)
    assert [verdict] * cases == fields_of(result_of(records).drifts, "verdict")


#: When what is planted begins.
PLANTED_S = at_s(7, 3) + 1.5


#: All arrive in time, and the operation itself takes one rank long.
OWN_TIME = Interruption(at_s=PLANTED_S, lasted_s=0.4, rank_s=[0.0, 0.0, 0.4, 0.0], arrival_s=[])


@pytest.mark.parametrize(
    ("planted", "stalls", "cause", "lasted_s"),
    [
        (even(PLANTED_S, 0.05), {}, "system", 0.05),
        (even(PLANTED_S, 10.0), {}, "system", 10.0),
        (waiting_for([2], PLANTED_S, 0.4), {}, "rank 2 n1", 0.4),
        (waiting_for([2, 3], PLANTED_S, 0.4), {}, "host 2-3 n1", 0.4),
        (waiting_for([0, 1, 2], PLANTED_S, 0.4), {}, "system", 0.4),  # no minority
        (OWN_TIME, {}, "rank 2 n1", 0.4),
        (even(PLANTED_S, 10.0), {(3, 0.1): 10.1}, "rank 3 n1", 10.2),
        (even(PLANTED_S, 30.0), {(0, 0.0): 0.7}, "system", 30.0),  # a short stall
        (None, {(0, 0.0): 5.0}, "rank 0 n0", 5.0),
        (None, {(rank, 0.0): 5.0 for rank in range(4)}, "system", 5.0),
        (None, {(1, 0.0): 0.8, (1, 1.5): 0.8, (1, 3.0): 0.8}, "rank 1 n0", 3.8),
    ],
)
def test_what_is_planted_is_named(
    planted,
    stalls,
    cause,
    lasted_s,
):
    """Name the rank, the host or the system that is the cause, the time and the duration; stalls
    are of a rank, and begin so long after an interruption.
    """
    stalled = [
        Stall(rank=rank, at_s=PLANTED_S + after_s, lasted_s=stalled_s)
        for (rank, after_s), stalled_s in stalls.items()
    ]
    records = soak_records(planted={(7, 3): planted} if planted else None, stalls={(7, 3): stalled})
    (event,) = result_of(records).events
    assert cause == f"{event.scope} {event.ranks} {event.host}".strip()
    assert 7 == event.launch
    assert pytest.approx((lasted_s, PLANTED_S - BEGUN_S)) == (event.duration_s, event.elapsed_s)
    assert "2026-11-25T04:07:37.500Z" == event.time


def failed_launch(launch: int, begun_s: float, seconds: float, status: str) -> dict[str, Any]:
    """Return the entry of a launch that ended badly, of which rank 2 is the cause."""
    return {
        "launch": launch,
        "started": datetime.fromtimestamp(BEGUN_S + begun_s, timezone.utc).isoformat(),
        "seconds": seconds,
        "status": status,
        "reason": "it hung",
        "failed_rank": {"rank": 2, "host": "n1", "case": "mpi all_reduce"},
    }


def test_a_failed_launch_is_an_event_until_the_next_result():
    """State the last progress, the time until the next result, and the diagnosis.

    Merge failed starts in between.
    """
    records = soak_records(launches=5, visits=2)
    records = [record for record in records if record.launch in {0, 1, 4}]
    launches = [failed_launch(1, 63.0, 97.0, "hung"), failed_launch(2, 160.0, 20.0, "failed")]
    (event,) = result_of(records, launches=launches).events
    assert "hung" == event.kind
    assert "rank" == event.scope
    assert "2" == event.ranks
    assert "n1" == event.host
    assert (1, 123.0, 129.0) == (event.launch, event.elapsed_s, event.duration_s)
