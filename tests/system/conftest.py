"""A simulated tree of /proc, /sys and /etc."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest


@pytest.fixture
def plant(tmp_path: Path) -> Callable[[Mapping[str, str]], Path]:
    """Write files below a root directory and return it."""

    def write(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return write
