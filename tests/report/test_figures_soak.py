"""Tests of a soak on the page: its time line, tables and sentences."""

import pytest
from fields import fields_of
from soaks import at_s, even, soak_info, soak_records, waiting_for
from training_builders import run_of

from commbench.report.figures import all_figures
from commbench.report.figures.soak import soak_charts
from commbench.report.page.contents import make_page
from commbench.results import Run

PLANTED = {(3, 2): even(at_s(3, 2), 5.0), (8, 1): waiting_for([2], at_s(8, 1), 0.4)}


def soaked() -> Run:
    """Return a soak with two planted spikes."""
    info = {name: value for name, value in soak_info().items() if name != "run_id"}
    return run_of(soak_records(planted=PLANTED), **info)


def test_the_time_line_shows_medians_and_events():
    """Draw a dot for each visit, the slowest rank below, and shade each event."""
    (chart,) = soak_charts([soaked()])
    points = {series.name: len(series.points) for panel in chart.panels for series in panel.series}
    assert {"median": 240, "longest": 240, "slowest rank": 240} == points
    begins_s = [60 * shade.begin for shade in chart.shades]
    first_s = at_s(0, 0)
    assert pytest.approx([at_s(3, 2) - first_s, at_s(8, 1) - first_s], abs=1.0) == begins_s


def test_the_page_names_events_and_drift():
    """Put sentences, figure and both tables into a section, and the headline into the
    conclusion.
    """
    run = soaked()
    page = make_page([run], all_figures([run]))
    section = next(section for section in page.sections if section.name == "soak")
    assert ["Events", "Drift"] == fields_of(section.tables, "title")
    assert [2, 1] == [len(table.lines) for table in section.tables]
    assert "system-wide" in fields_of(section.tables[0].lines[0], "text")
    assert "rank 2 on host n1" in fields_of(section.tables[0].lines[1], "text")
    (finding,) = [finding for finding in page.findings if finding.label == "Soak"]
    assert finding.texts[0].endswith(
        "20 launches and 240 samples: 2 spikes and 0 launches that failed or hung."
    )
