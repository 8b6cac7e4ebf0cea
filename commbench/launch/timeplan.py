"""How long a run takes: the estimate before it, the rest of it while it goes on, and keeping to a time limit."""

from __future__ import annotations

from dataclasses import dataclass, field

from commbench.budgets import Budget

#: What is assumed until it has been measured, in seconds: starting a launch; per case, everything but measuring.
STARTUP_S = 3.0
OTHER_S = 0.05
#: Below this a case's time slice holds too few repetitions to be worth a launch.
SHORTEST_SLICE_S = 0.02
#: Kept free at the end of a time limit, for the last launch to leave and for the summary.
LEAVING_S = 1.0


def dry_run_estimate(cases: int, budget: Budget, launches: int) -> float:
    """Seconds that a run takes at most if every case of every launch uses its whole time slice."""
    return launches * (STARTUP_S + cases * (budget.slice_s + OTHER_S))


@dataclass(kw_only=True)
class TimePlan:
    """Shares the time of a run out among launches and cases, and learns from the launches that are over.

    All times are in seconds; ``now`` is of any steady clock and the same for all methods.
    """

    budget: Budget
    begun: float
    limit_s: float | None = None
    startup_s: float = field(default=STARTUP_S, init=False)
    per_case_s: float | None = field(default=None, init=False)
    other_s: float = field(default=OTHER_S, init=False)

    def learn(self, *, startup_s: float, seconds: float, measuring_s: float, cases: int) -> None:
        """Take over what a finished launch of ``cases`` cases took in all, before and while measuring."""
        self.startup_s = startup_s
        if cases:
            self.per_case_s = max(0.0, seconds - startup_s) / cases
            self.other_s = max(0.0, seconds - startup_s - measuring_s) / cases

    def left_s(self, now: float) -> float | None:
        """Time left until the limit; None without a limit."""
        return None if self.limit_s is None else self.begun + self.limit_s - LEAVING_S - now

    def slice_s(self, now: float, *, cases: int, launches: int) -> float | None:
        """Time for each of ``cases`` cases that ``launches`` launches have still to measure together.

        (time left - launches * start-up) / cases, less what a case costs beside measuring; never more than the
        budget's slice, and None, which means the budget's, without a limit.
        """
        left = self.left_s(now)
        if left is None or not cases:
            return None
        share = (left - launches * self.startup_s) / cases - self.other_s
        return min(self.budget.slice_s, max(SHORTEST_SLICE_S, share))

    def fits(self, now: float, *, cases: int) -> bool:
        """Whether a launch of ``cases`` cases would end before the limit, each in its shortest slice."""
        left = self.left_s(now)
        return left is None or left >= self.startup_s + cases * (SHORTEST_SLICE_S + self.other_s)

    def deadline_s(self, now: float) -> float | None:
        """How long after its ranks have come together a launch that is started now may begin cases."""
        left = self.left_s(now)
        return None if left is None else max(0.0, left - self.startup_s)

    def eta_s(self, now: float, *, cases: int, launches: int) -> float:
        """Time until ``cases`` cases and the start of ``launches`` further launches are done."""
        per_case = self.budget.slice_s + self.other_s if self.per_case_s is None else self.per_case_s
        eta = launches * self.startup_s + cases * per_case
        left = self.left_s(now)
        return eta if left is None else min(eta, max(0.0, left))
