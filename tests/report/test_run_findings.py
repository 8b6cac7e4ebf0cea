"""Tests of what a run says."""

import pytest
from builders import STEADY, make_info, make_launches
from drawings import recommendation_of
from fields import fields_of
from training_builders import run_of

from commbench.engine.flags import FLAGS
from commbench.engine.records import Row
from commbench.findings import Finding
from commbench.interop.exports.measures import samples_of
from commbench.report.findings import Kind, precision, row_warnings, setting, unfinished


def warnings(rows: list[Row]) -> list[Finding]:
    """Return the warnings about rows."""
    return list(row_warnings([Kind(section="collectives", rows=rows)], make_info()))


def flagged(*flags: str, total: int = 4) -> list[Row]:
    """Return ``total`` rows, all but one with the flags."""
    return [Row(flags=";".join(flags))] * (total - 1) + [Row()]


def test_warnings_count_instead_of_repeating():
    """Warn once of a flag, with count and target."""
    [warning] = warnings(flagged("ci_wide", total=60))
    assert "flag_ci_wide" == warning.code
    assert "59 of 60 rows" == warning.subject
    assert 0.05 == warning.numbers["target"]
    assert ["remedy_noise"] == fields_of(warning.details, "code")


def test_every_flag_has_a_warning():
    """Warn of each flag once, the gravest first, and of several flags of noise together."""
    alone = [warnings(flagged(name)) for name in FLAGS]
    assert {"3 of 4 rows"} == {warning.subject for [warning] in alone}
    assert len(FLAGS) == len({str(warning) for [warning] in alone})
    together = warnings(flagged(*FLAGS))
    noise = [name for name, flag in FLAGS.items() if flag.is_noise]
    assert len(FLAGS) - len(noise) + 1 == len(together)
    assert "ranks_differ" == together[0].numbers["flag"]
    [noisy] = (warning for warning in together if warning.code == "flagged_noisy")
    assert all(f"3 {name}" in str(noisy) for name in noise)


def test_failures_come_first_with_a_reason():
    """Warn of wrong data, hangs and gaps before flags; name each cause."""
    rows = [
        Row(status="unsupported", reason="gloo has no avg."),
        Row(status="hung", reason="rank 1 stopped."),
        Row(status="hung", reason="rank 2 stopped."),
        Row(status="wrong", wrong=3, flags="late"),
    ]
    wrong, hung, unsupported, late = warnings(rows)
    assert ["rows_wrong", "rows_hung", "rows_unsupported", "flagged"] == fields_of(
        (wrong, hung, unsupported, late), "code"
    )
    assert "2 of 4 rows" == hung.subject
    [why] = hung.details
    assert {"errors": ("rank 1 stopped", "rank 2 stopped")} == why.numbers


@pytest.mark.parametrize(
    ("times_us", "within", "width"), [(STEADY, 1, "±0.5"), ([10.0, 1000.0], 0, "±")]
)
def test_precision_is_the_median_half_width(times_us, within, width):
    """Count the rows within the target; a half-width of two launches may have many digits."""
    [stated] = precision(run_of(make_launches(times_us)))
    assert "precision" == stated.code
    assert "mpi" == stated.subject
    assert within == stated.numbers["within"]
    assert 1 == stated.numbers["rows"]
    assert f"(median {width}" in str(stated)


def test_a_recommendation_is_withheld_before_its_first_look():
    """Say only how many launches are made; export nothing of it."""
    advice = recommendation_of({"bucket_cap_mb": "5"}, launches=3)
    early = run_of(training=[], recommendation=advice, status="partial", first_look=6)
    [pending] = setting(early)
    assert "run_undecided" == pending.code
    assert 3 == pending.numbers["launches"]
    assert 6 == pending.numbers["planned"]
    late = run_of(training=[], recommendation=advice, status="complete", first_look=6)
    assert "setting_change" == next(setting(late)).code
    for run, is_exported in ((early, False), (late, True)):
        names = set(fields_of(samples_of(run), "name"))
        assert is_exported == ("commbench_recommendation_info" in names)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("complete", ""),
        ("cut", "run_cut"),
        ("partial", "run_unfinished"),
        ("running", "run_unfinished"),
    ],
)
def test_an_unfinished_run_says_so(status, code):
    """Tell a run that was cut short from one that may go on; quote its path for a shell."""
    found = list(unfinished(run_of(make_launches(STEADY), "my run", status=status)))
    assert [code] * bool(code) == fields_of(found, "code")
    assert all("'/runs/my run'" in str(finding) for finding in found)
