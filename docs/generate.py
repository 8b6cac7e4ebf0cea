"""Writes the reference pages and docs/schema from the code, and docs/figures from kept runs:
python docs/generate.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pictures
import terminal
from columns import columns_page
from kept_table import evidence_page
from names import names_page
from reference import commands_page, python_page
from schemas import SCHEMAS, schema_text

from commbench.report.figures import all_figures
from commbench.results import load_run

DOCS = Path(__file__).parent
FOLDER = DOCS / "figures"
RESULTS = DOCS.parent / "results"
#: Files of docs/figures: the theme of the kept run, of which the newest is drawn, and the figure in
#: its report.
FIGURES = {
    "buckets.png": ("train_resnet18_batch1_1gbit", "buckets"),
    "timeline.png": ("train_resnet18_batch1_1gbit", "timeline"),
    "matrix.png": ("matrix_slow_host", "matrix-bandwidth-1"),
    "settings.png": ("live_trainer_300mbit", "live"),
}
#: A drawing that no report has.
LAUNCH = "launch.png"
#: The pages that this program writes.
PAGES: Mapping[str, Callable[[], str]] = {
    "columns.md": columns_page,
    "commands.md": commands_page,
    "names.md": names_page,
    "python.md": python_page,
}
#: Pages of which it writes a part.
PARTS: Mapping[str, Callable[[], str]] = {"evidence.md": evidence_page}


def draw(name: str) -> bytes:
    """Return one of `FIGURES`, or `LAUNCH`, as PNG."""
    if name == LAUNCH:
        return pictures.launch_drawing().png
    theme, wanted = FIGURES[name]
    (png,) = (
        drawing.png for drawing in all_figures([load_run(newest(theme))]) if drawing.name == wanted
    )
    return png


def newest(theme: str) -> Path:
    """Return the newest kept run of a theme."""
    runs = []
    for path in RESULTS.glob(f"{theme}_*"):
        if re.fullmatch(rf"{theme}_[a-z0-9]+_\d{{8}}", path.name):
            runs.append(path)
    return max(runs, key=lambda path: path.name[-8:])


if __name__ == "__main__":
    for page, render in (*PAGES.items(), *PARTS.items()):
        (DOCS / page).write_text(render(), encoding="utf-8")
    for name in SCHEMAS:
        (DOCS / "schema" / name).write_text(schema_text(name), encoding="utf-8")
    for file in (*FIGURES, LAUNCH):
        (FOLDER / file).write_bytes(draw(file))
    for cast in FOLDER.glob("*.cast"):
        cast.with_suffix(".svg").write_text(terminal.draw(cast), encoding="utf-8")
    print(f"Wrote {', '.join((*PAGES, *PARTS))}, docs/schema and the figures in {FOLDER}")
