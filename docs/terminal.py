"""Records a command in a terminal and draws the recording as an animated SVG.

``python docs/terminal.py record docs/figures/tune.cast -- commbench tune -- torchrun ...`` runs the
command and writes what it prints, as asciicast of version 2
(docs.asciinema.org/manual/asciicast/v2). ``python docs/terminal.py draw docs/figures/tune.cast``
writes docs/figures/tune.svg; `generate.py` does so, too.
"""

from __future__ import annotations

import argparse
import html
import itertools
import json
import os
import pty
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLUMNS, ROWS = 100, 30
#: A pause in the recording is shown no longer than this, in seconds, and the last picture this
#: long.
LONGEST_PAUSE_S, LAST_S = 0.4, 12.0
#: Pictures a second at most.
PICTURES_PER_S = 8
#: Size of a character cell and of the border, in units of the drawing.
WIDTH, HEIGHT, BORDER = 8.4, 18, 14
COLOURS = {
    "default": "#d8dee9",
    "red": "#ff7b72",
    "green": "#7ee787",
    "brown": "#e3b341",
    "blue": "#79c0ff",
}
BACKGROUND = "#161b22"


@dataclass(frozen=True, kw_only=True)
class Run:
    """Characters of one style next to each other in a row."""

    row: int
    column: int
    text: str
    colour: str
    is_bold: bool


def record(file: Path, command: Sequence[str]) -> int:
    """Run a command in a terminal, write what it prints with times, and return its exit code."""
    leader, follower = pty.openpty()
    size = {"COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color"}
    begun = time.monotonic()
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": shlex.join(command)}
    events: list[tuple[float, str, str]] = [(0.0, "o", f"$ {shlex.join(command)}\r\n")]
    with subprocess.Popen(
        command, stdout=follower, stderr=follower, env={**os.environ, **size}
    ) as process:
        os.close(follower)
        while process.poll() is None or select.select([leader], [], [], 0)[0]:
            if select.select([leader], [], [], 0.1)[0]:
                try:
                    output = os.read(leader, 65536)
                except OSError:  # the other end is closed
                    break
                text = output.decode("utf-8", "replace").replace(
                    f"{Path.cwd()}/", ""
                )  # no paths of this machine
                events.append((round(time.monotonic() - begun, 3), "o", text))
    lines = [json.dumps(each, ensure_ascii=False) for each in (header, *events)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return process.returncode


def draw(file: Path) -> str:
    """Return a recording as an animated SVG; where nothing moves it shows the last picture."""
    pictures = list(pictures_of(file))
    ends = [begin for begin, _ in pictures[1:]] + [pictures[-1][0] + LAST_S]
    total = ends[-1]
    #: When each run of characters is visible, as (begin, end).
    spans: dict[Run, list[tuple[float, float]]] = {}
    for (begin, runs), end in zip(pictures, ends, strict=True):
        for run in runs:
            of_run = spans.setdefault(run, [])
            if of_run and of_run[-1][1] == begin:
                of_run[-1] = (of_run[-1][0], end)
            else:
                of_run.append((begin, end))
    rows = 1 + max(run.row for run in spans)
    width, height = COLUMNS * WIDTH + 2 * BORDER, rows * HEIGHT + 2 * BORDER
    styles = [
        (
            "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans"
            " Mono',monospace;white-space:pre}"
        ),
        "@media (prefers-reduced-motion:reduce){.t{animation:none!important}}",
    ]
    texts = []
    for number, (run, of_run) in enumerate(spans.items()):
        animation = ""
        if of_run != [(0.0, total)]:
            animation = f"k{number} {total:.2f}s step-end infinite"
            styles.append(f"@keyframes k{number}{{{_keyframes(of_run, total)}}}")
        texts.append(_text(run, animation, of_run[-1][1] == total))
    title = html.escape(json.loads(file.read_text("utf-8").splitlines()[0])["title"])
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}"'
                f' width="{width:g}" role="img">'
            ),
            f"<title>{title}</title>",
            f"<style>{''.join(styles)}</style>",
            f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
            *texts,
            "</svg>\n",
        ]
    )


def _text(run: Run, animation: str, is_last: bool) -> str:
    x, y = BORDER + run.column * WIDTH, BORDER + run.row * HEIGHT + 0.75 * HEIGHT
    bold = ' font-weight="bold"' if run.is_bold else ""
    moving = f' class="t" style="animation:{animation}"' if animation else ""
    opacity = "" if is_last else ' opacity="0"'
    length = f'textLength="{len(run.text) * WIDTH:g}" lengthAdjust="spacingAndGlyphs"'
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{run.colour}"'
        f" {length}{bold}{moving}{opacity}>{html.escape(run.text)}</text>"
    )


def _keyframes(spans: Sequence[tuple[float, float]], total: float) -> str:
    """Return the opacity over one turn of the animation, in which a value holds until the next."""
    moments = {0.0: 0}
    for begin, end in spans:
        moments[begin] = 1
        if end < total:
            moments[end] = 0
    return "".join(
        f"{100 * moment / total:.3f}%{{opacity:{value}}}"
        for moment, value in sorted(moments.items())
    )


def pictures_of(file: Path) -> Iterator[tuple[float, list[Run]]]:
    """Yield the moment, in seconds of the drawing, and the characters of each picture of a
    recording.
    """
    import pyte

    header, *events = map(json.loads, file.read_text("utf-8").splitlines())
    screen = pyte.Screen(header["width"], header["height"])
    stream = pyte.Stream(screen)
    now = last_drawn = 0.0
    pause = [min(b[0] - a[0], LONGEST_PAUSE_S) for a, b in itertools.pairwise(events)] + [LAST_S]
    for (_, _, text), seconds in zip(events, pause, strict=True):
        stream.feed(text)
        if seconds >= 1 / PICTURES_PER_S or now - last_drawn >= 1 / PICTURES_PER_S:
            yield round(now, 3), runs_on(screen)
            last_drawn = now
        now += seconds


def runs_on(screen: Any) -> list[Run]:
    """Return the runs of characters on a screen of pyte."""
    runs = []
    for row in range(screen.lines):
        cells = [screen.buffer[row][column] for column in range(screen.columns)]
        column = 0
        for (colour, is_bold), same in itertools.groupby(cells, lambda cell: (cell.fg, cell.bold)):
            text = "".join(cell.data for cell in same)
            if text.strip():
                shown = text.rstrip()
                lead = len(shown) - len(shown.lstrip())
                runs.append(
                    Run(
                        row=row,
                        column=column + lead,
                        text=shown.lstrip(),
                        colour=COLOURS.get(colour, COLOURS["default"]),
                        is_bold=is_bold,
                    )
                )
            column += len(text)
    return runs


def main() -> int:
    """Record or draw; return the exit code."""
    words = sys.argv[1:]
    place = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["record", "draw"])
    parser.add_argument("file", type=Path)
    options = parser.parse_args(words[:place])
    if options.what == "record":
        return record(options.file, words[place + 1 :])
    options.file.with_suffix(".svg").write_text(draw(options.file), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
