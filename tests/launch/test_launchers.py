"""Tests of the launchers: their commands, the choice among them, and their slots."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commbench.errors import InputError
from commbench.launch.launchers import (
    Launcher,
    MpiexecLauncher,
    MpirunLauncher,
    Placement,
    SrunLauncher,
    TorchrunLauncher,
    check_interface,
    check_slots,
    choice,
    choose_launcher,
    find_mpirun,
    hosts,
    read_hostfile,
    slurm,
)

PROGRAM = ("-m", "a.program", "word")
#: A Slurm job of two nodes with two slots each.
JOB = {"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_JOB_NODELIST": "n[0-1]"}
EMULATED = {"COMMBENCH_EMULATED": '{"hosts": 2}'}
WHEEL = str(Path(sys.executable).parent / "mpirun")
EVERY = pytest.mark.parametrize(
    "make", [MpirunLauncher, MpiexecLauncher, SrunLauncher, TorchrunLauncher]
)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulate a host of two cores with two threads each and two NUMA nodes, and a hostfile."""
    monkeypatch.setattr(hosts, "local_cpus", lambda: 4)
    monkeypatch.setattr(hosts, "local_cores", lambda: 2)
    monkeypatch.setattr("commbench.launch.launchers.base.numa_folders", lambda: [Path()] * 2)
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\n")
    monkeypatch.chdir(tmp_path)


def check_command(
    launcher: Launcher, ranks: int, words: str, absent: str, *, training: bool = False
) -> None:
    """Check that a command has the words in this order, none of the absent, and the program."""
    command = launcher.command(ranks, PROGRAM, training=training)
    assert f" {words} " in f" {' '.join(command)} "
    assert not set(absent.split()) & set(command)
    assert [*PROGRAM] == command[-3:]


@pytest.mark.parametrize(
    ("ranks", "options", "words", "absent"),
    [
        (2, {"mpirun": "/x/mpirun"}, "/x/mpirun -n 2 --bind-to core", "^ofi --oversubscribe"),
        (4, {}, "--use-hwthread-cpus --bind-to hwthread", "--oversubscribe"),
        (5, {}, "--bind-to none --oversubscribe --mca mpi_yield_when_idle 1", "core"),
        (2, {"mpirun": WHEEL}, "--mca btl ^ofi", ""),
        (2, {"mpirun": WHEEL, "environ": {"OMPI_MCA_btl": "self,sm"}}, "-n 2", "^ofi"),
        (2, {"mpirun": WHEEL, "hostfile": Path("hosts")}, "--hostfile hosts", "^ofi"),
        (2, {"extra": ["--bind-to", "none"]}, "--bind-to none", "core"),
        (6, {"ranks_per_node": 6, "oversubscribe": True}, "ppr:6:node:OVERSUBSCRIBE", "core"),
        (
            2,
            {"environ": {"GLOO_X": "1", "HOME": "/", "NCCL_TOKEN": "x"}},
            "-n 2",
            "HOME NCCL_TOKEN",
        ),
        (
            4,
            {"hostfile": Path("hosts"), "environ": {"GLOO_X": "1", "NCCL_SECRET_TOKEN": "x"}},
            "--hostfile hosts --bind-to core -x GLOO_X -x OMP_NUM_THREADS",
            "NCCL_SECRET_TOKEN",
        ),
        (2, {"interface": "eth1"}, "-x GLOO_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include"),
        (
            2,
            {"hostfile": Path("hosts"), "environ": EMULATED},
            "--bind-to none --mca mpi_yield_when_idle 1",
            "core --oversubscribe",
        ),
    ],
)
def test_mpirun_commands(ranks: int, options: dict[str, Any], words: str, absent: str) -> None:
    """Bind as tightly as there is room, and forward what affects timing, but no secret."""
    launcher = MpirunLauncher(**{"environ": {}, **options})
    check_command(launcher, ranks, words, absent)
    assert {"-m", "mpi4py"} < set(launcher.command(ranks, PROGRAM))


