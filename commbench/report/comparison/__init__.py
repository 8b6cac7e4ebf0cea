"""A comparison as text, CSV, JSON and HTML page."""

from commbench.report.comparison.formats import comparison_csv, comparison_json, render_comparison

__all__ = ["comparison_csv", "comparison_json", "render_comparison"]
