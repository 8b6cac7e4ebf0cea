"""Every attribute of torch and cupy that the code names exists: mypy looks into neither."""

import ast
import functools
import pkgutil
import re
import warnings

import pytest
from places import ROOT

torch = pytest.importorskip("torch")

FILES = [
    path
    for folder in ("commbench", "benchmarks", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.name != "torch_suite.py"  # torch's own tests read variables when they are imported
]
#: What a torch built without NCCL lacks.
ASKED = "torch.distributed.ProcessGroupNCCL"


def named_by(source: str) -> set[str]:
    """Return the dotted names of modules and what is in them in a source text, in full."""
    names = {}
    chains = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Attribute):
            chains.add(ast.unparse(node))
    found = set(names.values())
    for chain in chains:
        first, _, rest = chain.partition(".")
        if re.fullmatch(r"[\w.]+", chain) and first in names:
            found.add(f"{names[first]}.{rest}")
    return found


@functools.cache
def named_in_files() -> set[str]:
    """Return the same of all files."""
    return set().union(*(named_by(path.read_text(encoding="utf-8")) for path in FILES))


def is_absent(name: str) -> bool:
    """Return whether a dotted name of torch does not exist."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own modules
            pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return not name.startswith(ASKED)
    return False


def test_every_name_of_torch_exists():
    """Find each dotted name of torch in the installed version."""
    named = {name for name in named_in_files() if name.startswith("torch.")}
    assert len(named) > 100
    assert [] == sorted(filter(is_absent, named))


def test_every_name_of_cupy_exists():
    """Find each dotted name of cupy among those that were looked up in cupy 14.2.

    cupy is not installed where there is no GPU.
    """
    looked_up = (ROOT / "tests" / "data" / "cupy_names.txt").read_text().split()
    named = {name for name in named_in_files() if f"{name}.".startswith("cupy.")}
    assert "cupy.cuda.nccl.NcclCommunicator" in named
    assert named <= set(looked_up)


def test_a_wrong_name_is_found():
    """Find a misspelt function of a module, under an alias too."""
    source = "import torch\nimport torch.distributed as d\ntorch.cuda.getdevice_name\nd.get_rnk()\n"
    wrong = ["torch.cuda.getdevice_name", "torch.distributed.get_rnk"]
    assert set(wrong) == set(filter(is_absent, named_by(source)))