@pytest.mark.parametrize(
    ("ranks", "options", "words", "absent"),
    [
        (2, {}, "--bind-to numa --mca btl ^ofi", ""),
        (5, {}, "--bind-to none --oversubscribe", ""),
        (2, {"hostfile": Path("hosts")}, "--hostfile hosts", "^ofi"),
        (2, {"environ": {"SLURM_JOB_ID": "1"}}, "-n 2", "^ofi"),
        (2, {"extra": ["--bind-to", "socket"]}, "--bind-to socket", "numa"),
    ],
)
def test_ranks_that_train_may_use_several_cores(
    ranks: int, options: dict[str, Any], words: str, absent: str
) -> None:
    """Bind training ranks to a NUMA node at most, and search no fabric on one host."""
    launcher = MpirunLauncher(**{"environ": {}, **options})
    check_command(launcher, ranks, words, absent, training=True)


def test_ranks_that_train_float_on_one_numa_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bind no training rank where all cores are of one NUMA node."""
    monkeypatch.setattr("commbench.launch.launchers.base.numa_folders", lambda: [Path()])
    check_command(MpirunLauncher(environ={}), 2, "--bind-to none", "numa", training=True)


@pytest.mark.parametrize(
    ("options", "words", "absent"),
    [
        (
            {
                "oversubscribe": True,
                "environ": {"SLURM_TASKS_PER_NODE": "1", "SLURM_JOB_NODELIST": "n0"},
            },
            "-bind-to none",
            "core",
        ),
        ({"hostfile": Path("hosts")}, "mpiexec -n 2 -hosts a:2,b:2 -bind-to core", "none"),
        ({"environ": JOB, "ranks_per_node": 1, "bind_to": "numa"}, "-ppn 1 -bind-to numa", "core"),
        ({"interface": "eth1"}, "-iface eth1", ""),
        (
            {"is_intel": True, "bind_to": "numa"},
            "-genv I_MPI_PIN on -genv I_MPI_PIN_DOMAIN numa",
            "-bind-to",
        ),
        ({"is_intel": True, "bind_to": "none"}, "-genv I_MPI_PIN off", "-bind-to"),
    ],
)
def test_hydra_commands(options: dict[str, Any], words: str, absent: str) -> None:
    """Place and bind ranks in the dialect of MPICH or Intel MPI."""
    check_command(MpiexecLauncher(**{"environ": {}, **options}), 2, words, absent)


@pytest.mark.parametrize(
    ("ranks", "options", "words", "absent"),
    [
        (4, {}, "srun -n 4 --overlap --kill-on-bad-exit=1", "mpi4py"),
        (4, {}, f"--export=ALL --cpu-bind=cores {sys.executable}", ""),
        (4, {"mpi_type": "pmix", "extra": ["--mpi=pmix"]}, "--mpi=pmix", ""),
        (
            6,
            {"environ": {**JOB, "SLURM_CPUS_PER_TASK": "8"}, "oversubscribe": True},
            "--cpus-per-task=8 --cpu-bind=none --overcommit",
            "",
        ),
        (
            2,
            {"ranks_per_node": 1, "bind_to": "numa"},
            "--nodes=2 --ntasks-per-node=1 --cpu-bind=ldoms",
            "",
        ),
    ],
)
def test_srun_commands(ranks: int, options: dict[str, Any], words: str, absent: str) -> None:
    """Start a launch as a job step that overlaps the job's others."""
    check_command(SrunLauncher(**{"environ": JOB, **options}), ranks, words, absent)


def test_srun_ranks_meet_by_mpi_or_at_an_address() -> None:
    """Start by mpi4py's runner if MPI sees the ranks, else with a rendezvous address."""
    plain = SrunLauncher(environ=JOB)
    pmix = SrunLauncher(environ=JOB, mpi_type="pmix")
    assert "mpi4py" in pmix.command(4, PROGRAM)
    assert (4, False) == (plain.slots(), plain.is_local)
    assert (False, True) == (plain.carries_mpi, pmix.carries_mpi)
    assert 1024 < int(plain.environment()["MASTER_PORT"]) < 65536
    assert "MASTER_PORT" not in pmix.environment()
    assert "MASTER_PORT" not in SrunLauncher(environ={**JOB, "MASTER_PORT": "29500"}).environment()


