"""Tests that the code has the structure of docs/architecture.md: layers, no circles, few imports
inside functions.
"""

from __future__ import annotations

import ast
import configparser
import functools
import re
import subprocess
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from places import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
#: Functions and classes that the page names, as module and name.
HOPS = sorted(set(re.findall(r"`([a-z_.]+):([A-Za-z_.]+)`", PAGE)))


def module_name(file: Path) -> str:
    """Return a file's module below commbench: ``engine.measure``, ``engine`` for its
    ``__init__``.
    """
    parts = file.relative_to(ROOT / "commbench").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Return the modules of commbench by name."""
    return {
        module_name(file): ast.parse(file.read_text("utf-8"))
        for file in (ROOT / "commbench").rglob("*.py")
    }


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that a module imports, also inside functions, but not for types only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                is_module = name.removeprefix("commbench.") in modules()
                yield name if is_module else node.module
        yield from imports_of(node)


def test_no_circle_among_modules():
    """Find no import circle, direct or indirect, inside functions or not."""
    graph = {}
    for module, tree in modules().items():
        named = {name.removeprefix("commbench.") for name in imports_of(tree)}
        graph[module] = named & modules().keys() - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize(("module", "name"), HOPS, ids=":".join)
def test_the_page_names_code_that_exists(module, name):
    """Find each function, class or method that docs/architecture.md names."""
    node = modules()[module]
    for part in name.split("."):
        node = next(
            (child for child in getattr(node, "body", ()) if getattr(child, "name", "") == part),
            None,
        )
    assert node is not None


def test_the_diagram_is_the_import_contract():
    """Draw in docs/architecture.md the layers of setup.cfg, top to bottom, which list each package
    and module once (`exhaustive`); at most 21.
    """
    diagram = PAGE.split("## Packages")[1].split("```")[1]
    drawn = [
        re.split(r"\s{2,}", line[:48].strip())
        for line in diagram.splitlines()
        if re.search(r"\w", line)
    ]
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    layers = setup["importlinter:contract:layers"]["layers"].split("\n")
    assert [sorted(layer.split(" : ")) for layer in layers if layer] == [
        sorted(names) for names in drawn
    ]
    assert sum(map(len, drawn)) <= 21


def test_the_page_lists_every_entry_of_the_top():
    """List each top-level entry of a clone once in docs/architecture.md, of those that git tracks
    or would add.
    """
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a git checkout")
    names = [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    block = PAGE.split("## The repository\n")[1].split("```")[1]
    drawn = [
        word.strip("/") for line in block.splitlines() for word in line.split("   ")[0].split()
    ]
    assert sorted({name.split("/")[0] for name in names}) == sorted(drawn)
