"""Tests of what a soak shows: planted spikes, stalls, failures and drift, and nothing in plain
noise.
"""

from typing import Any

import pytest
from effort import repetitions, slack
from soaks import BEGUN_S, at_s, even, soak_info, soak_records, waiting_for

from commbench.analysis.soak import Soak, soak_of
from commbench.analysis.soak.events import LEAST_SPIKE_S, late_places, spike_limit_s
from commbench.analysis.soak.sentences import duration_text, event_sentence, soak_sentences
from commbench.engine.records import Interruption, Record, Stall

SIMULATIONS = repetitions(100)


def result_of(records: list[Record], **info: Any) -> Soak:
    """Return the results of a soak."""
    soak = soak_of(records, soak_info(**info))
    assert soak
    return soak


def test_a_run_without_points_is_no_soak() -> None:
    """Return nothing for another run."""
    assert soak_of([], soak_info()) is None


def test_the_time_line_has_a_line_for_each_visit() -> None:
    """State when each visit began, its times and its slowest rank with the host, in the order of
    time.
    """
    timeline = result_of(soak_records(launches=2, visits=3)[::-1]).timeline
    assert 6 == len(timeline)
    assert ["2026-11-25T04:00:00.000Z", "2026-11-25T04:00:20.000Z"] == [
        row.time for row in timeline[:2]
    ]
    assert [0.0, 20.0, 40.0, 63.0] == [row.elapsed_s for row in timeline[:4]]
    assert (0, 1, "n0", 0.5) == (
        timeline[0].launch,
        timeline[0].slowest_rank,
        timeline[0].slowest_host,
        timeline[0].slowest_share,
    )


def test_plain_noise_has_neither_events_nor_drift() -> None:
    """Find nothing in at least 95 of 100 soaks of noise, with interruptions by the operating system
    in 1 or 30 %.
    """
    for tail in (0.01, 0.3):
        soaks = [result_of(soak_records(seed, tail=tail)) for seed in range(SIMULATIONS)]
        assert (0.95 - slack(0.95, 100)) * SIMULATIONS <= sum(not soak.events for soak in soaks)
        assert (0.95 - slack(0.95, 100)) * SIMULATIONS <= sum(
            soak.drifts[0].verdict not in {"slower", "faster"} for soak in soaks
        )


def test_a_planted_drift_is_named_with_its_interval() -> None:
    """Find 10 % over 40 launches in at least 95 of 100 soaks.

    The interval holds it in 90 or more.
    """
    drifts = [
        result_of(soak_records(seed, launches=40, visits=4, change=0.1)).drifts[0]
        for seed in range(SIMULATIONS)
    ]
    assert (0.95 - slack(0.95, 100)) * SIMULATIONS <= sum(
        drift.verdict == "slower" for drift in drifts
    )
    intervals = [
        (drift.change_percent_ci_low or 0.0, drift.change_percent_ci_high or 0.0)
        for drift in drifts
    ]
    assert (0.9 - slack(0.9, 100)) * SIMULATIONS <= sum(
        low <= 10 <= high for low, high in intervals
    )
    assert soak_sentences(result_of(soak_records(launches=40, change=0.1)))[-1].startswith(
        "Drift: mpi all_reduce 1 KiB float32 sum became "
    )


def test_few_launches_show_no_drift() -> None:
    """State that five launches are too few for a trend."""
    soak = result_of(soak_records(launches=5, change=0.5))
    assert ["inconclusive"] == [drift.verdict for drift in soak.drifts]
    assert "too few launches" in soak_sentences(soak)[-1]


@pytest.mark.parametrize("lasted_s", [0.05, 10.0])
def test_a_planted_spike_of_all_ranks_is_system_wide(lasted_s: float) -> None:
    """Name the time and the duration of a spike in which all ranks wait together."""
    begun_s = at_s(7, 3) + 1.5
    (event,) = result_of(soak_records(planted={(7, 3): even(begun_s, lasted_s)})).events
    assert ("spike", "system", "", 7) == (event.kind, event.scope, event.ranks, event.launch)
    assert (pytest.approx(begun_s - BEGUN_S), pytest.approx(lasted_s)) == (
        event.elapsed_s,
        event.duration_s,
    )
    assert "2026-11-25T04:07:37.500Z" == event.time