def test_torchrun_commands() -> None:
    """Start ranks on this host, training or not, with ranks per node as a limit."""
    launcher = TorchrunLauncher(
        ranks_per_node=2, bind_to="none", extra=["--max-restarts=0"], environ=JOB
    )
    for training in (False, True):
        words = "-m torch.distributed.run --standalone --nproc-per-node 2"
        check_command(launcher, 2, words, "mpi4py", training=training)
    assert "--max-restarts=0" in launcher.command(2, PROGRAM)
    assert (2, 2, True) == (launcher.slots(), launcher.limit(), launcher.is_local)
    with pytest.raises(InputError, match="-n 2"):
        check_slots(3, launcher)
    with pytest.raises(InputError):
        TorchrunLauncher(hostfile=Path("hosts"))


def test_the_most_ranks_on_a_host_are_computed(tmp_path: Path) -> None:
    """Fill hosts up to their slots, and count emulated hosts as one machine."""
    (tmp_path / "hosts").write_text("a slots=3\nb slots=1\n")
    options: dict[str, Any] = {"hostfile": tmp_path / "hosts", "environ": {}}
    mpirun = MpirunLauncher(**options)
    assert [2, 3, 3, 4] == [mpirun.ranks_per_host(ranks) for ranks in (2, 4, 6, 8)]
    assert 1 == MpirunLauncher(**options, ranks_per_node=1).ranks_per_host(2)
    emulated = MpirunLauncher(**{**options, "environ": EMULATED}, ranks_per_node=1)
    assert 4 == emulated.ranks_per_host(4)
    assert 9 == MpirunLauncher(environ={}).ranks_per_host(9)
    assert 2 == SrunLauncher(environ=JOB).ranks_per_host(4)


@EVERY
def test_variables_of_the_ranks(make: Any) -> None:
    """Set one thread, and the interface of MPI, Gloo and NCCL on request only."""
    variables = make(environ=JOB, interface="eth1").environment()
    for name in ("OMPI_MCA_btl_tcp_if_include", "UCX_NET_DEVICES", "FI_TCP_IFACE"):
        assert "eth1" == variables[name]
    assert ("eth1", "=eth1") == (variables["GLOO_SOCKET_IFNAME"], variables["NCCL_SOCKET_IFNAME"])
    assert "GLOO_SOCKET_IFNAME" not in make(environ=JOB).environment()
    assert "1" == make(environ={}).environment()["OMP_NUM_THREADS"]
    assert "OMP_NUM_THREADS" not in make(environ={"OMP_NUM_THREADS": "3"}).environment()


@EVERY
def test_the_command_of_each_rank_sets_the_variables(make: Any) -> None:
    """Set variables of ``--env`` by the ranks' own command line; forward no default."""
    launcher = make(environ={"A": "0"})
    command = launcher.with_env("A=1,2;B=default").command(2, PROGRAM)
    assert "A=1,2" == command[command.index("/usr/bin/env") + 1]
    assert [*PROGRAM] == command[-3:]
    plain = launcher.with_env("A=default").command(2, PROGRAM)
    assert not {"/usr/bin/env", "A"} & set(plain)


def test_an_interface_must_be_there() -> None:
    """Accept an interface of this host only."""
    check_interface("lo")
    with pytest.raises(InputError, match=r"\blo\b"):
        check_interface("eth99")


