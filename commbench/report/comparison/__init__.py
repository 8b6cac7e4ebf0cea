"""The comparison of runs, B relative to one baseline or several: ratios with intervals, verdicts, unlike conditions."""

from commbench.report.comparison.formats import comparison_csv, comparison_json
from commbench.report.comparison.text import render_comparison
from commbench.report.comparison.verdicts import BrokenCase, ComparedCase, ComparisonTable, compare
from commbench.report.comparison.words import summary

__all__ = [
    "BrokenCase",
    "ComparedCase",
    "ComparisonTable",
    "compare",
    "comparison_csv",
    "comparison_json",
    "render_comparison",
    "summary",
]
