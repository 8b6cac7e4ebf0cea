"""Tests of the launchers: their commands, the choice among them, and their slots."""

import importlib.util
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

from commbench.errors import InputError
from commbench.launch.launchers import choice, hosts, slurm
from commbench.launch.launchers.base import Launcher, Placement
from commbench.launch.launchers.choice import check_slots, choose_launcher
from commbench.launch.launchers.hosts import check_interface, read_hostfile
from commbench.launch.launchers.mpirun import MpiexecLauncher, MpirunLauncher, find_mpirun
from commbench.launch.launchers.slurm import SrunLauncher
from commbench.launch.launchers.torchrun import TorchrunLauncher

PROGRAM = ("-m", "a.program", "word")
#: A Slurm job of two nodes with two slots each.
JOB = {"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_JOB_NODELIST": "n[0-1]"}
ONE_NODE = {**JOB, "SLURM_TASKS_PER_NODE": "1", "SLURM_JOB_NODELIST": "n0"}
EMULATED = {"COMMBENCH_EMULATED": '{"hosts": 2}'}
WHEEL = {"path": str(Path(sys.executable).parent / "mpirun")}
#: Names hosts a and b with two slots each.
HOSTS = {"hostfile": Path("hosts")}
EVERY = pytest.mark.parametrize(
    "make", [MpirunLauncher, MpiexecLauncher, SrunLauncher, TorchrunLauncher]
)


@pytest.fixture(autouse=True)
def machine(monkeypatch, stub, tmp_path):
    """Simulate a host of two cores with two threads each and two NUMA nodes, and a hostfile."""
    stub("commbench.launch.launchers.hosts.local_cpus", 4)
    stub("commbench.launch.launchers.hosts.local_cores", 2)
    stub("commbench.launch.launchers.base.numa_folders", [Path()] * 2)
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\n")
    monkeypatch.chdir(tmp_path)


def check(launcher: Launcher, ranks: int, words: str, absent: str = "", **how: bool) -> None:
    """Check that a command has the words in this order, none of the absent, and the program."""
    command = launcher.command(ranks, PROGRAM, **how)
    assert f" {words} " in f" {' '.join(command)} "
    assert not set(absent.split()) & set(command)
    assert [*PROGRAM] == command[-3:]


@pytest.mark.parametrize(
    ("ranks", "options", "words", "absent"),
    [
        (2, {"path": "/x/mpirun"}, "/x/mpirun -n 2 --bind-to core", "^ofi --oversubscribe"),
        (4, {}, "--use-hwthread-cpus --bind-to hwthread", "--oversubscribe"),
        (5, {}, "--bind-to none --oversubscribe --mca mpi_yield_when_idle 1", "core"),
        (2, WHEEL, "--mca btl ^ofi", ""),
        (2, {**WHEEL, "environ": {"OMPI_MCA_btl": "self,sm"}}, "-n 2", "^ofi"),
        (2, {**WHEEL, **HOSTS}, "--host a:2,b:2", "^ofi"),
        (2, {"extra": ["--bind-to", "none"]}, "--bind-to none", "core"),
        (6, {"ranks_per_node": 6, "oversubscribe": True}, "ppr:6:node:OVERSUBSCRIBE", "core"),
        (
            4,
            {**HOSTS, "environ": {"GLOO_X": "1", "NCCL_SECRET_TOKEN": "x", "HOME": "/"}},
            "a:2,b:2 --bind-to core -x GLOO_X -x OMP_NUM_THREADS -x PYTHONSAFEPATH",
            "NCCL_SECRET_TOKEN HOME",
        ),
        (2, {"interface": "eth1"}, "-x GLOO_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include"),
        (2, {**HOSTS, "environ": EMULATED}, "--bind-to none --mca mpi_yield_when_idle 1", "core"),
    ],
)
def test_mpirun_commands(ranks, options, words, absent):
    """Bind as tightly as there is room, and forward what affects timing, but no secret."""
    check(MpirunLauncher(**{"environ": {}, **options}), ranks, words, absent)


@pytest.mark.parametrize(
    ("ranks", "options", "words", "absent"),
    [
        (2, {}, "--bind-to numa", "^ofi"),
        (5, {}, "--bind-to none --oversubscribe", ""),
        (2, HOSTS, "--host a:2,b:2", "^ofi"),
        (2, {"environ": {"SLURM_JOB_ID": "1"}}, "-n 2", "^ofi"),
    ],
)
def test_ranks_that_train_may_use_several_cores(stub, ranks, options, words, absent):
    """Bind training ranks to a NUMA node at most."""
    launcher = MpirunLauncher(**{"environ": {}, **options})
    check(launcher, ranks, words, absent, training=True)
    stub("commbench.launch.launchers.base.numa_folders", [Path()])
    check(launcher, ranks, "--bind-to none", "numa", training=True)


