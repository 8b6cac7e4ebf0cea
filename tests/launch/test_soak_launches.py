"""A test of the conductor of a soak: launches until the time is up, with a failure in between."""

import json
from dataclasses import replace

import pytest
from builders import read_rows
from conducting import CASES, run
from fields import fields_of
from launching import make_request, marked_environment

from commbench.launch import schedule

pytestmark = pytest.mark.usefixtures("forks")

#: Simulated ranks that measure for half a second, with a point for each of two cases; the second
#: launch fails in a case.
ONE_FAILS = """
from commbench.engine.records import Interruption, Point
assert plan.budget.is_soak and plan.deadline_s
session()
if plan.launch == 1:
    begin(0); fail(1, "ValueError: boom"); sys.exit(1)
time.sleep(0.5)
for i in range(len(plan.cases)):
    longest = [Interruption(at_s=time.time(), lasted_s=0.001)]
    point = Point(at_s=time.time(), lasted_s=0.2, repetitions=100, late=0, median_us=2.0, slowest=1,
        slowest_share=0.5, longest=longest)
    measured(i, group="0-1", group_size=2, visit=1, visit_lengths=[3], points=[point])
end(is_complete=True)
"""


@pytest.fixture(autouse=True)
def mark(monkeypatch):
    """Fail if a test leaves a process behind; shorten the pauses."""
    monkeypatch.setattr(schedule, "PAUSE_S", 0.1)
    monkeypatch.setattr(schedule, "LEAST_SOAK_S", 0.1)
    yield from marked_environment(monkeypatch)


def test_a_soak_goes_on_until_its_time_is_up(tmp_path):
    """Start launches while there is time, name a failed one, keep the results of its case, try it
    again, and write the tables; exit with 3 at the end.
    """
    request = make_request(CASES[:2])
    request = replace(request, soak_s=5.0, budget=replace(request.budget, is_soak=True))
    code, info, display = run(tmp_path, ONE_FAILS, request)
    assert (3, "complete") == (code, info["status"])
    launches = info["launches"]
    assert [*range(len(launches))] == fields_of(launches, "launch")
    statuses = fields_of(launches, "status")
    assert ["ok", "failed", "ok"] == statuses[:3]
    assert "boom" in launches[1]["reason"]
    (warning,) = [text for text in display.warnings if "goes on" in text]
    assert warning.startswith("Launch 2 failed at 20")
    lines = {}
    for name in ("timeline.csv", "events.csv", "drift.csv", "samples.jsonl"):
        lines[name] = (tmp_path / name).read_text().splitlines()
    assert 1 + 2 * statuses.count("ok") == len(lines["timeline.csv"])
    (event,) = lines["events.csv"][1:]
    assert ",failed,rank," in event
    assert 3 == len(lines["drift.csv"])
    assert ["ok", "ok"] == fields_of(read_rows(tmp_path), "status")
    assert {"ok"} == {json.loads(line)["status"] for line in lines["samples.jsonl"]}
