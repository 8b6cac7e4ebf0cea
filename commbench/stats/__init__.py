"""Medians, confidence intervals, rules for warm-up, and comparisons.

Repetitions inside one launch agree far better with each other than launches do, so the two are
never mixed: functions of ``times`` look inside one launch, functions of launch medians across
launches. Times may be in any unit unless a name says otherwise. "Le Boudec": J.-Y. Le Boudec,
Performance Evaluation of Computer and Communication Systems (2010).
"""

from commbench.stats.families import MARGIN, Comparison, Verdict, compare_family, verdict_of
from commbench.stats.intervals import (
    DEFAULT_LEVEL,
    Floats,
    Interval,
    Values,
    bounds_of,
    fewest_launches,
    hodges_lehmann,
    launch_interval,
    median,
    median_interval,
    quantiles,
    signed_rank_interval,
    student_interval,
)
from commbench.stats.ratios import ratio_interval
from commbench.stats.repetitions import is_bimodal, is_steady, modes_of, warmup_count
from commbench.stats.significance import family_hint

__all__ = [
    "DEFAULT_LEVEL",
    "MARGIN",
    "Comparison",
    "Floats",
    "Interval",
    "Values",
    "Verdict",
    "bounds_of",
    "compare_family",
    "family_hint",
    "fewest_launches",
    "hodges_lehmann",
    "is_bimodal",
    "is_steady",
    "launch_interval",
    "median",
    "median_interval",
    "modes_of",
    "quantiles",
    "ratio_interval",
    "signed_rank_interval",
    "student_interval",
    "verdict_of",
    "warmup_count",
]
