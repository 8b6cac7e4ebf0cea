"""What `validate_model.py` found: predictions beside measurements, the tuner's choices, the aims,
and all as tables.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rich.table import Table

from commbench.stats import MARGIN
from commbench.tuner.validation import WIDEST, HeldOutPair, Outcome

#: What the model must come to, as shares.
STEP_AIM, SIZE_AIM, GROWTH_AIM, COST_AIM = 0.10, 0.10, 0.20, 0.25


@dataclass(frozen=True, kw_only=True)
class Check:
    """A line of validation.csv: a prediction beside its measurement."""

    part: str
    where: str
    """Scenario, network or run."""
    what: str
    quantity: str
    """``step_ms``, ``speedup``, ``time_us``."""
    predicted: float
    measured: float
    measured_ci_low: float | None = None
    measured_ci_high: float | None = None
    error: float
    used: str
    """``calibrated``, ``held_out`` or, of the sweep's own launches, ``interleaved``."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a scenario showed; shares are of 1."""

    scenario: str
    settings: int
    default_ms: float
    communication: float
    """Share of the default's step in which communication is not hidden."""
    best: str
    gain: float
    """Of the best over the default, by the sweep."""
    gain_ci: tuple[float, float] | None
    """Its 95 % interval over launches; None for one launch."""
    fresh_gain_ci: tuple[float, float] | None
    """That of the same setting in fresh launches; None where it was not measured again."""
    choice: str
    verdict: str
    regret: float
    regret_ci: tuple[float, float] | None
    regret_fair: float | None
    outcome: Outcome
    """Of the choice against the best."""
    steps: int
    exhaustive_steps: int
    step_error: float | None
    """Median error of the step at settings that the tuner's model was not fitted to, measured by
    the sweep."""
    worst_step_error: float | None
    speedup_error: float | None
    interleaved_error: float | None
    """The same of a model fitted to default buckets in the sweep's own launches: without drift
    between two runs."""
    rank_correlation: float | None

    @property
    def gains(self) -> bool:
        """Whether the sweep, or its best in fresh launches, shows that some setting gains more than
        the margin.
        """
        return any(
            interval is not None and interval[0] > MARGIN
            for interval in (self.gain_ci, self.fresh_gain_ci)
        )

    @property
    def cost(self) -> float:
        """Steps of tuning over those of the sweep."""
        return self.steps / self.exhaustive_steps


@dataclass(frozen=True, kw_only=True)
class Aim:
    """What must be shown, and the figure that was found."""

    aim: str
    found: str
    met: bool


