"""Tests that the README lists the tree, that every module has a docstring, and that the import is
light.
"""

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


def tree_in_readme() -> tuple[list[str], list[str]]:
    """Return the entries of commbench/ and those of the top level that the README's tree names, in
    its order.
    """
    block = (ROOT / "README.md").read_text(encoding="utf-8").split("## The tree")[1].split("```")[1]
    inside, top = [], []
    for line in block.strip().splitlines():
        names = line.strip().split("  ")[0].split()
        (inside if line.startswith(" ") else top).extend(name.strip("/") for name in names)
    return inside, top


def test_readme_lists_every_entry_of_the_package() -> None:
    """List each entry of commbench/ once in the README's tree.

    Allow 18, and `__init__`, `__main__` and py.typed.
    """
    entries = {name.split("/")[1] for name in tracked() if name.startswith("commbench/")}
    assert sorted(entries) == sorted(tree_in_readme()[0])
    assert len(entries - {"py.typed", "__init__.py", "__main__.py"}) <= 21


def test_readme_lists_every_entry_of_the_top() -> None:
    """List each top-level entry of a clone once in the README's tree."""
    assert sorted({name.split("/")[0] for name in tracked()}) == sorted(tree_in_readme()[1])
