"""Tests of results/: each kept run states its command, is listed, and backs the figures in the
pages.
"""

import csv
import json
import math
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from claims import read_claims
from fields import fields_of
from kept import KEPT, RESULTS, load_kept
from places import ROOT

from commbench.analysis.prediction.network import network_model
from commbench.analysis.stragglers import straggler_findings
from commbench.cli.presentation import print_answer
from commbench.cli.terminal import make_console
from commbench.ddp.plan.cases import SWEEP
from commbench.results import Run, load_run
from commbench.results.info import is_complete
from commbench.stats.intervals import median, median_interval

CLAIMS = read_claims()
#: A page, and a text that states a number of a kept run.
Fact = tuple[str, str]


def page(name: str) -> str:
    """Return a page as one line without emphasis marks."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").replace("*", "").split())


def statement_of(name: str) -> dict[str, Any]:
    """Return the command's record: run.json, or a check's own file."""
    path = RESULTS / name
    files = [file for file in (path / "run.json", *sorted(path.glob("*.json"))) if file.exists()]
    return json.loads(files[0].read_text())


def newest(theme: str) -> str:
    """Return the name of the newest kept run of a theme."""
    return max(
        (name for name in KEPT if re.fullmatch(rf"{theme}_[a-z0-9]+_\d{{8}}", name)),
        key=lambda name: name[-8:],
    )


def kept(theme: str) -> Run:
    """Return the newest kept run of a theme."""
    return load_kept(newest(theme))


# ---------------------------------------------------------------------------------- how it was made


def test_claims_are_those_of_the_kept_runs():
    """List every kept run, name pages that exist, and have a theme each: a new run is named so."""
    assert set(KEPT) == set(CLAIMS)
    assert len({claim.theme for claim in CLAIMS.values()}) == len(CLAIMS)
    pages = {page for claim in CLAIMS.values() for page in claim.quoted}
    assert [] == [page for page in pages if not (ROOT / "docs" / page).is_file()]


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_run_states_the_command_of_its_claim(name):
    """Record the claim's command and a commit without changes.

    A check's program may have moved since.
    """
    stated, command = statement_of(name), shlex.split(CLAIMS[name].command)
    assert re.fullmatch(r"[0-9a-f]{40}", stated["git_commit"])
    assert is_complete(stated)
    if command[0] == "python":
        assert all((ROOT / program).is_file() for program in command[1:2])
        return
    inner = command[command.index("--") + 1 :] if command[:2] == ["commbench", "lab"] else command
    inner = (
        inner[inner.index("commbench") :] if inner[0] == "bash" else inner
    )  # by a script that prepares the hosts
    end = inner.index("--") if "--" in inner else len(inner)  # the command of a training follows
    assert [*inner[:end], "--out", f"results/{name}", *inner[end:]] == stated["argv"]


# ----------------------------------------------------------------------------------- what pages say


def test_output_in_pages_is_what_report_prints(commbench, monkeypatch):
    """Quote only lines that ``commbench report`` prints, in their order."""
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    block = text.split("<!-- sweep output -->")[1].split("```")[1]
    lines = [
        line.rstrip()
        for line in block.splitlines()
        if line and not line.startswith(("Measuring ", "..."))
    ]
    monkeypatch.setattr(
        "commbench.cli.report.write_page", lambda _, folder, *__: folder / "report.html"
    )
    monkeypatch.chdir(ROOT)
    printed = commbench(
        f"report results/{newest('train_resnet18_1gbit')} --out {commbench.home}"
    ).out
    following = iter(line.rstrip() for line in printed.splitlines())
    assert [] == [line for line in lines if line not in following]


def test_first_answers_in_pages_are_those_of_kept_runs(monkeypatch, capsys):
    """Quote the whole first answer of a kept run, and some of its lines in the README."""
    monkeypatch.chdir(ROOT)
    path = Path("results", newest("bench"))
    print_answer(load_run(path), make_console(), path / "report.html")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    answer = "\n".join(lines).strip()
    assert answer in (ROOT / "docs/first-run.md").read_text(encoding="utf-8")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    quoted = text.split("<!-- bench answer -->")[1].split("```")[1].strip().splitlines()
    following = iter(lines)
    assert [] == [line for line in quoted if line not in following]


def text_of(*numbers: float | None, digits: str = ".2f") -> str:
    """Return a number and its interval as pages write them."""
    value, low, high = (
        format(math.nan if number is None else number, digits) for number in numbers
    )
    return f"{value} [{low}, {high}]"


def lines_of(theme: str, file: str) -> list[dict[str, float]]:
    """Return the numbers of each line of a kept check's table."""
    with (RESULTS / newest(theme) / file).open() as stream:
        lines = list(csv.DictReader(stream))
    return [{name: float(line[name]) for name in line if is_number(line[name])} for line in lines]


