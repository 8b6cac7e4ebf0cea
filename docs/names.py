"""The page docs/names.md: operations, flags, budgets, hooks and workloads."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

from markup import clause, docstrings_of_fields, first_paragraph, table

from commbench.collectives.layouts import Shape
from commbench.collectives.operations import OPERATIONS, Operation
from commbench.ddp.traces import SHIPPED, load_trace
from commbench.ddp.workloads import TRACE, WORKLOADS, load_workload
from commbench.engine.flags import FLAGS
from commbench.hooks.options import HookSpec
from commbench.hooks.registry import HOOKS
from commbench.stats.budgets import BUDGETS, TRAINING_BUDGETS

HEAD = """# Operations, flags, budgets, hooks, workloads

<!-- Written by docs/generate.py from the code; change it there. -->

## Operations

S is `message_bytes`, n the number of ranks that take part. Sizes are of one rank's buffer. busbw is algbw times the
factor of nccl-tests (`doc/PERFORMANCE.md`); `osu_bytes` is the size that OSU prints.
"""

SUMMARIES = {
    "digits": (
        "a small convolutional network on real handwritten digits, trained to a stated accuracy"
    ),
    "gpt": "a small decoder with a large embedding, 5.8 million parameters, on synthetic tokens",
    "mlp": (
        "a perceptron of 8.4 million parameters in large matrices, so that communication dominates"
    ),
    "resnet18": "ResNet-18 for 32x32 images, 11.17 million parameters, on synthetic images",
    "text": "a small decoder over bytes of real English text, Python's own documentation",
}

FLAGS_HEAD = """## Flags

A flag is a warning about a row; the row stays. Tables show the mark.
"""

BUDGETS_HEAD = """## Budgets

`--budget` of `bench`, `run` and `check`, with the half-width of the 95 % interval that it aims at:
"""

TRAINING_BUDGETS_HEAD = """`--budget` of `train` and `tune`; `tune` searches in one launch, then both compare settings in confirmation launches:
"""

HOOKS_HEAD = """## Hooks

Write `--hook` as the name, then the required number, then options, all separated by colons:
`topk:0.01:values=float16:scope=parameter`. `none` is DDP without a hook. Bytes are those that one of p ranks sends in a
step for a bucket of n float32 elements; the measured bytes are compared with them.
"""

WORKLOADS_HEAD = """## Workloads