def test_a_planted_spike_of_one_rank_names_rank_and_host() -> None:
    """Name the rank that arrived late, and its host."""
    begun_s = at_s(7, 3) + 1.5
    (event,) = result_of(soak_records(planted={(7, 3): waiting_for([2], begun_s, 0.4)})).events
    assert ("spike", "rank", "2", "n1") == (event.kind, event.scope, event.ranks, event.host)
    sentence = (
        "2026-11-25 04:07:37.500 UTC, 0.4 s: rank 2 on host n1 (the others waited for it), during"
        " mpi all_reduce"
    )
    assert event_sentence(event).startswith(sentence)


def test_all_ranks_of_a_host_are_a_host() -> None:
    """Name the host if all its ranks, and no others, arrived late."""
    (event,) = result_of(
        soak_records(planted={(7, 3): waiting_for([2, 3], at_s(7, 3), 0.4)})
    ).events
    assert ("host", "2-3", "n1") == (event.scope, event.ranks, event.host)


def test_a_stalled_rank_is_the_cause_of_a_spike_that_looks_system_wide() -> None:
    """Name the rank whose process did not run while all waited inside the operation."""
    begun_s = at_s(7, 3) + 1.5
    stall = Stall(rank=3, at_s=begun_s + 0.1, lasted_s=10.1)
    (event,) = result_of(
        soak_records(planted={(7, 3): even(begun_s, 10.0)}, stalls={(7, 3): [stall]})
    ).events
    assert ("rank", "3", "n1") == (event.scope, event.ranks, event.host)
    assert (pytest.approx(begun_s - BEGUN_S), pytest.approx(10.2)) == (
        event.elapsed_s,
        event.duration_s,
    )
    assert "its process did not run" in event.reason


def test_a_stall_between_repetitions_is_an_event() -> None:
    """Name a stopped rank although no repetition was long."""
    stall = Stall(rank=0, at_s=at_s(2, 2), lasted_s=5.0)
    (event,) = result_of(soak_records(stalls={(2, 2): [stall]})).events
    assert ("rank", "0", 5.0) == (event.scope, event.ranks, event.duration_s)


def test_all_ranks_that_stall_together_are_the_system() -> None:
    """Name no rank if no process ran."""
    stalls = [Stall(rank=rank, at_s=at_s(2, 2), lasted_s=5.0) for rank in range(4)]
    (event,) = result_of(soak_records(stalls={(2, 2): stalls})).events
    assert ("system", "no process ran") == (event.scope, event.reason)


def test_a_short_stall_does_not_explain_a_long_spike() -> None:
    """Keep a spike system-wide if a rank did not run for a small part of it only."""
    stall = Stall(rank=0, at_s=at_s(2, 2), lasted_s=0.7)
    (event,) = result_of(
        soak_records(planted={(2, 2): even(at_s(2, 2), 30.0)}, stalls={(2, 2): [stall]})
    ).events
    assert "system" == event.scope


