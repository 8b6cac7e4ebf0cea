"""The conditions of a launch that trains, and the order and the length of its blocks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from commbench.ddp.plan.cases import CONFIRM, TrainingCase


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The conditions of training that all configurations of a launch share."""

    seed: int
    """Seed of the run; launch i draws weights and data from seed + i."""
    block_s: float
    """Approximate duration of a block's timed steps on the baseline, in seconds."""
    blocks: int = 1
    """Blocks of each configuration in a launch, interleaved with the others; see
    `short_blocks`."""
    steps: int | None = None
    """Steps of every block, early ones included; None: the workload's number, else derived from
    ``block_s``."""
    threads: int | None = None
    """Compute threads of a rank; None: a fair share of the cores that the ranks of a host may
    use."""
    file_hooks: tuple[str, ...] = ()
    """The user's own hooks as ``FILE.py:CALLABLE``, with absolute paths."""
    search_s: float | None = None
    """Seconds of a launch that searches: it trains the baseline and the alternatives that are
    left in rounds, see `commbench.tuner.screening`; None: it trains every configuration."""
    withheld: tuple[str, ...] = ()
    """In a search, hooks that may not be recommended: their bucket sizes come last."""


#: The fewest timed steps of a block in a search.
FEWEST_SEARCHED = 3
#: The fewest timed steps of a short block, and the most short blocks of a configuration in a
#: launch.
FEWEST_TIMED, MOST_SHORT_BLOCKS = 2, 32


def short_blocks(steps: int, *, early: int, settling: int) -> list[int]:
    """Return the steps of each short block, untimed ones included, into which the steps of a
    training are divided.

    Args:
        steps: of all blocks together.
        early: untimed steps of the first block.
        settling: untimed steps of each later block.
    """
    most = (steps - early + settling) // (settling + FEWEST_TIMED)
    blocks = min(MOST_SHORT_BLOCKS, max(1, most))
    timed = steps - early - (blocks - 1) * settling
    bounds = [timed * number // blocks for number in range(blocks + 1)]
    lengths = [settling + end - begin for begin, end in itertools.pairwise(bounds)]
    lengths[0] += early - settling
    return lengths


def search_blocks(steps: int, *, early: int, settling: int, rounds: int) -> list[int]:
    """Return the steps of the first and of each later block of a search, untimed ones included.

    A few rounds have as many timed steps as a whole block.

    Args:
        steps: of a whole block.
        early: untimed steps of the first block.
        settling: untimed steps of each later block.
        rounds: that have the timed steps of a whole block.
    """
    timed = max(FEWEST_SEARCHED, (steps - early) // rounds)
    return [early + timed, settling + timed]


def schedule(cases: Sequence[TrainingCase], seed: int, launch: int, blocks: int) -> list[int]:
    """Return the blocks of a launch as indices into ``cases``: ``blocks`` shuffled rounds, each
    case once a round.

    If there is only one round, the baseline (the first case with hook none and default buckets)
    runs at the beginning, in the middle and at the end, to show whether the machine drifts. A
    confirmation has one round only where steps are slow, and spends no more of them on that.
    """
    generator = random.Random(f"{seed}:{launch}")
    rounds = [generator.sample(range(len(cases)), len(cases)) for _ in range(blocks)]
    baselines = [i for i, case in enumerate(cases) if case.is_default]
    watches_drift = blocks == 1 and cases[0].phase != CONFIRM
    if not watches_drift or not baselines or len(cases) == 1:
        return [index for order in rounds for index in order]
    others = [index for index in rounds[0] if index != baselines[0]]
    middle = len(others) // 2
    return [baselines[0], *others[:middle], baselines[0], *others[middle:], baselines[0]]