def is_number(text: str) -> bool:
    """Return whether a cell holds a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def facts_of_the_c_loop() -> Iterator[Fact]:
    """Yield the ratios to the C loop, and what a Python loop adds."""
    lines = lines_of("accuracy", "accuracy.csv")
    said = [
        text_of(*(line[name] for name in ("ratio", "ratio_ci_low", "ratio_ci_high")), digits=".3f")
        for line in lines
    ]
    for text in said:
        yield "docs/evidence.md", text
    ratios = fields_of(lines, "ratio")
    yield "README.md", f"{min(ratios):.2f} to {max(ratios):.2f} times the C loop's time"
    yield "README.md", said[0]
    yield "README.md", f"reads {lines[0]['python_ratio']:.2f} times"
    yield "docs/measuring.md", f"about {lines[0]['python_us'] - lines[0]['native_us']:.1f} us"


def facts_of_selection() -> Iterator[Fact]:
    """Yield the gain over torch.topk and the cost in additions."""
    lines = lines_of("selection", "selection.csv")
    for name, unit in (("commbench_ms", "ms"), ("speedup", "times"), ("additions", "additions")):
        values = [line[name] for line in lines]
        yield "docs/evidence.md", f"{min(values):.1f} to {max(values):.1f} {unit}"


def facts_of_recommendations() -> Iterator[Fact]:
    """Yield speedups with their intervals."""
    for theme, digits, pages in (
        ("train_resnet18_1gbit", ".2f", ["docs/training.md"]),
        ("tune_resnet18_batch1_1gbit", ".3f", ["docs/training.md"]),
        ("live_trainer_300mbit", ".3f", ["docs/tune-your-training.md", "README.md"]),
    ):
        found = kept(theme).recommendation
        for name in pages:
            low, high = (format(bound, digits) for bound in found.speedup_ci)
            yield name, f"{found.speedup:{digits}}"
            yield name, f"[{low}, {high}]"
    int8 = kept("train_resnet18_int8_1gbit").recommendation
    [lossy] = [choice for choice in int8.altering if choice.effect == "lossy"]
    yield "docs/evidence.md", f"{lossy.speedup_half:.3f} times as fast as one with FP16"
    yield "docs/evidence.md", "[{:.3f}, {:.3f}]".format(*lossy.speedup_half_ci)


def facts_of_learning() -> Iterator[Fact]:
    """Yield the speedup of each lossy hook and the change of its metric, paired by seed."""
    for theme, scale, digits in (
        ("learning_digits_100mbit", 100, "+.1f"),
        ("learning_text_100mbit", 1, "+.3f"),
    ):
        run = kept(theme)
        metrics = defaultdict(dict)
        for record in run.training_records:
            if record.metrics and record.case.phase == SWEEP:
                hook = (record.case.hook, record.case.hook_options)
                metrics[hook][record.launch] = scale * record.metrics[-1][1]
        dense = metrics.pop(("none", ""))
        for row in run.training_rows:
            lossy = metrics.get((row.hook, row.hook_options))
            if lossy:
                changes = [lossy[launch] - dense[launch] for launch in sorted(dense)]
                interval = median_interval(changes)
                speedup = text_of(row.speedup, row.speedup_ci_low, row.speedup_ci_high)
                change = text_of(median(changes), interval.low, interval.high, digits=digits)
                yield "docs/evidence.md", f"| {speedup} | {change} |"


def facts_of_networks() -> Iterator[Fact]:
    """Yield a slow host, shares of a link's rate, times of patterns, and the model's error."""
    stragglers = straggler_findings(kept("matrix_slow_host")).stragglers
    worst = max(straggler.factor for straggler in stragglers)
    low, high = (f"{bound:.2f}" for bound in worst.bounds)
    yield "docs/evidence.md", f"{worst.value:.3g} [{low}, {high}] times"
    for finding in straggler_findings(kept("matrix_slow_host")).findings():
        yield "docs/measure-your-cluster.md", str(finding)
    yield "README.md", f"{worst.value:.1f} times as long [{low}, {high}]"
    rates = {(row.backend, row.operation): row.busbw_GBps for row in kept("links_1gbit").rows}
    shares = [100 * rates[key] / 0.125 for key in (("gloo", "all_reduce"), ("mpi", "bandwidth"))]
    said = f"a busbw of {shares[0]:.0f} % of it, MPI `bandwidth` {shares[1]:.0f} %"
    yield "docs/evidence.md", said
    times_ms = defaultdict(list)
    for row in kept("patterns_1gbit").rows:
        if row.pattern in {"flat", "hierarchical"}:
            times_us = (row.time_us, row.time_us_ci_low, row.time_us_ci_high)
            time_ms, low, high = (f"{(time_us or math.nan) / 1e3:.0f}" for time_us in times_us)
            times_ms[row.backend].append(time_ms)
            if row.backend == "gloo":
                yield "docs/evidence.md", f"{time_ms} ms [{low}, {high}] `{row.pattern}`"
    yield "docs/evidence.md", "{} ms flat against {} ms".format(*times_ms["mpi"])
    error = network_model(kept("bench")).to_json()["held_out_error"]
    yield "docs/measuring.md", f"it is {100 * error:.0f} %"


def facts_of_live_tuning() -> Iterator[Fact]:
    """Yield the costs of live tuning, and false alarms."""
    name = "docs/tune-your-training.md"
    costs = json.loads((RESULTS / newest("live_costs") / "live_tuning.json").read_text())
    for question in ("after", "while", "watching"):
        low, high = costs[question]["interval"]
        yield name, f"| {costs[question]['ratio']:.3f} [{low:.3f}, {high:.3f}] |"
    equal = json.loads((RESULTS / newest("live_equal") / "live_tuning.json").read_text())["equal"]
    verdicts = equal["verdicts"]
    assert "change" not in verdicts
    yield name, f"Of {len(verdicts)} tunings among twelve equal settings"
    check = statement_of(newest("self_check"))
    yield "docs/evidence.md", f"{check['different']} of {check['cases']} cases"


@pytest.mark.parametrize(
    "facts",
    [
        facts_of_the_c_loop,
        facts_of_selection,
        facts_of_recommendations,
        facts_of_learning,
        facts_of_networks,
        facts_of_live_tuning,
    ],
)
def test_pages_state_the_numbers_of_kept_runs(facts):
    """State each number, as it is rounded, with its interval."""
    stated = list(facts())
    assert stated
    assert [] == [(name, text) for name, text in stated if text not in page(name)]