@pytest.mark.parametrize(("user", "allowed"), [(0, 2), (1000, 0)])
def test_root_is_allowed_twice(monkeypatch: pytest.MonkeyPatch, user: int, allowed: int) -> None:
    """Set both of Open MPI's permissions for root, and only for root."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    names = {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}
    assert allowed == len(names & MpirunLauncher(environ={}).environment().keys())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a slots=2\nb slots = 3 max_slots=9  # fast\n", {"a": 2, "b": 3}),
        ("a:2\nb:6\n", {"a": 2, "b": 6}),
        ("a\na\na\nb\nb\n", {"a": 3, "b": 2}),
        ("# mine\n\na\n", {"a": 4}),
        ("a slots=2\nb\n", {"a": 2, "b": 4}),
        ("a max-slots=8 slots=2\nb cpu_max=3\nc count=1\n", {"a": 2, "b": 3, "c": 1}),
        ("me@a username=me port=22 cpu=2 // mine\n", {"me@a": 2}),
        ("a:2 binding=user:0,1 user=me\n", {"a": 2}),
        ("2620:10d::3000:1 slots=2\n::1 slots=1\n", {"2620:10d::3000:1": 2, "::1": 1}),
        ("\ufeffa slots=2\r\nb.org slots=1\r\n", {"a": 2, "b.org": 1}),
        ("a 16 all.q@a UNDEFINED\na 4 short.q@a 0,1:0,2\n", {"a": 20}),
        ("a slots=2\na slots=2\nb:1\nb:1\n", {"a": 4, "b": 2}),
        ("a slots=2\na\n", {"a": 3}),
    ],
)
def test_read_hostfile(tmp_path: Path, text: str, expected: dict[str, int]) -> None:
    """Parse slots; a host listed once without a number has as many as this host has CPUs."""
    (tmp_path / "hosts").write_text(text, newline="")
    assert expected == read_hostfile(tmp_path / "hosts").slots


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("# nobody\n", "names no host"),
        ("a slots=2\nb slots=two\n", "Line 2"),
        ("a slot=2\n", "Line 1"),
        ("a:b\n", "Line 1"),
        ("[::1]:2\n", "Line 1"),
        ("a,b slots=2\n", "Line 1"),
        ("rank 0=a slot=1\n", "Line 1"),
        ("a slots=4 max-slots=2\n", "Line 1"),
    ],
)
def test_a_hostfile_that_is_not_understood_is_refused(
    tmp_path: Path, text: str, error: str
) -> None:
    """Name the line."""
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(InputError, match=error):
        read_hostfile(tmp_path / "hosts")


@pytest.mark.parametrize(
    ("text", "mpirun", "mpiexec"),
    [
        ("a max-slots=8 slots=2\n", "--hostfile hosts", "-hosts a:2"),
        ("a:2\nb:3\n", "--host a:2,b:3", "-f hosts"),
        ("a slots=1\na slots=1\n", "--host a:2", "-hosts a:2"),
        ("a\na\nb\nb\n", "--hostfile hosts", "-f hosts"),
        ("\ufeffa\n", "--host a:4", "-hosts a:4"),
        ("a 2 all.q@a UNDEFINED\n", "--host a:2", "-hosts a:2"),
        ("::1 slots=2\n", "--hostfile hosts", None),
        ("a slots=2 port=22\n", "--hostfile hosts", None),
        ("a:2 binding=user:0\n", None, "-f hosts"),
    ],
)
def test_a_launcher_gets_the_hosts_in_a_form_that_it_reads(
    text: str, mpirun: str | None, mpiexec: str | None
) -> None:
    """Pass the file if the launcher reads it as it is, else each host with its slots."""
    Path("hosts").write_text(text, newline="")
    for make, words in ((MpirunLauncher, mpirun), (MpiexecLauncher, mpiexec)):
        launcher = make(hostfile=Path("hosts"), environ={})
        if words is None:
            with pytest.raises(InputError, match="cannot read"):
                launcher.command(1, PROGRAM)
        else:
            check_command(launcher, 1, words, "")


@pytest.mark.parametrize(
    ("text", "hosts_and_slots"), [("a\nb\n", "a:1,b:1"), ("a\na\nb\n", "a:2,b:1")]
)
def test_a_line_of_a_pbs_node_file_is_a_slot(
    tmp_path: Path, text: str, hosts_and_slots: str
) -> None:
    """Pass Open MPI the slots of each host of a PBS node file."""
    file = tmp_path / "nodes"
    file.write_text(text)
    launcher = MpirunLauncher(hostfile=file, environ={"PBS_NODEFILE": str(file)})
    check_command(launcher, 2, f"--host {hosts_and_slots}", "--hostfile")
    assert len(text.split()) == launcher.slots()


def test_slots_follow_the_allocation() -> None:
    """Use Slurm's tasks as slots inside an allocation and CPUs outside; refuse more ranks."""
    job = {"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "2(x3),1", "SLURM_JOB_NODELIST": "a[8-11]"}
    assert {"a8": 2, "a9": 2, "a10": 2, "a11": 1} == MpirunLauncher(environ=job).hosts()
    step = {**job, "SLURM_TASKS_PER_NODE": "1", "SLURM_STEP_NODELIST": "a10"}
    assert {"a10": 1} == MpirunLauncher(environ=step).hosts()
    with pytest.raises(InputError, match="--ntasks"):
        check_slots(2, MpirunLauncher(environ=step))
    with pytest.raises(InputError, match="do not match"):
        MpirunLauncher(environ={**job, "SLURM_TASKS_PER_NODE": "1"}).hosts()
    check_slots(4, MpirunLauncher(environ={}))
    check_slots(5, MpirunLauncher(environ={}, oversubscribe=True))
    with pytest.raises(InputError, match=r"--oversubscribe .* -n 4"):
        check_slots(5, MpirunLauncher(environ={}))


@pytest.mark.parametrize(
    ("mpirun", "installed", "options", "expected"),
    [
        ("open", "mpi4py torch", {}, "mpirun"),
        ("hydra", "mpi4py torch", {}, "mpiexec"),
        (None, "mpi4py torch", {}, "torchrun"),
        ("open", "torch", {}, "torchrun"),
        ("open", "mpi4py torch", {"requested": "torchrun"}, "torchrun"),
        (None, "mpi4py", {}, None),
        ("open", "", {}, None),
        (None, "torch", {"environ": JOB}, "srun"),
        ("open", "torch", {"environ": JOB}, "srun"),
        ("open", "mpi4py", {"environ": JOB}, "mpirun"),
        ("open", "mpi4py", {"requested": "srun"}, None),
        ("open", "mpi4py", {"requested": "srun", "environ": JOB}, "srun"),
        ("open", "mpi4py", {"requested": "srun", "environ": JOB, "hostfile": Path("hosts")}, None),
        (None, "torch", {"environ": {"PBS_NODEFILE": "hosts"}}, None),
    ],
)
def test_mpi_is_chosen_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
    mpirun: str | None,
    installed: str,
    options: dict[str, Any],
    expected: str | None,
) -> None:
    """Prefer mpirun to srun in a job, and srun to torchrun; refuse what cannot start."""
    choose = simulate(monkeypatch, mpirun, installed)
    if expected is None:
        with pytest.raises(InputError):
            choose(**options)
    else:
        assert expected == choose(**options).name


