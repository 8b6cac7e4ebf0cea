"""Tests of runs in several stages and of training, with simulated ranks and steps."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from launching import Recorder, ScriptLauncher, make_request, open_store

from commbench.collectives.cases import Sweep
from commbench.ddp.plan.cases import CONFIRM, Terms, TrainingCase, TrainingSweep
from commbench.errors import InputError
from commbench.launch.conductor import conduct
from commbench.results import load_run
from commbench.results.plan import RunRequest, Stage, single_stage
from commbench.results.record_types import AnyRecord, training_records

pytestmark = pytest.mark.usefixtures("forks")

HOOKS = ("none", "fp16", "bf16")
SWEEP_CASES = TrainingSweep(bucket_caps=["default"], hooks=HOOKS).cases(ranks=2, batch=8)
TERMS = Terms(seed=1, block_s=0.5)
ALL = """
assert plan.training.steps == (None if plan.launch == 0 and plan.cases[0].case.phase == "sweep" else 5), plan.training
session()
for i in range(len(plan.cases)): trained(i)
end(is_complete=True)
"""


def sweep(**options: Any) -> RunRequest:
    """Return the request of a sweep of two launches."""
    return dataclasses.replace(make_request(SWEEP_CASES, **options), training=TERMS, name="sweep")


def confirm(records: Sequence[AnyRecord]) -> RunRequest | None:
    """Return the request to train the baseline and all valid settings once more, or None."""
    good = [
        r.case
        for r in training_records(records)
        if r.status == "ok" and r.launch == 0 and r.case.uses_ddp
    ]
    cases = [dataclasses.replace(case, phase=CONFIRM) for case in good if case.phase != CONFIRM]
    if not cases:
        return None
    return dataclasses.replace(make_request(cases, launches=1), training=TERMS, name="confirm")


STAGES: list[Stage] = [*single_stage(sweep()), confirm]


def run(
    path: Path, script: str | ScriptLauncher, stages: Sequence[Stage] = STAGES, **options: Any
) -> tuple[int, dict[str, Any], Recorder]:
    """Conduct a run; return exit code, run.json and the display."""
    launcher = ScriptLauncher(script) if isinstance(script, str) else script
    display = options.pop("display", Recorder())
    with open_store(path, sweep()) as store:
        code = conduct(stages, store, launcher, display, **options)
    return code, json.loads((path / "run.json").read_text()), display


def trained_cases(path: Path, status: str = "ok") -> list[tuple[str, int]]:
    """Return (case key, launch) of training records with a status, sorted."""
    return sorted(
        (r.case.key, r.launch) for r in load_run(path).training_records if r.status == status
    )


def entries(info: dict[str, Any]) -> list[tuple[str, int, str]]:
    """Return (stage, launch, status) of the launches."""
    return [(entry["stage"], entry["launch"], entry["status"]) for entry in info["launches"]]


def hook_of(key: str) -> str:
    """Return the hook of a case."""
    return TrainingCase(**json.loads(key)).hook


def test_each_stage_uses_the_records_of_earlier_stages(tmp_path: Path) -> None:
    """Train the sweep, then its winners with the same steps."""
    code, info, display = run(tmp_path, ALL)
    assert (0, "complete", []) == (code, info["status"], display.warnings)
    assert [("sweep", 0, "ok"), ("sweep", 1, "ok"), ("confirm", 0, "ok")] == entries(info)
    confirmed = [dataclasses.replace(case, phase=CONFIRM) for case in SWEEP_CASES if case.uses_ddp]
    expected = [(case.key, launch) for case in SWEEP_CASES for launch in range(2)]
    assert sorted(expected + [(case.key, 0) for case in confirmed]) == trained_cases(tmp_path)
    assert [(done, 8) for done in range(8)] + [(done, 3) for done in range(3)] == display.progress


def test_a_stage_may_go_on_where_another_has_left_off(tmp_path: Path) -> None:
    """Add launches to some cases, from the requested one on."""
    some = [case for case in SWEEP_CASES if case.hook in {"none", "bf16"}]
    more = dataclasses.replace(sweep(), cases=some, name="more", first_launch=2)
    more = dataclasses.replace(more, budget=dataclasses.replace(more.budget, launches=4))
    code, info, _ = run(
        tmp_path, ALL.replace("plan.launch == 0", "plan.launch == 2"), [lambda _: more]
    )
    assert 0 == code
    assert [("more", 2, "ok"), ("more", 3, "ok")] == entries(info)
    assert sorted((case.key, launch) for case in some for launch in (2, 3)) == trained_cases(
        tmp_path
    )


def test_the_run_goes_on_until_the_last_stage_is_done(tmp_path: Path) -> None:
    """Keep the run running while a stage is left, and resume in it."""
    statuses: list[str] = []

    def look(records: Sequence[AnyRecord]) -> RunRequest | None:
        statuses.append(json.loads((tmp_path / "run.json").read_text())["status"])
        return confirm(records)

    broken = ALL + "\nif plan.cases[0].case.phase == 'confirm': sys.exit(1)"
    broken = broken.replace(
        "session()", "if plan.cases[0].case.phase == 'confirm': sys.exit('no slots')\nsession()"
    )
    code, info, _ = run(tmp_path, broken, [*single_stage(sweep()), look])
    assert (3, "partial", ["running"]) == (code, info["status"], statuses)
    launcher = ScriptLauncher(ALL)
    code, info, _ = run(tmp_path, launcher)
    assert (0, "complete", 1) == (code, info["status"], launcher.started)
    assert ("confirm", 0, "ok") == entries(info)[-1]


def test_blocks_in_turns_report_the_running_case(tmp_path: Path) -> None:
    """Attribute a failure to the case whose block started last."""
    script = """
