"""Pictures of docs/figures that no report draws: the page of a run in a browser, and how a launch
is built.

``python docs/pictures.py`` takes the page of the newest kept live tuning in Chromium, in the light
and the dark theme. Each picture states the digest of the page's text, by which a test finds that
the page has changed since.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, PngImagePlugin

from commbench.report.figures.drawing import INK, MUTED, PAPER, SERIES, SHADE, Drawing
from commbench.report.page import write_page
from commbench.results import load_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parent / "figures"
#: Theme of the kept run whose page is shown, and the size of the picture in pixels.
SHOWN, WIDTH, HEIGHT = "live_trainer_300mbit", 1280, 700
#: Options of Chromium for each theme.
THEMES = {"light": "preferredColorScheme=1", "dark": "preferredColorScheme=0"}
DIGEST = "page-text"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
#: Cases of the launch that is drawn, in the order of their visits.
VISITS = "ABCBACCAB"


def page_digest(run: Path) -> str:
    """Return a digest of the text of a run's page."""
    with tempfile.TemporaryDirectory() as folder:
        page = write_page([load_run(run)], Path(folder))
        return hashlib.sha256(
            page.read_bytes().partition(b"<main")[2].partition(b"<section")[0]
        ).hexdigest()[:16]


def take_page(run: Path) -> dict[str, bytes]:
    """Return a PNG of the first screen of a run's page for each theme.

    Raises:
        FileNotFoundError: there is no Chromium.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise FileNotFoundError("Chromium is needed (on Debian: apt install chromium).")
    pictures = {}
    with tempfile.TemporaryDirectory() as folder:
        page = write_page([load_run(run)], Path(folder))
        for theme, scheme in THEMES.items():
            file = Path(folder, f"{theme}.png")
            options = [
                "--headless",
                "--no-sandbox",
                "--hide-scrollbars",
                f"--blink-settings={scheme}",
            ]
            size = [f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={file}"]
            subprocess.run(
                [browser, *options, *size, page.as_uri()], capture_output=True, check=True
            )
            pictures[theme] = _reduced(file, page_digest(run))
    return pictures


def _reduced(file: Path, digest: str) -> bytes:
    """Return a PNG with 64 colours and the digest of what it shows."""
    facts = PngImagePlugin.PngInfo()
    facts.add_text(DIGEST, digest)
    out = io.BytesIO()
    with Image.open(file) as image:
        image.convert("RGB").quantize(64).save(out, "PNG", optimize=True, pnginfo=facts)
    return out.getvalue()


def digest_of(picture: Path) -> str:
    """Return the digest that a picture of a page states."""
    with Image.open(picture) as image:
        return str(image.info[DIGEST])


def launch_drawing() -> Drawing:
    """Return the drawing of a run's launches, of the visits of one of them, and of one visit."""
    return Drawing(
        name="launch",
        section="launches",
        title="A run, one of its launches, and one visit",
        caption="",
        alt=(
            "A run has several launches; a launch visits each case several times, in shuffled"
            " rounds; a visit is a probe, warm-up, repetitions and a probe"
        ),
        paint=_paint_launch,
        height_in=2.6,
    )


def _paint_launch(figure: Figure) -> None:
    axes = figure.subplots()
    axes.set(xlim=(0, 93), ylim=(0, 58))
    axes.axis("off")
    launches = [(15 * number, 13, f"launch {number + 1}") for number in range(6)]
    _row(axes, 48, launches, [SHADE] * 6, "a run: fresh processes in each launch")
    _zoom(axes, (30, 43), (0, 92), 48, 36)
    width = 80 / len(VISITS)
    visits = [
        (0.0, 11.0, "start-up"),
        *((12 + width * i, width - 0.8, case) for i, case in enumerate(VISITS)),
    ]
    colours = [SHADE, *(SERIES["ABC".index(case)] for case in VISITS)]
    _row(axes, 27, visits, colours, "a launch: the visits of cases A, B and C, in shuffled rounds")
    begin = 12 + 4 * width
    _zoom(axes, (begin, begin + width - 0.8), (0, 92), 27, 15)
    repetitions = [(22 + 3.6 * number, 2.8, "") for number in range(16)]
    parts = [(0.0, 9.0, "probe"), (10.0, 11.0, "warm-up"), *repetitions, (81.0, 11.0, "probe")]
    _row(
        axes,
        6,
        parts,
        [SHADE, SHADE, *[SERIES[0]] * 16, SHADE],
        "a visit: repetitions, each timed on every rank",
    )


def _row(
    axes: Axes,
    y: float,
    boxes: Sequence[tuple[float, float, str]],
    colours: Sequence[str],
    caption: str,
) -> None:
    for (x, width, text), colour in zip(boxes, colours, strict=True):
        axes.broken_barh([(x, width)], (y, 9), facecolors=colour, edgecolor=MUTED, linewidth=0.5)
        ink = INK if colour == SHADE else "#ffffff"
        axes.text(x + width / 2, y + 4.5, text, ha="center", va="center", fontsize=7, color=ink)
    box = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.8}
    axes.text(0, y - 2, caption, ha="left", va="top", fontsize=7.5, color=MUTED, bbox=box)


def _zoom(
    axes: Axes, small: tuple[float, float], large: tuple[float, float], top: float, bottom: float
) -> None:
    """Draw the lines from a box to the row that shows it enlarged."""
    for begin, end in zip(small, large, strict=True):
        axes.plot([begin, end], [top, bottom], color=MUTED, linewidth=0.5, linestyle=":")


if __name__ == "__main__":
    from generate import newest

    for name, picture in take_page(newest(SHOWN)).items():
        (FOLDER / f"page-{name}.png").write_bytes(picture)
    sys.stdout.write(f"Wrote the pictures of the page in {FOLDER}\n")
