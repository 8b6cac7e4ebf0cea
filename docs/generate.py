"""Writes the reference pages from the code and docs/figures from kept runs: python
docs/generate.py.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import math
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import pictures
import terminal
from kept_table import evidence_page
from reference import commands_page, docstrings_of_fields, python_page

from commbench.analysis.soak.rows import DriftRow, EventRow, TimelineRow
from commbench.collectives.layouts import Shape
from commbench.collectives.operations import OPERATIONS, LengthRule, Operation
from commbench.ddp.plan.records import BucketRow, TrainingRecord, TrainingRow
from commbench.ddp.traces import SHIPPED, load_trace
from commbench.ddp.workloads import TRACE, WORKLOADS, load_workload
from commbench.engine.flags import FLAGS
from commbench.engine.records import SCHEMA, OverlapRow, Record, Row
from commbench.hooks.options import HookSpec
from commbench.hooks.registry import HOOKS
from commbench.interop.exports.common import CASE_LABELS, TRAINING_LABELS
from commbench.interop.exports.measures import MEASURES
from commbench.report.comparison.formats import ComparisonRow
from commbench.report.figures import all_figures
from commbench.results import load_run
from commbench.results.info import RunInfo
from commbench.results.pairs import PairRow
from commbench.results.recommendation import (
    Choice,
    Cost,
    Difference,
    Recommendation,
    SafeChoice,
    Search,
)
from commbench.results.tables import column_dtypes
from commbench.schema import Limits
from commbench.stats.budgets import BUDGETS, TRAINING_BUDGETS

DOCS = Path(__file__).parent
FOLDER = DOCS / "figures"
RESULTS = Path(__file__).parent.parent / "results"
#: Files of ``docs/figures``: the theme of the kept run, of which the newest is drawn, and the
#: figure in its report.
FIGURES = {
    "buckets.png": ("train_resnet18_batch1_1gbit", "buckets"),
    "timeline.png": ("train_resnet18_batch1_1gbit", "timeline"),
    "matrix.png": ("matrix_slow_host", "matrix-bandwidth-1"),
    "settings.png": ("live_trainer_300mbit", "live"),
}
#: Numbers of ranks at which factors and sizes are looked at, to tell which of the known formulas
#: they follow.
RANKS = (2, 3, 4, 8)
FACTORS: Mapping[str, Callable[[int], float]] = {
    "1": lambda _n: 1.0,
    "(n-1)/n": lambda n: (n - 1) / n,
    "2(n-1)/n": lambda n: 2 * (n - 1) / n,
}
MESSAGE, ROOT = 240, 1

HEAD = f"""# The files of a run, column by column

<!-- Written by docs/generate.py from the code; change it there. -->

A run is one directory, schema {SCHEMA}:

