"""Every attribute of torch and cupy that the code names exists: mypy looks into neither."""

import ast
import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
FILES = [
    path
    for folder in ("commbench", "benchmarks", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.name != "torch_suite.py"  # torch's own tests read variables when they are imported
]
#: What a torch built without NCCL lacks.
ASKED = {"torch.distributed.ProcessGroupNCCL"}


def imported(tree: ast.AST) -> dict[str, str]:
    """Return what the names of a file stand for: ``dist`` for ``torch.distributed``."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    names[alias.asname] = alias.name
                else:
                    top = alias.name.partition(".")[0]
                    names[top] = top
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def chains(tree: ast.AST) -> Iterator[list[str]]:
    """Yield the dotted names of a file, the longest ones and their beginnings."""
    for node in ast.walk(tree):
        parts: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name):
            yield [inner.id, *reversed(parts)]


def absent(name: str) -> str:
    """Return the part of a dotted name of torch that does not exist; empty if all do.

    Only modules and classes are looked into: attributes of other objects are not known here.
    """
    found: object = torch
    path = "torch"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        if hasattr(found, part):
            found = getattr(found, part)
        else:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of torch's own modules
                    found = importlib.import_module(path)
            except ImportError:
                return path
        if not isinstance(found, ModuleType | type):
            return ""
    return ""


def named_by(source: str, library: str = "torch") -> set[str]:
    """Return the names of a library in a source text, in full."""
    tree = ast.parse(source)
    names = imported(tree)
    found = {name for name in names.values() if name.partition(".")[0] == library}
    for first, *rest in chains(tree):
        whole = ".".join([names.get(first, ""), *rest])
        if whole.partition(".")[0] == library:
            found.add(whole)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_name_of_torch_exists(path: Path) -> None:
    """Find each dotted name of torch in the installed version."""
    found = {absent(name) for name in named_by(path.read_text(encoding="utf-8"))}
    assert found <= {"", *ASKED}


def test_every_name_of_cupy_exists() -> None:
    """Find each dotted name of cupy among those that were looked up in cupy 14.2.

    cupy is not installed where there is no GPU.
    """
    looked_up = (ROOT / "tests" / "data" / "cupy_names.txt").read_text().split()
    named = {name for path in FILES for name in named_by(path.read_text("utf-8"), "cupy")}
    assert "cupy.cuda.nccl.NcclCommunicator" in named
    assert named <= set(looked_up)


def test_a_wrong_name_is_found() -> None:
    """Find a misspelt function of a module, under an alias too."""
    source = "import torch\nimport torch.distributed as d\ntorch.cuda.getdevice_name\nd.get_rnk()\n"
    found = {absent(name) for name in named_by(source)}
    assert found == {"", "torch.cuda.getdevice_name", "torch.distributed.get_rnk"}
