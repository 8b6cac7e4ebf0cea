"""What do a copy, each compression kernel and each hook cost on one GPU?

``cuda_kernels.py`` times, each call after another array has filled the cache:

* copies of several sizes, the yardstick;
* top-k selection, whole and by kernel, and by ``torch.topk``;
* int8: encode, combine the shards of two or eight ranks, decode, by CUDA kernels and by torch;
* a DDP step on one rank with each hook, where collectives are copies.

A rate counts the bytes that the work has to move at least. Its share is the rate over that of a
copy of the same size. kernels.csv is written again after each part. It judges nothing; see
``selection.py --gpu`` for the limits that top-k has to meet. It takes about 40 s.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from keeping import add_out, empty_out, end, own_environment, write_facts
from rich.table import Table
from selection import find_gpu, time_on_gpu

from commbench.cli.terminal import make_console
from commbench.results.tables import csv_text

MIB = 2**20
#: Bucket sizes: torch's first bucket, a usual one, torch's default, a large one.
SIZES_MIB = (1, 5, 25, 100)
#: Sizes whose kernels are timed one by one.
BY_KERNEL_MIB = (5, 100)
#: Larger than any GPU's cache; read between two calls.
ELSEWHERE_MIB = 1024
ROUNDS = 9
PROFILED_ROUNDS = 5
#: Bytes an element: read and written by a copy; gradient, residual and new residual of top-k;
#: the same and a byte of int8; that byte and the decoded element.
COPY_BYTES, TOPK_BYTES, ENCODE_BYTES, DECODE_BYTES = 8, 12, 13, 5
#: Hooks and their options in a step.
HOOKS: tuple[tuple[str, str | None, dict[str, str]], ...] = (
    ("none", None, {}),
    ("passthrough", "passthrough", {}),
    ("fp16", "fp16", {}),
    ("int8", "int8", {}),
    ("topk", "topk", {"density": "0.01"}),
    ("topk, exact", "topk", {"density": "0.01", "selection": "exact"}),
    ("powersgd", "powersgd", {"rank": "2"}),
)
#: Layers of 2,048 x 2,048 in a step: 100 million parameters.
LAYERS, WIDTH, BATCH = 24, 2048, 4096
STEPS, WARMUP_STEPS = 30, 12


@dataclass(frozen=True, kw_only=True)
class Row:
    """The median time of one piece of work."""

    part: str
    work: str
    mib: int | None
    us: float
    GBps: float | None = None
    share: float | None = None
    """GBps over that of a copy of the same size."""


class Bench:
    """The GPU, and memory that fills its cache."""

    def __init__(self) -> None:
        import torch

        self.device = torch.device("cuda", torch.cuda.current_device())
        self._elsewhere = torch.zeros(ELSEWHERE_MIB * MIB // 4, device=self.device)

    def fill_cache(self) -> None:
        """Read more than the cache holds."""
        self._elsewhere.amax()

    def time_us(
        self, call: Callable[[], object], before: Callable[[], object] = lambda: None
    ) -> float:
        """Return the median microseconds of a call by events."""

        def set_up() -> None:
            before()
            self.fill_cache()

        return float(np.median(time_on_gpu({"call": call}, set_up, ROUNDS)["call"]))

    def arrays(self, mib: int) -> tuple[Any, Any]:
        """Return a gradient and a residual of so many MiB."""
        import torch

        elements = mib * MIB // 4
        gradient = torch.randn(elements, device=self.device)
        return gradient, 3 * torch.randn(elements, device=self.device)

    def kernels_us(self, call: Callable[[], object]) -> dict[str, float]:
        """Return the mean microseconds of each kernel of a call."""
        import torch

        call()
        torch.cuda.synchronize()
        activity = torch.profiler.ProfilerActivity.CUDA
        with torch.profiler.profile(activities=[activity]) as profile:
            for _ in range(PROFILED_ROUNDS):
                call()
            torch.cuda.synchronize()
        return {
            event.key: event.self_device_time_total / PROFILED_ROUNDS
            for event in profile.key_averages()
        }


def copies(bench: Bench) -> Iterator[Row]:
    """Time copies."""
    import torch

    for mib in (*SIZES_MIB, ELSEWHERE_MIB):
        source = torch.zeros(mib * MIB // 4, device=bench.device)
        target = torch.empty_like(source)
        us = bench.time_us(partial(target.copy_, source))
        yield rated("copy", "copy", mib, us, COPY_BYTES * source.numel())


def topk(bench: Bench) -> Iterator[Row]:
    """Time the selection of 1 % of the elements."""
    import torch

    from commbench.hooks.selectors import make_selector

    for mib in SIZES_MIB:
        gradient, residual = bench.arrays(mib)
        elements = gradient.numel()
        fresh = gradient.clone(), residual.clone()
        payload = torch.zeros(8 * (elements // 100), dtype=torch.uint8, device=bench.device)

        restore = partial(_restore, (gradient, residual), fresh)
        for name, is_fast in (("CUDA", True), ("torch.topk", False)):
            selector = make_selector(
                elements, elements // 100, "float32", fast=is_fast, device=bench.device
            )

            call = partial(
                selector.encode, gradient, residual, payload, out_residual=residual, step=1
            )
            us = bench.time_us(call, restore)
            yield rated("topk", name, mib, us, TOPK_BYTES * elements)
            if mib in BY_KERNEL_MIB:
                for kernel, kernel_us in bench.kernels_us(call).items():
                    yield Row(part="topk", work=f"{name}: {kernel}", mib=mib, us=kernel_us)


def _restore(tensors: Iterable[Any], before: Iterable[Any]) -> None:
    for tensor, old in zip(tensors, before, strict=True):
        tensor.copy_(old)


def int8(bench: Bench) -> Iterator[Row]:
    """Time the three parts of int8, for shards of two and eight ranks."""
    for mib in SIZES_MIB:
        gradient, residual = bench.arrays(mib)
        for ranks in (2, 8):
            yield from _quantisers(bench, mib, ranks, gradient, residual)


def _quantisers(
    bench: Bench,
    mib: int,
    ranks: int,
    gradient: Any,  # noqa: ANN401 - a tensor
    residual: Any,  # noqa: ANN401 - a tensor
) -> Iterator[Row]:
    import torch

    from commbench.hooks.message import QuantisedLayout
    from commbench.hooks.quantisers import TorchQuantiser, make_quantiser

    elements = gradient.numel()
    layout = QuantisedLayout.of(elements, shards=ranks, block=256)
    payload = torch.zeros((ranks, layout.row_bytes), dtype=torch.uint8, device=gradient.device)
    own, decoded = torch.zeros_like(payload[0]), torch.zeros_like(gradient)
    shard = residual[layout.span(0)]
    for name, quantiser in (
        ("CUDA", make_quantiser(layout, gradient.device)),
        ("torch", TorchQuantiser(layout)),
    ):
        encode = partial(quantiser.encode, gradient, residual, payload, out_residual=residual)
        combine = partial(quantiser.combine, payload, own, divisor=float(ranks), residual=shard)
        decode = partial(quantiser.decode, payload, decoded)
        calls = {
            "encode": (ENCODE_BYTES * elements, encode),
            "combine": ((9 + ranks) * layout.shard, combine),
            "decode": (DECODE_BYTES * elements, decode),
        }
        for call, (moved_bytes, work) in calls.items():
            us = bench.time_us(work)
            yield rated("int8", f"{call}, {ranks} ranks, {name}", mib, us, moved_bytes)


def steps(bench: Bench) -> Iterator[Row]:
    """Time DDP steps of one rank: what the local work of a hook adds."""
    import torch
    import torch.distributed as dist

    torch.backends.cuda.matmul.allow_tf32 = True
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for name, hook, options in HOOKS:
            us = _step_us(bench, hook, options)
            yield Row(part="step of one rank", work=name, mib=None, us=us)
    finally:
        dist.destroy_process_group()


def _step_us(bench: Bench, hook: str | None, options: dict[str, str]) -> float:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from commbench.hooks import make_hook

    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = DistributedDataParallel(
        nn.Sequential(*layers).to(bench.device), device_ids=[bench.device.index]
    )
    registered = make_hook(hook, options=options) if hook else None
    if registered is not None:
        registered.register(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(BATCH, WIDTH, device=bench.device)
    times_us = []
    for number in range(STEPS):
        optimizer.zero_grad()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        model(data).square().mean().backward()
        last.record()
        optimizer.step()
        torch.cuda.synchronize()
        if number >= WARMUP_STEPS:
            times_us.append(1e3 * first.elapsed_time(last))
    if registered is not None:
        registered.close()
    return float(np.median(times_us))


def rated(part: str, work: str, mib: int, us: float, moved_bytes: int) -> Row:
    """Return the row of work that has to move so many bytes."""
    return Row(part=part, work=work, mib=mib, us=us, GBps=moved_bytes / us / 1e3)


def shared(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with their shares of a copy's rate."""
    copied = {row.mib: row.GBps for row in rows if row.part == "copy"}
    with_shares = []
    for row in rows:
        rate = copied.get(row.mib)
        if row.GBps and rate:
            with_shares.append(replace(row, share=row.GBps / rate))
        else:
            with_shares.append(row)
    return with_shares


