"""Tests of visits: rounds, settings, and the merged record."""

import dataclasses
import itertools
import json
from collections import Counter
from itertools import pairwise

import pytest
from faking import EXACT, FakeRun, Script, fake_case

from commbench.engine.observers import Disturbance
from commbench.engine.records import FixedSettings, Pairs, Record
from commbench.engine.samples import Samples
from commbench.engine.sampling import (
    PILOT_VISITS,
    Sampler,
    is_due,
    rounds_of_launch,
    settings_after,
)
from commbench.engine.visits import extended, launch_value, visit_times
from commbench.stats.budgets import BUDGETS
from commbench.stats.components import FEWEST_VISITS
from commbench.system import process
from commbench.system.process import waiting_s

QUICK = BUDGETS["quick"]


@pytest.mark.parametrize(("visits", "rounds"), [(1, 1), (1, 8), (3, 8), (4, 24), (8, 8), (5, 24)])
def test_visits_are_spread_over_the_rounds(visits, rounds):
    """Visit in the first round, at most once per round, at even distances."""
    made, at = 0, []
    for number in range(rounds):
        if is_due(made, visits, number, rounds):
            made += 1
            at.append(number)
    assert (visits, 0) == (len(at), at[0])
    gaps = Counter(after - before for before, after in pairwise(at))
    assert len(gaps) <= 2


def test_rounds_are_the_most_visits_of_any_case():
    """Use the pilot's visits for a case without settings."""
    settings = FixedSettings(warmups=1, batch=1, visits=5)
    assert 5 == rounds_of_launch([settings], QUICK)
    assert PILOT_VISITS == rounds_of_launch([settings, None], QUICK)
    assert 1 == rounds_of_launch([None], dataclasses.replace(QUICK, visits=1))


def visited(*visits: list[float]) -> Record:
    """Return the record of a launch with the given visits."""
    records = [
        Record(
            case=fake_case(),
            launch=0,
            visit=number,
            times_us=times,
            rank_mean_us=times,
            rank_median_us=[times[0], times[0]],
            rank_slowest=[1, len(times) - 1],
            visit_lengths=[len(times)],
            measuring_s=0.5,
            flags=("oversubscribed", "unsteady"),
        )
        for number, times in enumerate(visits, start=1)
    ]
    record = records[0]
    for more in records[1:]:
        record = extended(record, more)
    return record


def test_visits_extend_the_record_of_their_launch():
    """Concatenate times, add counts and seconds, and average rank medians by repetitions."""
    record = visited([1.0, 2.0], [4.0, 4.0, 4.0, 4.0])
    assert [1.0, 2.0, 4.0, 4.0, 4.0, 4.0] == record.times_us
    assert [[1.0, 2.0], [4.0] * 4] == visit_times(record)
    assert [2, 4] == record.visit_lengths
    assert [2, 4] == record.rank_slowest
    assert 1.0 == record.measuring_s
    assert [3.0, 3.0] == record.rank_median_us
    assert ("oversubscribed",) == record.flags
    text = json.dumps(record.to_json())
    assert text == json.dumps(Record.from_json(json.loads(text)).to_json())


def test_writing_a_record_copies_no_times():
    """Hand out the record's own times and pairs: a thousand ranks have a million pairs."""
    pairs = Pairs(source=[0], target=[1], time_us=[1.0])
    record = dataclasses.replace(visited([1.0, 2.0]), pairs=pairs)
    data = record.to_json()
    assert data["times_us"] is record.times_us
    assert data["pairs"]["time_us"] is pairs.time_us


@pytest.mark.parametrize(("late", "is_flagged"), [(5, False), (30, True)])
def test_late_starts_are_judged_over_all_visits(late, is_flagged):
    """Flag a launch by the share of late starts in all its visits."""
    first = dataclasses.replace(visited([1.0]), late_discarded=late, flags=("late",))
    assert is_flagged == (
        "late" in extended(first, dataclasses.replace(visited([1.0] * 40), visit=2)).flags
    )


def test_a_launch_is_the_median_of_its_visits_unless_one_fails():
    """Weight long and short visits equally; mark a launch as failed if a later visit fails."""
    assert 2.0 == launch_value(visited([1.0], [2.0], [9.0] * 50))
    assert 3.0 == launch_value(Record(case=fake_case(), launch=0, times_us=[2.0, 3.0, 4.0]))
    failed = Record(case=fake_case(), launch=0, visit=2, status="failed", reason="The rank died.")
    launch = extended(visited([1.0]), failed)
    assert ("failed", 0) == (launch.status, launch.visit)