def simulate(monkeypatch: pytest.MonkeyPatch, mpirun: str | None, installed: str) -> Any:
    """Return the choice of a launcher on a machine with srun, this mpirun and these packages."""
    monkeypatch.setattr("commbench.launch.launchers.mpirun.find_mpirun", lambda *_: mpirun)
    monkeypatch.setattr(choice, "find_mpirun", lambda *_: mpirun)
    packages = installed.split()
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: name if name in packages else None
    )
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/x/{name}" if name == "srun" else None)
    texts = {
        "open": "mpirun (Open MPI) 5.0.11",
        "hydra": "HYDRA build details:\n  Version: 4.2",
        "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.19",
    }

    def answer(command: list[str], **_: Any) -> Any:
        return subprocess.CompletedProcess(command, 0, stdout=texts.get(command[0], ""))

    def choose(requested: str | None = None, **options: Any) -> Launcher:
        return choose_launcher(requested, Placement(**{"environ": {}, **options}))

    monkeypatch.setattr(subprocess, "run", answer)
    return choose


def test_intel_mpi_is_distinguished_from_mpich(monkeypatch: pytest.MonkeyPatch) -> None:
    """Distinguish Intel MPI, whose binding options differ, from MPICH."""
    launcher = simulate(monkeypatch, "intel", "mpi4py")()
    assert isinstance(launcher, MpiexecLauncher)
    assert launcher.is_intel