@pytest.mark.parametrize(
    ("arrival_s", "rank_s", "places"),
    [
        ([0.0, 0.9, 0.0, 0.0], [1.0, 0.1, 1.0, 1.0], [1]),
        ([0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], []),
        ([0.9, 0.9, 0.9, 0.9], [0.1, 0.1, 0.1, 0.1], []),
        ([0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [2]),
        ([], [0.0, 1.0, 0.0, 0.0], [1]),
        ([0.0, 0.9], [1.0, 0.1], [1]),
        ([0.9, 0.9], [0.1, 0.1], []),
    ],
)
def test_late_ranks_are_a_minority(
    arrival_s: list[float], rank_s: list[float], places: list[int]
) -> None:
    """Name ranks that arrive late, else ranks whose own time is long, and never more than half of
    them.
    """
    assert places == late_places(
        Interruption(at_s=0.0, lasted_s=1.0, rank_s=rank_s, arrival_s=arrival_s)
    )


def test_the_limit_of_a_spike() -> None:
    """Never call 10 ms or ten times the usual a spike, and always a second."""
    assert LEAST_SPIKE_S == spike_limit_s([1e-5, 1.1e-5, 0.9e-5, 1e-5], 4)
    assert pytest.approx(10.0) == spike_limit_s([1.0] * 10, 10)
    assert 1.0 == spike_limit_s([1e-6, 1e-5, 1e-4, 1e-3, 1e-6, 1e-5, 1e-4, 1e-3], 8)


def failed_launch(
    launch: int, begun_s: float, seconds: float, status: str = "hung", **failed_rank: Any
) -> dict[str, Any]:
    """Return the entry of a launch that ended badly."""
    started = {
        0.0: "2026-11-25T04:00:00+00:00",
        63.0: "2026-11-25T04:01:03+00:00",
        160.0: "2026-11-25T04:02:40+00:00",
    }
    entry = {
        "launch": launch,
        "started": started[begun_s],
        "seconds": seconds,
        "status": status,
        "reason": "it hung",
    }
    return {**entry, "culprit": failed_rank} if failed_rank else entry


def test_a_failed_launch_is_an_event_until_the_next_result() -> None:
    """State the last progress, the time until the next result, and the diagnosis.

    Merge failed starts in between.
    """
    records = soak_records(launches=5, visits=2)
    records = [record for record in records if record.launch in {0, 1, 4}]
    launches = [
        failed_launch(1, 63.0, 97.0, rank=2, host="n1", case="mpi all_reduce"),
        failed_launch(2, 160.0, 20.0, status="failed"),
    ]
    soak = soak_of(records, {**soak_info(), "launches": launches})
    assert soak
    (event,) = soak.events
    assert ("hung", "rank", "2", "n1", 1) == (
        event.kind,
        event.scope,
        event.ranks,
        event.host,
        event.launch,
    )
    assert (123.0, 129.0) == (event.elapsed_s, event.duration_s)
    assert "2026-11-25 04:02:03.000 UTC, 2 min 09 s: launch 2 hung: it hung." == event_sentence(
        event
    )
    assert "1 launch that failed or hung" in soak_sentences(soak)[0]


def test_a_failure_without_a_rank_is_of_the_system() -> None:
    """Name no rank if the diagnosis names none."""
    soak = soak_of(
        soak_records(launches=1), {**soak_info(), "launches": [failed_launch(1, 63.0, 97.0)]}
    )
    assert soak
    assert ["system"] == [event.scope for event in soak.events]


def test_many_events_are_counted() -> None:
    """Name ten events and refer to the file for the others."""
    planted = {(launch, 0): even(at_s(launch, 0), 0.5) for launch in range(12)}
    sentences = soak_sentences(result_of(soak_records(planted=planted)))
    assert "12 spikes" in sentences[0]
    assert "2 more events are in events.csv." in sentences


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.052, "0.052 s"), (10.24, "10.2 s"), (65.0, "1 min 05 s")]
)
def test_durations_are_short(seconds: float, text: str) -> None:
    """Write three digits below a minute."""
    assert text == duration_text(seconds)


def test_stalls_that_follow_each_other_are_one_event() -> None:
    """Name the rank of several stalls, none of which fills half of the event."""
    stalls = [Stall(rank=1, at_s=at_s(2, 2) + 1.5 * number, lasted_s=0.8) for number in range(3)]
    (event,) = result_of(soak_records(stalls={(2, 2): stalls})).events
    assert ("rank", "1", 3.8) == (event.scope, event.ranks, event.duration_s)
    assert "its process did not run" in event.reason