session()
for i in (0, 1): begin(i)
trained(0)
begin(1)
made = TrainingRecord(case=plan.cases[2].case, launch=plan.launch, step_ms=[5.0], block_lengths=[1])
writer.on(CaseFinished(record=made))
sys.exit(1)
"""
    run(tmp_path, script, single_stage(sweep()), fail_fast=True)
    assert [(SWEEP_CASES[1].key, 0)] == trained_cases(tmp_path, "failed")
    assert sorted((SWEEP_CASES[i].key, 0) for i in (0, 2)) == trained_cases(tmp_path)


CRASH = """
session()
for i, planned in enumerate(plan.cases):
    if planned.case.hook == "fp16":
        begin(i)
        sys.exit(1)
    trained(i)
end(is_complete=True)
"""


def test_failing_fast_ends_all_stages(tmp_path: Path) -> None:
    """Stop at the first failure of a rank or a configuration."""
    code, info, _ = run(tmp_path / "rank", CRASH, fail_fast=True)
    assert (3, [("sweep", 0, "failed")]) == (code, entries(info))
    code, info, _ = run(tmp_path / "all", REFUSE, fail_fast=True)
    assert (3, [("sweep", 0, "ok")]) == (code, entries(info))
    assert f"no such precision, in case {SWEEP_CASES[1]}" == info["reason"]


REFUSE = ALL.replace(
    "trained(i)",
    "trained(i, **({'status': 'failed', 'reason': 'no such precision'} if plan.cases[i].case.hook"
    " == 'fp16' else {}))",
)


@pytest.mark.slow
def test_what_cannot_be_trained_is_tried_once(tmp_path: Path) -> None:
    """Skip a configuration that failed on all ranks in later launches, and exit with 3."""
    assert "fp16" == SWEEP_CASES[1].hook
    code, info, _ = run(tmp_path, REFUSE)
    assert (3, "partial") == (code, info["status"])
    assert f"1 case failed: no such precision, in case {SWEEP_CASES[1]}" == info["reason"]
    assert [("sweep", 0, "ok"), ("sweep", 1, "ok"), ("confirm", 0, "ok")] == entries(info)
    assert [(SWEEP_CASES[1].key, 0)] == trained_cases(tmp_path, "failed")


def test_a_time_limit_of_one_stage_leaves_the_next_its_own(tmp_path: Path) -> None:
    """Continue with the next stage, and report missing launches; the run is cut."""
    stages = [*single_stage(sweep(time_limit_s=0.5)), confirm]
    code, info, display = run(
        tmp_path,
        "confirm = plan.cases[0].case.phase == 'confirm'\n"
        + ALL.replace("is_complete=True", "is_complete=confirm"),
        stages,
    )
    assert (0, "cut", [("sweep", 0, "cut"), ("confirm", 0, "ok")]) == (
        code,
        info["status"],
        entries(info),
    )
    assert "was reached after 1 of 2 sweep launches" in info["reason"]
    assert 1 == len(display.warnings)


@pytest.mark.parametrize("fewest", [0, 1])
def test_a_stage_makes_its_fewest_launches_beyond_its_share_of_the_time(
    tmp_path: Path, fewest: int
) -> None:
    """Make the minimum of launches within the whole limit."""

    def more(records: Sequence[AnyRecord]) -> RunRequest | None:
        request = confirm(records)
        assert request is not None
        budget = dataclasses.replace(request.budget, launches=2)
        limits = {"time_limit_s": 0.1, "whole_limit_s": 60.0, "fewest_launches": fewest}
        return dataclasses.replace(request, budget=budget, **limits)

    script = "assert plan.deadline_s is None or 30 < plan.deadline_s < 60, plan.deadline_s\n" + ALL
    code, info, _ = run(tmp_path, script, [*single_stage(sweep()), more])
    assert ((0, "cut") if fewest else (3, "partial")) == (code, info["status"])
    assert fewest == len([entry for entry in info["launches"] if entry["stage"] == "confirm"])
    assert f" {fewest} of 2 confirm" in info["reason"]


def test_no_launch_starts_with_blocks_beyond_the_limit(tmp_path: Path) -> None:
    """Skip a stage whose blocks would exceed the limit."""
    late = [
        *single_stage(sweep()),
        lambda records: dataclasses.replace(confirm(records), time_limit_s=60.0),
    ]
    script = ALL.replace("trained(i)", "trained(i, measuring_s=40.0)")
    assert script != ALL
    code, info, _ = run(tmp_path, script, late)
    assert (3, "partial") == (code, info["status"])
    assert "was reached after 0 of 1 confirm launches" in info["reason"]


def test_both_kinds_share_a_run(tmp_path: Path) -> None:
    """Store collectives and training in one file, and write both tables."""
    collectives = make_request(Sweep(backends=["gloo"], sizes=[8]).cases(2), launches=1)
    script = (
        "if not plan.training:\n    session(); measured(0); end(is_complete=True); sys.exit(0)\n"
        + ALL
    )
    code, info, _ = run(tmp_path, script, [*single_stage(collectives), *STAGES])
    assert (0, "complete") == (code, info["status"])
    assert [
        ("collectives", 0, "ok"),
        ("sweep", 0, "ok"),
        ("sweep", 1, "ok"),
        ("confirm", 0, "ok"),
    ] == entries(info)
    read = load_run(tmp_path)
    assert (1, 11) == (len(read.records), len(read.training_records))
    lines = {
        name: len((tmp_path / name).read_text().splitlines())
        for name in ("collectives.csv", "ddp.csv")
    }
    assert {"collectives.csv": 2, "ddp.csv": 1 + len(HOOKS)} == lines


def test_a_later_stage_may_be_refused(tmp_path: Path) -> None:
    """Keep earlier measurements, and state why the run is incomplete."""
    refuse = "fail(0, '', 'Install torch.', is_bad_input=True); sys.exit(1)"
    script = ALL.replace(
        "session()", f"if plan.cases[0].case.phase == 'confirm': {refuse}\nsession()"
    )
    with pytest.raises(InputError, match="Install torch"):
        run(tmp_path, script)
    info = json.loads((tmp_path / "run.json").read_text())
    assert ("partial", "Install torch.", 8) == (
        info["status"],
        info["reason"],
        len(trained_cases(tmp_path)),
    )
