"""The page of one run or several: a self-contained ``report.html`` and its figures as PNG."""

from commbench.report.page.writing import FIGURES, PAGE, write_page

__all__ = ["FIGURES", "PAGE", "write_page"]
