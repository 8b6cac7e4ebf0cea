"""Tests of the comparison of environments, on records built by hand."""

import random
from dataclasses import replace
from typing import Any

import pytest
from builders import make_case, make_launches
from deciding import BASE, FIVE, confirmed, decide
from fields import fields_of
from training_builders import EVEN, make_training_launches

from commbench.analysis.env import (
    EnvComparison,
    compare_env,
    compare_training_envs,
    variable_findings,
)
from commbench.analysis.prediction.network import NetworkModel
from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.records import Record
from commbench.report.env import env_tables
from commbench.results.info import network_records
from commbench.results.reading import make_run
from commbench.results.record_types import Records
from commbench.results.states import find_states
from commbench.results.summary import keyed_rows
from commbench.results.verdict import paragraph

ENVS = ["A=1", "A=1 (again)", "A=2"]


def of(by_env: dict[str, Any]) -> Any:
    """Return the comparison of times by environment, case and launch."""
    return compare_env(by_env, ENVS)


def compared(control: float = 1.0, *, other: float) -> EnvComparison:
    """Return the comparison of two cases in six launches.

    Each environment's time is a factor of the first's.
    """
    by_env = {}
    for env, factor in zip(ENVS, (1.0, control, other), strict=True):
        small, large = (
            {n: time * factor * even for n, even in enumerate(EVEN)} for time in (3, 400)
        )
        by_env[env] = {"small": small, "large": large}
    return of(by_env)


def test_a_faster_environment_is_the_best():
    """Name the faster environment with its ratio, beside the control."""
    comparison = compared(other=0.8)
    assert "A=2" == comparison.best.env
    assert 0.8 == pytest.approx(comparison.best.comparison.ratio)
    assert 2 == comparison.best.cases
    assert 2 == comparison.best.faster
    assert 0 == comparison.best.slower
    assert "env_fastest" == comparison.finding.code
    assert "A=1" == comparison.finding.subject
    assert "A=2" == comparison.finding.numbers["env"]


def test_a_difference_within_the_margin_is_no_verdict():
    """Name no best where the difference is below the margin."""
    comparison = compared(other=0.99)
    assert (None, "env_none") == (comparison.best, comparison.finding.code)


def test_no_environment_is_judged_where_the_control_differs():
    """Withhold every verdict if the same environment differs from itself."""
    comparison = compared(control=0.9, other=0.8)
    assert (None, "env_unsound") == (comparison.best, comparison.finding.code)
    assert {"inconclusive"} == {str(ratio.comparison.verdict) for ratio in comparison.ratios}


def test_equal_environments_are_seldom_told_apart():
    """Withhold verdicts in at most 7 % of tables of equal environments.

    Find a difference in at most 5 %.
    """
    chance, tables = random.Random(1), 200
    withheld = judged = 0
    for _ in range(tables):
        by_env = {}
        for env in ENVS:
            by_env[env] = {"small": {n: chance.lognormvariate(0, 0.1) for n in range(6)}}
        comparison = of(by_env)
        verdicts = {str(ratio.comparison.verdict) for ratio in comparison.ratios}
        withheld += comparison.finding.code == "env_unsound"
        judged += not verdicts.isdisjoint({"faster", "slower"})
    assert withheld <= 0.07 * tables
    assert judged <= 0.05 * tables


def test_only_cases_of_both_environments_are_compared():
    """Leave out a case that one environment lacks, and an environment without any."""
    times = dict(enumerate(EVEN))
    full, part = {"small": times, "large": times}, {"small": times}
    (ratio,) = of({"A=1": full, "A=1 (again)": part}).ratios
    assert ("A=1 (again)", 1) == (ratio.env, ratio.cases)
    assert compare_env({"A=1": full}, ENVS) is None


def test_one_launch_gives_no_verdict():
    """Ask for more launches where there is one."""
    assert "env_few_launches" == of({env: {"small": {0: 1.0}} for env in ENVS}).finding.code


def collectives() -> list[Record]:
    """Return six launches of three sizes under each environment, the last one twice as slow."""
    records = []
    for env, factor in zip(ENVS, (1, 1, 2), strict=True):
        for size in (1024, 2048, 4096):
            case = make_case(message_bytes=size, env=env)
            records += make_launches([size * factor * even for even in EVEN], case)
    return records


