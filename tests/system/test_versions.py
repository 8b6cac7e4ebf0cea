"""Tests of commbench.system.software: versions and commits."""

from pathlib import Path
from types import SimpleNamespace

from launching import succeeded
from places import HERE

from commbench.system.software import collect_versions, git_commit


def test_collect_versions_lists_installed_packages(stub):
    """List relevant packages by normalised name, first on the path, without broken ones."""

    def distribution(name: str | None, version: str) -> SimpleNamespace:
        return SimpleNamespace(metadata={"Name": name}, version=version)

    installed = [
        distribution("NumPy", "2.4"),
        distribution("numpy", "1.0"),
        distribution("nvidia_nccl_cu13", "2.30.7"),
        distribution("cupy-cuda13x", "14.2"),
        distribution("cupy-xarray", "0.1"),
        distribution("requests", "2.0"),
        distribution(None, "9"),
        SimpleNamespace(metadata={}, version="9"),
    ]
    stub("importlib.metadata.distributions", installed)
    stub("platform.python_version", "3.11.2")
    expected = {
        "python": "3.11.2",
        "numpy": "2.4",
        "nvidia-nccl-cu13": "2.30.7",
        "cupy-cuda13x": "14.2",
    }
    assert expected == collect_versions()


def _git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    return succeeded("git", "-C", folder, *identity, *arguments).strip()


def test_git_commit(tmp_path):
    """Return the commit, mark changed files, and return nothing for an untracked directory."""
    assert git_commit(tmp_path) is None
    _git(tmp_path, "init", "-q")
    file, inner = tmp_path / "tracked", tmp_path / "untracked"
    inner.mkdir()
    (inner / "package.py").touch()
    file.touch()
    _git(tmp_path, "add", "tracked")
    assert git_commit(tmp_path) is None
    _git(tmp_path, "commit", "-qm", "one")
    commit = _git(tmp_path, "rev-parse", "HEAD")
    assert commit == git_commit(tmp_path)
    file.write_text("changed")
    assert f"{commit}-dirty" == git_commit(tmp_path)
    assert git_commit(inner) is None


def test_git_commit_without_git(tmp_path, monkeypatch):
    """Return nothing without git."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit(HERE) is None
