"""How good predictions and a tuner's choice are, held against everything measured: errors, order and regret."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from commbench.analysis.prediction.larger import GrowingNetwork, MeasuredRun
from commbench.analysis.prediction.network import CurveKey, NetworkModel
from commbench.ddp.plan.cases import SWEEP, TrainingCase, baseline_of
from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.records import Record
from commbench.errors import InputError
from commbench.results.info import RunInfo
from commbench.results.recommendation import Recommendation, setting_of
from commbench.results.trained import Trained, speedup_of, trained
from commbench.stats import MARGIN, Interval
from commbench.tuner.decision import INSTRUMENTS
from commbench.tuner.effort import exhaustive_steps

#: An interval of a ratio that is wider excludes nothing worth excluding: nothing was shown by it.
WIDEST = 0.20
#: Of a choice: ``within`` 2 % of the best; more, but ``not shown`` to be slower by an interval that would show 20 %;
#: shown to be ``slower``; or ``too noisy`` to tell.
Outcome = Literal["within", "not shown", "slower", "too noisy"]


@dataclass(frozen=True, kw_only=True)
class Held:
    """A prediction beside its measurement."""

    what: str
    predicted: float
    measured: float
    low: float | None = None
    """The measurement's 95 % interval over launches."""
    high: float | None = None

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted / self.measured - 1


def median_error(held: Iterable[Held]) -> float | None:
    """The median absolute relative error; None of nothing."""
    errors = [abs(one.error) for one in held]
    return statistics.median(errors) if errors else None


def rank_correlation(held: Sequence[Held]) -> float | None:
    """Spearman's: how alike predictions and measurements are ordered, 1 if equally; None for fewer than three."""
    if len(held) < 3:  # noqa: PLR2004 - two are always in order, or never
        return None
    import pandas as pd  # takes long to load, and only this needs it

    predicted, measured = (pd.Series([getattr(one, name) for one in held]) for name in ("predicted", "measured"))
    if predicted.min() == predicted.max() or measured.min() == measured.max():
        return None
    return float(predicted.rank().corr(measured.rank()))


# -------------------------------------------------------------------------------------------------------- the tuner


@dataclass(frozen=True, kw_only=True)
class Regret:
    """How much slower a choice is than the best of an exhaustive sweep; each a ratio of steps less 1."""

    against_best: float
    """The sweep's fastest setting; by the launches that made it that, luck is in it: an upper bound."""
    interval: Interval | None
    """Its 95 % interval over launches, as ratios; None for one launch or where the choice is the best."""
    fair: float | None
    """In each launch against the setting that was fastest in the others, the median; None for one launch."""

    @property
    def outcome(self) -> Outcome:
        """What it shows; see `Outcome`."""
        if self.against_best <= MARGIN:
            return "within"
        if self.interval is not None and self.interval.low > 1:
            return "slower"
        is_wide = self.interval is None or self.interval.high - self.interval.low > WIDEST
        return "too noisy" if is_wide else "not shown"


@dataclass(frozen=True, kw_only=True)
class Exhaustive:
    """What a sweep over all candidates measured."""

    settings: Mapping[TrainingCase, Trained]
    """Those that ended well."""
    same_layout: Mapping[TrainingCase, TrainingCase]
    """Settings that were not measured because another makes the same buckets."""

    @classmethod
    def of(cls, records: Iterable[TrainingRecord], info: RunInfo) -> Exhaustive:
        """Read it from a run of ``commbench train``.

        Raises:
            InputError: the default was not measured well.
        """
        known = trained(records, SWEEP).values()
        settings = {one.case: one for one in known if one.is_ok and one.case.hook not in INSTRUMENTS}
        same = {
            TrainingCase.from_key(own): TrainingCase.from_key(kept)
            for own, kept in (info.get("same_layout") or {}).items()
        }
        if not settings or baseline_of(list(settings)) not in settings:
            raise InputError("The sweep has no sound measurement of DDP's default; measure it again.")
        return cls(settings=settings, same_layout=same)

    @property
    def baseline(self) -> Trained:
        """DDP's default."""
        return self.settings[baseline_of(list(self.settings))]

    def find(self, case: TrainingCase) -> Trained:
        """A setting, or the one with its buckets.

        Raises:
            InputError: it was not measured.
        """
        case = dataclasses.replace(case, phase=SWEEP)
        found = self.settings.get(self.same_layout.get(case, case))
        if found is None:
            raise InputError(f"The sweep has not measured {case}, which was chosen; measure the same settings.")
        return found

    @property
    def best(self) -> Trained:
        """The fastest, by the median over launches of its speedup over the default in the same launch."""
        return max(self.settings.values(), key=self._speedup)

    @property
    def gain(self) -> float:
        """The best's speedup over the default, less 1."""
        return self._speedup(self.best) - 1

    @property
    def gain_interval(self) -> Interval | None:
        """Its 95 % interval over launches, as a ratio of steps; None for one launch or where the default is best."""
        speedup = speedup_of(self.best, self.baseline) if self.best is not self.baseline else None
        return speedup.interval if speedup else None

    @property
    def steps(self) -> int:
        """What measuring these settings takes, as a tuning counts it."""
        return exhaustive_steps([record for one in self.settings.values() for record in one.timed.values()], {})

    def regret(self, choice: TrainingCase, fresh: Exhaustive | None = None) -> Regret:
        """How much slower a setting is than the best.

        Args:
            choice: the setting.
            fresh: both again, in launches that did not make the best what it is.

        Raises:
            InputError: it was not measured.
        """
        chosen, best = self.find(choice), self.best
        pair = (best, chosen) if fresh is None else (fresh.find(best.case), fresh.find(chosen.case))
        speedup = speedup_of(*pair) if best is not chosen else None
        return Regret(
            against_best=speedup.ratio - 1 if speedup else 0.0,
            interval=speedup.interval if speedup else None,
            fair=self._fair(chosen),
        )

    def _speedup(self, one: Trained, launches: Iterable[int] | None = None) -> float:
        """Over the default, the median over launches."""
        chosen = set(self.baseline.steps_ms if launches is None else launches) & one.steps_ms.keys()
        ratios = [
            self.baseline.steps_ms[launch] / one.steps_ms[launch] for launch in chosen & self.baseline.steps_ms.keys()
        ]
        return statistics.median(ratios) if ratios else -math.inf

    def _fair(self, chosen: Trained) -> float | None:
        """See `Regret.fair`."""
        launches = chosen.steps_ms.keys() & self.baseline.steps_ms.keys()
        ratios = []
        for launch in launches:
            others = launches - {launch}
            present = [one for one in self.settings.values() if launch in one.steps_ms]
            if others and present:
                best = max(present, key=lambda one: self._speedup(one, others))
                ratios.append(chosen.steps_ms[launch] / best.steps_ms[launch])
        return statistics.median(ratios) - 1 if ratios else None


