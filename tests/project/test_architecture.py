"""Tests that the code has the structure of docs/architecture.md: layers, no circles, few imports
inside functions.
"""

from __future__ import annotations

import ast
import configparser
import functools
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
#: Functions and classes that the page names, as module and name.
HOPS = sorted(set(re.findall(r"`([a-z_.]+):([A-Za-z_.]+)`", PAGE)))
#: Modules of commbench that are imported inside functions of a module, each with the reason.
LATE_IMPORTS = {
    ("cli", "cli.conduct"): "commands and help load only what they need; an error needs more",
    ("ddp.inspect", "ddp.devices"): "imports torch, whose absence is stated first",
    ("ddp.inspect", "ddp.inspection"): "imports torch, whose absence is stated first",
    ("ddp.inspect", "ddp.session"): "imports torch, whose absence is stated first",
    ("ddp.inspect", "hooks.from_file"): "imports torch, whose absence is stated first",
    ("ddp.inspect", "ddp.workloads"): "imports torch, whose absence is stated first",
    ("ddp.workloads", "ddp.workloads.replay"): "compiles with numba, which only traces need",
    (
        "hooks.chunks",
        "hooks.compression.kernels",
    ): "compiles with numba, which only sparse hooks need",
    ("hooks.quantisers", "hooks.compression.cuda_quantisation"): "needs cupy, which only GPUs need",
    (
        "hooks.quantisers",
        "hooks.compression.quantisation",
    ): "compiles with numba, which only the hook int8 needs",
    ("hooks.selectors", "hooks.compression.cuda"): "needs cupy, which only GPUs need",
    (
        "hooks.selectors",
        "hooks.compression.selection",
    ): "compiles with numba, which only sparse hooks need",
    ("launch.probe", "backends.mpi_control"): "starts MPI",
    ("launch.rank", "ddp.devices"): "a rank that measures collectives loads no torch",
    ("launch.rank", "ddp.session"): "a rank that measures collectives loads no torch",
    ("live.director", "live.programme"): "only rank 0 decides and writes",
    ("live.director", "live.tune"): "only rank 0 decides and writes",
    ("live.director", "live.watch"): "only rank 0 decides and writes",
    (
        "live.site.sitecustomize",
        "live.adopt",
    ): "a process that makes no DDP model loads nothing of commbench",
    ("report.page.writing", "report.figures"): "printing a table draws no figure",
}
#: Libraries that may be imported inside functions, each with the reason.
LATE_LIBRARIES = {
    "cupy": "only GPUs need it",
    "functools": "every process of a training pays for it at its start",
    "jinja2": "only pages need it",
    "markupsafe": "only pages need it",
    "matplotlib": "takes a second, and only figures need it",
    "pandas": "takes half a second, and only tables need it",
    "scipy": "takes half a second, and only some statistics need it",
    "torch": "takes seconds, and only gloo and training need it",
}


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


def imports_of(tree: ast.AST, *, is_inside: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield the imports of a module, and whether they are inside a function.

    Without imports for types only.
    """
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case)):
            continue  # an expression imports nothing
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, is_inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                is_module = (
                    name.removeprefix("commbench.") in modules() or node.module == "commbench"
                )
                yield (name if is_module else node.module), is_inside
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        yield from imports_of(node, is_inside=is_inside or is_function)


@functools.cache
def all_imports() -> set[tuple[str, str, bool]]:
    """Return (module, imported module, whether inside a function) of all modules."""
    return {
        (module, name, is_inside)
        for module, tree in modules().items()
        for name, is_inside in imports_of(tree)
    }


def test_no_circle_among_modules() -> None:
    """Find no import circle, direct or indirect, inside functions or not."""
    graph: dict[str, set[str]] = {module: set() for module in modules()}
    for module, name, _ in all_imports():
        imported = name.removeprefix("commbench.")
        if name.startswith("commbench.") and imported in modules() and imported != module:
            graph[module].add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_imports_inside_functions_are_listed() -> None:
    """Find inside functions exactly the listed modules of commbench, and only the listed
    libraries.
    """
    inside = {(module, name) for module, name, is_inside in all_imports() if is_inside}
    own = {
        (module, name.removeprefix("commbench."))
        for module, name in inside
        if name.startswith("commbench")
    }
    assert sorted(LATE_IMPORTS) == sorted(own)
    assert set(LATE_LIBRARIES) == {name.split(".")[0] for _, name in inside} - {"commbench"}


@pytest.mark.parametrize(("module", "name"), HOPS, ids=":".join)
def test_the_page_names_code_that_exists(module: str, name: str) -> None:
    """Find each function, class or method that docs/architecture.md names."""
    node: ast.AST | None = modules()[module]
    for part in name.split("."):
        node = next(
            (child for child in getattr(node, "body", ()) if getattr(child, "name", "") == part),
            None,
        )
    assert node is not None


def test_both_walks_have_their_hops() -> None:
    """Name at least ten places of the code on each walk of docs/architecture.md."""
    walks = [
        section for section in PAGE.split("\n## ") if " becomes a " in section.partition("\n")[0]
    ]
    assert [True, True] == [
        len(re.findall(r"`[a-z_.]+:[A-Za-z_.]+`", walk)) >= 10 for walk in walks
    ]


def test_the_diagram_is_the_import_contract() -> None:
    """Draw in docs/architecture.md the layers of setup.cfg, top to bottom."""
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
