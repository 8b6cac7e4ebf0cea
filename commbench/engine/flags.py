"""The flags: warnings that a record or a row of results carries, for collectives and for
training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from commbench.errors import InputError

Severity = Literal["high", "medium", "low"]
"""When a report's first screen names a flag: high always, medium if most rows have it, low
never."""

_SEPARATOR = ";"
#: The contents of ``harness_us``, in words.
OVERHEAD = "time of commbench's loop around an empty call"


@dataclass(frozen=True)
class Flag:
    """One warning; `commbench.words` has what is said of rows with it."""

    name: str
    """How records and CSV cells spell it."""
    mark: str
    """The character that tables show."""
    meaning: str
    remedy: str = ""
    """What a user can do."""
    severity: Severity = "low"
    priority: int = 0
    """Position among the flags of a report's first screen, 1 first; 0 for low severity."""
    is_training_only: bool = False
    is_noise: bool = False
    """Whether it reports noise of the machine: several of these are one warning."""

    @property
    def gravity(self) -> int:
        """Its position among warnings, the gravest first; flags of low severity come last."""
        return self.priority or len(FLAGS)

    @property
    def description(self) -> str:
        """Meaning and remedy in one line."""
        return f"{self.meaning}: {self.remedy}" if self.remedy else self.meaning


#: All flags by name, in the order of a CSV cell.
FLAGS: Mapping[str, Flag] = {
    flag.name: flag
    for flag in (
        Flag(
            "one_launch",
            "1",
            "the interval is within one launch only; launches differ more",
            remedy="run it again with the same --out",
            severity="high",
            priority=8,
        ),
        Flag(
            "few_launches",
            "f",
            "fewer than 6 launches, so the interval is wide and assumes log-normal launches",
            remedy="add launches, 6 at least",
            severity="medium",
            priority=9,
        ),
        Flag(
            "ci_wide",
            "w",
            "the interval is wider than the budget's target",
            remedy="use more launches, or use a quieter machine",
            severity="medium",
            priority=14,
            is_noise=True,
        ),
        Flag(
            "bimodal",
            "b",
            "times are bimodal within a launch; the median lies between the modes",
            severity="medium",
            priority=15,
            is_noise=True,
        ),
        Flag(
            "bimodal_launches",
            "B",
            (
                "launches are bimodal; the library or the system chose differently from launch to"
                " launch"
            ),
            severity="medium",
            priority=11,
            is_noise=True,
        ),
        Flag(
            "unsteady",
            "u",
            "times drifted within a launch",
            severity="medium",
            priority=16,
            is_noise=True,
        ),
        Flag(
            "oversubscribed",
            "o",
            "more ranks than CPUs took turns; this is no measure of the interconnect",
            severity="high",
            priority=4,
        ),
        Flag(
            "late",
            "l",
            "more than a fifth of the repetitions started late and were dropped",
            severity="medium",
            priority=17,
            is_noise=True,
        ),
        Flag(
            "clock",
            "c",
            "the error of the ranks' clocks exceeds a tenth of the time",
            remedy="use --sync dissemination",
            severity="high",
            priority=7,
        ),
        Flag(
            "harness",
            "h",
            f"{OVERHEAD} (harness_us) is more than 5 % of the time",
            severity="medium",
            priority=13,
        ),
        Flag(
            "unverified",
            "v",
            "the result could not be verified",
            severity="high",
            priority=3,
        ),
        Flag(
            "slowest_group",
            "S",
            "this group was the slowest of the groups that ran at the same time",
            remedy="see below its table",
        ),
        Flag(
            "imported",
            "i",
            (
                "another tool's figure: no raw repetitions, no interval, time as that tool"
                " defines it"
            ),
            remedy="import more than one of its outputs",
        ),
        Flag(
            "emulated",
            "e",
            ("hosts and links were emulated on one machine: only the rate of the links is real"),
            severity="high",
            priority=5,
        ),
        Flag(
            "shared_gpu",
            "g",
            "ranks share one physical GPU; this is no measure of the interconnect",
            severity="high",
            priority=6,
        ),
        Flag(
            "throttled",
            "T",
            (
                "a GPU was slowed down around the case; clocks.slowed_by in samples.jsonl names the"
                " cause"
            ),
            severity="medium",
            priority=10,
        ),
        Flag(
            "in_cache",
            "C",
            "buffers took turns, but all of them together fit into the cache",
            severity="medium",
            priority=18,
        ),
        Flag(
            "small_window",
            "W",
            "fewer messages in flight than OSU has (window), as more take too long",
            remedy="use a larger budget",
        ),
        Flag(
            "brief",
            "r",
            "few repetitions in each launch, as one takes long",
            remedy="use a larger budget",
        ),
        Flag(
            "layout",
            "L",
            (
                "DDP's buckets differ from those that its rule predicts: gradients come in another"
                " order"
            ),
            is_training_only=True,
        ),
        Flag(
            "traffic",
            "t",
            (
                "the bytes sent differ from theory by more than 5 %: the hook does not do what it"
                " claims"
            ),
            severity="high",
            priority=2,
            is_training_only=True,
        ),
        Flag(
            "drift",
            "d",
            ("the baseline moved by more than 10 % within a launch: the machine is not steady"),
            severity="medium",
            priority=12,
            is_training_only=True,
            is_noise=True,
        ),
        Flag(
            "ranks_differ",
            "!",
            "ranks ended with different parameters: the hook or the workload is wrong",
            severity="high",
            priority=1,
            is_training_only=True,
        ),
        Flag(
            "short",
            "s",
            "fewer than 3 timed steps in a launch",
            remedy="use a larger budget",
            is_training_only=True,
        ),
        Flag(
            "same_layout",
            "=",
            (
                "DDP makes the same buckets as for another bucket size; that measurement stands for"
                " both"
            ),
            is_training_only=True,
        ),
    )
}

#: The flag whose remedy is that of all noise.
NOISE = FLAGS["ci_wide"]
_ORDER = list(FLAGS)


def check_flags(names: Iterable[str]) -> None:
    """Raise if a name is no flag.

    Raises:
        InputError: a name is unregistered.
    """
    unknown = [name for name in names if name not in FLAGS]
    if unknown:
        raise InputError(f"the flag {unknown[0]!r:.40} is unknown to this version of commbench")


def raised_flags(conditions: Mapping[str, bool]) -> tuple[str, ...]:
    """Return the flags whose condition is true, in their order."""
    return tuple(name for name, is_raised in conditions.items() if is_raised)


def join_flags(names: Iterable[str]) -> str:
    """Return the CSV cell of flags: each once, in the order of `FLAGS`."""
    return _SEPARATOR.join(sorted(set(names), key=_ORDER.index))


def split_flags(cell: str) -> list[str]:
    """Return the names of the flags in a CSV cell."""
    return [name for name in cell.split(_SEPARATOR) if name]