def choice_of(recommendation: Recommendation, baseline: TrainingCase) -> TrainingCase:
    """The setting that a person is told to use: the best if it shall be changed, else the default."""
    if recommendation.verdict != "change":
        return baseline
    return dataclasses.replace(baseline, **setting_of(recommendation.best))


def held_steps(sweep: Exhaustive, predicted_ms: Mapping[TrainingCase, float]) -> dict[TrainingCase, Held]:
    """Predicted steps beside those that the sweep measured, in milliseconds; of settings that it did not, nothing."""
    found = {}
    for case, step_ms in predicted_ms.items():
        one = sweep.settings.get(dataclasses.replace(case, phase=SWEEP))
        if one is not None:
            interval = one.step_interval
            found[case] = Held(
                what=str(case),
                predicted=step_ms,
                measured=statistics.median(one.steps_ms.values()),
                low=interval.low if interval else None,
                high=interval.high if interval else None,
            )
    return found


def held_speedups(sweep: Exhaustive, predicted_ms: Mapping[TrainingCase, float]) -> dict[TrainingCase, Held]:
    """Predicted speedups over the default beside measured ones; effects on a whole launch cancel out."""
    base = predicted_ms[sweep.baseline.case]
    found = {}
    for case, step_ms in predicted_ms.items():
        one = sweep.settings.get(dataclasses.replace(case, phase=SWEEP))
        speedup = speedup_of(one, sweep.baseline) if one is not None else None
        if speedup is not None and one is not sweep.baseline:
            found[case] = Held(what=str(case), predicted=base / step_ms, measured=speedup.ratio)
    return found


# ------------------------------------------------------------------------------------------------------ the network


def held_sizes(records: Sequence[Record]) -> dict[CurveKey, list[Held]]:
    """Times of collectives at every other message size, in microseconds, predicted from the sizes between them.

    The smallest and the largest are never left out: what is not between measured sizes is another question.
    """
    measured = NetworkModel.fit(records)
    found: dict[CurveKey, list[Held]] = {}
    for key, curve in measured.curves.items():
        left_out = set(list(curve.sizes)[1:-1:2])
        kept = NetworkModel.fit(r for r in records if r.case.message_bytes not in left_out)
        if key in kept.curves:
            found[key] = [
                Held(what=f"{size} B", predicted=kept.curves[key].time_us(size), measured=time_us)
                for size, time_us in zip(curve.sizes, curve.times_us, strict=True)
                if size in left_out
            ]
    return found


def held_ranks(
    records: Sequence[Record], info: RunInfo, largest: int, *, has_shared_cores: bool = True
) -> dict[tuple[CurveKey, int], Held]:
    """Times of collectives on more than ``largest`` ranks, in microseconds, predicted from those on at most so many.

    Args:
        records: of a scaling study.
        info: as its ``run.json`` holds it.
        largest: most ranks that predictions may be made from.
        has_shared_cores: whether all ranks share one machine's cores, as in an emulated cluster.
    """
    model = NetworkModel.fit(records)
    network = growing_up_to(records, info, largest)
    found = {}
    for key, curve in model.curves.items():
        if key.world_size > largest:
            there = network.at(key.backend, key.world_size, pattern=key.pattern, has_shared_cores=has_shared_cores)
            for size, time_us in zip(curve.sizes, curve.times_us, strict=True):
                predicted = there.time_us(key.operation, key.dtype, size)
                found[key, size] = Held(what=f"{key}, {size} B", predicted=predicted, measured=time_us)
    return found


def growing_up_to(records: Sequence[Record], info: RunInfo, largest: int) -> GrowingNetwork:
    """The network as it grows, fitted to what was measured on so many ranks at most."""
    few = NetworkModel.fit(records)
    curves = {key: curve for key, curve in few.curves.items() if key.world_size <= largest}
    return GrowingNetwork.fit([MeasuredRun(model=dataclasses.replace(few, curves=curves), records=records, info=info)])
