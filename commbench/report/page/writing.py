"""Renders a page as HTML and writes it with its figures."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from commbench.analysis.expectations import Answer
from commbench.errors import InputError
from commbench.report.figures.drawing import theme_variables
from commbench.report.page.contents import make_page
from commbench.report.page.parts import LONG, Page
from commbench.results import Run
from commbench.results.files import refusing, replace_file

PAGE, FIGURES = "report.html", "figures"
_HERE = Path(__file__).parent
_UNIT = re.compile(
    r"(?<=\d) (?=(?:%|[KMG]?i?B|[GM]B/s|us|ms|min|s|ranks?|hosts?|launch(?:es)?)\b|%)"
)
#: The mark of a page that commbench wrote and may overwrite.
_OURS = '<meta name="generator" content="commbench">'


def write_page(runs: Sequence[Run], out: Path, answers: Sequence[Answer] = ()) -> Path:
    """Write ``report.html`` and ``figures/*.png`` into a directory.

    Args:
        runs: one, or several to overlay.
        out: the directory; created if missing.
        answers: to expectations of the only run.

    Returns:
        The page's path.

    Raises:
        InputError: it cannot be written, or a foreign page is there.
    """
    from commbench.report.figures import all_figures  # importing matplotlib is slow

    if len({run.name for run in runs}) < len(runs):
        # before tables are made, which stay in memory with the run
        runs = [replace(run, alias=str(run.path)) for run in runs]
    drawings = all_figures(runs)
    html = render(make_page(runs, drawings, answers))
    page, folder = out / PAGE, out / FIGURES
    with refusing(out, InputError):
        if page.exists() and _OURS not in page.read_text(encoding="utf-8", errors="replace"):
            raise InputError(
                f"{page} is no page of commbench and is left as it is; name another directory with"
                " --out."
            )
        folder.mkdir(parents=True, exist_ok=True)
        for drawing in drawings:
            (folder / f"{drawing.name}.png").write_bytes(drawing.png)
        replace_file(page, html)  # last, so that it never names a missing figure
    return page


def render(page: Page) -> str:
    """Return a page as HTML without references to other files; text of runs is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # importing jinja2 is slow
    from markupsafe import Markup

    templates = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["prose"] = _prose
    script = _read("page.js")
    light, dark = theme_variables("light"), theme_variables("dark")
    style = _read("page.css").replace("/* light */", light).replace("/* dark */", dark)
    return templates.get_template("page.html").render(
        long=LONG,
        page=page,
        figures=FIGURES,
        svg_of=lambda drawing: Markup(drawing.svg),  # noqa: S704 - escaped where it was drawn
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _prose(text: str) -> str:
    """Keep numbers and their units on one line."""
    return _UNIT.sub("\N{NO-BREAK SPACE}", text)


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
