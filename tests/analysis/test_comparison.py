"""Tests of the comparison of two runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import KIB, STEADY, make_case, make_launches, make_record
from fields import fields_of
from training_builders import launches_of, make_training_case, run_of

from commbench.analysis.comparison import ComparisonTable, compare
from commbench.analysis.comparison.findings import regressions
from commbench.collectives.cases import Case
from commbench.engine.records import Record, Stated
from commbench.errors import InputError
from commbench.results import Run
from commbench.stats import MARGIN

SIZES = (8, KIB, 64 * KIB, 1024 * KIB)


def sweep(seed: int, launches: int = 10, slower: dict[int, float] | None = None) -> list[Record]:
    """Return launches of four sizes that differ by 1 %.

    Multiply times of sizes in ``slower`` by their factors.
    """
    generator = np.random.default_rng(seed)
    records = []
    for size in SIZES:
        factor = (slower or {}).get(size, 1.0)
        times = 10.0 * factor * np.exp(0.01 * generator.standard_normal(launches))
        records += make_launches(times.tolist(), make_case(message_bytes=size))
    return records


def verdicts(table: ComparisonTable) -> list[str]:
    """Return the verdict of each case."""
    return fields_of(table.cases, "comparison.verdict")


def regressed(table: ComparisonTable, threshold: float = MARGIN) -> list[str]:
    """Return the names of the cases that became slower, and of those that B lost."""
    slower, lost = regressions(table, threshold)
    return slower + lost


def test_slower_and_faster_cases_are_found():
    """Judge each case of B relative to A."""
    table = compare(run_of(sweep(1)), run_of(sweep(2, slower={KIB: 1.3, 8: 0.7}), "b"))
    assert ["faster", "slower", "same", "same"] == verdicts(table)
    assert [str(make_case(message_bytes=KIB))] == regressed(table)
    assert [("slower", 1), ("faster", 1), ("same", 2), ("inconclusive", 0)] == [
        (str(v), n) for v, n in table.counts.items()
    ]


def test_cases_are_matched_by_key():
    """Compare only cases whose keys are equal in every field."""
    runs = []
    for loop in ("native", "python"):
        records = make_launches(STEADY, make_case()) + make_launches(STEADY, make_case(loop=loop))
        runs.append(run_of(records, loop))
    table = compare(*runs)
    assert [make_case()] == fields_of(table.cases, "case")
    assert (make_case(loop="native"),) == table.only_in_a
    assert (make_case(loop="python"),) == table.only_in_b


def test_case_that_only_one_run_could_measure_is_broken():
    """List a case that only one run measured, and count it as a regression if B lost it."""

    def run(statuses: dict[Case, str], name: str) -> Run:
        return run_of([make_record(case, status=status) for case, status in statuses.items()], name)

    lost, gained, never = (make_case(message_bytes=size) for size in (8, 16, 32))
    table = compare(
        run({lost: "ok", gained: "unsupported", never: "unsupported"}, "a"),
        run({lost: "hung", gained: "ok", never: "unsupported"}, "b"),
    )
    assert [(lost, "ok", "hung"), (gained, "unsupported", "ok")] == fields_of(
        table.broken, "case", "status_a", "status_b"
    )
    assert [str(lost)] == regressed(table)


def test_different_conditions_are_refused():
    """Name the differing conditions and why they matter; list them if forced."""
    hosts = [
        {"hosts": [{"cpu_model": "X", "kernel": "6.1.7"}]},
        {"hosts": [{"cpu_model": "Y", "kernel": "6.1.9"}]},
    ]
    a = run_of(make_launches(STEADY), environment=hosts[0])
    b = run_of(make_launches(STEADY, transport="tcp"), "b", environment=hosts[1])
    with pytest.raises(
        InputError,
        match=r"different conditions \(cpu_model: X vs Y, and it sets .*; transport: sm vs tcp",
    ):
        compare(a, b)
    table = compare(a, b, force=True)
    assert table.is_forced
    differences = [(each.name, bool(each.reason)) for each in table.differences]
    assert {("cpu_model", True), ("transport", True), ("kernel", False)} == set(differences)


def test_too_few_launches_for_any_detection_are_reported():
    """Advise more launches if no difference could be detected."""
    few = compare(
        run_of(sweep(1, launches=3)), run_of(sweep(2, launches=3, slower={KIB: 2.0}), "b")
    )
    assert {"inconclusive", "same"} >= set(verdicts(few))
    assert few.has_too_few_launches
    enough = compare(run_of(sweep(1)), run_of(sweep(2), "b"))
    assert not enough.has_too_few_launches


def test_margin_is_honoured():
    """Judge a difference below the margin as the same."""
    a, b = run_of(sweep(1)), run_of(sweep(2, slower=dict.fromkeys(SIZES, 1.1)), "b")
    assert {"slower"} == set(verdicts(compare(a, b)))
    assert {"same"} == set(verdicts(compare(a, b, margin=0.15)))
    for margin in (-0.1, 1.0):
        with pytest.raises(InputError, match="is no share from 0 to below 1"):
            compare(a, b, margin=margin)


def timed_unlike(cases: int, **changes: Any) -> Run:
    """Return a run of four sizes whose first ``cases`` records carry other timing fields."""
    records = sweep(2)
    for place, record in enumerate(records):
        if record.case.message_bytes in SIZES[:cases]:
            records[place] = replace(record, **changes)
    return run_of(records, "b")


def test_cases_timed_in_different_batches_get_no_verdict():
    """Judge cases as inconclusive if a probe chose other batches for them, even for all."""
    table = compare(run_of(sweep(1)), timed_unlike(4, batch=2))
    assert ["inconclusive"] * 4 == verdicts(table)
    assert ["1 vs 2 (in 4 of 4 cases)"] == fields_of(table.differences, "text")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sync": "barrier"}, "sync: round-time vs barrier"),
        ({"loop": "python"}, "loop: native vs python"),
        (
            {"stated": Stated(time="mean over repetitions and ranks")},
            "time: median over repetitions of the slowest rank vs mean over repetitions and ranks",
        ),
    ],
)
def test_a_case_that_was_timed_differently_gets_no_verdict(changes, named):
    """Give no verdict to a case timed differently; refuse the comparison if all cases are."""
    a = run_of(sweep(1))
    table = compare(a, timed_unlike(1, **changes))
    assert ["inconclusive"] + 3 * ["same"] == verdicts(table)
    assert not table.is_forced
    with pytest.raises(
        InputError, match=f"{named} \\(in 4 of 4 cases\\), and times are taken in another way"
    ):
        compare(a, timed_unlike(4, **changes))
    for cases in (1, 4):
        forced = compare(a, timed_unlike(cases, **changes), force=True)
        assert ["same"] * 4 == verdicts(forced)
        assert forced.is_forced is True


# -------------------------------------------------------------------------------- several baselines


def shifted(name: str, seed: int, factor: float, **info: Any) -> Run:
    """Return a run whose times are all multiplied by ``factor``."""
    return run_of(sweep(seed, slower=dict.fromkeys(SIZES, factor)), name, **info)


def test_how_baselines_differ_enters_the_interval():
    """Call a run within the spread of its baselines inconclusive, though it is slower than one."""
    baselines = [
        shifted(f"a{k}", k, factor) for k, factor in enumerate((0.92, 0.96, 1.0, 1.04, 1.08))
    ]
    b = shifted("b", 9, 1.05)
    assert {"slower"} == set(verdicts(compare(baselines[2], b)))
    table = compare(baselines, b)
    assert {"inconclusive"} == set(verdicts(table))
    assert {(5, 50, 10)} == set(
        fields_of(table.cases, "baselines", "comparison.launches_a", "comparison.launches_b")
    )
    assert {"slower"} == set(verdicts(compare(baselines, shifted("b", 9, 1.6))))


def test_baselines_of_one_launch_each_are_compared():
    """Compare baselines of one launch each, as mpirun runs and imported files are."""
    baselines = [run_of(sweep(seed, launches=1), f"a{seed}") for seed in range(6)]
    for more in ([], [run_of(sweep(8), "a8")]):
        table = compare([*baselines, *more], run_of(sweep(9, slower={KIB: 1.3}), "b"))
        assert [str(make_case(message_bytes=KIB))] == regressed(table)
        assert len(SIZES) == sum(each.comparison.interval is not None for each in table.cases)
    assert not compare(baselines[:2], run_of(sweep(9), "b")).has_too_few_launches


def test_baselines_under_different_conditions_are_refused():
    """Refuse baselines under different conditions, or list the condition once if forced."""
    a1, a2 = (shifted(f"a{nodes}", nodes, 1.0, nodes=nodes) for nodes in (1, 2))
    with pytest.raises(
        InputError, match=r"^The baselines were measured under different conditions \(nodes: 1, 2"
    ):
        compare([a1, a2], shifted("b", 3, 1.0))
    table = compare([a1, a2], shifted("b", 3, 1.0), force=True)
    assert ["1, 2 vs 1"] == fields_of(table.differences, "text")
    with pytest.raises(InputError, match="at least one baseline"):
        compare([], a1)


def test_a_baseline_may_lack_a_case():
    """Compare a case with the baselines that measured it; if none did, B cannot lose it."""
    case = make_case()
    failed = run_of([make_record(case, status="failed")], "a2")
    b = run_of(make_launches([1.001 * time for time in STEADY], case), "b")
    table = compare([run_of(make_launches(STEADY, case)), failed], b)
    assert [1] == fields_of(table.cases, "baselines")
    lost = compare([run_of(make_launches(STEADY, case)), failed], replace(failed, path=Path("b")))
    assert [str(case)] == regressed(lost)
    assert [] == regressed(compare([failed, failed], replace(failed, path=Path("b"))))


def test_a_run_counts_once():
    """Refuse a copy of a run; recognise an imported run by the hashes of its files."""
    a1, a2, b = (
        run_of(sweep(seed), name, launches=[{"launch": 0, "seconds": 1.0 + seed}])
        for seed, name in enumerate(("a1", "a2", "b"))
    )
    copy = replace(a1, path=Path("copy"))
    for runs, judged in (([a1, copy], b), ([a1, a2], copy)):
        with pytest.raises(
            InputError, match="a1 and copy hold the same measurements and count as one run"
        ):
            compare(runs, judged)
    imported = []
    for digest in ("1", "2", "2"):
        output = {"file": "x", "sha256": digest, "tool": "t", "version": ""}
        imported.append(replace(a1, info={**a1.info, "imported": [output]}))
    assert 2 == compare(imported[:2], b).cases[0].baselines
    with pytest.raises(InputError, match="hold the same measurements"):
        compare(imported[1:], b)


# ---------------------------------------------------------------------------------- incomplete runs


def test_cases_that_an_unfinished_run_did_not_reach_are_lost():
    """Count unmeasured cases of the same plan as lost and those of another plan as missing."""
    a = run_of(sweep(1), plan={"cases_sha256": "x"}, status="complete")
    for plan, lost in (({"cases_sha256": "x"}, 2), ({"cases_sha256": "y"}, 0), ({}, 0)):
        b = run_of(sweep(2)[:20], "b", plan=plan, status="partial")
        table = compare(a, b)
        assert lost == len(regressed(table))
        assert 2 - lost == len(table.only_in_a)
    whole = compare(a, run_of(sweep(2)[:20], "b", plan={"cases_sha256": "x"}, status="complete"))
    assert ([], 2) == (regressed(whole), len(whole.only_in_a))


# ----------------------------------------------------------------------------------------- training


def trained(name: str, step_ms: dict[str, float], **changes: Any) -> Run:
    """Return a training run with the given step time in milliseconds per hook."""
    records = []
    for hook, ms in step_ms.items():
        records += launches_of(ms, make_training_case(hook), **changes)
    return run_of(name=name, training=records)


def test_training_is_compared_by_configuration():
    """Judge steps per configuration, and give ``local``, measured for reference, no verdict."""
    a = trained("a", {"none": 20.0, "fp16": 15.0, "local": 12.0})
    b = trained("b", {"none": 20.0, "fp16": 18.0, "local": 12.0})
    table = compare(a, b)
    judged = {}
    for compared in table.cases:
        judged[compared.case.hook] = compared.comparison.verdict, round(compared.time_b_us / 1e3)
    assert {"none": ("same", 20), "fp16": ("slower", 18)} == judged


def test_training_with_other_threads_is_refused():
    """Refuse to compare trainings with different numbers of threads per rank."""
    a, b = (
        trained(name, {"none": 20.0}, threads_per_rank=threads)
        for name, threads in (("a", 1), ("b", 2))
    )
    with pytest.raises(InputError, match="threads_per_rank: 1 vs 2"):
        compare(a, b)


# ----------------------------------------------------------------------------- thresholds and order


def test_a_threshold_lets_small_regressions_pass():
    """Count as a regression only a case whose whole interval exceeds the threshold; sort slower
    cases first, the slowest at the top, and faster ones last.
    """
    factors = {8: 0.8, KIB: 1.06, 64 * KIB: 1.3}
    table = compare(run_of(sweep(1)), run_of(sweep(2, slower=factors), "b"))
    assert [2, 1, 0] == [len(regressed(table, threshold)) for threshold in (0.02, 0.1, 0.5)]
    worst = fields_of(table.worst_first().cases, "case")
    assert worst == [table.cases[place].case for place in (2, 1, 3, 0)]
