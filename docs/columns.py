"""The page docs/columns.md: the files of a run, their columns, and what people read of the JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from markup import clause, docstrings_of_fields, listing, table

from commbench.engine.records import SCHEMA
from commbench.engine.timing.clocks import ClockFacts
from commbench.report.explain import TABLES, column_meanings
from commbench.results.info import FailedRank, Launch, RunInfo
from commbench.results.recommendation import Choice, Recommendation
from commbench.system.environment import Environment
from commbench.system.host import Host

HEAD = f"""# Files and columns

<!-- Written by docs/generate.py from the code; change it there. -->

A run is a directory (schema {SCHEMA}). All files but the first two are made from these two.

| file | content |
|---|---|
| `run.json` | command line, seed, conditions of every host, status of each launch: [fields](#runjson) |
| `samples.jsonl` | a line for each sample of a case, written at once: all raw times |
| `collectives.csv` | a line for each collective case, over launches |
| `overlap.csv`, `pairs.csv` | non-blocking collectives; pairs of ranks of the pattern `matrix` |
| `ddp.csv`, `buckets.csv` | training configurations; the buckets of each |
| `recommendation.json` | the recommended setting: [fields](#recommendationjson) |
| `model.json` | fitted curves of the network: [fields](#modeljson) |
| `timeline.csv`, `events.csv`, `drift.csv` | of a soak: samples, spikes and failures, trends |
| `losses.csv` | of `tune -- COMMAND`: `launch`, `step` and `loss` of each step on rank 0 |

JSON Schema for programs: [run.json](schema/run.json), [a line of samples.jsonl](schema/sample.json),
[recommendation.json](schema/recommendation.json). In `samples.jsonl` later lines of a case and launch replace earlier
ones, except further samples of the launch. A line with `of` holds only what differs from an earlier one;
`commbench.load_run` reads both, and `samples.jsonl.gz`, to which nothing is added. An [imported](exchange.md) run holds only what the other tool states.

## CSV columns

`commbench report RUN --explain NAME` prints a line of this table, or a flag. "In" names the files without `.csv`; `compare` is the output of `compare A B --format csv`. Files have a header line,
commas, `.` decimals and UTF-8. An empty cell means that the column does not apply. Units are in the names: `us` is
microseconds, `GBps` is 1e9 bytes per second. Text that a spreadsheet would run as a formula begins with an apostrophe.
`load_run` and Parquet files have text, Int64, Float64 and boolean columns that hold NA.
"""

RUN_INFO = """## run.json

The fields that people read. [The schema](schema/run.json) has all of them.
"""

RECOMMENDATION = """## recommendation.json

`baseline`, `best`, `best_uncompressed`, `safe`, `altering` and `alternatives` hold settings, each with the columns of
`ddp.csv` that name it, `step_ms`, `speedup` and `speedup_ci`.
"""

MODEL = """## model.json

`held_out_error` is the median error of the curves, `worst_residual` the largest. `curves` has an object for each
operation, backend, type, pattern and `world_size` with three sizes or more; [how they are fitted](measuring.md#the-fitted-model).

| field | meaning |
|---|---|
| `sizes`, `times_us` | measured `message_bytes`, ascending; `time_us` at each |
| `launches_us` | for each size the median of every launch; null where a launch has none |
| `segments` | `alpha_us` + `beta_us_per_byte` n between two sizes; a line each, with 95 % intervals |
| `residuals` | (line - measured) / measured at each size |
| `held_out_error` | median error at inner sizes, each predicted from all others |
| `variant` | difference from how DDP communicates (in place, sums) |
"""

#: What people read of run.json: where an object stands, its class, and its fields.
READ: Sequence[tuple[str, type[Any], str]] = (
    (
        "",
        RunInfo,
        "run_id suite argv status reason started seed budget git_commit world_size nodes",
    ),
    ("", RunInfo, "ranks_per_node launcher libraries oversubscribed left_out states"),
    ("", RunInfo, "stragglers"),
    ("", RunInfo, "straggler_remarks"),
    ("clock.", ClockFacts, "method error_us"),
    ("environment.", Environment, "versions variables emulated"),
    ("environment.hosts[].", Host, "hostname cpu_model physical_cores cpus_allowed virtualised"),
    ("launches[].", Launch, "stage seconds status reason ending"),
    ("launches[].failed_rank.", FailedRank, "rank host case state stack"),
)
#: Fields of recommendation.json that are on the page though they have no text in the code.
CONCLUSION = ("paragraph", "the conclusion, in words")
UNREAD = {"is_live", "workload", "world_size", "backend", "batch_per_rank", "baseline"}


def columns_page() -> str:
    """Return docs/columns.md."""
    columns = table(("column", "in", "meaning"), csv_columns())
    run_info = listing(_read_fields())
    recommendation = listing(_recommendation_fields())
    parts = [HEAD, columns, RUN_INFO, run_info, RECOMMENDATION, recommendation, MODEL]
    return "\n".join(parts)


def csv_columns() -> list[tuple[str, str, str]]:
    """Return a line for each column: its names, its files, and its meaning.

    A column whose meaning differs between files has a line for each meaning.
    """
    lines = []
    for (name, meaning), names in sorted(column_meanings().items()):
        if name.endswith("_ci_high"):
            continue  # stands beside the low end
        shown = f"`{name}`"
        if name.endswith("_ci_low"):
            shown += f", `{name.removesuffix('low')}high`"
        lines.append((shown, _files(names), meaning.replace(", low end", "")))
    return lines


def _files(names: Sequence[str]) -> str:
    written = set(TABLES) - {"compare"}
    if written <= set(names):
        return "all"
    return ", ".join(names)


def _read_fields() -> list[tuple[str, str]]:
    lines = []
    for place, cls, names in READ:
        texts = docstrings_of_fields(cls)
        lines += [(f"`{place}{name}`", clause(texts[name])) for name in names.split()]
    return lines


def _recommendation_fields() -> list[tuple[str, str]]:
    texts = docstrings_of_fields(Recommendation)
    lines = []
    for each in dataclasses.fields(Recommendation):
        if each.name not in UNREAD:
            lines.append((f"`{each.metadata.get('key', each.name)}`", clause(texts[each.name])))
    settings = docstrings_of_fields(Choice)
    lines += [(f"`best.{name}`", clause(text)) for name, text in settings.items()]
    return [*lines, (f"`{CONCLUSION[0]}`", CONCLUSION[1])]
