"""Tests of file system faults: full, read-only, removed, replaced, or crashed during a write."""

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest
from builders import STEADY, make_info, make_launches, make_record

from commbench.errors import InputError, LaunchError
from commbench.results import Store, load_run


def test_a_directory_that_vanishes_is_written_again(tmp_path):
    """Detect a removed directory, write it again, and stop with one sentence; the run resumes."""
    path = tmp_path / "mine"
    records = make_launches(STEADY)
    with Store.open(path, make_info()) as store:
        for record in records:
            store.append(record)
        shutil.rmtree(path)
        with pytest.raises(
            LaunchError,
            match="vanished",
        ):
            store.append(make_record(launch=6))
        store.update(status="partial")
        with pytest.raises(InputError, match="in use"):
            Store.open(path, make_info())
    assert len(records) == len(load_run(path).records)
    with Store.open(path, make_info()) as store:
        assert store.resumed is True
        assert "partial" == store.info["status"]
        assert len(records) == len(store.records)


def test_another_run_in_place_of_the_directory_is_left_alone(tmp_path):
    """Write nothing into another run in place of this one."""
    path = tmp_path / "mine"
    with Store.open(path, make_info()) as store:
        path.rename(tmp_path / "moved")
        with Store.open(path, make_info(seed=8)) as other:
            other.append(make_record())
            with pytest.raises(
                LaunchError,
                match="in use",
            ):
                store.append(make_record())
    assert 1 == len(load_run(path).records)
    assert 8 == load_run(path).info["seed"]


@pytest.fixture
def small_disk(tmp_path):
    """Return a file system of 256 KiB."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)], check=True)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path: Path) -> Path:
    """Fill a file system; return the file to remove to free space."""
    ballast = path / "ballast"
    with ballast.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(4096))
    return ballast


@pytest.mark.lab
def test_a_disk_that_is_full_before_the_start_is_refused(small_disk):
    """Refuse a full disk, and leave nothing there."""
    ballast = fill(small_disk)
    with pytest.raises(InputError, match="No space left on device"):
        Store.open(small_disk / "deep" / "mine", make_info())
    assert [ballast] == list(small_disk.iterdir())
