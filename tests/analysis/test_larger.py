"""Tests of larger networks fitted to several runs: which curves belong together, and the times of
operations.
"""

import dataclasses

import pytest
from builders import MIB
from networks import HOP, RING, growing, measured_run, network_info

from commbench.analysis.prediction.closed_forms import ALGORITHMS, Hop
from commbench.analysis.prediction.larger import Family, GrowingNetwork
from commbench.errors import InputError


def test_a_scaling_study_is_fitted() -> None:
    """Fit a curve per operation over all rank counts, and read the link from the run."""
    network = growing((2, 3, 4))
    assert {"all_reduce", "all_gather"} == {family.operation for family in network.curves}
    curve = network.curves[Family("all_reduce", "gloo", "float32", "flat")]
    assert curve.world_sizes == [2, 3, 4]
    assert curve.link.rate_bps == 1e9
    assert str(next(iter(network.curves))) == "gloo all_gather of float32"


def test_it_is_a_network() -> None:
    """Predict operation times on more ranks, and use another data type's curve where data only
    moves.
    """
    larger_network = growing((2, 4)).at("gloo", 16)
    assert (larger_network.world_size, larger_network.servers) == (16, 2)
    assert larger_network.time_us("all_reduce", "float32", 4 * MIB) == pytest.approx(
        float(RING(16, 4 * MIB, HOP)), rel=0.05
    )
    gathered = ALGORITHMS["all_gather"]["ring"](16, 4 * MIB, HOP)
    assert larger_network.time_us("all_gather", "int8", 4 * MIB) == pytest.approx(
        float(gathered), rel=0.05
    )
    with pytest.raises(
        InputError,
        match="Nothing is known of gloo all_reduce of float16; measure it: commbench run",
    ):
        larger_network.time_us("all_reduce", "float16", 4 * MIB)


def test_other_rates() -> None:
    """Predict ten times the time at a tenth of the rate if the link decides."""
    network = growing((2, 4))
    times = [
        network.at("gloo", 8, rate_bps=rate).time_us("all_reduce", "float32", 64 * MIB)
        for rate in (1e9, 1e8)
    ]
    assert times[1] / times[0] == pytest.approx(10, rel=0.05)


def test_runs_of_several_sizes_and_rates_join() -> None:
    """Join runs over links of different rates into one network."""
    slow = Hop(alpha_us=HOP.alpha_us, beta_us_per_byte=4 * HOP.beta_us_per_byte)
    runs = [measured_run([2]), measured_run([4], hop=slow, info=network_info(4, "250mbit"))]
    curve = GrowingNetwork.fit(runs).curves[Family("all_reduce", "gloo", "float32", "flat")]
    assert curve.world_sizes == [2, 4]
    assert curve.estimate(16 * MIB, 8, 1e9).time_us == pytest.approx(
        float(RING(8, 16 * MIB, HOP)), rel=0.1
    )


def test_ranks_on_one_host_do_not_measure_links() -> None:
    """Use the part of a study within one host only for ranks that fit on one host."""
    run = measured_run((2, 4, 8), info=network_info(8, ranks_per_node=4, nodes=2))
    network = GrowingNetwork.fit([run])
    curve = network.curves[Family("all_reduce", "gloo", "float32", "flat")]
    assert curve.world_sizes == [8]
    assert [2, 4] == [within_curve.world_size for within_curve in curve.within]
    within, across = (network.at("gloo", ranks, rate_bps=1e7, ranks_per_node=4) for ranks in (4, 8))
    assert within.time_us("all_reduce", "float32", MIB) == pytest.approx(
        float(RING(4, MIB, HOP)), rel=0.05
    )
    assert across.time_us("all_reduce", "float32", MIB) > 10 * within.time_us(
        "all_reduce", "float32", MIB
    )
    assert (within.is_lower_bound, across.is_lower_bound) == (False, False)


def test_a_host_joins_hosts() -> None:
    """Join a run within one host and one across hosts in either order; extrapolate the latter."""
    one_host = measured_run((2, 4), info=network_info(4, None, nodes=1, ranks_per_node=4))
    several_hosts = measured_run((4, 8), info=network_info(8, nodes=4, ranks_per_node=2))
    for runs in ([one_host, several_hosts], [several_hosts, one_host]):
        curve = GrowingNetwork.fit(runs).curves[Family("all_reduce", "gloo", "float32", "flat")]
        assert (curve.world_sizes, curve.ranks_per_node) == ([4, 8], 2)
        assert [2, 4] == [each.world_size for each in curve.within]
    alone = GrowingNetwork.fit([one_host]).at("gloo", 8, rate_bps=1e9, ranks_per_node=4)
    assert alone.is_lower_bound


def test_unlike_runs_do_not_mix() -> None:
    """Refuse runs of different libraries or different numbers of ranks per host."""
    run = measured_run([2], info=network_info(2, libraries={"gloo": "torch 2.13.0 gloo"}))
    other = measured_run([4], info=network_info(4, libraries={"gloo": "torch 2.12.0 gloo"}))
    with pytest.raises(
        InputError, match=r"different libraries \(torch 2.13.0 gloo and torch 2.12.0 gloo\)"
    ):
        GrowingNetwork.fit([run, other])
    with pytest.raises(InputError, match=r"different numbers of ranks on a host \(1 and 2\)"):
        GrowingNetwork.fit(
            [run, measured_run([4], info=network_info(4, ranks_per_node=2, nodes=2))]
        )


def test_unmeasured_operations_are_reported() -> None:
    """Name the command that measures a missing backend, and fit no curve to ring patterns."""
    network = growing((2, 4))
    with pytest.raises(
        InputError, match=r"No curve of mpi was measured.*commbench run --backend mpi"
    ):
        network.at("mpi", 8)
    run = measured_run([2], algorithms={"all_reduce": "ring"})
    records = [
        dataclasses.replace(r, case=dataclasses.replace(r.case, pattern="ring"))
        for r in run.records
    ]
    assert (
        GrowingNetwork.fit(
            [dataclasses.replace(run, records=records, model=type(run.model).fit(records))]
        ).curves
        == {}
    )
