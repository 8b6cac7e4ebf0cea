"""Tests of cases and sweeps."""

import json
from dataclasses import asdict, replace

import pytest
from builders import make_case
from fields import fields_of

from commbench.collectives.cases import Sweep, all_cases, shuffled


def test_axes_that_do_not_apply_are_dropped():
    """Drop axes that do not apply to an operation, and merge equal cases."""
    sweep = Sweep(
        operations=["all_gather", "barrier"],
        sizes=[8, 64],
        backends=["mpi"],
        dtypes=["float32", "int32"],
        redops=["sum", "max"],
        roots=[0, 1],
    )
    cases = sweep.cases(2)
    assert 2 * 2 + 1 == len(cases)
    assert {(None, None)} == set(fields_of(cases, "redop", "root"))
    assert [(0, None, None)] == [
        (c.message_bytes, c.dtype, c.in_place) for c in cases if c.operation == "barrier"
    ]


def test_a_text_is_read_as_the_option_reads_it():
    """Take texts for lists of names, numbers and sizes."""
    texts = Sweep(operations="broadcast,reduce", sizes="8:16", roots="0,1", env="A=1,2")
    lists = Sweep(operations=["broadcast", "reduce"], sizes=[8, 16], roots=[0, 1], env=["A=1,2"])
    assert lists.cases(2) == texts.cases(2)


def test_sizes_that_round_to_one_are_one_case():
    """Merge sizes that round to the same message."""
    assert [12] == fields_of(
        Sweep(operations=["all_gather"], sizes=[8, 12], backends=["mpi"]).cases(3), "message_bytes"
    )


@pytest.mark.parametrize(
    ("in_place", "operation", "expected"),
    [
        ("default", "all_reduce", [True]),
        ("default", "all_gather", [False]),
        ("in", "all_gather", [True]),
        ("out", "all_reduce", [False]),
        ("both", "reduce", [False, True]),
        ("both", "broadcast", [None]),
    ],
)
def test_places_follow_the_operation(in_place, operation, expected):
    """Vary in place and out of place only for operations with both."""
    cases = Sweep(operations=[operation], sizes=[8], backends=["mpi"], in_place=in_place).cases(2)
    assert expected == fields_of(cases, "in_place")


def test_several_sweeps_share_cases():
    """Return a case of two sweeps once, in the order named."""
    a, b = (Sweep(sizes=sizes, backends=["mpi"]) for sizes in ([8, 64], [64, 512]))
    assert [8, 64, 512] == fields_of(all_cases([a, b], 2), "message_bytes")


def test_a_key_names_every_field():
    """Give cases that differ in any field different keys."""
    case = make_case()
    changes = {
        "loop": "python",
        "sync": "barrier",
        "in_place": False,
        "redop": "max",
        "buffers": "cold",
        "world_size": 2,
        "graph": True,
        "persistent": True,
        "algorithm": "ring",
        "env": "A=1",
    }
    keys = {make_case(**{name: value}).key for name, value in changes.items()} | {case.key}
    assert 1 + len(changes) == len(keys)
    assert make_case().key == case.key
    complete = make_case(world_size=2, graph=True, persistent=True, algorithm="ring", env="A=1")
    fields = asdict(complete)
    assert fields == json.loads(complete.key)
    later = {"world_size", "graph", "persistent", "algorithm", "env"}
    assert {name: value for name, value in fields.items() if name not in later} == json.loads(
        case.key
    )


def test_names_show_settings_that_differ_from_the_defaults():
    """Name backend, operation, size and type, and only unusual settings."""
    assert "mpi all_reduce 1 KiB float32 sum" == str(make_case())
    assert "mpi reduce 1 KiB float32 max out of place root 1" == str(
        make_case("reduce", redop="max", in_place=False, root=1)
    )
    assert "mpi barrier" == str(make_case("barrier"))
    assert "mpi all_reduce 1 KiB float32 sum pipelined" == str(make_case(sync="none"))
    assert "mpi all_reduce 1 KiB float32 sum graph in rotated buffers" == str(
        make_case(graph=True, sync="none", buffers="rotated")
    )
    assert "mpi all_reduce 1 KiB float32 sum persistent" == str(make_case(persistent=True))
    assert str(make_case()) == str(make_case(buffers=""))


def test_cadences_and_buffers_are_axes():
    """Combine each cadence with each buffer mode; a barrier has no buffers."""
    sweep = Sweep(
        operations=["all_reduce", "barrier"],
        sizes=[8],
        backends=["nccl"],
        cadences=["isolated", "pipelined", "graph", "persistent"],
        buffers=["hot", "rotated"],
    )
    cases = sweep.cases(2)
    cadences = [
        ("isolated", "auto"),
        ("pipelined", "none"),
        ("graph", "auto"),
        ("persistent", "auto"),
    ]
    assert [(*cadence, kind) for cadence in cadences for kind in ("hot", "rotated")] == [
        (case.mode, case.sync, case.buffers) for case in cases if case.operation == "all_reduce"
    ]
    assert [(*cadence, "hot") for cadence in cadences] == [
        (case.mode, case.sync, case.buffers) for case in cases if case.operation == "barrier"
    ]
    assert "nccl all_reduce 8 B float32 sum graph in rotated buffers" == str(cases[5])
    assert "barrier" == replace(sweep, sync="barrier", cadences=["graph"]).cases(2)[0].sync


def test_the_order_follows_from_seed_and_launch():
    """Shuffle cases by seed and launch."""
    cases = [make_case(message_bytes=4 * i) for i in range(1, 20)]
    assert shuffled(cases, 7, 0) == shuffled(cases, 7, 0)
    orders = [shuffled(cases, seed, launch) for seed, launch in ((7, 0), (7, 1), (8, 0))]
    assert 3 == len({tuple(order) for order in orders})
    assert all(set(cases) == set(order) for order in orders)


def test_scaling_study_measures_each_number_of_ranks():
    """Make each case for each number of ranks with sizes rounded for it."""
    sweep = Sweep(operations=["all_gather"], sizes=[1024], backends=["mpi"], world_sizes=[2, 3, 4])
    cases = sweep.cases(4)
    assert [(2, 1024), (3, 1032), (None, 1024)] == fields_of(cases, "world_size", "message_bytes")
    assert replace(sweep, world_sizes=()).cases(4) == cases[2:]
    assert "mpi all_gather 1 KiB float32 on 2 ranks" == str(cases[0])