@pytest.mark.parametrize(
    ("options", "words", "absent"),
    [
        ({"oversubscribe": True, "environ": ONE_NODE}, "-bind-to none", "core"),
        (HOSTS, "mpiexec -n 2 -hosts a:2,b:2 -bind-to core", "none"),
        ({"environ": JOB, "ranks_per_node": 1, "bind_to": "numa"}, "-ppn 1 -bind-to numa", "core"),
        ({"interface": "eth1"}, "-iface eth1", ""),
        ({"is_intel": True, "bind_to": "numa"}, "-genv I_MPI_PIN_DOMAIN numa", "-bind-to"),
        ({"is_intel": True, "bind_to": "none"}, "-genv I_MPI_PIN off", "-bind-to"),
        ({"is_intel": True, **HOSTS}, "-hosts a,b -ppn 2", "-f"),
        ({"is_intel": True, "hostfile": Path("unequal")}, "-hosts a,b,b -ppn 2", "-f"),
        ({"is_intel": True, "hostfile": Path("users")}, "-machinefile users -genv", "-ppn"),
        ({"is_intel": True, **HOSTS, "ranks_per_node": 1}, "-hosts a,b -ppn 1", "-f"),
    ],
)
def test_hydra_commands(options, words, absent):
    """Place and bind ranks in the dialect of MPICH or Intel MPI."""
    Path("unequal").write_text("a:2\nb:4\n")
    Path("users").write_text("me@a:2\n")
    check(MpiexecLauncher(**{"environ": {}, **options}), 2, words, absent)


@pytest.mark.parametrize(
    ("ranks", "options", "words"),
    [
        (4, {}, "srun -n 4 --overlap --kill-on-bad-exit=1 --input=0 --export=ALL --cpu-bind=cores"),
        (
            4,
            {"mpi_type": "pmix", "extra": ["--mpi=pmix"]},
            f"--mpi=pmix {sys.executable} -m mpi4py",
        ),
        (
            6,
            {"environ": {**JOB, "SLURM_CPUS_PER_TASK": "8"}, "oversubscribe": True},
            "--cpus-per-task=8 --cpu-bind=none --overcommit",
        ),
        (2, {"ranks_per_node": 1, "bind_to": "numa"}, "--nodes=2 --ntasks-per-node=1"),
    ],
)
def test_srun_commands(ranks, options, words):
    """Start a launch as a job step that overlaps the job's others; MPI starts only with a
    plugin.
    """
    launcher = SrunLauncher(**{"environ": JOB, **options})
    check(launcher, ranks, words, "" if launcher.carries_mpi else "mpi4py")
    assert launcher.carries_mpi == ("mpi_type" in options)
    assert launcher.carries_mpi == ("MASTER_PORT" not in launcher.environment())
    assert (4, False) == (SrunLauncher(environ=JOB).slots(), launcher.is_local)


def test_torchrun_commands():
    """Start ranks on this host, with ranks per node as a limit."""
    options = {"ranks_per_node": 2, "bind_to": "none", "extra": ["--max-restarts=0"]}
    launcher = TorchrunLauncher(**options, environ=JOB)
    words = "-m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts=0"
    check(launcher, 2, words, "mpi4py")
    assert 2 == launcher.slots()
    assert 2 == launcher.limit()
    assert launcher.is_local is True
    with pytest.raises(InputError, match="-n 2"):
        check_slots(3, launcher)
    with pytest.raises(InputError):
        TorchrunLauncher(hostfile=Path("hosts"))


def test_the_most_ranks_on_a_host_are_computed():
    """Fill hosts up to their slots, and count emulated hosts as one machine."""
    Path("hosts").write_text("a slots=3\nb slots=1\n")

    def most(ranks: int, **options: Any) -> int:
        return MpirunLauncher(**{"environ": {}, **HOSTS, **options}).ranks_per_host(ranks)

    assert [2, 3, 3, 4] == [most(ranks) for ranks in (2, 4, 6, 8)]
    assert 1 == most(2, ranks_per_node=1)
    assert 4 == most(4, ranks_per_node=1, environ=EMULATED)
    assert 9 == most(9, hostfile=None)
    assert 2 == most(4, hostfile=None, environ=JOB)


