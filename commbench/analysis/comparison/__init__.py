"""The comparison of runs, B relative to one baseline or several: ratios with intervals, verdicts,
unlike conditions.
"""

from commbench.analysis.comparison.verdicts import ComparisonTable, compare

__all__ = ["ComparisonTable", "compare"]
