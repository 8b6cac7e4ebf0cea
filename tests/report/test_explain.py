"""Tests of `commbench report --explain`."""

import pytest

from commbench.engine.flags import FLAGS


@pytest.mark.parametrize(
    ("name", "files"), [("busbw_GBps", "collectives"), ("accumulation", "ddp, buckets, compare")]
)
def test_a_column_is_explained(name, files, commbench):
    """Print the meaning of a column with the files that have it."""
    assert commbench(f"report any --explain {name}").out.startswith(f"{name}, column of {files}: ")


@pytest.mark.parametrize("name", ["ci_wide", "w"])
def test_a_flag_is_explained(name, commbench):
    """Print the meaning of a flag by its name or its mark."""
    assert FLAGS["ci_wide"].description in commbench(f"report any --explain {name}").out


def test_an_unknown_name_is_refused(commbench):
    """Refuse what is neither a flag nor a column."""
    assert 2 == commbench("report any --explain nothing").code
