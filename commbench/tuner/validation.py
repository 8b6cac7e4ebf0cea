"""Validation of predictions and of a tuner's choice against an exhaustive sweep: errors, order and
regret.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from commbench.analysis.prediction.law import Family, ForecastNetwork, MeasuredRun, Place
from commbench.analysis.prediction.network import CurveKey, NetworkModel
from commbench.ddp.plan.cases import SWEEP, TrainingCase, baseline_of, blocks_of_sweep
from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.records import Record
from commbench.errors import InputError
from commbench.results.info import RunInfo
from commbench.results.recommendation import Recommendation, setting_of
from commbench.results.trained import Trained, speedup_of, trained
from commbench.stats import MARGIN, Interval
from commbench.tuner.decision import INSTRUMENTS
from commbench.tuner.effort import steps_of

#: An interval of a ratio wider than this shows nothing.
WIDEST = 0.20
#: Of a choice: ``within`` 2 % of the best; slower, but ``not shown`` by an interval narrower than
#: `WIDEST`; shown to be ``slower``; or ``too noisy`` to decide.
Outcome = Literal["within", "not shown", "slower", "too noisy"]


@dataclass(frozen=True, kw_only=True)
class HeldOutPair:
    """A prediction and its measurement."""

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


def median_error(pairs: Iterable[HeldOutPair]) -> float | None:
    """Return the median absolute relative error; None without pairs."""
    errors = [abs(pair.error) for pair in pairs]
    return statistics.median(errors) if errors else None


def rank_correlation(pairs: Sequence[HeldOutPair]) -> float | None:
    """Return Spearman's rank correlation of predictions and measurements.

    None for fewer than three.
    """
    if len(pairs) < 3:  # noqa: PLR2004 - two pairs have a correlation of 1 or -1
        return None
    import pandas as pd  # slow to import

    predicted, measured = (
        pd.Series([getattr(pair, name) for pair in pairs]) for name in ("predicted", "measured")
    )
    if predicted.min() == predicted.max() or measured.min() == measured.max():
        return None
    return float(predicted.rank().corr(measured.rank()))


# ---------------------------------------------------------------------------------------- the tuner


@dataclass(frozen=True, kw_only=True)
class Regret:
    """How much slower a choice is than the best of an exhaustive sweep; ratios of steps, less 1."""

    against_best: float
    """Against the sweep's fastest setting; biased upwards, because the same launches selected
    that setting."""
    interval: Interval | None
    """Its 95 % interval over launches, as ratios; None for one launch or if the choice is the
    best."""
    fair: float | None
    """Cross-validated: in each launch, against the fastest setting of the other launches;
    median; None for one launch."""

    @property
    def outcome(self) -> Outcome:
        """The conclusion; see `Outcome`."""
        if self.against_best <= MARGIN:
            return "within"
        if self.interval is not None and self.interval.low > 1:
            return "slower"
        is_wide = self.interval is None or self.interval.high - self.interval.low > WIDEST
        return "too noisy" if is_wide else "not shown"


@dataclass(frozen=True, kw_only=True)
class Exhaustive:
    """Measurements of a sweep over all candidates."""

    settings: Mapping[TrainingCase, Trained]
    """The valid settings."""
    same_layout: Mapping[TrainingCase, TrainingCase]
    """Settings that were not measured, by the one that has the same buckets."""

    @classmethod
    def of(cls, records: Iterable[TrainingRecord], info: RunInfo) -> Exhaustive:
        """Return the sweep of a run of ``commbench train``.

        Raises:
            InputError: the default has no valid measurement.
        """
        settings_of_sweep = trained(records, SWEEP).values()
        settings = {
            setting.case: setting
            for setting in settings_of_sweep
            if setting.is_ok and setting.case.hook not in INSTRUMENTS
        }
        same_layout = {
            TrainingCase.from_key(own): TrainingCase.from_key(kept)
            for own, kept in (info.get("same_layout") or {}).items()
        }
        if not settings or baseline_of(list(settings)) not in settings:
            raise InputError(
                "The sweep has no valid measurement of DDP's default; measure it again."
            )
        return cls(settings=settings, same_layout=same_layout)

    @property
    def baseline(self) -> Trained:
        """DDP's default."""
        return self.settings[baseline_of(list(self.settings))]

    def find(self, case: TrainingCase) -> Trained:
        """Return a setting, or the one with the same buckets.

        Raises:
            InputError: it was not measured.
        """
        case = dataclasses.replace(case, phase=SWEEP)
        setting = self.settings.get(self.same_layout.get(case, case))
        if setting is None:
            raise InputError(
                f"The sweep has not measured {case}, which was chosen; measure the same settings."
            )
        return setting

    @property
    def best(self) -> Trained:
        """The fastest setting, by the median over launches of its speedup paired by launch."""
        return max(self.settings.values(), key=self._speedup)

    @property
    def gain(self) -> float:
        """The best setting's speedup over the default, less 1."""
        return self._speedup(self.best) - 1

    @property
    def gain_interval(self) -> Interval | None:
        """Its 95 % interval over launches, as a ratio of steps.

        None for one launch or if the default is best.
        """
        speedup = speedup_of(self.best, self.baseline) if self.best is not self.baseline else None
        return speedup.interval if speedup else None

    @property
    def steps(self) -> int:
        """The steps of this sweep: one block per setting and launch, and those that watch for
        drift.
        """
        records = [
            record for setting in self.settings.values() for record in setting.timed.values()
        ]
        launches = len({record.launch for record in records})
        block_steps = [steps_of(record) // max(1, len(record.block_lengths)) for record in records]
        return blocks_of_sweep(len(self.settings), launches) * max(block_steps, default=0)

    def regret(self, choice: TrainingCase, fresh: Exhaustive | None = None) -> Regret:
        """Return how much slower a setting is than the best.

        Args:
            choice: the setting.
            fresh: measurements of both in launches that did not select the best.

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

    def _speedup(self, setting: Trained, launches: Iterable[int] | None = None) -> float:
        """Return the median over launches of the speedup over the default."""
        chosen = (
            set(self.baseline.steps_ms if launches is None else launches) & setting.steps_ms.keys()
        )
        ratios = [
            self.baseline.steps_ms[launch] / setting.steps_ms[launch]
            for launch in chosen & self.baseline.steps_ms.keys()
        ]
        return statistics.median(ratios) if ratios else -math.inf

    def _fair(self, chosen: Trained) -> float | None:
        """Return `Regret.fair`."""
        launches = chosen.steps_ms.keys() & self.baseline.steps_ms.keys()
        ratios = []
        for launch in launches:
            other_launches = launches - {launch}
            present = [setting for setting in self.settings.values() if launch in setting.steps_ms]
            if other_launches and present:
                best = max(present, key=lambda setting: self._speedup(setting, other_launches))
                ratios.append(chosen.steps_ms[launch] / best.steps_ms[launch])
        return statistics.median(ratios) - 1 if ratios else None


def choice_of(recommendation: Recommendation, baseline: TrainingCase) -> TrainingCase:
    """Return the recommended setting: the best if the verdict is change, else the default."""
    if recommendation.verdict != "change":
        return baseline
    return dataclasses.replace(baseline, **setting_of(recommendation.best))


def compare_steps(
    sweep: Exhaustive, predicted_ms: Mapping[TrainingCase, float]
) -> dict[TrainingCase, HeldOutPair]:
    """Return predicted steps with the sweep's, in milliseconds.

    Unmeasured settings are left out.
    """
    pairs = {}
    for case, step_ms in predicted_ms.items():
        setting = sweep.settings.get(dataclasses.replace(case, phase=SWEEP))
        if setting is not None:
            interval = setting.step_interval
            pairs[case] = HeldOutPair(
                what=str(case),
                predicted=step_ms,
                measured=statistics.median(setting.steps_ms.values()),
                low=interval.low if interval else None,
                high=interval.high if interval else None,
            )
    return pairs


def compare_speedups(
    sweep: Exhaustive, predicted_ms: Mapping[TrainingCase, float]
) -> dict[TrainingCase, HeldOutPair]:
    """Return predicted and measured speedups over the default; effects on a whole launch cancel."""
    base = predicted_ms[sweep.baseline.case]
    pairs = {}
    for case, step_ms in predicted_ms.items():
        setting = sweep.settings.get(dataclasses.replace(case, phase=SWEEP))
        speedup = speedup_of(setting, sweep.baseline) if setting is not None else None
        if speedup is not None and setting is not sweep.baseline:
            pairs[case] = HeldOutPair(
                what=str(case), predicted=base / step_ms, measured=speedup.ratio
            )
    return pairs


# -------------------------------------------------------------------------------------- the network


def compare_held_out_sizes(records: Sequence[Record]) -> dict[CurveKey, list[HeldOutPair]]:
    """Return times of collectives at every other message size, in microseconds, predicted from the
    sizes between.

    The smallest and the largest size are never held out, because that would test extrapolation.
    """
    measured = NetworkModel.fit(records)
    pairs: dict[CurveKey, list[HeldOutPair]] = {}
    for key, curve in measured.curves.items():
        left_out = set(list(curve.sizes)[1:-1:2])
        fitted = NetworkModel.fit(r for r in records if r.case.message_bytes not in left_out)
        if key in fitted.curves:
            pairs[key] = [
                HeldOutPair(
                    what=f"{size} B", predicted=fitted.curves[key].time_us(size), measured=time_us
                )
                for size, time_us in zip(curve.sizes, curve.times_us, strict=True)
                if size in left_out
            ]
    return pairs


def compare_held_out_ranks(
    records: Sequence[Record], info: RunInfo, largest: int
) -> dict[tuple[CurveKey, int], HeldOutPair]:
    """Return times of collectives on more than ``largest`` ranks, in us, predicted from fewer
    ranks.

    Args:
        records: of a scaling study.
        info: contents of its ``run.json``.
        largest: the most ranks that predictions may use.
    """
    model = NetworkModel.fit(records)
    few = {key: curve for key, curve in model.curves.items() if key.world_size <= largest}
    fitted = dataclasses.replace(model, curves=few)
    network = ForecastNetwork.fit([MeasuredRun(model=fitted, records=records, info=info)])
    pairs = {}
    for key, curve in model.curves.items():
        family = Family(key.operation, key.backend, key.dtype)
        is_known = key.pattern == "flat" and family in network.curves
        if key.world_size > largest and is_known:
            place = Place(world_size=key.world_size)
            for size, time_us in zip(curve.sizes, curve.times_us, strict=True):
                predicted = network.time_us(family, size, place)
                pairs[key, size] = HeldOutPair(
                    what=f"{key}, {size} B", predicted=predicted, measured=time_us
                )
    return pairs
