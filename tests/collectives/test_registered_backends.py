"""Tests of the registry of backends."""

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

import commbench.backends
from commbench.backends import missing_library, open_backend
from commbench.collectives.backends import (
    BACKENDS,
    FAKE,
    GPU_BACKENDS,
    USUAL_BACKENDS,
    Backend,
    find_backend,
)
from commbench.engine.control import run_threads
from commbench.errors import InputError


@pytest.mark.parametrize("backend", [*BACKENDS.values(), FAKE], ids=lambda entry: entry.name)
def test_entry_names_code_that_exists(backend: Backend) -> None:
    """Each entry names a class and a function that exist, checked without import."""
    for place in filter(None, (backend.communicator, backend.find_gpus)):
        module, _, name = place.partition(":")
        tree = ast.parse((Path(commbench.backends.__file__).parent / f"{module}.py").read_text())
        assert name in {
            node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)
        }


def test_usual_backends_keep_their_order() -> None:
    """Measure MPI and Gloo before NCCL; GPU memory over MPI only if named."""
    assert USUAL_BACKENDS == ("mpi", "gloo", "nccl", "torch-nccl")
    assert GPU_BACKENDS == ("nccl", "torch-nccl", "mpi-cuda", "mpi-staged")


def _open(name: str) -> object:
    return run_threads(1, lambda control: open_backend(name, control))


@pytest.mark.parametrize("look_up", [find_backend, missing_library, _open])
def test_unregistered_backend_is_refused(look_up: Callable[[str], object]) -> None:
    """Refuse an unknown backend wherever it is looked up, with the names."""
    with pytest.raises(
        InputError, match=r"^Unknown backend 'ucc'; choose from mpi, gloo, .*mpi-staged\.$"
    ):
        look_up("ucc")