Sizes are those of the float32 gradients, MB = 1e6 bytes; a batch is of one rank. `digits` and `text` make the steps that
their metric needs.
"""

TRACES_HEAD = """Traces replay recorded gradients: each becomes ready when the real model's did. They have no loss.
"""

#: Numbers of ranks for which factors and sizes are compared with the known formulas.
RANKS = (2, 3, 4, 8)
FACTORS: Mapping[str, Callable[[int], float]] = {
    "1": lambda _n: 1.0,
    "(n-1)/n": lambda n: (n - 1) / n,
    "2(n-1)/n": lambda n: 2 * (n - 1) / n,
}
MESSAGE, ROOT = 240, 1
MB = 1e6


def names_page() -> str:
    """Return docs/names.md."""
    hooks = [spec for spec in HOOKS.values() if spec.module]
    operations = table(
        ("operation", "what is timed", "send", "receive", "`osu_bytes`", "busbw", "in place"),
        map(_operation, OPERATIONS.values()),
    )
    flags = table(("flag", "mark", "meaning"), _flags())
    parts = [HEAD, operations, FLAGS_HEAD, flags, BUDGETS_HEAD, _budgets()]
    parts += [TRAINING_BUDGETS_HEAD, _training_budgets(), HOOKS_HEAD]
    lines = [(f"`{hook.name}`", clause(first_paragraph(hook)), hook.formula) for hook in hooks]
    parts.append(table(("hook", "what it does", "bytes that a rank sends"), lines))
    options = [line for hook in hooks for line in _options(hook)]
    parts.append(table(("hook and option", "default", "values", "meaning"), options))
    workloads = table(
        ("`--workload`", "what", "tensors", "gradients", "batch", "metric"),
        map(_workload, sorted(WORKLOADS)),
    )
    traces = table(
        ("`--workload`", "tensors", "gradients", "forward", "backward", "batch"),
        map(_trace, SHIPPED),
    )
    parts += [WORKLOADS_HEAD, workloads, TRACES_HEAD, traces]
    return "\n".join(parts)


def _flags() -> Iterator[tuple[str, str, str]]:
    for is_of_training in (False, True):
        for flag in FLAGS.values():
            if flag.is_training_only == is_of_training:
                meaning = flag.description
                if is_of_training:
                    meaning = f"training: {meaning}"
                yield f"`{flag.name}`", flag.mark, meaning


def _budgets() -> str:
    lines = []
    for budget in BUDGETS.values():
        width = f"{100 * budget.relative_half_width:g} %"
        lines.append((f"`{budget.name}`", str(budget.launches), width, f"{budget.slice_s:g} s"))
    return table(("budget", "launches", "half-width", "longest time for a case in a launch"), lines)


def _training_budgets() -> str:
    lines = []
    for budget in TRAINING_BUDGETS.values():
        width = f"{100 * budget.relative_half_width:g} %"
        search = f"{budget.search_s:g} s"
        launches = (str(budget.launches), search, str(budget.confirm_launches))
        blocks = f"{budget.confirm_blocks} of {budget.block_s:g} s"
        lines.append((f"`{budget.name}`", *launches, blocks, width))
    columns = ("launches of `train`", "search of `tune`", "confirmation launches")
    return table(("budget", *columns, "blocks of each", "half-width"), lines)


def _options(hook: type[HookSpec]) -> Iterator[tuple[str, ...]]:
    """Yield a line for each option of a hook; the number that stands without a name is required."""
    texts = docstrings_of_fields(hook)
    kinds = hook.kinds()
    for field in dataclasses.fields(hook):
        default = str(field.default).lower()
        if field.name == hook.number:
            default = "required"
        elif field.default == ():
            default = ""
        name = f"`{hook.name}`: `{field.name}`"
        yield name, default, kinds[field.name].words, clause(texts[field.name])


def _workload(name: str) -> tuple[str, ...]:
    """Return one line of the table of workloads."""
    made = load_workload(name, seed=0, rank=0, world_size=1)
    sizes = [parameter.numel() for parameter in made.model.parameters()]
    metric = ""
    if made.evaluate:
        metric = f"{made.metric} after {made.steps} steps"
    return (
        f"`{name}`",
        SUMMARIES[name],
        str(len(sizes)),
        _megabytes(sum(sizes)),
        str(made.batch_size),
        metric,
    )


def _trace(name: str) -> tuple[str, ...]:
    """Return one line of the table of traces."""
    trace = load_trace(name)
    elements = sum(math.prod(parameter.shape) for parameter in trace.parameters)
    forward, backward = f"{trace.forward_ms:.0f} ms", f"{trace.backward_ms:.0f} ms"
    tensors, batch = str(len(trace.parameters)), str(trace.recorded["batch"])
    return f"`{TRACE}{name}`", tensors, _megabytes(elements), forward, backward, batch


def _megabytes(elements: int) -> str:
    return f"{4 * elements / MB:.3g} MB"


def _operation(entry: Operation) -> tuple[str, ...]:
    """Return one line of the table of operations."""
    osu_bytes, factor, in_place = "", "", ""
    if entry.moves_data:
        osu_bytes = "S/n" if entry.osu_per_rank else "S"
        factor = _factor(entry)
    if entry.has_in_place:
        in_place = "default" if entry.default_in_place else "offered"
    buffers = (_buffer(entry, 0), _buffer(entry, 1))
    return f"`{entry.name}`", entry.summary, *buffers, osu_bytes, factor, in_place


def _factor(entry: Operation) -> str:
    """Return the formula that the entry's busbw factor follows."""
    for text, formula in FACTORS.items():
        if all(math.isclose(entry.busbw_factor(n), formula(n)) for n in RANKS):
            return text
    raise ValueError(f"{entry.name}'s busbw factor follows no formula in FACTORS; add it there.")


def _buffer(entry: Operation, side: int) -> str:
    """Return how large a buffer (0 send, 1 receive) is and on which ranks, in words."""
    size = RANKS[-1]
    lengths = []
    for rank in range(size):
        shape = Shape(rank=rank, size=size, elements=MESSAGE, root=ROOT)
        lengths.append(entry.counts(shape)[side])
    holders = tuple(rank for rank, length in enumerate(lengths) if length)
    if not holders:
        return ""
    amount = {MESSAGE: "S", MESSAGE // size: "S/n"}[lengths[holders[0]]]
    where = {
        tuple(range(size)): "",
        (ROOT,): " at the root",
        (0,): " at the first rank",
        (size - 1,): " at the last rank",
        (0, size - 1): " at both ends",
    }
    return amount + where[holders]
