"""Tests of a soak on the page: its time line, tables and sentences."""

from drawings import painted, run_of
from matplotlib.axes import Axes
from soaks import at_s, even, soak_info, soak_records, waiting_for

from commbench.analysis.runs import soak_results
from commbench.report.figures import all_figures
from commbench.report.figures.soak import paint_timeline, soak_figures
from commbench.report.page.contents import make_page
from commbench.report.soak import soak_tables
from commbench.results import Run

PLANTED = {(3, 2): even(at_s(3, 2), 5.0), (8, 1): waiting_for([2], at_s(8, 1), 0.4)}


def soaked() -> Run:
    """Return a soak with two planted spikes."""
    info = {name: value for name, value in soak_info().items() if name != "run_id"}
    return run_of(soak_records(planted=PLANTED), **info)


def count_dots(axes: Axes, label: str) -> int:
    """Return the number of dots of a series over the time of day."""
    return next(len(line.get_xdata()) for line in axes.get_lines() if line.get_label() == label)


def test_the_time_line_shows_medians_and_events() -> None:
    """Draw a dot for each visit, the slowest rank below, and shade each event in both."""
    soak = soak_results(soaked())
    assert soak
    times, ranks = painted(paint_timeline, soak.timeline, soak.events).axes
    counts = [
        count_dots(axes, name)
        for axes, name in ((times, "median"), (times, "longest"), (ranks, "slowest"))
    ]
    assert [240, 240, 240] == counts
    assert [2, 2] == [
        sum(patch.get_gid() == "event" for patch in axes.patches) for axes in (times, ranks)
    ]


def test_another_run_has_no_time_line() -> None:
    """Draw nothing, and add no section."""
    run = run_of([])
    assert ([], []) == (soak_figures([run]), soak_tables([run]))
    assert "soak" not in {section.name for section in make_page([run], [], beside=False).sections}


def test_the_page_names_events_and_drift() -> None:
    """Put sentences, figure and both tables into a section, and the headline into the
    conclusion.
    """
    run = soaked()
    page = make_page([run], all_figures([run]), beside=False)
    section = next(section for section in page.sections if section.name == "soak")
    assert ["Events", "Drift"] == [table.title for table in section.tables]
    assert [2, 1] == [len(table.lines) for table in section.tables]
    assert "system-wide" in [cell.text for cell in section.tables[0].lines[0]]
    assert "rank 2 on host n1" in [cell.text for cell in section.tables[0].lines[1]]
    (finding,) = [finding for finding in page.findings if finding.label == "Soak"]
    assert finding.texts[0].endswith("20 launches and 240 visits: 2 spikes.")
