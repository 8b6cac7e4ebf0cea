"""Tests of results/: each kept run states its command, is listed, and backs the figures in the
pages.
"""

import csv
import json
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from commands import Command
from kept import KEPT, RESULTS, kept_names, table_of_kept_runs

from commbench.analysis.runs import network_model, straggler_findings
from commbench.ddp.plan.cases import SWEEP
from commbench.results import Run, load_run
from commbench.stats.intervals import median, median_interval

ROOT = Path(__file__).parents[2]
TABLE = table_of_kept_runs()


def page(name: str) -> str:
    """Return a page as one line without emphasis marks."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").replace("*", "").split())


def statement_of(name: str) -> dict[str, Any]:
    """Return the command's record: run.json, or a check's own file."""
    path = RESULTS / name
    files = [file for file in (path / "run.json", *sorted(path.glob("*.json"))) if file.exists()]
    stated: dict[str, Any] = json.loads(files[0].read_text())
    return stated


def newest(theme: str) -> str:
    """Return the name of the newest kept run of a theme."""
    return max(
        (name for name in KEPT if re.fullmatch(rf"{theme}_[a-z0-9]+_\d{{8}}", name)),
        key=lambda name: name[-8:],
    )


def kept(theme: str) -> Run:
    """Return the newest kept run of a theme."""
    return load_run(RESULTS / newest(theme))


# ---------------------------------------------------------------------------------- how it was made


def test_the_table_lists_exactly_the_kept_runs() -> None:
    """List every kept run once."""
    assert set(KEPT) == set(TABLE)


def test_a_users_run_is_no_kept_run(tmp_path: Path) -> None:
    """Exclude an untracked run, in a clone and without git."""
    results = tmp_path / "results"
    for name in ("kept", "mine"):
        (results / name).mkdir(parents=True)
        (results / name / "samples.jsonl").touch()
    (results / "README.md").write_text("| [kept](kept) | evidence | `commbench bench` |\n")
    assert ["kept"] == kept_names(results)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "add", "results/kept"], check=True)
    (results / "README.md").write_text("")
    assert ["kept"] == kept_names(results)


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_run_states_the_command_of_the_table(name: str) -> None:
    """Record the table's command and the commit in run.json."""
    stated, (_, command) = statement_of(name), TABLE[name]
    inner = command[command.index("--") + 1 :] if command[:2] == ["commbench", "lab"] else command
    inner = (
        inner[inner.index("commbench") :] if inner[0] == "bash" else inner
    )  # by a script that prepares the hosts
    end = inner.index("--") if "--" in inner else len(inner)  # the command of a training follows
    assert [*inner[:end], "--out", f"results/{name}", *inner[end:]] == stated["argv"]
    assert re.fullmatch(r"[0-9a-f]{40}", stated["git_commit"])
    assert "complete" == stated.get("status", "complete")


@pytest.mark.parametrize("name", [name for name in KEPT if (RESULTS / name / "run.json").exists()])
def test_an_emulated_cluster_is_that_of_the_table(name: str) -> None:
    """Record the hosts and rates of ``lab run`` in the environment, and none without it."""
    emulated = (statement_of(name).get("environment") or {}).get("emulated")
    command = TABLE[name][1]
    words = command[: command.index("--")] if "--" in command else []
    options = dict(zip(words[3::2], words[4::2], strict=True))
    expected: dict[str, Any] = {}
    if options:
        expected = {"hosts": int(options["--hosts"]), "rate": options["--rate"]}
        expected |= {"slow": dict([options["--slow"].split("=")])} if "--slow" in options else {}
    assert expected == (emulated or {})


# ----------------------------------------------------------------------------------- what pages say


@pytest.mark.parametrize(
    ("name", "marked", "run"),
    [
        ("docs/output.md", "bench output", "bench"),
        ("docs/output.md", "train output", "train_resnet18_batch1_1gbit"),
        ("docs/tuning.md", "sweep output", "train_resnet18_1gbit"),
        ("docs/tuning.md", "tune output", "tune_resnet18_batch1_1gbit"),
    ],
)
def test_output_in_pages_is_what_report_prints(
    commbench: Command, monkeypatch: pytest.MonkeyPatch, name: str, marked: str, run: str
) -> None:
    """Quote only lines that ``commbench report`` prints, in their order."""
    block = (ROOT / name).read_text(encoding="utf-8").split(f"<!-- {marked} -->")[1].split("```")[1]
    lines = [
        line.rstrip()
        for line in block.splitlines()
        if line and not line.startswith(("Measuring ", "..."))
    ]
    monkeypatch.setattr(
        "commbench.cli.report.write_page", lambda _, folder, *__: folder / "report.html"
    )
    monkeypatch.chdir(ROOT)
    printed = commbench(f"report results/{newest(run)} --out {commbench.home}").out
    following = iter(line.rstrip() for line in printed.splitlines())
    assert [] == [line for line in lines if line not in following]