@dataclass(kw_only=True)
class Findings:
    """All that was found."""

    checks: list[Check] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)

    def add(
        self, part: str, where: str, quantity: str, used: str, held: Iterable[HeldOutPair]
    ) -> None:
        """Keep predictions."""
        self.checks += [
            Check(
                part=part,
                where=where,
                what=one.what,
                quantity=quantity,
                predicted=one.predicted,
                measured=one.measured,
                measured_ci_low=one.low,
                measured_ci_high=one.high,
                error=one.error,
                used=used,
            )
            for one in held
        ]

    def errors(self, part: str, quantity: str, used: str = "held_out") -> list[float]:
        """Absolute errors of a part's predictions."""
        wanted = part, quantity, used
        return [
            abs(one.error) for one in self.checks if (one.part, one.quantity, one.used) == wanted
        ]

    @cached_property
    def aims(self) -> list[Aim]:
        """The aims of the parts that were measured."""
        return [*self._choices(), *self._errors()]

    def _choices(self) -> Iterable[Aim]:
        if not self.judged:
            return
        counts = Counter(one.outcome for one in self.judged)
        worst = max(self.judged, key=lambda one: one.regret)
        yield Aim(
            aim=(
                f"the tuner's choice is within {MARGIN:.0%} of the exhaustive best, or not shown to"
                f" be slower by an interval of at most {WIDEST:.0%}, in every scenario"
            ),
            found=(
                f"{counts['within']} of {len(self.judged)} within {MARGIN:.0%},"
                f" {counts['not shown']} not shown to be slower, {counts['too noisy']} too noisy to"
                f" tell, {counts['slower']} slower; the largest difference is {worst.regret:.1%}"
                f" ({worst.scenario})"
            ),
            met=not counts["slower"] and not counts["too noisy"],
        )
        dearest = max(self.judged, key=lambda one: one.cost)
        yield Aim(
            aim=(
                f"it takes at most {COST_AIM:.0%} of the exhaustive sweep's steps in every scenario"
            ),
            found=f"at most {dearest.cost:.0%} ({dearest.scenario})",
            met=dearest.cost <= COST_AIM,
        )
        even = [one for one in self.judged if not one.gains]
        kept = [one for one in even if one.verdict == "keep"]
        named = ", ".join(f"{one.scenario}: {one.verdict}" for one in even)
        yield Aim(
            aim=f"where no setting is shown to gain {MARGIN:.0%} it says keep",
            found=(
                f"{len(kept)} of {len(even)} ({named})"
                if even
                else "not shown: there was no such scenario"
            ),
            met=bool(even) and len(kept) == len(even),
        )

    def _errors(self) -> Iterable[Aim]:
        for part, quantity, aim, what in (
            ("scenarios", "step_ms", STEP_AIM, "the step at held-out settings"),
            ("collectives", "time_us", SIZE_AIM, "collectives at unmeasured sizes"),
            (
                "growth",
                "time_us",
                GROWTH_AIM,
                "Gloo all_reduce on more hosts than it was fitted to",
            ),
        ):
            errors = self.errors(part, quantity)
            if errors:
                found = statistics.median(errors)
                text = f"{found:.1%} over {len(errors)} predictions, the largest {max(errors):.0%}"
                yield Aim(
                    aim=f"the median error of {what} is at most {aim:.0%}",
                    found=text,
                    met=found <= aim,
                )


def tables(found: Findings) -> list[Table]:
    """What was found, for people."""
    made: list[Table] = []
    columns: tuple[str, ...]
    if found.judged:
        columns = (
            "scenario",
            "default ms",
            "exposed",
            "best of all",
            "gain",
            "choice",
            "verdict",
            "regret",
            "95 %",
            "",
        )
        made.append(
            _table(
                "The tuner against the exhaustive sweep",
                (*columns, "fair", "steps"),
                map(_chosen, found.judged),
            )
        )
        columns = (
            "scenario",
            "settings",
            "step",
            "largest",
            "speedup",
            "fitted beside",
            "rank correlation",
        )
        made.append(
            _table("Median errors at held-out settings", columns, map(_predicted, found.judged))
        )
    where = list(
        dict.fromkeys((one.part, one.where) for one in found.checks if one.quantity == "time_us")
    )
    cells = []
    for part, place in where:
        errors = [abs(one.error) for one in found.checks if (one.part, one.where) == (part, place)]
        cells.append(
            (place, str(len(errors)), _percent(statistics.median(errors)), _percent(max(errors)))
        )
    if cells:
        made.append(
            _table(
                "Predicted collectives", ("curve", "predictions", "median error", "largest"), cells
            )
        )
    aims = [(aim.aim, aim.found, "met" if aim.met else "NOT met") for aim in found.aims]
    return [*made, _table("Aims", ("aim", "found", ""), aims)]


def _table(title: str, columns: Iterable[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    return table


def _chosen(one: Judged) -> list[str]:
    interval = (
        f"{100 * one.regret_ci[0]:+.0f} {100 * one.regret_ci[1]:+.0f}" if one.regret_ci else ""
    )
    return [
        *(
            one.scenario,
            f"{one.default_ms:.0f}",
            _percent(one.communication),
            one.best,
            _percent(one.gain),
            one.choice,
        ),
        *(one.verdict, _percent(one.regret), interval, one.outcome, _percent(one.regret_fair)),
        f"{one.steps}/{one.exhaustive_steps} {100 * one.cost:.0f} %",
    ]


def _predicted(one: Judged) -> list[str]:
    errors = (one.step_error, one.worst_step_error, one.speedup_error, one.interleaved_error)
    rank = "" if one.rank_correlation is None else f"{one.rank_correlation:.2f}"
    return [one.scenario, str(one.settings), *map(_percent, errors), rank]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"
