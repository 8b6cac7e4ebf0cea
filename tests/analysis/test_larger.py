"""Tests of larger networks put together from runs: which curves belong together, and what training asks of them."""

import dataclasses

import pytest
from builders import MIB
from networks import HOP, RING, growing, measured_run, network_info

from commbench.analysis.prediction.closed_forms import ALGORITHMS, Hop
from commbench.analysis.prediction.larger import Family, GrowingNetwork
from commbench.errors import InputError


def test_a_scaling_study_is_fitted() -> None:
    """All operations, on all their ranks, and the link that the run states."""
    network = growing((2, 3, 4))
    assert {"all_reduce", "all_gather"} == {family.operation for family in network.curves}
    curve = network.curves[Family("all_reduce", "gloo", "float32", "flat")]
    assert curve.world_sizes == [2, 3, 4]
    assert curve.link.rate_bps == 1e9
    assert str(next(iter(network.curves))) == "gloo all_gather of float32"


def test_it_is_a_network() -> None:
    """Time of an operation on so many ranks, also of a data type that was not measured where data only moves."""
    there = growing((2, 4)).at("gloo", 16)
    assert (there.world_size, there.servers) == (16, 2)
    assert there.time_us("all_reduce", "float32", 4 * MIB) == pytest.approx(float(RING(16, 4 * MIB, HOP)), rel=0.05)
    gathered = ALGORITHMS["all_gather"]["ring"](16, 4 * MIB, HOP)
    assert there.time_us("all_gather", "int8", 4 * MIB) == pytest.approx(float(gathered), rel=0.05)
    with pytest.raises(InputError, match="Nothing is known of gloo all_reduce of float16; measure it: commbench run"):
        there.time_us("all_reduce", "float16", 4 * MIB)


def test_other_rates() -> None:
    """A tenth of the rate takes ten times as long where the link decides."""
    network = growing((2, 4))
    times = [network.at("gloo", 8, rate_bps=rate).time_us("all_reduce", "float32", 64 * MIB) for rate in (1e9, 1e8)]
    assert times[1] / times[0] == pytest.approx(10, rel=0.05)


def test_runs_of_several_sizes_and_rates_join() -> None:
    """Two runs over links of different rates make one network, in which the rate of each is heeded."""
    slow = Hop(alpha_us=HOP.alpha_us, beta_us_per_byte=4 * HOP.beta_us_per_byte)
    runs = [measured_run([2]), measured_run([4], hop=slow, info=network_info(4, "250mbit"))]
    curve = GrowingNetwork.fit(runs).curves[Family("all_reduce", "gloo", "float32", "flat")]
    assert curve.world_sizes == [2, 4]
    assert curve.estimate(16 * MIB, 8, 1e9).time_us == pytest.approx(float(RING(8, 16 * MIB, HOP)), rel=0.1)


def test_ranks_on_one_host_do_not_measure_links() -> None:
    """Use parts of a study that fit one host for such ranks only."""
    run = measured_run((2, 4, 8), info=network_info(8, ranks_per_node=4, nodes=2))
    network = GrowingNetwork.fit([run])
    curve = network.curves[Family("all_reduce", "gloo", "float32", "flat")]
    assert curve.world_sizes == [8]
    assert [2, 4] == [one.world_size for one in curve.within]
    within, across = (network.at("gloo", ranks, rate_bps=1e7, ranks_per_node=4) for ranks in (4, 8))
    assert within.time_us("all_reduce", "float32", MIB) == pytest.approx(float(RING(4, MIB, HOP)), rel=0.05)
    assert across.time_us("all_reduce", "float32", MIB) > 10 * within.time_us("all_reduce", "float32", MIB)
    assert (within.is_lower_bound, across.is_lower_bound) == (False, False)


def test_a_host_joins_hosts() -> None:
    """A run within one host and one across: the latter is what grows, whichever is named first."""
    one = measured_run((2, 4), info=network_info(4, None, nodes=1, ranks_per_node=4))
    many = measured_run((4, 8), info=network_info(8, nodes=4, ranks_per_node=2))
    for runs in ([one, many], [many, one]):
        curve = GrowingNetwork.fit(runs).curves[Family("all_reduce", "gloo", "float32", "flat")]
        assert (curve.world_sizes, curve.ranks_per_node) == ([4, 8], 2)
        assert [2, 4] == [each.world_size for each in curve.within]
    alone = GrowingNetwork.fit([one]).at("gloo", 8, rate_bps=1e9, ranks_per_node=4)
    assert alone.is_lower_bound


def test_unlike_runs_do_not_mix() -> None:
    """Other libraries and other numbers of ranks on a host are refused."""
    run = measured_run([2], info=network_info(2, libraries={"gloo": "torch 2.13.0 gloo"}))
    other = measured_run([4], info=network_info(4, libraries={"gloo": "torch 2.12.0 gloo"}))
    with pytest.raises(InputError, match=r"different libraries \(torch 2.13.0 gloo and torch 2.12.0 gloo\)"):
        GrowingNetwork.fit([run, other])
    with pytest.raises(InputError, match=r"different numbers of ranks on a host \(1 and 2\)"):
        GrowingNetwork.fit([run, measured_run([4], info=network_info(4, ranks_per_node=2, nodes=2))])


def test_unmeasured_operations_are_reported() -> None:
    """Name the command that measures another backend; make no curve of point-to-point operations."""
    network = growing((2, 4))
    with pytest.raises(InputError, match=r"No curve of mpi was measured.*commbench run --backend mpi"):
        network.at("mpi", 8)
    run = measured_run([2], algorithms={"all_reduce": "ring"})
    records = [dataclasses.replace(r, case=dataclasses.replace(r.case, pattern="ring")) for r in run.records]
    assert (
        GrowingNetwork.fit([dataclasses.replace(run, records=records, model=type(run.model).fit(records))]).curves == {}
    )
