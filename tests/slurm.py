"""A private Slurm cluster for tests: a controller and two nodes with their own host names on this
machine.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from launching import marked, wait_until

NODES = ("n0", "n1")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "salloc", "srun", "scontrol", "scancel", "unshare")
#: Which processes belong to a cluster: Slurm's daemons and whatever they start inherit it.
MARK = "COMMBENCH_TEST_SLURM"
#: How long a job may take; it only bounds a failure.
JOB_S = 120

#: Authentication by none and no control groups: nothing of the machine is needed or touched but
#: loopback ports.
CONFIGURATION = """
ClusterName=private
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={path}/state
SlurmdSpoolDir={path}/spool.%n
SlurmctldPidFile={path}/slurmctld.pid
SlurmdPidFile={path}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=15
SlurmctldTimeout=30
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 State=UNKNOWN
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=n0,n1 Default=YES MaxTime=INFINITE State=UP
"""


def is_possible() -> bool:
    """Return whether this machine can run a private cluster: programs installed, and root."""
    return os.geteuid() == 0 and all(shutil.which(name) for name in PROGRAMS)


class Cluster:
    """A running cluster with the directory ``path``.

    ``mark`` is the value of `MARK` in all its processes.
    """

    def __init__(self, path: Path, mark: str) -> None:
        self.path = path
        self._mark = mark

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the environment of Slurm's commands, without other launchers' variables."""
        foreign = ("SLURM_", "OMPI_COMM_", "PMI_", "PMIX_")
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(foreign)
        }
        return {
            **inherited,
            "SLURM_CONF": str(self.path / "slurm.conf"),
            MARK: self._mark,
            **variables,
        }

    def start(self, *command: str, **options: object) -> "subprocess.Popen[str]":
        """Start a Slurm command."""
        streams = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "stdin": subprocess.DEVNULL,
        }
        settings = {"env": self.environment(), "text": True, **streams, **options}
        return subprocess.Popen(command, **settings)

    def run(
        self, *command: str, seconds: float = JOB_S, **options: object
    ) -> "subprocess.CompletedProcess[str]":
        """Run a Slurm command to its end."""
        process = self.start(*command, **options)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(
                f"{command} did not end in {seconds} s: {out}{err}\n{self.log()}"
            ) from None
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def is_idle(self) -> bool:
        """Return whether both nodes wait for work."""
        return 2 == self.run("sinfo", "-hNo", "%T").stdout.split().count("idle")

    def wait(self, job: str) -> int:
        """Wait for a job and return its exit code.

        ``sbatch --wait`` polls every ten seconds only.
        """
        assert wait_until(lambda: bool(self._ended(job)), JOB_S), (
            f"job {job} did not end\n{self.log()}"
        )
        code, number = re.findall(r"ExitCode=(\d+):(\d+)", self._ended(job))[0]
        return int(code) or (128 + int(number) if int(number) else 0)

    def _ended(self, job: str) -> str:
        """Return Slurm's state of a finished job, else an empty text."""
        output = self.run("scontrol", "show", "job", job).stdout
        ended = re.search(r"JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL)", output)
        return output if ended else ""

    def log(self) -> str:
        """Return the daemons' last log lines."""
        return "\n".join(
            line for file in self.path.glob("*.out") for line in file.read_text().splitlines()[-15:]
        )

    def processes(self) -> list[psutil.Process]:
        """Return the living processes of the cluster: daemons, steps and tasks."""
        return marked(self._mark, MARK)

    def tasks(self) -> list[str]:
        """Return the cluster's processes except its daemons."""
        processes = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if process.name() not in {"slurmctld", "slurmd"}:
                    processes.append(" ".join(process.cmdline()))
        return processes


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]


def _daemons(cluster: Cluster) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the controller, and each node under its own host name."""
    hosts = cluster.path / "hosts"
    hosts.write_text("127.0.0.1 localhost " + " ".join(NODES) + "\n")
    name_and_run = (
        f'printf %s "$0" > /proc/sys/kernel/hostname; mount --bind {hosts} /etc/hosts; exec slurmd'
        ' -D -N "$0"'
    )
    commands = {
        "controller": ("slurmctld", "-D"),
        **{node: ("unshare", "--uts", "--mount", "sh", "-c", name_and_run, node) for node in NODES},
    }
    for name, command in commands.items():
        with (cluster.path / f"{name}.out").open("wb") as log:
            yield subprocess.Popen(
                command,
                env=cluster.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


@contextlib.contextmanager
def private_slurm() -> Iterator[Cluster]:
    """Yield a running cluster; afterwards remove its processes and files."""
    with tempfile.TemporaryDirectory(
        prefix="commbench-slurm-", ignore_cleanup_errors=True
    ) as directory:
        cluster = Cluster(Path(directory), uuid.uuid4().hex)
        (cluster.path / "state").mkdir()
        text = CONFIGURATION.format(host=socket.gethostname(), path=directory, ports=_free_ports(3))
        (cluster.path / "slurm.conf").write_text(text)
        daemons = list(_daemons(cluster))
        try:
            assert wait_until(cluster.is_idle), cluster.log()
            yield cluster
        finally:
            cluster.run("scancel", "--user=root", "--signal=KILL", "--full")
            _end(cluster, daemons)


def _end(cluster: Cluster, daemons: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Kill remaining processes and daemons."""
    for process in cluster.processes():
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)
    for daemon in daemons:
        daemon.wait()
    assert wait_until(lambda: not cluster.processes()), cluster.processes()