def test_rows_of_environments_are_apart():
    """Make a row of each environment; fit the network to one of them."""
    rows = keyed_rows(collectives(), {}).values()
    assert 9 == len(rows)
    assert set(ENVS) == set(fields_of(rows, "env"))
    ((variant,),) = [NetworkModel.fit(collectives()).variants.values()]
    assert "under A=1" == variant


def test_an_environment_is_no_state_of_the_machine():
    """Tell states apart within one environment only: another transport has other probes."""
    records = []
    for env, probe_us in (("A=1", 1.0), ("A=2", 3.0)):
        visits = {"visit_lengths": [20, 20], "probes_us": [probe_us] * 4}
        records += make_launches([10.0] * 12, make_case(env=env), **visits)
    assert {} == find_states(records)


def test_predictions_are_for_the_first_environment(tmp_path):
    """Leave other environments out of predictions."""
    run = make_run(tmp_path, {"env": ENVS}, Records(collectives()))
    assert {"A=1"} == set(fields_of(network_records(run.records, run.info), "case.env"))


def fresh(*steps_ms: float) -> list[TrainingRecord]:
    """Return six confirmation launches of the baseline and of 5 MiB buckets, a fifth faster, under
    each environment.
    """
    records = []
    for env, step_ms in zip(ENVS, steps_ms, strict=True):
        for case, factor in ((BASE, 1.0), (FIVE, 0.8)):
            steps = [step_ms * factor * even for even in EVEN]
            records += make_training_launches(steps, confirmed(replace(case, env=env)))
    return records


def test_tables_of_several_runs_name_them(tmp_path):
    """Begin each title with the run."""
    info, records = {"env": ENVS}, Records(collectives())
    runs = [make_run(tmp_path / name, info, records) for name in ("a", "b")]
    assert ["a: ", "b: "] == [table.title[:3] for table in env_tables(runs)]


def test_a_recommendation_is_of_the_faster_environment():
    """Decide for the environment that confirmation launches show to be faster, and set its
    variable in the snippet.
    """
    recommendation = decide(fresh(20.0, 20.0, 10.0), env=ENVS)
    assert "A=2" == recommendation.env
    assert ("change", "5") == (recommendation.verdict, recommendation.best.bucket_cap_mb)
    assert 'os.environ["A"] = "2"' in recommendation.snippet
    assert "bucket_cap_mb=5" in recommendation.snippet
    assert recommendation.env_reason in paragraph(recommendation)


def test_an_environment_of_the_sweep_alone_is_not_recommended():
    """Wait for confirmation launches before an environment is chosen."""
    records = []
    for record in fresh(20.0, 20.0, 10.0):
        records.append(replace(record, case=replace(record.case, phase="sweep")))
    recommendation = decide(records, env=ENVS)
    assert "A=1" == recommendation.env
    comparison = compare_training_envs(records, {"env": ENVS})
    assert comparison.best is not None


def test_what_nccl_states_is_reported():
    """Report the value that NCCL read, and a variable that its log does not mention."""
    values = {
        "NCCL_ALGO": {"ranks": ["Ring"], "nccl": ["ring"]},
        "NCCL_X": {"ranks": ["1"], "nccl": []},
    }
    launch = {"env": "NCCL_ALGO=Ring;NCCL_X=1", "variables": values}
    findings = variable_findings({"launches": [launch]})
    assert [
        ("variables_set", {"right": 1, "starts": 1, "names": ("NCCL_ALGO", "NCCL_X")}),
        ("variables_logged", {"names": ("NCCL_ALGO",)}),
        ("variables_unlogged", {"names": ("NCCL_X",)}),
    ] == fields_of(findings, "code", "numbers")
    values["NCCL_ALGO"]["nccl"] = ["Tree"]
    values["NCCL_X"]["ranks"] = [None, "2"]
    _, read, had, *_ = variable_findings({"launches": [launch]})
    assert ("NCCL_ALGO=Ring", {"read": ("Tree",)}) == (read.subject, read.numbers)
    assert ("NCCL_X=1", {"had": "no value or 2"}) == (had.subject, had.numbers)