@EVERY
def test_variables_of_the_ranks(make, monkeypatch):
    """Set one thread, the interface on request only, and ``--env`` by the ranks' command line.

    Nothing is imported from the working directory, unless commbench itself is there.
    """
    variables = make(environ=JOB, interface="eth1").environment()
    for name in ("OMPI_MCA_btl_tcp_if_include", "UCX_NET_DEVICES", "FI_TCP_IFACE"):
        assert "eth1" == variables[name]
    assert ("eth1", "=eth1") == (variables["GLOO_SOCKET_IFNAME"], variables["NCCL_SOCKET_IFNAME"])
    assert "GLOO_SOCKET_IFNAME" not in make(environ=JOB).environment()
    launcher = make(environ={"A": "0"})
    assert "1" == launcher.environment()["OMP_NUM_THREADS"]
    assert "OMP_NUM_THREADS" not in make(environ={"OMP_NUM_THREADS": "3"}).environment()
    assert "1" == launcher.environment()["PYTHONSAFEPATH"]
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    assert "PYTHONSAFEPATH" not in launcher.environment()
    check(launcher.with_env("A=1,2;B=default"), 2, f"/usr/bin/env A=1,2 {sys.executable}")
    check(launcher.with_env("A=default"), 2, "-m a.program", "/usr/bin/env A")


def test_an_interface_must_be_there():
    """Accept an interface of this host only."""
    check_interface("lo")
    with pytest.raises(InputError, match=r"\blo\b"):
        check_interface("eth99")


@pytest.mark.parametrize(("user", "allowed"), [(0, 2), (1000, 0)])
def test_root_is_allowed_twice(stub, user, allowed):
    """Set both of Open MPI's permissions for root, and only for root."""
    stub("os.geteuid", user)
    names = {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}
    assert allowed == len(names & MpirunLauncher(environ={}).environment().keys())


def test_open_mpi_gets_a_home():
    """Give Open MPI the home directory of the account where a service has no HOME."""
    assert Path(MpirunLauncher(environ={}).environment()["HOME"]).is_absolute()
    assert "HOME" not in MpirunLauncher(environ={"HOME": "/h"}).environment()


# ------------------------------------------------------------------------------------------- hosts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a slots=2\nb slots = 3 max_slots=9  # fast\n", "a:2,b:3"),
        ("a:2\nb:6\n", "a:2,b:6"),
        ("a\na\na\nb\nb\n", "a:3,b:2"),
        ("# mine\n\na slots=2\nb\n", "a:2,b:4"),
        ("a max-slots=8 slots=2\nb cpu_max=3\nc count=1 // mine\n", "a:2,b:3,c:1"),
        ("\ufeffa slots=2\r\nb.org slots=1\r\n", "a:2,b.org:1"),
        ("a 16 all.q@a UNDEFINED\na 4 short.q@a 0,1:0,2\n", "a:20"),
        ("a slots=2\na\nb:1\nb:1\n", "a:3,b:2"),
        ("me@a username=me port=22 cpu=2\n", ""),
        ("a:2 binding=user:0,1 user=me\n", ""),
        ("2620:10d::3000:1 slots=2\n", ""),
    ],
)
def test_hosts_and_slots_are_read(text, expected):
    """Name each host with its slots; a host listed once without a number has as many as this host
    has CPUs. Pass a file on that has more than names and slots.
    """
    Path("hosts").write_text(text, newline="")
    content = read_hostfile(Path("hosts"))
    for make, names, file in (
        (MpirunLauncher, "--host", "--hostfile"),
        (MpiexecLauncher, "-hosts", "-f"),
    ):
        words = f"{names} {expected}" if expected else f"{file} hosts"
        check(make(**HOSTS, environ={}), 1, words)
    assert expected in {"", hosts.name_slots(content.slots)}
    assert 2 <= content.slots.total()


def test_a_hostfile_of_powershell_is_read():
    """Read UTF-16, which PowerShell writes."""
    Path("hosts").write_text("a slots=2\n", encoding="utf-16")
    assert {"a": 2} == read_hostfile(Path("hosts")).slots


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("# nobody\n", "names no host"),
        ("a slots=0\nb:0\n", "names no host"),
        ("a slots=2\nb slots=two\n", "Line 2"),
        ("a slot=2\n", "Line 1"),
        ("a:b\n", "Line 1"),
        ("[::1]:2\n", "Line 1"),
        ("a,b slots=2\n", "Line 1"),
        ("a:2222\n", "Line 1"),
        ("a:22 slots=4\n", "Line 1"),
        ("a slots=4 slots=2\n", "Line 1"),
        ("a 4 b 2\n", "Line 1"),
        ("a slots=4 max-slots=2\n", "Line 1"),
    ],
)
def test_a_hostfile_that_is_not_understood_is_refused(text, error):
    """Name the line."""
    Path("hosts").write_text(text)
    with pytest.raises(InputError, match=error):
        read_hostfile(Path("hosts"))


