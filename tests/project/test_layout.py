"""Tests that docs/architecture.md lists the tree."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def tracked() -> list[str]:
    """Return the files that git tracks or would add; skip without git."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a git checkout")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def block_of(heading: str) -> list[str]:
    """Return the lines of the first block below a heading of docs/architecture.md."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = page.split(f"## {heading}\n")[1].split("```")[1]
    return [line for line in block.splitlines() if line.strip()]


def test_the_page_lists_every_entry_of_the_package() -> None:
    """List each package and module of commbench/ once in the diagram, at most 21."""
    entries = set()
    for name in tracked():
        if name.startswith("commbench/"):
            entries.add(name.split("/")[1].removesuffix(".py"))
    entries -= {"py.typed", "__init__", "__main__"}
    listed = [word for line in block_of("Packages") for word in line[:48].split() if word != "|"]
    assert sorted(entries) == sorted(listed)
    assert len(entries) <= 21


def test_the_page_lists_every_entry_of_the_top() -> None:
    """List each top-level entry of a clone once in docs/architecture.md."""
    listed = []
    for line in block_of("The repository"):
        names = line.strip().split("  ")[0].split()
        listed += [name.strip("/") for name in names]
    assert sorted({name.split("/")[0] for name in tracked()}) == sorted(listed)
