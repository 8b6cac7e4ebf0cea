"""Tests of the conductor of a soak: launches until the time is up, failures in between, resuming
and signals.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import read_rows
from conducting import CASES, run
from launching import make_request, marked_environment

from commbench.launch import schedule
from commbench.results.plan import RunRequest

pytestmark = pytest.mark.usefixtures("forks")

#: A soak of two cases.
REQUEST = make_request(CASES[:2])
#: Simulated ranks that measure for half a second, with a point for each case.
POINTS = """
from commbench.engine.records import Interruption, Point
assert plan.budget.is_soak and plan.deadline_s
session()
time.sleep(0.5)
for i in range(len(plan.cases)):
    longest = [Interruption(at_s=time.time(), lasted_s=0.001)]
    point = Point(at_s=time.time(), lasted_s=0.2, repetitions=100, late=0, median_us=2.0, slowest=1,
        slowest_share=0.5, longest=longest)
    measured(i, group="0-1", group_size=2, visit=1, visit_lengths=[3], points=[point])
"""
GOOD = f"{POINTS}end(is_complete=True)\n"
#: The same, but the second launch fails in a case.
ONE_FAILS = f"""
if plan.launch == 1:
    session(); begin(0); fail(1, "ValueError", "boom"); sys.exit(1)
{GOOD}"""


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Fail if a test leaves a process behind; shorten the pauses."""
    monkeypatch.setattr(schedule, "PAUSE_S", 0.1)
    monkeypatch.setattr(schedule, "LEAST_SOAK_S", 0.1)
    yield from marked_environment(monkeypatch)


def soak(seconds: float) -> RunRequest:
    """Return a request for a soak."""
    return replace(REQUEST, soak_s=seconds, budget=replace(REQUEST.budget, is_soak=True))


def launches_of(info: dict[str, Any]) -> list[tuple[int, str]]:
    """Return number and status of each launch."""
    return [(entry["launch"], entry["status"]) for entry in info["launches"]]


def test_launches_follow_each_other_until_the_time_is_up(tmp_path: Path) -> None:
    """Start another launch while there is time, measure every case in each, and write the tables of
    a soak.
    """
    code, info, _ = run(tmp_path, GOOD, soak(5.0))
    assert (0, "complete", "") == (code, info["status"], info["reason"])
    launches = launches_of(info)
    assert 2 <= len(launches)
    assert [(number, "ok") for number in range(len(launches))] == launches
    lines = (tmp_path / "timeline.csv").read_text().splitlines()
    assert 1 + 2 * len(launches) == len(lines)
    assert 1 == len((tmp_path / "events.csv").read_text().splitlines())
    assert 3 == len((tmp_path / "drift.csv").read_text().splitlines())


def test_a_failed_launch_is_named_and_the_soak_goes_on(tmp_path: Path) -> None:
    """Name the rank and the time, keep the results of the case, try it again, and exit with 3 at
    the end.
    """
    code, info, display = run(tmp_path, ONE_FAILS, soak(6.0))
    assert (3, "complete") == (code, info["status"])
    statuses = [status for _, status in launches_of(info)]
    assert ["ok", "failed", "ok"] == statuses[:3]
    assert "boom" in info["launches"][1]["reason"]
    (warning,) = [text for text in display.warnings if "goes on" in text]
    assert warning.startswith("Launch 2 failed at 20")
    (event,) = (tmp_path / "events.csv").read_text().splitlines()[1:]
    assert ",failed,rank," in event
    assert ["ok", "ok"] == [row["status"] for row in read_rows(tmp_path)]
    lines = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert {"ok"} == {line["status"] for line in lines}
