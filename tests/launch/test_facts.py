"""Tests of the facts that ranks state about themselves, with given places and ranks that are
threads.
"""

import os
from typing import Any

import pytest
from faking import FakeCommunicator
from fields import fields_of
from threads import ThreadControl, run_threads

from commbench.engine.control import gather_everywhere
from commbench.errors import InputError
from commbench.launch.facts import (
    Place,
    are_oversubscribed,
    changed_conditions,
    collect_session,
    header_fields,
    own_place,
    refuse_other_conditions,
    session_of,
)


def place(rank: int, cpus: list[int], clock: str = "boot/ns", host: str = "n0") -> Place:
    """Return a place."""
    return Place(rank=rank, host=host, pid=rank, cpus=cpus, clock=clock)


@pytest.mark.parametrize(
    ("places", "crowded"),
    [
        ([place(0, [0]), place(1, [1])], False),
        ([place(0, [0]), place(1, [0])], True),
        ([place(0, [0, 1]), place(1, [0, 1]), place(2, [0, 1])], True),
        ([place(0, [0], "a/x", "n0"), place(1, [0], "b/x", "n1")], False),
        ([place(0, [0], "a/x", "n0"), place(1, [0], "a/x", "n1")], True),
    ],
)
def test_ranks_that_share_cpus_are_crowded(places, *, crowded):
    """Detect oversubscription from the CPUs of all ranks on a machine, which its boot names."""
    assert crowded == are_oversubscribed(places)


def told(ranks: int, *arguments: Any) -> Any:
    """Return the session that ranks tell rank 0, on the fake backend."""

    def work(control: ThreadControl) -> Any:
        carriers = {arguments[0]: FakeCommunicator(control)}
        return collect_session(
            control, gather_everywhere(control, own_place(control.rank)), carriers, *arguments[1:]
        )

    session, *nothing = run_threads(ranks, work)
    assert not any(nothing)
    return session


def test_a_session_states_hosts_once_and_every_rank():
    """List each host once and every rank."""
    session = told(2, "gloo", {"NCCL_X": "1"}).facts
    assert 1 == len(session["environment"]["hosts"])
    assert len(os.sched_getaffinity(0)) == session["environment"]["hosts"][0]["cpus_allowed"]
    ranks = session["environment"]["hosts"][0]["topology"]["ranks"]
    assert [0, 1] == fields_of(ranks, "rank")
    assert ranks[0]["numa_nodes"] == ranks[1]["numa_nodes"]
    assert {"NCCL_X": "1"} == session["environment"]["variables"]
    assert [0, 1] == fields_of(session["ranks"], "rank")
    assert {"gloo": "commbench fake"} == session["libraries"]
    assert (True, None) == (session["shared_clock"], session["mpi_init_s"])


def test_a_session_lists_the_settings_of_nccl(monkeypatch):
    """List NCCL variables set by a configuration file, without log settings, and keep them
    later.
    """
    settings = {"NCCL_NET": "Socket", "NCCL_ALGO": "ring", "NCCL_DEBUG_FILE": "a.log"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    stated = told(1, "gloo", {"NCCL_ALGO": "ring"}).facts
    assert {"NCCL_NET": "Socket"} == stated["nccl_settings"]
    fields = header_fields(stated, {})
    assert {"NCCL_NET": "Socket"} == header_fields(session(), fields)["nccl_settings"]


def session(
    cpu_model: str = "abacus", hosts: tuple[str, ...] = ("n0", "n0", "n1"), **environment: object
) -> dict[str, object]:
    """Return a session of ranks on hosts."""
    return {
        "environment": {"hosts": [{"cpu_model": cpu_model, "timer_tick_s": 2e-8}], **environment},
        "ranks": [
            {"rank": rank, "host": host, "pid": 1, "cpus": [0]} for rank, host in enumerate(hosts)
        ],
        "libraries": {},
        "mpi_init_s": 1.0,
        "shared_clock": True,
        "oversubscribed": False,
    }


def test_other_conditions_are_refused():
    """Name the changed condition and what to do."""
    header = {"environment": session()["environment"]}
    refuse_other_conditions(session(), header)
    refuse_other_conditions(session(), {})
    assert ["cpu_model: abacus vs slide rule"] == changed_conditions(session("slide rule"), header)
    with pytest.raises(InputError, match=r"cpu_model: abacus vs slide rule.*choose another --out"):
        refuse_other_conditions(session("slide rule"), header)


def test_a_session_has_the_values_of_varied_variables(monkeypatch, stub):
    """Gather the value of each rank and what its NCCL read.

    Leave varied variables out of the conditions.
    """
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.delenv("NCCL_PROTO", raising=False)
    stub(
        "commbench.backends.nccl_library.LOG.settings", {"NCCL_ALGO": "ring", "NCCL_NET": "Socket"}
    )

    session = told(2, "nccl", {}, ["NCCL_ALGO", "NCCL_PROTO"])
    assert {
        "NCCL_ALGO": {"ranks": ["Ring"], "nccl": ["ring"]},
        "NCCL_PROTO": {"ranks": [None], "nccl": []},
    } == session.variables
    assert "NCCL_ALGO" not in session.facts["nccl_settings"]


@pytest.mark.parametrize(
    ("name", "better", "worse"),
    [
        ("clock", {"error_us": 3.0}, {"error_us": 9.0}),
        ("energy", {"counted": ["cpu", "gpu"]}, {"counted": ["gpu"]}),
    ],
)
def test_the_worst_launch_is_stated(name, better, worse):
    """Record the largest clock error and the fewest energy counters of all launches."""
    header = {}
    for facts in (better, worse, better):
        header |= header_fields({**session(), name: facts}, header)
    assert worse == header[name]
    assert name not in header_fields(session(), {})


@pytest.mark.parametrize(("clock", "is_shared"), [("boot/ns", True), ("boot/other", False)])
def test_ranks_share_a_clock_only_if_all_name_the_same(clock, *, is_shared):
    """Treat a time namespace as another clock."""
    places = [place(0, [0]), place(1, [1], clock)]
    assert is_shared == session_of([], places, {}, {})["shared_clock"]
