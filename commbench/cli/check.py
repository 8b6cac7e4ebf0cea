"""The command ``check``: whether a run meets expectations, for a CI job or for accepting a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from commbench.analysis.expectations import (
    EXIT_CODES,
    Expectation,
    judge,
    read_expectations,
    worst,
)
from commbench.cli.command_line import Given, refuse, takes_options
from commbench.cli.conduct import Task, carry_out
from commbench.cli.options import BudgetName, Expect, LinkRate, Settings, opt
from commbench.cli.request import Place, default_out, find_budget, make_request
from commbench.cli.terminal import make_console, print_json
from commbench.collectives.cases import Sweep
from commbench.collectives.suites import Suite
from commbench.errors import InputError, WrongDataError
from commbench.report.expectations import render_answers
from commbench.results import load_run
from commbench.schema import JsonObject
from commbench.stats.budgets import BUDGETS

#: Filters that choose what is measured, with the axis of a sweep.
_AXES = {
    "root": "roots",
    "backend": "backends",
    "dtype": "dtypes",
    "redop": "redops",
    "pattern": "patterns",
    "cadence": "cadences",
    "buffers": "buffers",
}
SCHEMA = 1


@takes_options
def check(
    *,
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN]",
            help="The run to judge; without it the cases of the expectations are measured.",
        ),
    ] = None,
    expect: Expect = None,
    link: LinkRate = "",
    as_json: Annotated[bool, opt("--json", "Print one JSON document instead of a table.")] = False,
    budget: BudgetName = "standard",
    settings: Settings,
    given: Given,
) -> int:
    """Judge a run by expectations; measure it if asked.

    An expectation is met only if the whole interval of each row lies on the right side of its
    bound. It is not shown if an interval holds the bound, and not tested if the run has no such
    row. Exit code 0 if all are met, 5 if one is not met, 3 if one is not shown or not tested.
    """
    of_measuring = [each for each in given if each not in {"RUN", "--expect", "--link", "--json"}]
    refuse(given, "RUN", of_measuring, "which is judged as it was measured")
    expectations = read_expectations(expect or [])
    code = 0
    if run is None:
        run = settings.out or default_out("check")
        settings = replace(settings, out=run, prints_rows=not as_json)
        code = _measure(expectations, settings, budget)
        if settings.dry_run:
            return code
    answers = judge(load_run(run), expectations, link)
    outcome = worst(answer.outcome for answer in answers)
    # wrong data and a signal outrank the answers; a partial run shows in what is not tested
    exit_code = code if code >= WrongDataError.exit_code else EXIT_CODES[outcome]
    if as_json:
        document: JsonObject = {
            "schema": SCHEMA,
            "run": str(run),
            "outcome": str(outcome),
            "exit_code": exit_code,
            "expectations": [answer.to_json() for answer in answers],
        }
        print_json(document)
    else:
        make_console().print(render_answers(answers))
    return exit_code


def _measure(expectations: Sequence[Expectation], settings: Settings, budget: str) -> int:
    """Measure the cases of the expectations; return the exit code of the run.

    Raises:
        InputError: an expectation names no operation, no sizes or training.
    """
    sweeps = []
    for each in expectations:
        if each.kind.of_training:
            raise InputError(
                f"{each.text}: check measures no training; run commbench train, then check its run."
            )
        if each.operation:
            sweeps.append(_sweep_of(each))
    if not sweeps:
        raise InputError(
            "No expectation names an operation to measure; write latency@8: time <= 3us, or name a"
            " run."
        )
    suite = Suite(name="check", sweeps=sweeps)
    is_named = any("backend" in each.filters for each in expectations)
    effort = find_budget(BUDGETS, budget)

    def plan(place: Place) -> Task:
        request, left_out = make_request(place, suite, settings, effort, is_named=is_named)
        return Task(name="check", request=request, left_out=left_out)

    return carry_out(settings, plan)


def _sweep_of(expectation: Expectation) -> Sweep:
    """Return what has to be measured for an expectation that names an operation."""
    axes: dict[str, Any] = {}
    for name, value in expectation.filters.items():
        if name in _AXES:
            axes[_AXES[name]] = value
        elif name == "in_place":
            axes["in_place"] = "in" if value.lower() == "true" else "out"
    if expectation.sizes_text:
        axes["sizes"] = expectation.sizes_text
    return Sweep(operations=(expectation.operation,), **axes)