def build_table(rows: Sequence[Row]) -> Table:
    """Return the rows for people."""
    table = Table(box=None, pad_edge=False)
    for name in ("part", "work"):
        table.add_column(name, no_wrap=name == "part")
    for name in ("MiB", "us", "GB/s", "share of a copy's"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        size = f"{row.mib}" if row.mib else ""
        rate = f"{row.GBps:.0f}" if row.GBps else ""
        share = f"{row.share:.2f}" if row.share else ""
        table.add_row(row.part, row.work, size, f"{row.us:.1f}", rate, share)
    return table


def write_rows(file: Path, rows: Sequence[Row]) -> None:
    """Write all rows so far."""
    file.write_text(csv_text(rows, [field.name for field in fields(Row)]), encoding="utf-8")


def measure(options: argparse.Namespace) -> int:
    """Time all parts; write and show the rows."""
    out = empty_out(options.out, "cuda_kernels")
    device, cache_bytes = find_gpu()
    out.mkdir(parents=True, exist_ok=True)
    facts = {"device": device, "l2_bytes": cache_bytes, "environment": own_environment()}
    write_facts(out / "run.json", "cuda_kernels", facts)
    bench = Bench()
    rows: list[Row] = []
    for part in (copies, topk, int8, steps):
        rows = shared([*rows, *part(bench)])
        write_rows(out / "kernels.csv", rows)
    console = make_console()
    console.print(build_table(rows))
    console.print(f"{device}. Results: {out}", soft_wrap=True)
    return 0


def main() -> None:
    """Read the command line and leave with the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_out(parser, "cuda_kernels")
    options = parser.parse_args()
    end("cuda_kernels", lambda: measure(options))


if __name__ == "__main__":
    main()
