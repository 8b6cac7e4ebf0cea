"""Tests of whole runs of patterns from the command line, on emulated hosts."""

from statistics import median

import pytest
from builders import read_info, read_rows
from fields import fields_of
from launching import succeeded

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("mark", "mpirun")]

#: What carries messages within a host and between hosts.
TRANSPORTS = {"mpi": ("sm", "tcp"), "gloo": ("tcp/lo", "tcp/eth0")}


@pytest.fixture(scope="module")
def shaped(forked_python, tmp_path_factory):
    """Return a run of two emulated hosts with two ranks each, behind links of 200 Mbit/s."""
    pytest.importorskip("torch")
    out = tmp_path_factory.mktemp("lab") / "run"
    words = (
        f"{forked_python} -m commbench lab run --hosts 2 --ranks-per-host 2 --rate 200mbit --"
        f" {forked_python} -m commbench run --oversubscribe -c all_reduce --pattern node,cross"
        f" --sizes 1M --launches 1 --launcher mpirun --sync dissemination --out {out}"
    )
    succeeded(*words.split(), seconds=150)
    return out


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.parametrize("backend", TRANSPORTS)
def test_groups_across_hosts_are_as_slow_as_the_link(shaped, backend):
    """Measure groups within a host as much faster than those across, which share the link, and
    name the transport of each.
    """
    rows = [row for row in read_rows(shaped) if row["backend"] == backend]
    by_pattern = {"node": {}, "cross": {}}
    for row in rows:
        by_pattern[row["pattern"]][row["group"]] = row
    assert {"0-1", "2-3"} == by_pattern["node"].keys()
    assert {"0,2", "1,3"} == by_pattern["cross"].keys()
    time_us = {
        name: median(float(row["time_us"]) for row in groups.values())
        for name, groups in by_pattern.items()
    }
    assert 5 * time_us["node"] < time_us["cross"]
    link_GBps = 0.025
    together = sum(float(row["busbw_GBps"]) for row in by_pattern["cross"].values())
    assert 0.2 * link_GBps < together < 1.3 * link_GBps
    assert all("emulated" in row["flags"] for row in rows)
    transports = {row["pattern"]: row["transport"] for row in rows}
    assert TRANSPORTS[backend] == (transports["node"], transports["cross"])
    info = read_info(shaped)
    assert ["host0", "host0", "host1", "host1"] == fields_of(info["ranks"], "host")
    assert {"hosts": 2, "rate": "200mbit"} == info["environment"]["emulated"]
