"""Short texts from files below /proc, /sys and /etc."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")


def read_text(root: Path, name: str) -> str | None:
    """Return the stripped text of a file below root; None if it is absent, unreadable or empty."""
    try:
        return (root / name).read_text(errors="replace").strip() or None
    except OSError:
        return None


def parse_fields(text: str | None, separator: str) -> dict[str, str]:
    """Parse the first block of 'name<separator>value' lines."""
    lines = (text or "").split("\n\n", maxsplit=1)[0].splitlines()
    pairs = (line.partition(separator) for line in lines if separator in line)
    return {name.strip(): value.strip().strip('"') for name, _, value in pairs}
