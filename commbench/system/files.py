"""Short texts from files below /proc, /sys and /etc, and texts as editors and shells write them."""

from __future__ import annotations

import codecs
from pathlib import Path, PurePath

#: The directory that holds these; tests set another one.
ROOT = Path("/")


def system_path(*parts: str | PurePath) -> Path:
    """Return the path of a file or folder, which its parts name below the root."""
    return ROOT.joinpath(*parts)


def read_text(*parts: str | PurePath) -> str | None:
    """Return the stripped text of a file; None if it is absent, unreadable or empty."""
    try:
        return system_path(*parts).read_text(errors="replace").strip() or None
    except OSError:
        return None


def decode(data: bytes) -> str:
    """Return a text in UTF-8, with or without a byte order mark, or in PowerShell's UTF-16.

    Invalid bytes are marked.
    """
    encoding = "utf-8-sig"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    return data.decode(encoding, errors="replace")


def parse_fields(text: str | None, separator: str) -> dict[str, str]:
    """Parse the first block of 'name<separator>value' lines."""
    lines = (text or "").split("\n\n", maxsplit=1)[0].splitlines()
    pairs = (line.partition(separator) for line in lines if separator in line)
    return {name.strip(): value.strip().strip('"') for name, _, value in pairs}
