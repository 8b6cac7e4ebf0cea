"""Tests of options that a version removed: each names what takes its place."""

import pytest

from commbench.cli.removed import REMOVED, refuse_removed
from commbench.errors import InputError


@pytest.mark.parametrize("removed", REMOVED)
def test_a_removed_option_names_what_takes_its_place(removed: str) -> None:
    """Refuse it, also with its value behind an equals sign."""
    command, *words = removed.split()
    for arguments in ([command, "RUN", *words], [command, "=".join(words), "RUN"]):
        with pytest.raises(InputError) as refusal:
            refuse_removed(arguments)
        assert f"`{removed}` was removed: {REMOVED[removed]}." == str(refusal.value)


def test_other_words_pass() -> None:
    """Take no words, other values, and the options of another program."""
    refuse_removed([])
    refuse_removed(["export", "RUN", "--format", "parquet"])
    refuse_removed(["export", "RUN", "--format"])
    for removed in REMOVED:
        command, *words = removed.split()
        refuse_removed([command, "--", *words])
