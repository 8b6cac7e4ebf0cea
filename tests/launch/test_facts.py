"""Tests of the facts that ranks state about themselves, with given places and ranks that are
threads.
"""

import os

import pytest
from faking import FakeCommunicator
from threads import run_threads

from commbench.backends.nccl_library import LOG
from commbench.errors import InputError
from commbench.launch.facts import (
    Place,
    are_oversubscribed,
    changed_conditions,
    collect_session,
    gather_places,
    header_fields,
    refuse_other_conditions,
    share_clock,
)


def place(rank: int, cpus: list[int], clock: str = "boot/ns", host: str = "n0") -> Place:
    """Return a place."""
    return Place(rank=rank, host=host, pid=rank, cpus=cpus, clock=clock)


def test_ranks_bound_to_a_core_each_are_not_crowded() -> None:
    """Detect oversubscription from the CPUs of all ranks on a machine."""
    assert not are_oversubscribed([place(0, [0]), place(1, [1])])
    assert are_oversubscribed([place(0, [0]), place(1, [0])])
    assert are_oversubscribed([place(0, [0, 1]), place(1, [0, 1]), place(2, [0, 1])])


def test_hosts_do_not_share_cpus_but_containers_on_one_machine_do() -> None:
    """Identify a machine by its boot id, not by its host name."""
    assert not are_oversubscribed([place(0, [0], "a/x", "n0"), place(1, [0], "b/x", "n1")])
    assert are_oversubscribed([place(0, [0], "a/x", "n0"), place(1, [0], "a/x", "n1")])


def test_a_session_states_hosts_once_and_every_rank() -> None:
    """List each host once and every rank."""

    def work(control):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return collect_session(
            control, gather_places(control), {"gloo": FakeCommunicator(control)}, {"NCCL_X": "1"}
        )

    session, nothing = run_threads(2, work)
    assert nothing is None
    assert 1 == len(session["environment"]["hosts"])
    assert len(os.sched_getaffinity(0)) == session["environment"]["hosts"][0]["cpus_allowed"]
    ranks = session["environment"]["hosts"][0]["topology"]["ranks"]
    assert [0, 1] == [rank["rank"] for rank in ranks]
    assert ranks[0]["numa_nodes"] == ranks[1]["numa_nodes"]
    assert {"NCCL_X": "1"} == session["environment"]["variables"]
    assert [0, 1] == [rank["rank"] for rank in session["ranks"]]
    assert {"gloo": "commbench fake"} == session["libraries"]
    assert (True, None) == (session["shared_clock"], session["mpi_init_s"])


def test_a_session_lists_the_settings_of_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """List NCCL variables set by a configuration file, without log settings, and keep them
    later.
    """
    for name, value in (
        ("NCCL_NET", "Socket"),
        ("NCCL_ALGO", "ring"),
        ("NCCL_DEBUG_FILE", "a.log"),
    ):
        monkeypatch.setenv(name, value)

    def work(control):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return collect_session(control, gather_places(control), {}, {"NCCL_ALGO": "ring"})

    (stated,) = run_threads(1, work)
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


def test_other_conditions_are_refused() -> None:
    """Name the changed condition and what to do."""
    header = {"environment": session()["environment"]}
    refuse_other_conditions(session(), header)
    refuse_other_conditions(session(), {})
    assert ["cpu_model: abacus vs slide rule"] == changed_conditions(session("slide rule"), header)
    with pytest.raises(InputError, match=r"cpu_model: abacus vs slide rule.*choose another --out"):
        refuse_other_conditions(session("slide rule"), header)


@pytest.mark.parametrize(
    "name", ["OMPI_MCA_btl", "PRTE_MCA_rmaps", "UCX_TLS", "FI_PROVIDER", "I_MPI_FABRICS"]
)
def test_training_does_not_mind_how_mpi_is_set(name: str) -> None:
    """Allow training to resume with other MPI settings, but not collectives."""
    header = {"environment": session(variables={name: "a", "NCCL_ALGO": "x"})["environment"]}
    after = session(variables={name: "b", "NCCL_ALGO": "x"})
    assert 1 == len(changed_conditions({**after, "training": False}, header))
    refuse_other_conditions({**after, "training": True}, header)
    gone = {**session(variables={"NCCL_ALGO": "x"}), "training": True}
    refuse_other_conditions(gone, header)


@pytest.mark.parametrize("name", ["NCCL_ALGO", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS"])
def test_training_minds_all_else(name: str) -> None:
    """Refuse to resume training with other Gloo, NCCL or thread settings, or on another machine."""
    header = {"environment": session(variables={name: "a", "OMPI_MCA_btl": "x"})["environment"]}
    after = session(variables={name: "b", "OMPI_MCA_btl": "x"})
    (change,) = changed_conditions({**after, "training": True}, header)
    assert name in change
    with pytest.raises(InputError, match="slide rule"):
        refuse_other_conditions(
            {**session("slide rule", variables={name: "a"}), "training": True},
            header,
        )


def test_a_session_has_the_values_of_varied_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gather the value of each rank and what its NCCL read.

    Leave varied variables out of the conditions.
    """
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.delenv("NCCL_PROTO", raising=False)
    monkeypatch.setattr(LOG, "settings", lambda: {"NCCL_ALGO": "ring", "NCCL_NET": "Socket"})

    def work(control):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        backends = {"nccl": FakeCommunicator(control)}
        return collect_session(
            control, gather_places(control), backends, {}, ["NCCL_ALGO", "NCCL_PROTO"]
        )

    session, _ = run_threads(2, work)
    assert {
        "NCCL_ALGO": {"ranks": ["Ring"], "nccl": ["ring"]},
        "NCCL_PROTO": {"ranks": [None], "nccl": []},
    } == session["launch_variables"]
    assert "NCCL_ALGO" not in session["nccl_settings"]


@pytest.mark.parametrize(
    ("name", "better", "worse"),
    [
        ("clock", {"error_us": 3.0}, {"error_us": 9.0}),
        ("energy", {"counted": ["cpu", "gpu"]}, {"counted": ["gpu"]}),
    ],
)
def test_the_worst_launch_is_stated(name: str, better: object, worse: object) -> None:
    """Record the largest clock error and the fewest energy counters of all launches."""
    header: dict[str, object] = {}
    for facts in (better, worse, better):
        header |= header_fields({**session(), name: facts}, header)
    assert worse == header[name]
    assert name not in header_fields(session(), {})


def test_ranks_share_a_clock_only_if_all_name_the_same() -> None:
    """Treat a time namespace as another clock."""
    assert share_clock([place(0, [0]), place(1, [1])])
    assert not share_clock([place(0, [0]), place(1, [1], "boot/other")])


def test_run_json_gets_the_facts_that_rows_need() -> None:
    """Write ranks, hosts, ranks per host and the clock's resolution in microseconds."""
    fields = header_fields(session(), {})
    assert (3, 2, 2) == (fields["world_size"], fields["nodes"], fields["ranks_per_node"])
    assert pytest.approx(0.02) == fields["tick_us"]