def test_the_first_launch_plans_the_visits_of_the_others():
    """Plan visits and repetitions from launch 1; none for a case without times."""
    (record,) = FakeRun(script=dataclasses.replace(EXACT, noise=0.05), visits=24).launch(
        [fake_case()]
    )
    assert PILOT_VISITS == len(record.visit_lengths)
    settings = settings_after(record, QUICK)
    assert FEWEST_VISITS <= settings.visits <= 24
    assert settings.repetitions >= 3
    assert settings_after(dataclasses.replace(record, times_us=[]), QUICK) is None


def test_later_launches_keep_a_shortened_case_short():
    """Keep the window that the link had time for, and the repetitions of a brief visit."""
    record = dataclasses.replace(
        visited([1.0, 2.0]), window=3, late_discarded=1, flags=("small_window", "brief")
    )
    settings = settings_after(record, QUICK)
    assert (3, 1, 3) == (settings.window, settings.visits, settings.repetitions)
    assert settings.is_brief


def test_visits_that_only_started_late_leave_the_launch_to_the_others():
    """Stay failed while every repetition of every visit started late.

    Take the first visit that has times.
    """
    plain = visited([1.0, 2.0])
    nothing = {"times_us": [], "rank_mean_us": [], "rank_median_us": [], "rank_slowest": []}
    late = dataclasses.replace(plain, **nothing, visit=2, visit_lengths=[0], late_discarded=16)
    failed = dataclasses.replace(
        late, visit=1, status="failed", visit_lengths=[], late_discarded=19
    )
    still_failed = extended(failed, late)
    assert ("failed", 35) == (still_failed.status, still_failed.late_discarded)
    assert ("ok", [1.0, 2.0]) == ((record := extended(still_failed, plain)).status, record.times_us)
    assert [1.0, 2.0, 4.0] == extended(extended(record, late), visited([4.0])).times_us


def test_later_launches_follow_the_plan():
    """Make the planned visits of the planned length in every later launch."""
    records = FakeRun(script=Script(noise=0.05, tail=0.0), visits=24).launches([fake_case()], 3)
    planned = settings_after(records[0], QUICK)
    for record in records[1:]:
        assert [planned.repetitions] * planned.visits == list(record.visit_lengths)


def test_a_disturbed_visit_is_repeated_and_counted(monkeypatch):
    """Repeat visits in which a rank waited for a CPU.

    Keep the planned visits, and their times alone.
    """
    calls = itertools.count()  # one of each of two ranks per later visit
    monkeypatch.setattr(Disturbance, "after", lambda _: float(next(calls) // 2 in {1, 4}))
    (record,) = FakeRun(visits=24).launch([fake_case()])
    assert (2, PILOT_VISITS) == (record.disturbed, len(record.visit_lengths))
    assert sum(record.visit_lengths) == len(record.times_us)


def test_visits_are_repeated_at_most_a_quarter_as_often_as_planned(
    stub,
):
    """Go on with the planned number of visits where all are disturbed."""
    stub("commbench.engine.observers.Disturbance.after", 1.0)
    (record,) = FakeRun(visits=24).launch([fake_case()])
    assert PILOT_VISITS // 4 == record.disturbed
    assert PILOT_VISITS == len(record.visit_lengths)


@pytest.mark.parametrize(("delay_s", "stolen_s"), [(60.0, 0.0), (0.0, 60.0)])
def test_waiting_for_a_cpu_is_no_disturbance_where_ranks_share_cpus(monkeypatch, delay_s, stolen_s):
    """Count the time of other guests in any case, and waiting only where a rank has a CPU of its
    own.
    """
    readings = itertools.count()
    monkeypatch.setattr(
        process, "waiting_s", lambda: (delay_s * (number := next(readings)), stolen_s * number)
    )
    own, shared = Disturbance(counts_delay=True), Disturbance(counts_delay=False)
    for each in (own, shared):
        each.before()
    assert own.after() > 1
    assert (stolen_s > 0) == (shared.after() > 1)


def test_the_kernel_counts_what_this_thread_waits():
    """Read counters that do not fall."""
    before, after = waiting_s(), waiting_s()
    assert all(0 <= early <= late for early, late in zip(before, after, strict=True))


def test_each_visit_begins_with_the_calibrated_slack(monkeypatch):
    """Tolerate no later start in a visit because an earlier one had late starts."""
    collect, seen = Sampler.collect, []

    def collect_and_widen(self: Sampler, samples: Samples) -> Samples | None:
        sync = self.timer.sync
        seen.append(sync.slack_ns - sync.least_ns)
        collected = collect(self, samples)
        sync.handle_late_starts()
        return collected

    monkeypatch.setattr(Sampler, "collect", collect_and_widen)
    FakeRun(visits=24, ranks=1).launch([fake_case("barrier")])
    assert [0] * PILOT_VISITS == seen
