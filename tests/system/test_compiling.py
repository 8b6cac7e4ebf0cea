"""Tests of numba's cache where neither this package nor the home can be written."""

import os
import tempfile

import pytest

pytest.importorskip("numba")

from numba import config

from commbench.system.compiling import compiled


@pytest.mark.parametrize("in_the_way", [None, "file", "link", "open to others"])
def test_a_cache_is_code_and_is_kept_where_only_its_user_writes(monkeypatch, tmp_path, in_the_way):
    """Compile without a cache rather than load what others may have written."""
    cache = tmp_path / f"commbench-{os.getuid()}"
    (tmp_path / "elsewhere").mkdir()
    if in_the_way == "file":
        cache.touch()
    elif in_the_way == "link":
        cache.symlink_to(tmp_path / "elsewhere")
    elif in_the_way == "open to others":
        cache.mkdir()
        cache.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(config, "CACHE_DIR", "/proc/nothing")
    monkeypatch.setattr(
        config, "CACHE_LOCATOR_CLASSES", "numba.core.caching.UserProvidedCacheLocator"
    )

    @compiled
    def double(number: int) -> int:
        return 2 * number

    assert 6 == double(3)
    assert (in_the_way is None) == bool(list(tmp_path.rglob("*.nbc")))
