"""Tests of the registry of flags and of their CSV cell."""

import pytest
from builders import make_record
from fields import fields_of

from commbench.engine.flags import FLAGS, join_flags, raised_flags, split_flags
from commbench.engine.records import Record
from commbench.errors import InputError


def test_each_flag_has_its_own_mark():
    """Give no two flags the same mark."""
    assert len(set(fields_of(FLAGS.values(), "mark"))) == len(FLAGS)
    assert all(len(flag.mark) == 1 for flag in FLAGS.values())


def test_cell_has_each_flag_once_in_order():
    """Join flags in the order of the registry and split them again; raise those whose condition
    holds in the given order.
    """
    cell = join_flags(["late", "ci_wide", "same_layout", "traffic", "late"])
    assert "ci_wide;late;traffic;same_layout" == cell
    assert cell.split(";") == split_flags(cell)
    assert ("", []) == (join_flags([]), split_flags(""))
    assert ("late", "clock") == raised_flags({"late": True, "unverified": False, "clock": True})


def test_unregistered_names_are_refused():
    """Raise on reading a name that is no flag."""
    with pytest.raises(InputError, match="'zeta' is unknown"):
        Record.from_json(make_record(flags=["zeta"]).to_json())
