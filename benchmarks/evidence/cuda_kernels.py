"""What do a copy, each compression kernel and each hook cost on one GPU?

``cuda_kernels.py`` times, each call after another array has filled the cache:

* copies of several sizes, the yardstick;
* each kernel of top-k;
* int8: encode, combine the shards of two or eight ranks, decode, by CUDA kernels and by torch;
* a DDP step on one rank with each hook, where collectives are copies.

A rate counts the bytes that the work has to move at least. Its share is the rate over that of a
copy of the same size. kernels.csv is written again after each part. It judges nothing; see
``selection.py --gpu`` for the limits that top-k has to meet. It takes about 40 s.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from keeping import add_out, empty_out, end, own_environment, write_facts
from selection import find_gpu, time_on_gpu

from commbench.cli.terminal import make_console

MIB = 2**20
#: Bucket sizes: torch's first bucket, a usual one, torch's default, a large one.
SIZES_MIB = (1, 5, 25, 100)
#: Larger than any GPU's cache; read between two calls.
ELSEWHERE_MIB = 1024
ROUNDS = 9
PROFILED_ROUNDS = 5
#: Bytes an element: gradient, residual, new residual and a byte of
#: int8; that byte and the decoded element.
ENCODE_BYTES, DECODE_BYTES = 13, 5
#: Hooks and their options in a step.
HOOKS: tuple[tuple[str, dict[str, str]], ...] = (
    ("none", {}),
    ("passthrough", {}),
    ("fp16", {}),
    ("int8", {}),
    ("topk", {"density": "0.01"}),
    ("topk", {"density": "0.01", "selection": "exact"}),
    ("powersgd", {"rank": "2"}),
)
#: Layers of 2,048 x 2,048 in a step: 100 million parameters.
LAYERS, WIDTH, BATCH = 24, 2048, 4096
STEPS, WARMUP_STEPS = 30, 12

#: Columns of kernels.csv: part, work, MiB, us, and the bytes moved at least, of which the rate
#: follows.
Row = dict[str, Any]
Tensor = Any


def time_us(call: Callable[[], object], elsewhere: Tensor) -> float:
    """Return the median microseconds of a call by events, the cache filled with something else."""
    return float(np.median(time_on_gpu({"call": call}, elsewhere.amax, ROUNDS)["call"]))


def arrays(mib: int, device: Any) -> tuple[Tensor, Tensor]:
    """Return a gradient and a residual of so many MiB."""
    import torch

    elements = mib * MIB // 4
    return torch.randn(elements, device=device), 3 * torch.randn(elements, device=device)


def copies(elsewhere: Tensor) -> Iterator[Row]:
    """Time copies."""
    import torch

    for mib in SIZES_MIB:
        source, target = arrays(mib, elsewhere.device)
        us = time_us(partial(target.copy_, source), elsewhere)
        yield {"part": "copy", "work": "", "MiB": mib, "us": us, "bytes": 2 * source.nbytes}
    target = torch.empty_like(elsewhere)
    us = time_us(partial(target.copy_, elsewhere), elsewhere)
    moved = 2 * elsewhere.nbytes
    yield {"part": "copy", "work": "", "MiB": ELSEWHERE_MIB, "us": us, "bytes": moved}


def topk(elsewhere: Tensor) -> Iterator[Row]:
    """Time each kernel that selects 1 % of the elements, by the profiler."""
    import torch

    from commbench.hooks.selectors import KERNELS, make_selector

    device = elsewhere.device
    for mib in SIZES_MIB:
        drawn, residual = arrays(mib, device)
        n, k = drawn.numel(), drawn.numel() // 100
        payload = torch.zeros(8 * k, dtype=torch.uint8, device=device)
        selector = make_selector(n, k, "float32", fast=True, device=device)
        gradient = drawn.clone()
        selector.encode(gradient, residual, payload)
        torch.cuda.synchronize()
        activity = torch.profiler.ProfilerActivity.CUDA
        with torch.profiler.profile(activities=[activity]) as profile:
            for _ in range(PROFILED_ROUNDS):
                gradient.copy_(drawn)  # the selection destroys it
                elsewhere.amax()
                selector.encode(gradient, residual, payload)
            torch.cuda.synchronize()
        for event in profile.key_averages():
            if event.key.partition("(")[0] in KERNELS:
                us = event.self_device_time_total / PROFILED_ROUNDS
                yield {"part": "top-k", "work": event.key, "MiB": mib, "us": us}


def int8(elsewhere: Tensor) -> Iterator[Row]:
    """Time the three parts of int8, for shards of two and eight ranks."""
    import torch

    from commbench.hooks.message import QuantisedLayout
    from commbench.hooks.quantisers import TorchQuantiser, make_quantiser

    for mib in SIZES_MIB:
        gradient, residual = arrays(mib, elsewhere.device)
        n = gradient.numel()
        for ranks in (2, 8):
            layout = QuantisedLayout.of(n, shards=ranks, block=256)
            payload = gradient.new_zeros((ranks, layout.row_bytes), dtype=torch.uint8)
            own, decoded = torch.zeros_like(payload[0]), torch.zeros_like(gradient)
            shard = residual[layout.span(0)]
            by_name = {
                "CUDA": make_quantiser(layout, gradient.device),
                "torch": TorchQuantiser(layout),
            }
            for name, of in by_name.items():
                encode = partial(of.encode, gradient, residual, payload)
                combine = partial(of.combine, payload, own, divisor=float(ranks), residual=shard)
                decode = partial(of.decode, payload, decoded)
                calls = {
                    "encode": (encode, ENCODE_BYTES * n),
                    "combine": (combine, (9 + ranks) * layout.shard),
                    "decode": (decode, DECODE_BYTES * n),
                }
                for call, (work, moved) in calls.items():
                    us = time_us(work, elsewhere)
                    title = f"{call}, {ranks} ranks, {name}"
                    yield {"part": "int8", "work": title, "MiB": mib, "us": us, "bytes": moved}


def steps(elsewhere: Tensor) -> Iterator[Row]:
    """Time DDP steps of one rank: what the local work of a hook adds."""
    import torch
    import torch.distributed as dist

    torch.backends.cuda.matmul.allow_tf32 = True
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for hook, options in HOOKS:
            work = ":".join([hook, *options.values()])
            yield {"part": "step", "work": work, "us": step_us(elsewhere.device, hook, options)}
    finally:
        dist.destroy_process_group()


def step_us(device: Any, hook: str, options: dict[str, str]) -> float:
    """Return the median microseconds of forward and backward pass with a hook."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from commbench.hooks import make_hook

    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device), device_ids=[device.index])
    registered = make_hook(hook, options=options)
    if registered is not None:
        registered.register(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(BATCH, WIDTH, device=device)
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


def measure(options: argparse.Namespace) -> int:
    """Time all parts; write and show the rows."""
    import torch

    out = empty_out(options.out, "cuda_kernels")
    name, cache_bytes = find_gpu()
    out.mkdir(parents=True, exist_ok=True)
    facts = {"device": name, "l2_bytes": cache_bytes, "environment": own_environment()}
    write_facts(out / "run.json", "cuda_kernels", facts)
    device = torch.device("cuda", torch.cuda.current_device())
    elsewhere = torch.zeros(ELSEWHERE_MIB * MIB // 4, device=device)
    rows: list[Row] = []
    table = pd.DataFrame()
    for part in (copies, topk, int8, steps):
        rows += part(elsewhere)
        table = pd.DataFrame(rows)
        table["GB/s"] = table["bytes"] / table["us"] / 1e3
        copied = table[table["part"] == "copy"].set_index("MiB")["GB/s"]
        table["of a copy"] = table["GB/s"] / table["MiB"].map(copied)
        table.to_csv(out / "kernels.csv", index=False)
    console = make_console()
    console.print(
        table.drop(columns="bytes").to_string(index=False, na_rep="", float_format="%.3g")
    )
    console.print(f"{name}. Results: {out}", soft_wrap=True)
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