def test_hostfiles_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Prefer an option to COMMBENCH_HOSTFILE, and that to PBS's node file."""
    choose = simulate(monkeypatch, "open", "mpi4py")
    (tmp_path / "ours").write_text("a slots=3\n")
    (tmp_path / "pbs").write_text("a\n" * 5)
    (tmp_path / "sge").write_text("a 6 all.q@a UNDEFINED\n")
    sge = {"PE_HOSTFILE": str(tmp_path / "sge")}
    pbs = {"PBS_NODEFILE": str(tmp_path / "pbs")}
    ours = {**pbs, "COMMBENCH_HOSTFILE": str(tmp_path / "ours")}
    assert 6 == choose(environ=sge).slots()
    assert 5 == choose(environ=pbs).slots()
    assert 3 == choose(environ=ours).slots()
    assert 4 == choose(environ=ours, hostfile=tmp_path / "hosts").slots()


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
    monkeypatch: pytest.MonkeyPatch,
    extra: list[str],
    environ: dict[str, str],
    site: str | None,
    expected: str,
) -> None:
    """Choose srun's MPI plugin by request, job variable and site default, in this order."""
    output = f"Mail = x\nMpiDefault              = {site}\n" if site else ""
    monkeypatch.setattr(slurm, "_output_of", lambda _: output)
    assert expected == slurm.mpi_type(extra, environ)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("MCA plm: slurm (MCA v2.1.0)\n MCA plm: ssh", ()),
        ("MCA plm: ssh (MCA v2.1.0)", (("n0", 2), ("n1", 2))),
        ("", ()),
    ],
    ids=["knows Slurm", "knows ssh only", "does not tell"],
)
def test_an_open_mpi_without_slurm_gets_the_nodes(
    monkeypatch: pytest.MonkeyPatch, output: str, expected: tuple[Any, ...]
) -> None:
    """Pass the job's nodes to an mpirun that was built without Slurm."""
    monkeypatch.setattr(slurm, "_output_of", lambda _: output)
    one_node = {**JOB, "SLURM_TASKS_PER_NODE": "4", "SLURM_JOB_NODELIST": "n0"}
    assert expected == slurm.nodes_to_name("/x/mpirun", JOB)
    assert () == slurm.nodes_to_name("/x/mpirun", one_node)
    assert () == slurm.nodes_to_name("/x/mpirun", {})
    command = MpirunLauncher(nodes=expected, environ=JOB).command(4, PROGRAM)
    assert bool(expected) == ("n0:2,n1:2" in command)


def test_a_launcher_can_be_given_by_its_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
    assert isinstance(launcher, MpiexecLauncher)
    assert str(program) == launcher.mpiexec
    assert str(library) == launcher.environment()["MPI4PY_LIBMPI"]
    other = choose_launcher(str(program), Placement(environ={"MPI4PY_LIBMPI": "/other"}))
    assert "MPI4PY_LIBMPI" not in other.environment()


def test_mpirun_beside_python_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Prefer the virtual environment's mpirun to that on the PATH."""
    for folder in ("bin", "elsewhere"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mpirun").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert str(tmp_path / "bin" / "mpirun") == find_mpirun()
    (tmp_path / "bin" / "mpirun").unlink()
    assert str(tmp_path / "elsewhere" / "mpirun") == find_mpirun()
