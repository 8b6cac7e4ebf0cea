"""A run as a file for the textfile collector of Prometheus' node_exporter, which is valid OpenMetrics too."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

from commbench.errors import InputError
from commbench.exports.metrics import METRICS, Sample, metrics_of
from commbench.store import Run
from commbench.store.files import refusing, replace_file

SUFFIX = ".prom"
#: Begins the names of files that are made up here.
PREFIX = "commbench_"
#: node_exporter runs as a user of its own and must be able to read what root wrote.
MODE = 0o644


def write_openmetrics(run: Run, out: Path | None = None) -> Path:
    """Write a run's metrics, all at once: the collector finds the old file or the new one.

    Args:
        run: what to tell of.
        out: a file whose name ends in ``.prom``, or a directory to make one in; by default the run's own. The name of
            the file is the label ``benchmark`` of every sample, so that no two files of a directory clash.

    Raises:
        InputError: the name does not end in ``.prom``, which the collector would not read, or cannot be written.
    """
    file = out if out is not None and not out.is_dir() else (out or run.path) / _default_name(run)
    if file.suffix != SUFFIX:
        raise InputError(f"--out {file} was asked for, and node_exporter reads only names that end in {SUFFIX}.")
    benchmark = file.stem.removeprefix(PREFIX) or file.stem
    with refusing(file, InputError):
        replace_file(file, render_openmetrics(metrics_of(run), benchmark=benchmark), mode=MODE)
    return file


def render_openmetrics(samples: Iterable[Sample], *, benchmark: str) -> str:
    """Samples, those of a metric together, in the text format 0.0.4 of Prometheus and in OpenMetrics 1.0 at once.

    That is: gauges only, no timestamps (the collector refuses them), no empty lines, ``# EOF`` at the end, which is a
    comment to Prometheus. Sources: prometheus.io/docs/instrumenting/exposition_formats and the OpenMetrics 1.0
    specification.
    """
    lines = []
    for name, members in itertools.groupby(samples, key=lambda sample: sample.name):
        lines += [f"# HELP {name} {_escaped(METRICS[name].help, quotes=False)}", f"# TYPE {name} gauge"]
        lines += [_line(sample, benchmark) for sample in members]
    return "\n".join([*lines, "# EOF", ""])


def _line(sample: Sample, benchmark: str) -> str:
    labels = {"benchmark": benchmark} | {name: sample.labels[name] for name in METRICS[sample.name].labels}
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{sample.name}{{{pairs}}} {sample.value:.12g}"


def _escaped(text: str, *, quotes: bool = True) -> str:
    """Text as both formats take it: backslash and line feed escaped, in labels the double quote too."""
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text


def _default_name(run: Run) -> str:
    suite = re.sub(r"[^\w.-]+", "_", str(run.info.get("suite") or "run"), flags=re.ASCII)
    return f"{PREFIX}{suite}{SUFFIX}"
