"""Tests of the network model: which records make which curve, substitutes, and the JSON file."""

import pytest
from builders import KIB, make_case, make_launches
from laws import SIZES, sweep

from commbench.analysis.prediction.network import CurveKey, NetworkModel

KEY = CurveKey(operation="all_reduce", backend="mpi", dtype="float32", pattern="flat", world_size=2)


def test_curves_have_separate_keys():
    """Fit a curve for each operation, backend, data type, pattern and number of ranks."""
    records = [
        *sweep(),
        *sweep(make_case("all_gather")),
        *sweep(make_case(backend="gloo")),
        *sweep(make_case(dtype="float16")),
        *sweep(make_case(pattern="ring")),
        *sweep(make_case(world_size=4), group_size=4),
    ]
    model = NetworkModel.fit(records)
    assert [
        "gloo all_reduce of float32 on 2 ranks",
        "mpi all_gather of float32 on 2 ranks",
        "mpi all_reduce of float16 on 2 ranks",
        "mpi all_reduce of float32 on 2 ranks",
        "mpi all_reduce of float32 on 2 ranks, pattern ring",
        "mpi all_reduce of float32 on 4 ranks",
    ] == sorted(map(str, model.curves))
    curve = model.curves[KEY]
    assert SIZES == curve.sizes
    assert curve.segments[0].alpha_us == pytest.approx(20, rel=0.01)
    assert 6 == len(curve.launches_us[0])


def test_cases_with_too_few_sizes_make_no_curve():
    """Fit no curve to two sizes, failures, barriers, matrices or pipelined operations."""
    records = [
        *sweep(sizes=SIZES[:2]),
        *sweep(make_case("all_gather"), status="failed", reason="It broke."),
        *make_launches([5.0] * 6, make_case("barrier")),
        *sweep(make_case("latency", pattern="matrix")),
        *sweep(make_case("broadcast", sync="none")),
        *sweep(make_case("reduce"), status="wrong", reason="Wrong."),
    ]
    assert {} == NetworkModel.fit(records).curves


@pytest.mark.parametrize(
    ("changes", "variant"),
    [
        ({"in_place": False}, "out of place"),
        ({"redop": "max"}, "reduction max"),
        ({"sync": "barrier"}, "synchronised by barrier"),
        (
            {"redop": "max", "in_place": False, "loop": "python"},
            "reduction max, out of place, python loop",
        ),
    ],
)
def test_the_variant_nearest_to_ddp_counts(changes, variant):
    """Prefer the default sum in place; name another variant if only that was measured."""
    odd = sweep(make_case(**changes), factor=2)
    both = NetworkModel.fit([*odd, *sweep()])
    assert both.curves == NetworkModel.fit(sweep()).curves
    assert {} == both.variants
    alone = NetworkModel.fit([*odd, *sweep(sizes=SIZES[:2])])
    assert {KEY: variant} == alone.variants
    assert alone.curves[KEY].time_us(KIB) == pytest.approx(2 * both.curves[KEY].time_us(KIB))
