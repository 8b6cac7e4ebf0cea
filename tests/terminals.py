"""What a console without a terminal prints."""

import io

from rich.console import Console, RenderableType


def printed(*parts: RenderableType, width: int = 100) -> str:
    """Return what a console of a width writes to a log."""
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=False, highlight=False)
    for part in parts:
        console.print(part, markup=False)
    return stream.getvalue()


def line_with(text: str, *words: str) -> str:
    """Return the only line that contains all words."""
    (line,) = [line for line in text.splitlines() if all(word in line for word in words)]
    return line
