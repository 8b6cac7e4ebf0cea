"""Tests of the registry of backends."""

import ast
from pathlib import Path

import pytest

import commbench.backends
from commbench.collectives.backends import (
    BACKENDS,
)


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=lambda entry: entry.name)
def test_entry_names_code_that_exists(backend):
    """Each entry names a class and a function that exist, checked without import."""
    for place in filter(None, (backend.communicator, backend.find_gpus)):
        module, _, name = place.partition(":")
        tree = ast.parse((Path(commbench.backends.__file__).parent / f"{module}.py").read_text())
        assert name.partition(".")[0] in {
            node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)
        }
