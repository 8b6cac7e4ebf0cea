"""How long a run takes: the estimate before it, the rest of it while it goes on, and keeping to a time limit."""

from __future__ import annotations

from dataclasses import dataclass, field

from commbench.stats.budgets import Budget

#: What is assumed until it has been measured, in seconds: starting a launch; per case, everything but measuring.
STARTUP_S = 3.0
OTHER_S = 0.05
#: Below this a case's time slice holds too few repetitions to be worth a launch.
SHORTEST_SLICE_S = 0.02
#: Kept free at the end of a time limit, for the last launch to leave and for the summary.
LEAVING_S = 1.0


def dry_run_estimate(slices: float, budget: Budget, launches: int) -> float:
    """Seconds that a run takes at most if the cases of every launch use up so many whole time slices."""
    return launches * (STARTUP_S + slices * (budget.slice_s + budget.energy_s + OTHER_S))


@dataclass(kw_only=True)
class TimePlan:
    """Shares the time of a run out among launches and cases, and learns from the launches that are over.

    All times are in seconds; ``now`` is of any steady clock and the same for all methods. Cases are counted by the
    time slices that they may take (see `commbench.launch.plan.RunRequest.slices`).
    """

    budget: Budget
    begun: float
    limit_s: float | None = None
    whole_limit_s: float | None = None
    """The limit of what is begun with ``whole``; None: ``limit_s``."""
    startup_s: float = field(default=STARTUP_S, init=False)
    per_slice_s: float | None = field(default=None, init=False)
    other_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.other_s = OTHER_S + self.budget.energy_s

    def learn(self, *, startup_s: float, seconds: float, measuring_s: float, slices: float) -> None:
        """Take over what a finished launch of so many ``slices`` took in all, before and while measuring."""
        self.startup_s = startup_s
        if slices:
            self.per_slice_s = max(0.0, seconds - startup_s) / slices
            self.other_s = max(0.0, seconds - startup_s - measuring_s) / slices

    def left_s(self, now: float, *, whole: bool = False) -> float | None:
        """Time left until the limit; None without a limit."""
        limit_s = self.whole_limit_s if whole and self.whole_limit_s is not None else self.limit_s
        return None if limit_s is None else self.begun + limit_s - LEAVING_S - now

    def slice_s(self, now: float, *, slices: float, launches: int, whole: bool = False) -> float | None:
        """How long a time slice is where ``launches`` launches have still to measure so many ``slices`` together.

        (time left - launches * start-up) / slices, less what a case costs beside measuring; never more than the
        budget's slice, and None, which means the budget's, without a limit.
        """
        left = self.left_s(now, whole=whole)
        if left is None or not slices:
            return None
        share = (left - launches * self.startup_s) / slices - self.other_s
        return min(self.budget.slice_s, max(SHORTEST_SLICE_S, share))

    def fits(self, now: float, *, slices: float, whole: bool = False, slice_s: float | None = None) -> bool:
        """Whether a launch of so many slices would end before the limit.

        ``slice_s`` is how long they are where that is fixed; None: they may be as short as any.
        """
        left = self.left_s(now, whole=whole)
        shortest = SHORTEST_SLICE_S if slice_s is None else slice_s
        return left is None or left >= self.startup_s + slices * (shortest + self.other_s)

    def deadline_s(self, now: float, *, whole: bool = False) -> float | None:
        """How long after its ranks have come together a launch that is started now may begin cases."""
        left = self.left_s(now, whole=whole)
        return None if left is None else max(0.0, left - self.startup_s)

    def eta_s(self, now: float, *, slices: float, launches: int, slice_s: float | None = None) -> float:
        """Time until so many slices, of ``slice_s`` where that is fixed, and ``launches`` further starts are done."""
        assumed = self.budget.slice_s if slice_s is None else slice_s
        per_slice = assumed + self.other_s if self.per_slice_s is None else self.per_slice_s
        eta = launches * self.startup_s + slices * per_slice
        left = self.left_s(now)
        return eta if left is None else min(eta, max(0.0, left))
