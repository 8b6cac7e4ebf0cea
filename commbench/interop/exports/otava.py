"""A history in the form that Apache Otava reads for change points: a CSV file for each case, and
its configuration.

Otava takes every line of a file as a point of one series. It can select lines only by a column
``branch``, and only one value at a time. With a file for each case one command judges all cases.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from commbench.results.files import replace_file
from commbench.results.tables import table_csv

if TYPE_CHECKING:
    from pandas import DataFrame

#: Of the folder beside the history.
FOLDER_SUFFIX = ".otava"
CONFIGURATION = "otava.yaml"
#: Group of all cases: ``otava analyze commbench``.
GROUP = "commbench"
#: Columns that Otava prints beside the times.
ATTRIBUTES = ("run", "version", "git_commit", "library", "transport")
METRIC = "time_us"
_LONGEST_NAME = 100


def write_otava(history: DataFrame, folder: Path) -> None:
    """Write a CSV file for each case of a history, and ``otava.yaml``, which names them.

    Replace older ones.
    """
    lines_by_case = {str(case): lines for case, lines in history.groupby("case", sort=False)}
    files = file_names(lines_by_case)
    for case, name in files.items():
        replace_file(folder / name, table_csv(lines_by_case[case]))
    paths = {case: folder.resolve() / name for case, name in files.items()}
    replace_file(folder / CONFIGURATION, configuration(paths))


def file_names(cases: Iterable[str]) -> dict[str, str]:
    """Return a file name for each case: its letters and digits, and a number where these are
    equal.
    """
    names: dict[str, str] = {}
    for case in cases:
        stem = re.sub(r"[^a-z0-9]+", "_", case.lower())[:_LONGEST_NAME].strip("_") or "case"
        name, number = stem, 1
        while f"{name}.csv" in names.values():
            number += 1
            name = f"{stem}_{number}"
        names[case] = f"{name}.csv"
    return names


def configuration(files: Mapping[str, Path]) -> str:
    """Return Otava's configuration: a test for each case, and a group of all.

    A shorter time is better.

    The name of a metric holds that of its case, because ``otava validate`` refuses two tests with
    one metric. Texts are quoted as in JSON, which YAML reads.
    """
    lines = ["templates:", "  case:", "    type: csv", "    time_column: time"]
    lines += [f"    attributes: [{', '.join(ATTRIBUTES)}]", "tests:"]
    for case, file in files.items():
        metric = f"{_quoted(f'{METRIC}: {case}')}: {{column: {METRIC}, direction: -1}}"
        lines += [f"  {_quoted(case)}:", "    inherit: [case]", f"    file: {_quoted(str(file))}"]
        lines += ["    metrics:", f"      {metric}"]
    lines += ["test_groups:", f"  {GROUP}:", *(f"    - {_quoted(case)}" for case in files)]
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    return json.dumps(text)