def test_slots_follow_the_allocation():
    """Use Slurm's tasks as slots inside an allocation and CPUs outside; refuse more ranks."""
    job = {"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "2(x3),1", "SLURM_JOB_NODELIST": "a[8-11]"}
    assert {"a8": 2, "a9": 2, "a10": 2, "a11": 1} == MpirunLauncher(environ=job).hosts()
    step = {**job, "SLURM_TASKS_PER_NODE": "1", "SLURM_STEP_NODELIST": "a10"}
    assert {"a10": 1} == MpirunLauncher(environ=step).hosts()
    with pytest.raises(InputError, match="--ntasks"):
        check_slots(2, MpirunLauncher(environ=step))
    with pytest.raises(InputError, match="do not match"):
        MpirunLauncher(environ={**job, "SLURM_TASKS_PER_NODE": "1"}).hosts()
    with pytest.raises(InputError, match="srun --het-group"):
        MpirunLauncher(environ={"SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2"}).hosts()
    check_slots(4, MpirunLauncher(environ={}))
    check_slots(5, MpirunLauncher(environ={}, oversubscribe=True))
    with pytest.raises(InputError, match=r"--oversubscribe .* -n 4"):
        check_slots(5, MpirunLauncher(environ={}))


# ------------------------------------------------------------------------------------------ choice

#: What programs answer to ``--version``.
ANSWERS = {
    "open": "mpirun (Open MPI) 5.0.11",
    "hydra": "HYDRA build details:\n  Version: 4.2",
    "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.19",
}


def simulate(monkeypatch: pytest.MonkeyPatch, mpirun: str | None, installed: str) -> Any:
    """Return the choice of a launcher on a machine with srun, this mpirun and these packages."""
    monkeypatch.setattr("commbench.launch.launchers.mpirun.find_mpirun", lambda *_: mpirun)
    monkeypatch.setattr(choice, "find_mpirun", lambda *_: mpirun)
    monkeypatch.setattr(importlib.util, "find_spec", {name: name for name in installed.split()}.get)
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/x/{name}" if name == "srun" else None)

    def answer(command: list[str], **_: Any) -> Any:
        return subprocess.CompletedProcess(command, 0, stdout=ANSWERS.get(command[0], ""))

    def choose(requested: str | None = None, **options: Any) -> Launcher:
        return choose_launcher(requested, Placement(**{"environ": {}, **options}))

    monkeypatch.setattr(subprocess, "run", answer)
    return choose


@pytest.mark.parametrize(
    ("mpirun", "installed", "options", "expected"),
    [
        ("open", "mpi4py torch", {}, "mpirun"),
        ("hydra", "mpi4py torch", {}, "mpiexec"),
        ("intel", "mpi4py", {}, "mpiexec"),
        (None, "mpi4py torch", {}, "torchrun"),
        ("open", "torch", {}, "torchrun"),
        ("open", "mpi4py torch", {"requested": "torchrun"}, "torchrun"),
        (None, "mpi4py", {}, None),
        ("open", "", {}, None),
        ("open", "torch", {"environ": JOB}, "srun"),
        ("open", "mpi4py", {"environ": JOB}, "mpirun"),
        ("open", "mpi4py", {"requested": "srun"}, None),
        ("open", "mpi4py", {"requested": "srun", "environ": JOB}, "srun"),
        ("open", "mpi4py", {"requested": "srun", "environ": JOB, **HOSTS}, None),
        (None, "torch", {"environ": {"PBS_NODEFILE": "hosts"}}, None),
        (None, "torch", {"environ": {"PBS_NODEFILE": "here"}}, "torchrun"),
    ],
)
def test_mpi_is_chosen_where_there_is_one(
    monkeypatch,
    mpirun,
    installed,
    options,
    expected,
):
    """Prefer mpirun to srun in a job, and srun to torchrun; refuse what cannot start."""
    choose = simulate(monkeypatch, mpirun, installed)
    Path("here").write_text(f"{socket.gethostname()}.org\n" * 2)
    if expected is None:
        with pytest.raises(InputError):
            choose(**options)
    else:
        launcher = choose(**options)
        assert expected == launcher.name
        assert (mpirun == "intel") == getattr(launcher, "is_intel", False)


def test_hostfiles_of_the_environment(monkeypatch):
    """Prefer an option to COMMBENCH_HOSTFILE, and that to the file of PBS or LSF, in which each
    line is a slot; name the variable of a file that is missing.
    """
    choose = simulate(monkeypatch, "open", "mpi4py")
    Path("ours").write_text("a slots=3\n")
    Path("pbs").write_text("a\nb\nb\n")
    Path("sge").write_text("a 6 all.q@a UNDEFINED\n")
    pbs = {"PBS_NODEFILE": "pbs"}
    ours = {**pbs, "COMMBENCH_HOSTFILE": "ours"}
    for expected, options in (
        ("a:6", {"environ": {"PE_HOSTFILE": "sge"}}),
        ("a:1,b:2", {"environ": pbs}),
        ("a:1,b:2", {"environ": {"LSB_DJOB_HOSTFILE": "pbs"}}),
        ("a:3", {"environ": ours}),
        ("a:2,b:2", {"environ": ours, **HOSTS}),
    ):
        check(choose(**options), 1, f"--host {expected}", "--hostfile")
    Path("pbs").unlink()
    with pytest.raises(InputError, match="PBS_NODEFILE"):
        choose(environ=pbs).hosts()


@pytest.mark.parametrize(
    ("extra", "environ", "site", "expected"),
    [
        (["--mpi=pmi2"], {"SLURM_MPI_TYPE": "pmix"}, "none", "pmi2"),
        (["-v", "--mpi", "pmix"], {}, "none", "pmix"),
        ([], {"SLURM_MPI_TYPE": "pmix"}, "none", "pmix"),
        ([], {}, "pmix", "pmix"),
        ([], {}, None, "none"),
    ],
)
def test_how_srun_speaks_to_mpi(
    stub,
    extra,
    environ,
    site,
    expected,
):
    """Choose srun's MPI plugin by request, job variable and site default, in this order."""
    output = f"Mail = x\nMpiDefault              = {site}\n" if site else ""
    stub("commbench.launch.launchers.slurm.output_of", output)
    assert expected == slurm.mpi_type(extra, environ)


@pytest.mark.parametrize(
    ("output", "expected"),
    [("MCA plm: slurm (MCA v2.1.0)\n MCA plm: ssh", {}), ("MCA plm: ssh", {"n0": 2, "n1": 2})],
    ids=["knows Slurm", "knows ssh only"],
)
def test_an_open_mpi_without_slurm_gets_the_nodes(stub, output, expected):
    """Pass the job's nodes to an mpirun that was built without Slurm."""
    stub("commbench.launch.launchers.slurm.output_of", output)
    assert [expected, {}, {}] == [
        slurm.nodes_to_name("/x/mpirun", environ) for environ in (JOB, ONE_NODE, {})
    ]
    command = MpirunLauncher(nodes=expected, environ=JOB).command(4, PROGRAM)
    assert bool(expected) == ("n0:2,n1:2" in command)


def test_a_launcher_can_be_given_by_its_path(monkeypatch, tmp_path):
    """Use the given mpiexec with the library beside it; refuse a file that is no program."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    program, library = tmp_path / "bin" / "mpiexec", tmp_path / "lib" / "libmpi.so.12"
    for file in (program, library):
        file.parent.mkdir()
        file.write_text("#!/bin/sh\necho HYDRA build details:\n")
    with pytest.raises(InputError):
        choose_launcher(str(program), Placement(environ={}))
    program.chmod(0o755)
    launcher = choose_launcher(str(program), Placement(environ={}))
    check(launcher, 1, f"{program} -n 1")
    assert str(library) == launcher.environment()["MPI4PY_LIBMPI"]
    other = choose_launcher(str(program), Placement(environ={"MPI4PY_LIBMPI": "/other"}))
    assert "MPI4PY_LIBMPI" not in other.environment()


def test_mpirun_beside_python_comes_first(monkeypatch, tmp_path):
    """Prefer the virtual environment's mpirun to that on the PATH."""
    for folder in ("bin", "elsewhere"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mpirun").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert str(tmp_path / "bin" / "mpirun") == find_mpirun()
    (tmp_path / "bin" / "mpirun").unlink()
    assert str(tmp_path / "elsewhere" / "mpirun") == find_mpirun()
