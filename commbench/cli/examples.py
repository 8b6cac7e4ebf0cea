"""Examples of each command, which end its help and stand in docs/commands.md."""

from __future__ import annotations

from typing import Any

#: Command lines, each with its purpose below it.
_TEXT = """
commbench bench
    this machine: collectives of 8 B to 16 MiB, then DDP training
commbench bench -n 8 --hostfile hosts
    a cluster, by mpirun
commbench bench --time-limit 300 --out results/mine
    in five minutes, into a directory of your choice
commbench run collectives
    a suite: collectives, p2p, patterns, matrix, or a Python file
commbench run -c all_reduce --sizes 8:64M --backend mpi --dtype float32,bfloat16
    one operation
commbench run -c all_reduce --sizes 1M --cadence isolated,pipelined --buffers hot,rotated
    cache, queue
commbench run -c all_reduce --pattern node,cross,hierarchical --hostfile hosts
    within hosts and across
commbench run -c all_reduce -n 8 --world-sizes 2,4,8
    time over the number of ranks
commbench run --backend nccl --env NCCL_ALGO=Ring,Tree,default
    which value of a variable is faster
commbench run matrix --hostfile hosts
    every pair of ranks: which host or link is slow
commbench run -c all_reduce --sizes 64K --soak 2h
    for hours: spikes, failures and drift, with times
commbench train --workload resnet18 --bucket-cap-mb default,5,25 --hook none,fp16
    every combination
commbench train --workload digits --hook none,topk:0.01 --max-accuracy-loss 0.01
    with a limit to the loss
commbench train --workload my_training.py:workload
    your own model
commbench tune -- torchrun --nproc-per-node 8 train.py
    your training while it runs, buckets only
commbench tune --allow none,fp16 -- torchrun --nproc-per-node 8 train.py
    FP16 gradients may be tried
commbench tune --workload my_training.py:workload
    a workload, without measuring every setting
commbench watch -- torchrun --nproc-per-node 8 train.py
    forward, backward, waiting, per rank
commbench predict results/mine --world-size 8:1024
    collectives and steps on more ranks
commbench predict results/mine --world-size 8 --rate measured,100gbit
    the same on another link
commbench compare results/monday results/friday
    what became faster or slower
commbench compare results/good results/friday --threshold 5% --out comparison.html
    for a CI job
commbench compare --until-decided -- 'run -c all_reduce' 'NCCL_ALGO=Ring run -c all_reduce'
    measures both in turn until a verdict
commbench check results/mine --expect 'all_reduce@16M: busbw >= 0.8*link' --link 25gbit
    is it good?
commbench check results/mine --expect benchmarks/accept_node.expect --json
    for a program
commbench check --expect 'latency@8[backend=mpi]: time <= 3us' -n 2
    measures what it needs, then judges
commbench report results/mine
    the table again, and a page
commbench report results/monday results/friday
    both on one page
commbench report results/mine --format nccl-tests
    or osu: for parsers that exist
commbench export results/mine --format openmetrics
    or parquet, tensorboard, mlflow, wandb
commbench export results/mine --format openmetrics --expect benchmarks/accept_node.expect
    also which expectations are met
commbench import nccl.txt -n 8 --out results/theirs
    the ranks, where the file does not state them
commbench env
    hosts, versions and variables, with advice
commbench env --topology
    NUMA nodes, GPUs, adapters and their links
commbench lab run --rate 1gbit -- commbench bench
    two emulated hosts for one command
commbench lab run --hosts 4 --rate 200mbit -- commbench train --hook none,topk:0.01
    four hosts
commbench lab up --hosts 4 --rate 1gbit --slow host3=250mbit
    hosts that stay
commbench lab exec -- commbench run -c bandwidth --sizes 1M
    a command on its hosts
commbench lab status
    hosts, links, processes
commbench lab link host2 down
    cut a link while a program runs
commbench lab down
    remove the hosts
"""


def _by_command() -> dict[str, list[tuple[str, str]]]:
    examples: dict[str, list[tuple[str, str]]] = {}
    lines = _TEXT.strip().splitlines()
    for line, purpose in zip(lines[::2], lines[1::2], strict=True):
        _, name, more, *_ = [*line.split(), ""]
        if name == "lab":
            name = f"lab {more}"
        examples.setdefault(name, []).append((line, purpose.strip()))
    return examples


#: By the words of a command: command lines, each with its purpose.
EXAMPLES = _by_command()


def add_examples(command: Any, *words: str) -> None:
    """End the help of a command, or of each command of a group, with its examples.

    Args:
        command: the command or the group.
        words: by which it is called.
    """
    for name, each in getattr(command, "commands", {}).items():
        add_examples(each, *words, name)
    examples = EXAMPLES.get(" ".join(words), ())
    if examples:
        # click wraps no paragraph that begins with this mark
        lines = ["\b", "Examples:", *(f"  {line}\n      {purpose}" for line, purpose in examples)]
        command.epilog = "\n\n".join(filter(None, [command.epilog, "\n".join(lines)]))
