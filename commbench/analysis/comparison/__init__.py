"""The comparison of runs, B relative to one baseline or several: ratios with intervals, verdicts,
unlike conditions.
"""

from commbench.analysis.comparison.verdicts import (
    BrokenCase,
    ComparedCase,
    ComparisonTable,
    compare,
)

__all__ = ["BrokenCase", "ComparedCase", "ComparisonTable", "compare"]