| file | what |
|---|---|
| `run.json` | command line, seed, conditions of every host, `status` of the run and of each launch: \
[fields](#runjson) |
| `samples.jsonl` | one line per visit of a case in a launch, appended and synced after every visit: the source of \
truth: [fields](#samplesjsonl). To save space, compress it with `gzip`: commbench reads \
`samples.jsonl.gz` and adds nothing to such a run |
| `collectives.csv` | one line per collective case, summarised over launches; made from the two files above, like all \
that follow |
| `overlap.csv` | one line per non-blocking collective, if the run has any |
| `pairs.csv` | one line per ordered pair of ranks of every case of the pattern `matrix`, if the run has any |
| `model.json` | the model of the network, if three sizes or more of an operation were measured: see below |
| `ddp.csv` | one line per training configuration, if the run trained |
| `buckets.csv` | one line per bucket of each of these |
| `timeline.csv` | one line per visit of a soak: when, median, longest wait, slowest rank |
| `events.csv` | one line per spike and per failed launch of a soak: when, how long, whose |
| `drift.csv` | one line per case of a soak: its trend |
| `losses.csv` | of a live tuning: `launch`, `step` and `loss` of each optimiser step on rank 0 |
| `recommendation.json` | what the training concludes |

**A live tuning** has `{{"live": true}}` in the `plan` of `run.json`. The `ending` of a launch says why it ended. After
the last five of these, `status` is `cut` and there is a `reason`:

- `decided`; `undecided`: its own limit was reached; `nothing`: nothing was left to compare
- `steps`, `time`: that limit was reached; `ended`: the training was over; `released`, `failed`

A line of `samples.jsonl` holds one block: `block` is its number among those of its setting in the launch, `block_at`
the optimiser step at which it began. A run of an earlier version has the setting's whole record in each line instead.

CSV has a header line, commas, `.` decimals and UTF-8; an empty cell means that the column does not apply. Units are in
the names: `us` is microseconds, `GBps` is 1e9 bytes per second. A text that begins with `=`, `+`, `-`, `@`, a tab or a
carriage return has an apostrophe before it, so that no spreadsheet runs it as a formula. `dtype` is the type of the
column in pandas, of `load_run` and of Parquet files; each type holds NA.

A run that was [imported](importing.md) holds what another tool states: one time per case and launch, and nothing else
that it does not say.

Runs of earlier versions also have the entries `max_loss_increase`, `exhaustive_cases` and `exhaustive_launches`, which
nothing reads.
"""

RUN_INFO = """## run.json

One object. Each table below is an object; a field that is absent does not apply or is unknown. Units are in the names:
`us`, `ms` and `s` are times, `bytes`, `J` (joules), `MHz`, `Mbps` (1e6 bits per second) and `ppm`. A field of an object
with a table of its own links to it.
"""

SAMPLES = """## samples.jsonl

One object a line, a `Record` or a `TrainingRecord`: its `kind` is `collective` or `training`. Of several lines for one
case and launch the last one counts, except for visits: the lines of all visits of a launch belong together. Times of a
`Record` are those of one operation: divided by `batch` and `window`, and halved for a round trip. Its lists over
repetitions hold valid repetitions only. A line with `of` holds only what differs from the last line before it whose `line`
has that number; `commbench.load_run` reads both. The numbers mean nothing else.
"""

STRAGGLERS = """## stragglers in run.json

What is slower than its peers, where there were three hosts, ranks or groups or more to compare: `suspects` is a list of
`{kind, name, factor, ci, evidence}`, empty where nothing is, `suspects_comparisons` how many hosts, ranks, links and
groups were compared, `suspects_remarks` what could not be told. `kind` is `host`, `rank`, `link`, `uplink` (all links
between two parts of the hosts) or `group`. `factor` is how many times as
long it takes as its typical peer, `ci` the 95 % interval over launches, null for one launch.
"""

MODEL = """## model.json

The model of the network from which times of other sizes are predicted. `held_out_error` is the median over curves of
theirs, `worst_residual` the largest of all; `curves` has one object per operation, backend, data type, pattern and
number of ranks that take part (`world_size`), if three sizes or more were measured:

| entry | what |
|---|---|
| `variant` | in what it differs from how DDP communicates (in place, sums): the nearest that was measured |
| `sizes` | `message_bytes` that were measured, ascending |
| `times_us` | `time_us` at each |
| `launches_us` | for each size the median of every launch, null where a launch has none |
| `segments` | from and to which size time = `alpha_us` + `beta_us_per_byte` n fits best; a line each, ascending |
| | of each also `alpha_us_ci` and `beta_us_per_byte_ci`: [low, high] at 95 % by resampling launches, null for one |
| `residuals` | (line - measured) / measured at each size |
| `held_out_error` | median error at inner sizes, each predicted from all others; null for none |

Times between sizes are interpolated, beyond them the outer segments are continued: `docs/measuring.md` says how.
"""

OPERATIONS_HEAD = """## Operations

S is `message_bytes` and n the number of ranks that take part. Sizes are of one rank's buffer; where only some ranks
have one, they are named. busbw is algbw times the factor (nccl-tests, `doc/PERFORMANCE.md`).
"""

FLAGS_HEAD = """## Flags

A flag is a warning about a row, never a reason to drop it. The mark is what tables show.
"""


TRAINING_FLAGS_HEAD = """## Flags of training

Those above also apply where they make sense: to steps in place of repetitions.
"""

RECOMMENDATION_HEAD = """## recommendation.json

One object. The first table is the object itself; the others are objects within it.
"""

HOOKS_HEAD = """## Hooks

As `--hook` takes them: the name, behind it the number that is marked required, then options as `key=value`, all
separated by colons: `topk:0.01:values=float16:scope=parameter`. `none` is DDP without a hook. The formula is
`wire_bytes`: what one of p ranks sends in a step for a bucket of n float32 elements, against which the bytes really
sent are held.
"""

WORKLOADS_HEAD = """## Workloads

Sizes are those of the float32 gradients, MB = 1e6 bytes; a batch is of one rank. A metric needs its number of steps, so
these workloads make so many unless `--steps` is given; elsewhere the number of steps follows from the budget.
"""

COMPARISON = """## A comparison as CSV

What `commbench compare A B --format csv` writes, a line a case; [comparing.md](comparing.md) says how verdicts come
about.
"""

TRACES_HEAD = """Recorded gradients, replayed: a backward pass makes each gradient ready when the real model did, and
keeps a core as busy as that did; a trace of a GPU waits instead. The loss means nothing.
"""

METRICS_HEAD = """## Metrics

What `commbench export RUN --format openmetrics` writes: gauges, which all have the label `benchmark` too.
[exporting.md](exporting.md) says what that is and how many series a run makes. `variant` names what else is not the
default. The labels

- of a case are {case};
- of a configuration are {training}.
"""

#: What code does not say beside its names.
SAID = {
    "schema": "schema number",
    "paragraph": "the conclusion, in words",
    "baseline": "DDP as it comes in fp32, with what it is compared",
    "Difference.best": "the same of the best setting",
    "Cost.metric_name": "what the workload evaluates on held-out data",
    "Cost.metric": "its value after the last step",
    "density": "k/n",
}
KINDS = {
    "tuple[commbench.results.recommendation.Choice": "choices",
    "SafeChoice": "a safe choice",
    "Choice": "a choice",
    "Cost": "a cost",
    "Difference": "a difference",
    "Search": "a search",
}
MB = 1e6
#: Types of fields that JSON holds otherwise than Python.
JSON_TYPES = {"pairs": "object: a list for each field of [PairTimes](#pairtimes)"}


def columns_page() -> str:
    """The page of columns, as text that ends in a newline."""
    rows = [*_collectives(), *_training(), *_exported(), COMPARISON, _columns(ComparisonRow)]
    contracts = [RUN_INFO, *objects(RunInfo), STRAGGLERS, SAMPLES, *objects(Record, TrainingRecord)]
    return "\n".join([HEAD, *contracts, *rows])


def objects(*classes: type[Any]) -> list[str]:
    """The tables of classes whose objects are JSON, and of all classes in them, each with a
    heading.
    """
    parts = dict.fromkeys([*classes, *(part for cls in classes for part in classes_in(cls))])
    return [
        text
        for part in parts
        for text in (f"### {part.__name__}\n", _paragraph(part), _json_fields(part))
    ]


def classes_in(hint: Any) -> list[type[Any]]:  # noqa: ANN401 - a class or another annotation
    """The classes that the fields of a class or the arguments of an annotation name, to any
    depth.
    """
    parts = (
        get_type_hints(hint, include_extras=True).values() if is_object(hint) else get_args(hint)
    )
    return [
        found for part in parts for found in ([part] if is_object(part) else []) + classes_in(part)
    ]


def is_object(hint: Any) -> bool:  # noqa: ANN401 - an annotation
    """Whether an annotation is a class with fields, whose values are objects of JSON."""
    return is_typeddict(hint) or (
        isinstance(hint, type) and dataclasses.is_dataclass(hint) and hint is not Limits
    )


def _paragraph(cls: type[Any]) -> str:
    text = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
    return text.replace("``", "`").replace("None ", "null ") + "\n"


def _json_fields(cls: type[Any]) -> str:
    """The fields of an object of JSON: name, type, meaning."""
    hints, said = get_type_hints(cls, include_extras=True), docstrings_of_fields(cls)
    hints = {
        name: hint
        for name, hint in hints.items()
        if get_origin(hint) is not ClassVar and hint is not ClassVar
    }
    missing = [name for name in hints if name not in said]
    if missing:
        raise ValueError(
            f"{cls.__name__} does not describe {', '.join(missing)}; write a text under each."
        )
    return _table(
        ("field", "type", "meaning"),
        (
            (f"`{name}`", JSON_TYPES.get(name) or _json_type(hint), _clause(said[name]))
            for name, hint in hints.items()
        ),
    )


def _json_type(hint: Any) -> str:  # noqa: ANN401 - an annotation
    """The JSON type of an annotation, in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if is_object(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin is None:
        return {int: "integer", float: "number", str: "text", bool: "boolean", Any: "any"}.get(
            hint, "null"
        )
    inner = [_json_type(argument) for argument in arguments if not isinstance(argument, Limits)]
    words = {
        Annotated: inner[0],
        Union: " or ".join(inner),
        types.UnionType: " or ".join(inner),
        collections.abc.Mapping: f"object: {inner[-1]} by name",
        tuple: f"[{', '.join(inner)}]",
    }
    return words.get(origin, f"list of {inner[0]}")


#: Drawings that no report has, by file.
DRAWN: Mapping[str, Callable[[], bytes]] = {
    "launch.png": lambda: pictures.launch_drawing().png,
}


def draw(name: str) -> bytes:
    """One of `FIGURES` or `DRAWN`, as PNG."""
    if name in DRAWN:
        return DRAWN[name]()
    theme, wanted = FIGURES[name]
    return next(
        drawing.png for drawing in all_figures([load_run(newest(theme))]) if drawing.name == wanted
    )


def newest(theme: str) -> Path:
    """The newest kept run of a theme."""
    runs = [
        path
        for path in RESULTS.glob(f"{theme}_*")
        if re.fullmatch(rf"{theme}_[a-z0-9]+_\d{{8}}", path.name)
    ]
    return max(runs, key=lambda path: path.name[-8:])


def _collectives() -> list[str]:
    """What there is to say of collectives."""
    return [
        "## collectives.csv\n",
        _columns(Row),
        "## overlap.csv\n",
        _columns(OverlapRow),
        "## pairs.csv\n",
        _columns(PairRow),
        "## timeline.csv\n",
        _columns(TimelineRow),
        "## events.csv\n",
        _columns(EventRow),
        "## drift.csv\n",
        _columns(DriftRow),
        MODEL,
        OPERATIONS_HEAD,
        _table(
            (
                "operation",
                "what is timed",
                "send",
                "receive",
                "`osu_bytes`",
                "busbw factor",
                "in place",
            ),
            (_operation(entry) for entry in OPERATIONS.values()),
        ),
        FLAGS_HEAD,
        _flags(is_training_only=False),
        "## Budgets\n",
        _table(
            (
                "`--budget`",
                "launches",
                "half-width aimed at",
                "longest time for a case in a launch",
            ),
            (
                (
                    f"`{b.name}`",
                    str(b.launches),
                    f"{100 * b.relative_half_width:g} %",
                    f"{b.slice_s:g} s",
                )
                for b in BUDGETS.values()
            ),
        ),
    ]


def _training() -> list[str]:
    """What there is to say of training."""
    hooks = [spec for spec in HOOKS.values() if spec.module]
    return [
        "## ddp.csv\n",
        _columns(TrainingRow),
        "## buckets.csv\n",
        _columns(BucketRow),
        TRAINING_FLAGS_HEAD,
        _flags(is_training_only=True),
        "## Budgets of training\n",
        _table(
            (
                "`--budget`",
                "launches of the sweep",
                "fresh launches",
                "timed steps of a block",
                "blocks in a fresh launch",
                "half-width aimed at",
                "time aimed at",
                "time of a search",
            ),
            (
                (
                    f"`{b.name}`",
                    str(b.launches),
                    str(b.confirm_launches),
                    f"{b.block_s:g} s",
                    str(b.confirm_blocks),
                    f"{100 * b.relative_half_width:g} %",
                    f"{b.aim_s:g} s" if b.aim_s else "",
                    f"{b.search_s:g} s",
                )
                for b in TRAINING_BUDGETS.values()
            ),
        ),
        RECOMMENDATION_HEAD,
        _fields(Recommendation, before=("schema",), after=("paragraph",)),
        "A choice, in the words of `ddp.csv`:\n",
        _fields(Choice),
        "A safe choice is a choice with:\n",
        _fields(SafeChoice, without=Choice),
        "A cost:\n",
        _fields(Cost),
        "A difference:\n",
        _fields(Difference),
        "A search:\n",
        _fields(Search),
        HOOKS_HEAD,
        _table(("hook", "what it does", "bytes a rank sends"), map(_hook, hooks)),
        _table(
            ("hook", "option", "default", "values", "what"),
            (line for hook in hooks for line in _options(hook)),
        ),
        WORKLOADS_HEAD,
        _table(
            ("`--workload`", "what", "tensors", "gradients", "batch", "metric"),
            (_workload(name) for name in sorted(WORKLOADS)),
        ),
        TRACES_HEAD,
        _table(
            ("`--workload`", "tensors", "gradients", "forward", "backward", "batch"),
            (_trace(name) for name in SHIPPED),
        ),
    ]


def _exported() -> list[str]:
    """What there is to say of exports."""
    shared = {CASE_LABELS: "of a case", TRAINING_LABELS: "of a configuration"}
    head = METRICS_HEAD.format(case=_named(CASE_LABELS), training=_named(TRAINING_LABELS))
    lines = (
        (
            f"`{measure.name}`",
            shared.get(measure.labels) or _named(measure.labels),
            _clause(measure.help),
        )
        for measure in MEASURES.values()
    )
    return [head, _table(("metric", "labels", "what"), lines)]


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _flags(*, is_training_only: bool) -> str:
    flags = (flag for flag in FLAGS.values() if flag.is_training_only == is_training_only)
    lines = ((f"`{flag.name}`", flag.mark, flag.description) for flag in flags)
    return _table(("flag", "mark", "what it means"), lines)


def _columns(row: type[Any]) -> str:
    """The columns of one kind of row, in their order."""
    about = {f.name: f.metadata.get("about", "schema number") for f in dataclasses.fields(row)}
    dtypes = column_dtypes(row).items()
    return _table(
        ("column", "dtype", "what"),
        ((f"`{name}`", dtype.partition("[")[0], about[name]) for name, dtype in dtypes),
    )


def _fields(
    cls: type[Any],
    *,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
    without: type[Any] | None = None,
) -> str:
    """The fields of a dataclass by what stands under them in its source, else by the column of that
    name.

    Fields of the class ``without`` are left out.
    """
    said, hints = docstrings_of_fields(cls), get_type_hints(cls)
    columns = {f.name: f.metadata.get("about") for f in dataclasses.fields(TrainingRow)}
    keys = {f.name: f.metadata["key"] for f in dataclasses.fields(cls) if "key" in f.metadata}
    lines = []
    known = {f.name for f in dataclasses.fields(without)} if without else set()
    for name in [
        *before,
        *(f.name for f in dataclasses.fields(cls) if f.name not in known),
        *after,
    ]:
        about = (
            said.get(name)
            or SAID.get(f"{cls.__name__}.{name}")
            or columns.get(name)
            or SAID.get(name)
        )
        if not about:
            raise ValueError(
                f"{cls.__name__}.{name} has no description; write one under it, or in SAID."
            )
        kinds = [kind for word, kind in KINDS.items() if word in str(hints.get(name))]
        lines.append((f"`{keys.get(name, name)}`", ": ".join([*kinds[:1], _clause(about)])))
    return _table(("field", "what"), lines)


def _clause(sentence: str) -> str:
    """A sentence as part of another."""
    text = sentence.replace("``", "`").replace("None ", "null ").replace("None:", "null:")
    text = text[:1].lower() + text[1:] if text[1:2].islower() else text
    return text if text.endswith("..") else text.removesuffix(".")


def _hook(hook: type[HookSpec]) -> tuple[str, ...]:
    """One line of the table of hooks."""
    return f"`{hook.name}`", _first_line(hook).removesuffix("."), hook.formula


def _options(hook: type[HookSpec]) -> list[Sequence[str]]:
    """A hook's options; the number that stands without a name is required."""
    described = docstrings_of_fields(hook)
    kinds = hook.kinds()
    lines: list[Sequence[str]] = []
    for field in dataclasses.fields(hook):
        default = str(field.default).lower()
        if field.name == hook.number:
            default = "required"
        elif field.default == ():
            default = ""
        words = kinds[field.name].words
        about = _clause(described[field.name])
        lines.append((f"`{hook.name}`", f"`{field.name}`", default, words, about))
    return lines


def _workload(name: str) -> tuple[str, ...]:
    """One line of the table of workloads."""
    made = load_workload(name, seed=0, rank=0, world_size=1)
    what = WORKLOADS[name].summary
    sizes = [parameter.numel() for parameter in made.model.parameters()]
    target = f" (target {made.target:g})" if made.target else ""
    metric = f"{made.metric}{target} over {made.steps} steps" if made.evaluate else ""
    return f"`{name}`", what, str(len(sizes)), _megabytes(sum(sizes)), str(made.batch_size), metric


def _trace(name: str) -> tuple[str, ...]:
    """One line of the table of traces."""
    trace = load_trace(name)
    elements = sum(math.prod(parameter.shape) for parameter in trace.parameters)
    times = (f"{time:.0f} ms" for time in (trace.forward_ms, trace.backward_ms))
    return (
        f"`{TRACE}{name}`",
        str(len(trace.parameters)),
        _megabytes(elements),
        *times,
        str(trace.recorded["batch"]),
    )


def _megabytes(elements: int) -> str:
    return f"{4 * elements / MB:.3g} MB"


def _first_line(of: object) -> str:
    return (inspect.getdoc(of) or "").splitlines()[0]


def _operation(entry: Operation) -> tuple[str, ...]:
    """One line of the table of operations."""
    return (
        f"`{entry.name}`",
        entry.summary,
        _buffer(entry.send),
        _buffer(entry.receive),
        ("S/n" if entry.osu_per_rank else "S") if entry.moves_data else "",
        _factor(entry) if entry.moves_data else "",
        ("default" if entry.default_in_place else "offered") if entry.has_in_place else "",
    )


def _factor(entry: Operation) -> str:
    """The formula that the entry's busbw factor follows."""
    for text, formula in FACTORS.items():
        if all(abs(entry.busbw_factor(n) - formula(n)) < 1e-12 for n in RANKS):  # noqa: PLR2004 - rounding
            return text
    raise ValueError(f"{entry.name}'s busbw factor follows no formula in FACTORS; add it there.")


def _buffer(layout: LengthRule) -> str:
    """How large a buffer is and on which ranks, in words."""
    size = RANKS[-1]
    lengths = [
        layout(Shape(rank=rank, size=size, elements=MESSAGE, root=ROOT)) for rank in range(size)
    ]
    holders = [rank for rank, length in enumerate(lengths) if length]
    if not holders:
        return ""
    amount = {MESSAGE: "S", MESSAGE // size: "S/n"}[lengths[holders[0]]]
    where = {
        tuple(range(size)): "",
        (ROOT,): " at the root",
        (0,): " at the first rank",
        (size - 1,): " at the last rank",
        (0, size - 1): " at both ends",
    }[tuple(holders)]
    return amount + where


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return (
        "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows)
        + "\n"
    )


#: The pages that this program writes.
PAGES: Mapping[str, Callable[[], str]] = {
    "columns.md": columns_page,
    "commands.md": commands_page,
    "evidence.md": evidence_page,
    "python.md": python_page,
}

if __name__ == "__main__":
    for page, render in PAGES.items():
        (DOCS / page).write_text(render(), encoding="utf-8")
    FOLDER.mkdir(exist_ok=True)
    for file in (*FIGURES, *DRAWN):
        (FOLDER / file).write_bytes(draw(file))
    for cast in FOLDER.glob("*.cast"):
        cast.with_suffix(".svg").write_text(terminal.draw(cast), encoding="utf-8")
    print(f"Wrote {', '.join(PAGES)} and the figures in {FOLDER}")