def test_figures_of_the_c_loop() -> None:
    """State the ratios of the kept comparison with C in docs/evidence.md and README.md."""
    text = page("docs/evidence.md")
    with (RESULTS / newest("accuracy") / "accuracy.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert 6 == len(lines)
    for line in lines:
        numbers = [float(line[name]) for name in ("ratio", "ratio_ci_low", "ratio_ci_high")]
        ratio, low, high = (f"{number:.3f}" for number in numbers)
        assert f"{ratio} [{low}, {high}]" in text, line
    ratios = [float(line["ratio"]) for line in lines]
    small = [f"{float(lines[0][name]):.3f}" for name in ("ratio", "ratio_ci_low", "ratio_ci_high")]
    said = (
        f"{min(ratios):.2f} to {max(ratios):.2f} times the C loop's time in six cases; all-reduce"
        " of 8 B: "
    )
    said += (
        f"{small[0]} [{small[1]}, {small[2]}], where a Python loop reads"
        f" {float(lines[0]['python_ratio']):.2f} times"
    )
    assert said in page("README.md")


def test_figures_of_the_self_check() -> None:
    """State the false alarms of the kept check."""
    stated = statement_of(newest("self_check"))
    text = f"{stated['different']} of {stated['cases']} cases called different"
    assert text in page("docs/evidence.md")


@pytest.mark.parametrize(
    ("name", "decimals", "pages"),
    [
        ("train_resnet18_1gbit", 2, ["docs/output.md", "docs/tuning.md"]),
        ("live_trainer_300mbit", 3, ["docs/tune-your-training.md", "README.md"]),
    ],
)
def test_figures_of_recommendations(name: str, decimals: int, pages: list[str]) -> None:
    """State speedups and intervals of recommendation.json."""
    recommendation = kept(name).recommendation
    assert recommendation is not None
    speedup, low, high = (
        f"{number:.{decimals}f}" for number in (recommendation.speedup, *recommendation.speedup_ci)
    )
    for each in pages:
        assert re.search(
            rf"{re.escape(speedup)}\D.*?\[{re.escape(low)}, {re.escape(high)}\]", page(each)
        ), each


def test_figures_of_int8() -> None:
    """State the speedup of int8 over half precision with its interval."""
    recommendation = kept("train_resnet18_int8_1gbit").recommendation
    assert recommendation is not None
    [lossy] = [choice for choice in recommendation.altering if choice.effect == "lossy"]
    assert lossy.speedup_half_ci is not None
    low, high = lossy.speedup_half_ci
    assert (
        f"{lossy.speedup_half:.3f} times as fast as one with FP16 [{low:.3f}, {high:.3f}]"
        in page("docs/evidence.md")
    )


@pytest.mark.parametrize(
    ("name", "scale", "decimals"),
    [("learning_digits_100mbit", 100, 1), ("learning_text_100mbit", 1, 3)],
)
def test_figures_of_learning(name: str, scale: float, decimals: int) -> None:
    """State the speedup of each lossy hook and the change of its metric, paired by seed."""
    run, text = kept(name), page("docs/evidence.md")
    metrics: dict[tuple[str, str], dict[int, float]] = {}
    for record in run.training_records:
        if record.metrics and record.case.phase == SWEEP:
            metrics.setdefault((record.case.hook, record.case.hook_options), {})[record.launch] = (
                scale * record.metrics[-1][1]
            )
    dense = metrics.pop(("none", ""))
    for row in run.training_rows:
        hook = (row.hook, row.hook_options)
        if hook in metrics:
            changes = [metrics[hook][launch] - dense[launch] for launch in sorted(dense)]
            interval = median_interval(changes)
            assert interval is not None
            middle, low, high = (
                f"{number:+.{decimals}f}"
                for number in (median(changes), interval.low, interval.high)
            )
            speedup = f"{row.speedup:.2f} [{row.speedup_ci_low:.2f}, {row.speedup_ci_high:.2f}]"
            assert f"| {speedup} | {middle} [{low}, {high}] |" in text, hook


def test_figures_of_the_slow_host() -> None:
    """State factor and interval of the kept matrix."""
    worst = max(
        straggler_findings(kept("matrix_slow_host")).stragglers,
        key=lambda straggler: straggler.factor,
    )
    assert worst.ci is not None
    low, high = (f"{bound:.2f}" for bound in worst.ci)
    assert f"take {worst.factor:.3g} times [{low}, {high}]" in page("docs/evidence.md")
    assert f"{worst.factor:.1f} times as long [{low}, {high}]" in page("README.md")


def test_figures_of_links() -> None:
    """State the reached share of the link's rate from the kept run."""
    rows = {(row.backend, row.operation): row.busbw_GBps for row in kept("links_1gbit").rows}
    gloo, mpi = (rows[key] for key in (("gloo", "all_reduce"), ("mpi", "bandwidth")))
    assert gloo is not None
    assert mpi is not None
    shares = [f"{100 * rate / 0.125:.0f} %" for rate in (gloo, mpi)]
    assert f"a busbw of {shares[0]} of it, MPI `bandwidth` {shares[1]}" in page("docs/evidence.md")


def test_figures_of_patterns() -> None:
    """State the times of hierarchical and flat all-reduces from the kept run."""
    rows = kept("patterns_1gbit").rows
    times = {(row.backend, row.pattern): row for row in rows}
    text = page("docs/evidence.md")
    for pattern in ("flat", "hierarchical"):
        row = times["gloo", pattern]
        numbers = [
            (n or math.nan) / 1e3 for n in (row.time_us, row.time_us_ci_low, row.time_us_ci_high)
        ]
        middle, low, high = (f"{number:.0f}" for number in numbers)
        assert f"{middle} ms [{low}, {high}] `{pattern}`" in text
    mpi = [
        (times["mpi", pattern].time_us or math.nan) / 1e3 for pattern in ("flat", "hierarchical")
    ]
    assert f"{mpi[0]:.0f} ms flat against {mpi[1]:.0f} ms" in text


def test_figures_of_what_live_tuning_costs() -> None:
    """State the ratios of the check of live tuning with their intervals, and its verdicts on equal
    settings.
    """
    costs = json.loads((RESULTS / newest("live_tuning") / "live_tuning.json").read_text())
    text = page("docs/tune-your-training.md")
    for question in ("after", "while", "watching"):
        low, high = costs[question]["interval"]
        assert f"| {costs[question]['ratio']:.3f} [{low:.3f}, {high:.3f}] |" in text
    verdicts = costs["equal"]["verdicts"]
    assert "change" not in verdicts
    assert (
        f"Of {len(verdicts)} tunings among twelve equal settings, of 600 steps at most, none ended"
        in text
    )


@pytest.mark.parametrize("theme", ["live_narrow", "live_narrow_launches"])
def test_figures_of_the_intervals_of_live_tuning(theme: str) -> None:
    """State the half-widths and wall times of both commands, pair by pair."""
    found = json.loads((RESULTS / newest(theme) / "live_tuning.json").read_text())["narrow"]
    text = " ".join(page("docs/tune-your-training.md").split())
    for name in ("train", "tune"):
        widths = ", ".join(f"{100 * width:.1f}" for width in found[name])
        seconds = ", ".join(f"{second:.0f}" for second in found[f"{name}_s"])
        assert f"| {widths} % in {seconds} s |" in text


def test_figures_of_selection() -> None:
    """State the gain over torch.topk and the cost in additions from the kept check."""
    with (RESULTS / newest("selection") / "selection.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert 8 == len(lines)
    text = page("docs/evidence.md")
    fast, gains, additions = (
        [float(line[name]) for line in lines] for name in ("commbench_ms", "speedup", "additions")
    )
    assert f"{min(fast):.1f} to {max(fast):.1f} ms" in text
    assert f"{min(gains):.1f} to {max(gains):.1f} times" in text
    assert f"{min(additions):.1f} to {max(additions):.1f} additions" in text


def test_figures_of_the_fitted_model() -> None:
    """State the error at held-out sizes and the cost of calls from Python."""
    text = page("docs/measuring.md")
    error = network_model(kept("bench")).to_json()["held_out_error"]
    assert f"are 4 to 8 apart, it is {100 * error:.0f} %" in text
    with (RESULTS / newest("accuracy") / "accuracy.csv").open() as file:
        shortest = next(csv.DictReader(file))
    added = float(shortest["python_us"]) - float(shortest["native_us"])
    assert f"adds about {added:.1f} us" in text
