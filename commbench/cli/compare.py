"""The command ``compare``: the cases that became faster or slower, with confidence intervals."""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from commbench.analysis.comparison import ComparisonTable
from commbench.analysis.comparison import compare as compare_runs
from commbench.analysis.comparison.findings import regressions
from commbench.cli.command_line import Given, check_needed, takes_options
from commbench.cli.interleave import SIDES, measure_until_decided, parse_side
from commbench.cli.options import duration, opt
from commbench.cli.request import default_out
from commbench.cli.terminal import make_console
from commbench.errors import InputError, check_choice
from commbench.fields import join_names
from commbench.report.comparison import (
    comparison_csv,
    comparison_json,
    comparison_page,
    render_comparison,
)
from commbench.results import runs_in
from commbench.results.files import refusing
from commbench.stats import MARGIN

#: Seconds of --until-decided without --time-limit.
DECIDING_S = 600
FORMATS = ("table", "csv", "json", "html")


@takes_options
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="A... B",
            show_default=False,
            help=(
                "One or more baseline runs, or a folder of runs, followed by the run to judge; two"
                " commands, each in "
                "quotes, with --until-decided."
            ),
        ),
    ],
    baseline: Annotated[
        list[Path] | None,
        opt("--baseline", "A baseline run, or a folder of runs; may be repeated.", "A"),
    ] = None,
    threshold: Annotated[
        str,
        opt(
            "--threshold",
            "Exit with 5 only if a case is slower by more than this share, e.g. 5% or 0.05.",
            "SHARE",
        ),
    ] = f"{100 * MARGIN:g}%",
    sort: Annotated[bool, opt("--sort", "Sort the cases, the slowest first.")] = False,
    force: Annotated[
        bool,
        opt(
            "--force",
            (
                "Compare even if the runs were measured under different conditions, as"
                " --until-decided always does."
            ),
        ),
    ] = False,
    output_format: Annotated[
        str | None,
        opt(
            "--format",
            f"{join_names(FORMATS)}; by default from the suffix of --out, else table.",
            "STYLE",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        opt(
            "--out",
            (
                "Also write the comparison to this file; with --until-decided the directory of both"
                " runs."
            ),
            "FILE",
        ),
    ] = None,
    until_decided: Annotated[
        bool,
        opt(
            "--until-decided",
            (
                "Measure two commands in turn, such as 'run -c all_reduce' or"
                " '/old/.venv/bin/commbench run ...', "
                "until each case has a verdict. Variables may precede them: 'NCCL_ALGO=Ring run"
                " ...'."
            ),
        ),
    ] = False,
    time_limit: Annotated[
        float,
        opt(
            "--time-limit",
            "Time limit of --until-decided: seconds, or e.g. 20min.",
            "TIME",
            parser=duration,
        ),
    ] = DECIDING_S,
    given: Given = (),
) -> int:
    """Compare run B with run A or several baselines.

    Names faster and slower cases, with confidence intervals.

    --until-decided runs both commands in turn until each case has a verdict (at most 40 launches).
    Repeated testing is accounted for. Exit code 5 if any case became slower or broke, 2 if the runs
    cannot be compared.
    """
    limit = _share(threshold)
    if until_decided:
        style = _style_of(output_format, None)
        table = _decide(runs, baseline or [], out, time_limit)
        out = None  # the directory of both runs
    else:
        check_needed(given, "--time-limit", "--until-decided")
        style = _style_of(output_format, out)
        baseline_runs, judged_run = _split_runs(list(map(Path, runs)), baseline or [])
        table = compare_runs(baseline_runs, judged_run, force=force)
        if not table.cases and not table.broken:
            raise InputError(
                f"{judged_run} has no case in common with its baseline; measure the same cases."
            )
    if sort:
        table = table.worst_first()
    if out is not None:
        with refusing(out, InputError):
            out.write_text(_text_of(table, style, limit), encoding="utf-8")
    if out is None and style != "table":
        sys.stdout.write(_text_of(table, style, limit))
    else:
        make_console().print(render_comparison(table, limit))
    if any(regressions(table, limit)):
        return 5
    return 0


def _decide(
    commands: Sequence[str], baselines: Sequence[Path], out: Path | None, seconds: float
) -> ComparisonTable:
    """Measure two commands in turn until a verdict, and return the comparison.

    Raises:
        InputError: these are not two commands, or the directory cannot be made.
    """
    if len(commands) != 2 or baselines:  # A and B
        raise InputError(
            f"--until-decided takes two commands and got {len(commands)}; put each in quotes, as in"
            " commbench compare --until-decided -- 'run -c all_reduce --sizes 1M' 'NCCL_ALGO=Ring"
            " run -c all_reduce --sizes 1M'."
        )
    folder = out or default_out("compare")
    sides = [parse_side(text, name, folder) for text, name in zip(commands, SIDES, strict=True)]
    with refusing(folder, InputError):
        folder.mkdir(parents=True, exist_ok=True)
    messages = make_console(sys.stderr)
    try:
        return measure_until_decided(sides, seconds=seconds, report=messages.print)
    except (KeyboardInterrupt, SystemExit):
        path = shlex.quote(str(folder))
        messages.print(f"Ended before a verdict; the same command with --out {path} goes on.")
        raise


def _style_of(requested: str | None, out: Path | None) -> str:
    """Return the requested format, else that of the file's suffix, else ``table``."""
    style = requested or "table"
    if requested is None and out is not None:
        ending = out.suffix.lstrip(".").lower()
        if ending in FORMATS:
            style = ending
    check_choice("format", style, FORMATS)
    return style


def _share(text: str) -> float:
    """Parse a threshold, ``5%`` or ``0.05``, into a share."""
    match = re.fullmatch(r"0?(\.[0-9]+)|([0-9]*\.?[0-9]+)\s*%", text.strip())
    share = 0.0
    if match is not None and match[1]:
        share = float(match[1])
    elif match is not None:
        share = float(match[2]) / 100
    if share < MARGIN:
        raise InputError(
            f"--threshold {text} is no share of {100 * MARGIN:g} % or more, within which times"
            " count as the same; write 5% or 0.05."
        )
    return share


def _split_runs(runs: Sequence[Path], baselines: Sequence[Path]) -> tuple[list[Path], Path]:
    """Return the baseline runs, with folders opened, and the run to judge."""
    *first, judged_run = runs
    if bool(baselines) == bool(first):
        raise InputError(
            f"Give the baselines of {judged_run} before it or behind --baseline, not both: e.g."
            " commbench compare results/good/* results/new."
        )
    baselines_by_target: dict[str, Path] = {}
    for path in (*baselines, *first):
        for run in runs_in(path):
            target = os.path.realpath(run)  # a link and its target are one run
            baselines_by_target.setdefault(target, run)
    if len(baselines_by_target) > 1 and os.path.realpath(judged_run) in baselines_by_target:
        raise InputError(
            f"{judged_run} is among its own baselines; keep them in a folder of their own."
        )
    return list(baselines_by_target.values()), judged_run


def _text_of(table: ComparisonTable, style: str, threshold: float) -> str:
    if style == "table":
        stream = io.StringIO()
        make_console(stream).print(render_comparison(table, threshold))
        return stream.getvalue()
    return {"csv": comparison_csv, "json": comparison_json, "html": comparison_page}[style](
        table, threshold
    )
