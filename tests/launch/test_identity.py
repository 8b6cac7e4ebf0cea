"""Tests of a process's identity, from the variables that launchers really set."""

import pytest

from commbench.errors import InputError
from commbench.launch.identity import Identity, expand_nodes, identify, tasks_per_node

OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
}
SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}


@pytest.mark.parametrize(
    ("launcher", "environ"),
    [("openmpi", OPENMPI), ("mpich", HYDRA), ("torchrun", TORCHRUN), ("slurm", SLURM)],
)
def test_a_rank_knows_its_place(launcher, environ):
    """Read rank, local rank and world size from the variables of every launcher."""
    place = {"rank": 3, "world_size": 4, "local_rank": 1, "local_size": 2}
    carries_mpi = launcher in {"openmpi", "mpich"}  # nor does an srun without PMI
    assert Identity(role="rank", launcher=launcher, carries_mpi=carries_mpi, **place) == identify(
        environ
    )


def test_other_launchers_come_before_slurm():
    """Recognise each PMI by its variables; read the local rank from Slurm."""
    assert not identify(SLURM).carries_mpi
    assert identify({**SLURM, "PMIX_NAMESPACE": "slurm.pmix.7.0"}).carries_mpi
    assert identify({**SLURM, "I_MPI_PMI_LIBRARY": "/usr/lib/libpmi2.so"}).carries_mpi
    within = {**SLURM, "PMI_RANK": "3", "PMI_SIZE": "4"}
    place = {"rank": 3, "world_size": 4, "local_rank": 1, "local_size": 2}
    assert Identity(role="rank", launcher="mpich", **place) == identify(within)
    assert 3 == identify({**SLURM, "SLURM_PROCID": "0", **OPENMPI}).rank
    expected = Identity(role="rank", launcher="mpich", rank=1, world_size=2)
    assert expected == identify({"PMI_RANK": "1", "PMI_SIZE": "2"})


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "2"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"},
        {**SLURM, "SLURM_STEP_ID": "4294967290"},
        {**SLURM, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PTY_PORT": "40123"},
    ],
    ids=["nothing", "a bare RANK", "a batch script", "an interactive step", "srun --pty"],
)
def test_without_a_launcher_it_is_the_conductor(environ):
    """Identify as conductor despite incomplete variables or a scheduler's shell."""
    assert Identity(role="conductor") == identify(environ)


@pytest.mark.parametrize("outer", [OPENMPI, HYDRA, {**SLURM, "PMI_RANK": "1", "PMI_SIZE": "2"}])
def test_torchrun_takes_precedence_over_its_launcher(outer):
    """Prefer torchrun's variables inside mpirun or srun."""
    within = {**outer, "OMPI_COMM_WORLD_RANK": "0", "PMI_RANK": "0"}
    assert identify(TORCHRUN) == identify({**within, **TORCHRUN})


def test_a_requested_role_wins():
    """Prefer the requested role to the environment."""
    assert Identity(role="conductor") == identify(OPENMPI, "conductor")
    assert Identity(role="rank") == identify({}, "rank")
    assert 3 == identify(OPENMPI, "rank").rank


def test_what_is_not_understood_is_named():
    """Name the variable that is not a number, and list the valid roles."""
    with pytest.raises(InputError, match="OMPI_COMM_WORLD_SIZE is 'many'"):
        identify({**OPENMPI, "OMPI_COMM_WORLD_SIZE": "many"})
    with pytest.raises(InputError, match="conductor, rank"):
        identify({}, "boss")


@pytest.mark.parametrize(("text", "expected"), [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("", [])])
def test_tasks_per_node_expands_repetition(text, expected):
    """Expand Slurm's shorthand for tasks per node."""
    assert expected == tasks_per_node(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("n0", "n0"),
        ("a-b[08-10,20],login", "a-b08 a-b09 a-b10 a-b20 login"),
        ("r[1-2]n[3-4]-ib", "r1n3-ib r1n4-ib r2n3-ib r2n4-ib"),
        ("n[8-11]", "n8 n9 n10 n11"),
    ],
)
def test_node_lists_are_expanded(text, expected):
    """Expand the names as ``scontrol show hostnames`` does."""
    assert expected.split() == expand_nodes(text)


def test_lists_that_are_not_understood_are_refused():
    """Refuse what is not Slurm's."""
    for expand, text in ((tasks_per_node, "2(x"), (expand_nodes, "n[a-b]")):
        with pytest.raises(InputError, match="not understood"):
            expand(text)
