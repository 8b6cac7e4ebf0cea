"""Tests of the plan of an emulated cluster, and of the requirements on the machine."""

import json
from pathlib import Path

import pytest
from fields import fields_of

from commbench.errors import InputError
from commbench.launch.lab.labs import run_in_lab
from commbench.launch.lab.network import switch_commands
from commbench.launch.lab.plan import LabPlan, format_rate, parse_rate


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1gbit", 10**9),
        ("200mbit", 2 * 10**8),
        ("2.5Gbit", 25 * 10**8),
        ("1500 kbit", 1_500_000),
        ("none", None),
    ],
)
def test_rates_are_bits_per_second(text, expected):
    """Parse rates as tc does, and format them so that they parse again."""
    assert expected == parse_rate(text)
    assert expected == parse_rate(format_rate(expected))


def test_hosts_are_spread_evenly_over_racks():
    """Put neighbours into one rack; by default an uplink has the rate of a host."""
    plan = LabPlan.parse(5, "1gbit", racks=2)
    assert [0, 0, 0, 1, 1] == fields_of(plan.hosts, "rack")
    assert 10**9 == plan.uplink_bps
    assert 2 * 10**8 == LabPlan.parse(5, "1gbit", racks=2, uplink="200mbit").uplink_bps
    commands = switch_commands(plan, {host.name: 1 for host in plan.hosts})
    assert {"link set host2 master rack0 up", "link set host3 master rack1 up"} <= set(commands)
    assert {"link set uplink1 master rack1 up", "link set downlink1 master switch up"} <= set(
        commands
    )


def test_conditions_state_what_differs():
    """Record the lab's shape in the conditions, and nothing further for a plain lab; read a plan
    back unchanged.
    """
    plain = {"hosts": 2, "rate": "1gbit"}
    assert plain == LabPlan.parse(2, "1gbit", slow=["host1=1000mbit"]).conditions
    plan = LabPlan.parse(4, "1gbit", slow=["host1=none"], racks=2, uplink="2gbit")
    shape = {"hosts": 4, "slow": {"host1": "none"}, "racks": 2, "uplink": "2gbit"}
    assert {**plain, **shape} == plan.conditions
    assert plan == LabPlan.from_json(plan.to_json())


def test_a_lab_needs_root(stub):
    """Say what to put before the command."""
    stub("os.geteuid", 1000)
    with pytest.raises(InputError, match="needs root"):
        run_in_lab(LabPlan.parse(2, "1gbit"), ["true"])


def test_programs_are_led_to_the_emulated_links():
    """Set variables that select the emulated interfaces, and remove those of a batch system."""
    environ = {
        "HOME": "/root",
        "SLURM_JOB_ID": "1",
        "GLOO_SOCKET_IFNAME": "ens5",
        "OMPI_MCA_pml": "ucx",
    }
    environment = LabPlan.parse(2, "1gbit").environment(environ, Path("/lab"))
    expected = {
        "HOME": "/root",
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMPI_MCA_pml": "ob1",
        "NCCL_IB_DISABLE": "1",
    }
    assert expected == {name: environment.get(name) for name in expected}
    assert "/lab/hostfile" == environment["COMMBENCH_HOSTFILE"]
    assert {"hosts": 2, "rate": "1gbit"} == json.loads(environment["COMMBENCH_EMULATED"])
    assert "SLURM_JOB_ID" not in environment
