"""Metrics of a run as an OpenMetrics file for the textfile collector of node_exporter."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from commbench.analysis.expectations import Answer
from commbench.errors import InputError
from commbench.interop.exports.metrics import METRICS, metrics_of
from commbench.interop.exports.samples import Sample
from commbench.results import Run
from commbench.results.files import refusing, replace_file

SUFFIX = ".prom"
#: Start of default file names.
PREFIX = "commbench_"
#: File mode: node_exporter runs as another user and must be able to read files that root wrote.
MODE = 0o644


def write_openmetrics(run: Run, out: Path | None = None, answers: Sequence[Answer] = ()) -> Path:
    """Write a run's metrics and return the file, which replaces an older one in one step.

    Args:
        run: the run to export.
        out: a file whose name ends in ``.prom``, or a directory for it; by default the run's
            directory. The name of the file is the label ``benchmark`` of every sample, so that
            files in one directory do not clash.
        answers: of the run to expectations, as `commbench.analysis.expectations.judge` returns
            them.

    Raises:
        InputError: the name does not end in ``.prom``, or the file cannot be written.
    """
    file = out if out is not None and not out.is_dir() else (out or run.path) / _default_name(run)
    if file.suffix != SUFFIX:
        raise InputError(
            f"--out {file} was asked for, and node_exporter reads only names that end in {SUFFIX}."
        )
    benchmark = file.stem.removeprefix(PREFIX) or file.stem
    with refusing(file, InputError):
        replace_file(
            file, render_openmetrics(metrics_of(run, answers), benchmark=benchmark), mode=MODE
        )
    return file


def render_openmetrics(samples: Iterable[Sample], *, benchmark: str) -> str:
    """Render samples, sorted by metric, as text that is both Prometheus text format 0.0.4 and
    OpenMetrics 1.0.

    The text has gauges only, no timestamps (the collector refuses them) and no empty lines. It ends
    with ``# EOF``, which is a comment in Prometheus' format. Sources:
    prometheus.io/docs/instrumenting/exposition_formats and the OpenMetrics 1.0 specification.
    """
    lines = []
    for name, members in itertools.groupby(samples, key=lambda sample: sample.name):
        lines += [
            f"# HELP {name} {_escaped(METRICS[name].help, quotes=False)}",
            f"# TYPE {name} gauge",
        ]
        lines += [_line(sample, benchmark) for sample in members]
    return "\n".join([*lines, "# EOF", ""])


def _line(sample: Sample, benchmark: str) -> str:
    labels = {"benchmark": benchmark} | {
        name: sample.labels[name] for name in METRICS[sample.name].labels
    }
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{sample.name}{{{pairs}}} {sample.value:.12g}"


def _escaped(text: str, *, quotes: bool = True) -> str:
    """Return text with backslash and line feed escaped, and the double quote too in labels."""
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text


def _default_name(run: Run) -> str:
    suite = re.sub(r"[^\w.-]+", "_", str(run.info.get("suite") or "run"), flags=re.ASCII)
    return f"{PREFIX}{suite}{SUFFIX}"
