"""Text from elsewhere, made harmless where it is shown: control characters become visible, formulas become text."""

from __future__ import annotations

#: Control characters, and those that turn the direction of what follows; a new line is left to who lays out lines.
_HIDDEN = (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029)
_VISIBLE = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in _HIDDEN if code != ord("\n")}  # noqa: PLR2004 - a byte
_ONE_LINE = _VISIBLE | {ord("\n"): "\\n"}
#: A spreadsheet runs a cell that begins with one of these as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def visible(text: str) -> str:
    """The text with control characters, such as a terminal obeys, written as escapes; new lines stay."""
    return text.translate(_VISIBLE)


def one_line(text: str) -> str:
    """As `visible`, with new lines as escapes, too."""
    return text.translate(_ONE_LINE)


def cell_text(text: str) -> str:
    """The text as a cell of a CSV file: behind an apostrophe where a spreadsheet would run it as a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text
