"""Tests of the comparison of two runs."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import KIB, STEADY, make_case, make_info, make_launches, make_record
from rich.console import Console

from commbench.cases import Case
from commbench.errors import InputError
from commbench.records import Record
from commbench.report.comparison import ComparisonTable, compare, render_comparison
from commbench.stats import Verdict
from commbench.store import Run, Store

SIZES = (8, KIB, 64 * KIB, 1024 * KIB)


def make_run(records: list[Record], name: str = "a", **info: Any) -> Run:
    """Return a run in memory."""
    return Run(path=Path("results") / name, info=make_info(run_id=name, **info), records=tuple(records))


def sweep(seed: int, launches: int = 10, slower: dict[int, float] | None = None) -> list[Record]:
    """Return launches of four sizes that differ by 1 %, some of them ``slower`` by a factor."""
    generator = np.random.default_rng(seed)
    return [
        record
        for size in SIZES
        for record in make_launches(
            list((slower or {}).get(size, 1.0) * 10.0 * np.exp(0.01 * generator.standard_normal(launches))),
            make_case(message_bytes=size),
        )
    ]


def render(table: ComparisonTable, width: int = 120) -> str:
    """Return the comparison as a log shows it."""
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=False).print(render_comparison(table))
    return stream.getvalue()


def verdicts(table: ComparisonTable) -> dict[int, Verdict]:
    """Return the verdict of each size."""
    return {compared.case.message_bytes: compared.comparison.verdict for compared in table.cases}


def test_slower_and_faster_cases_are_found() -> None:
    """Judge B relative to A, case by case."""
    table = compare(make_run(sweep(1)), make_run(sweep(2, slower={KIB: 1.3, 8: 0.7}), "b"))
    expected = {8: Verdict.FASTER, KIB: Verdict.SLOWER, 64 * KIB: Verdict.SAME, 1024 * KIB: Verdict.SAME}
    assert expected == verdicts(table)
    assert [KIB] == [case.message_bytes for case in table.regressions]
    assert [("slower", 1), ("faster", 1), ("same", 2), ("inconclusive", 0)] == [
        (str(v), n) for v, n in table.counts.items()
    ]


def test_swapping_runs_inverts_the_ratio() -> None:
    """Give times and ratio the right way round."""
    a, b = make_run(sweep(1)), make_run(sweep(2, slower={KIB: 1.3}), "b")
    (forth,) = [compared for compared in compare(a, b).cases if compared.case.message_bytes == KIB]
    (back,) = [compared for compared in compare(b, a).cases if compared.case.message_bytes == KIB]
    assert pytest.approx(1.3, rel=0.02) == forth.comparison.ratio
    assert pytest.approx(1 / forth.comparison.ratio) == back.comparison.ratio
    assert (forth.row_a.time_us, forth.row_b.time_us) == (back.row_b.time_us, back.row_a.time_us)


def test_run_against_itself_has_no_regression() -> None:
    """Call nothing slower where nothing changed."""
    run = make_run(sweep(1))
    table = compare(run, run)
    assert ((), ()) == (table.regressions, table.unlike)
    assert len(SIZES) == len(table.cases)


def test_cases_are_matched_by_key() -> None:
    """Ignore no axis: cases that differ in the loop are different cases."""
    a = make_run(make_launches(STEADY, make_case()) + make_launches(STEADY, make_case(loop="native")))
    b = make_run(make_launches(STEADY, make_case()) + make_launches(STEADY, make_case(loop="python")), "b")
    table = compare(a, b)
    assert [make_case()] == [compared.case for compared in table.cases]
    assert ((make_case(loop="native"),), (make_case(loop="python"),)) == (table.only_in_a, table.only_in_b)


def test_case_that_only_one_run_could_measure_is_broken() -> None:
    """List it apart, and count it as a regression only if B lost it."""

    def run(statuses: dict[Case, str], name: str) -> Run:
        return make_run([make_record(case, status=status) for case, status in statuses.items()], name)

    lost, gained, never = (make_case(message_bytes=size) for size in (8, 16, 32))
    table = compare(
        run({lost: "ok", gained: "unsupported", never: "unsupported"}, "a"),
        run({lost: "hung", gained: "ok", never: "unsupported"}, "b"),
    )
    assert [(lost, "ok", "hung"), (gained, "unsupported", "ok")] == [
        (broken.case, broken.status_a, broken.status_b) for broken in table.broken
    ]
    assert (lost,) == table.regressions
    assert "Not compared: mpi all_reduce 8 B float32 sum is ok in A and hung in B." in render(table).splitlines()


def test_only_ok_launches_count() -> None:
    """Leave a launch that failed and was not the last out of the medians."""
    a = make_run([make_record(launch=9, status="failed"), *make_launches(STEADY)])
    (compared,) = compare(a, make_run(make_launches(STEADY), "b")).cases
    assert (6, 6) == (compared.comparison.launches_a, compared.comparison.launches_b)


def test_unlike_conditions_are_listed() -> None:
    """Name what differs in the layout, the host and what carried the cases."""
    a = make_run(make_launches(STEADY), environment={"hosts": [{"cpu_model": "X"}], "variables": {}})
    b = make_run(
        make_launches(STEADY, transport="tcp"),
        "b",
        nodes=2,
        environment={"hosts": {"n1": {"cpu_model": "Y"}}, "variables": {"OMPI_MCA_btl": "tcp"}},
    )
    assert {
        "nodes: 1 vs 2",
        "cpu_model: X vs Y",
        "OMPI_MCA_btl: unset vs tcp",
        "transport: sm vs tcp (in 1 of 1 cases)",
    } == {text.removeprefix("variable ") for text in compare(a, b).unlike}


def test_conditions_are_found_at_the_top_too() -> None:
    """Read hosts that stand beside the plan; say nothing where one run states none."""
    a = make_run(make_launches(STEADY), hosts=[{"cpu_model": "X"}])
    b = make_run(make_launches(STEADY), "b", hosts=[{"cpu_model": "Y"}])
    assert ("cpu_model: X vs Y",) == compare(a, b).unlike
    assert () == compare(a, make_run(make_launches(STEADY), "b")).unlike


def test_too_few_launches_are_said() -> None:
    """Hint at more launches where no change could have been found."""
    few = compare(make_run(sweep(1, launches=3)), make_run(sweep(2, launches=3, slower={KIB: 2.0}), "b"))
    assert {Verdict.INCONCLUSIVE, Verdict.SAME} >= set(verdicts(few).values())
    assert few.too_few_launches
    assert "measure both runs with more launches" in " ".join(render(few).split())
    enough = compare(make_run(sweep(1)), make_run(sweep(2), "b"))
    assert not enough.too_few_launches
    assert "more launches" not in render(enough)


def test_directories_are_read(tmp_path: Path) -> None:
    """Take paths in place of runs."""
    for name in ("a", "b"):
        with Store.open(tmp_path / name, make_info()) as store:
            for record in sweep(1):
                store.append(record)
    table = compare(tmp_path / "a", str(tmp_path / "b"))
    assert (str(tmp_path / "a"), len(SIZES)) == (table.name_a, len(table.cases))
    with pytest.raises(InputError, match="There is no"):
        compare(tmp_path / "a", tmp_path / "c")


def test_margin_is_honoured() -> None:
    """Call a difference that does not matter the same."""
    a, b = make_run(sweep(1)), make_run(sweep(2, slower=dict.fromkeys(SIZES, 1.1)), "b")
    assert {Verdict.SLOWER} == set(verdicts(compare(a, b)).values())
    assert {Verdict.SAME} == set(verdicts(compare(a, b, margin=0.15)).values())


def test_text_has_a_line_a_case_and_a_summary() -> None:
    """Show times, ratio with interval, verdict and detectable difference; then the counts."""
    table = compare(make_run(sweep(1)), make_run(sweep(2, slower={KIB: 1.3}), "b"))
    text = render(table)
    (line,) = [line for line in text.splitlines() if " 1 KiB " in line]
    interval = table.cases[1].comparison.interval
    assert interval is not None
    assert f"[{interval.low:.3f}, {interval.high:.3f}]" in line
    assert " slower " in line
    assert line.rstrip().endswith(f"+{100 * table.cases[1].comparison.detectable:.1f} %")
    summary = "4 cases compared with a margin of 2 %: 1 slower, 0 faster, 3 same, 0 inconclusive."
    assert summary in text.splitlines()


def test_cases_of_one_short_name_are_told_apart() -> None:
    """Spell out what the short name of a case leaves out."""
    records = make_launches(STEADY, make_case(loop="native")) + make_launches(STEADY, make_case(loop="python"))
    text = " ".join(render(compare(make_run(records), make_run(records, "b")), width=200).split())
    assert "loop native)" in text
    assert "loop python)" in text


def test_text_fits_100_columns() -> None:
    """Cut nothing in a log of 100 columns."""
    text = render(compare(make_run(sweep(1)), make_run(sweep(2), "b")), width=100)
    assert 100 >= max(map(len, text.splitlines()))
    assert "\u2026" not in text


def test_nothing_in_common_is_said() -> None:
    """Compare nothing without failing."""
    a = make_run([make_record(make_case(message_bytes=size)) for size in range(8, 8 + 40, 4)])
    text = " ".join(render(compare(a, make_run([make_record(make_case("barrier"))], "b"))).split())
    assert "0 cases compared" in text
    assert "and 2 more." in text
    assert "Only in B: mpi barrier." in text


def test_cases_timed_in_different_batches_get_no_verdict() -> None:
    """Call a case undecided, and say why, where one run timed two operations together and the other one."""
    single = make_launches([10.0 * factor for factor in (0.99, 1.0, 1.01, 0.995, 1.005, 1.0, 0.99, 1.01)])
    paired = make_launches([8.0 * factor for factor in (0.99, 1.0, 1.01, 0.995, 1.005, 1.0, 0.99, 1.01)], batch=2)
    table = compare(make_run(single), make_run(paired, "b"))
    assert [Verdict.INCONCLUSIVE] == list(verdicts(table).values())
    assert any("batch: 1 vs 2" in text for text in table.unlike)
    alike = compare(make_run(single), make_run([replace(record, batch=1) for record in paired], "b"))
    assert [Verdict.FASTER] == list(verdicts(alike).values())
