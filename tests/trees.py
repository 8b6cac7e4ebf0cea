"""Simulated trees of /proc, /sys and /etc."""

from collections.abc import Mapping
from pathlib import Path


def plant(root: Path, files: Mapping[str, object]) -> Path:
    """Write files by their names below a root; a path as content becomes a link to it."""
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            file.symlink_to(content)
        else:
            file.write_text(f"{content}\n")
    return root
