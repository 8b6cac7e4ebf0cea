"""Presents results: tables, figures, the page, comparisons, other tools' text formats."""
