"""Tests that hosts with other software are refused: with given facts, threads, and real ranks that
differ.
"""

import os
import sys
from pathlib import Path

import pytest
from launching import assert_code, finished, mpirun

import commbench
from commbench.launch.facts import Software, describe_differences

ROOT = Path(commbench.__file__).parent.parent
VERSIONS = {"commbench": "0.2.0", "python": "3.12.1", "torch": "2.13.0", "numpy": "2.4"}


def software(rank: int, host: str, **changes: str) -> Software:
    """Return the software of two ranks per host, of which the first lists all packages."""
    versions = (
        VERSIONS if rank % 2 == 0 else {name: VERSIONS[name] for name in ("commbench", "python")}
    )
    return host, {**versions, **changes}


def test_equal_hosts_are_not_refused():
    """Accept hosts that differ only in irrelevant facts, or in what one rank per host reads."""
    assert "" == describe_differences(
        [software(0, "a"), software(1, "a"), software(2, "b", numpy="1.0")]
    )


def test_differences_are_listed_with_their_hosts():
    """List only the differences, with the hosts of each version."""
    ranks = [software(rank, host) for rank, host in enumerate("aabb")]
    ranks += [
        software(4, "c", torch="2.11.0"),
        software(5, "c"),
        software(6, "d", commbench="0.1.0", cupy="14.2"),
    ]
    sentence, *lines = describe_differences(ranks).splitlines()
    assert sentence.startswith("Hosts run different software")
    assert [
        "  commbench  0.2.0 (a, b, c)  0.1.0 (d)",
        "  cupy  none (a, b, c)  14.2 (d)",
        "  torch  2.13.0 (a, b, d)  2.11.0 (c)",
    ] == lines


# --------------------------------------------------------------------------------------- real ranks

#: A rank that this script starts runs a commbench that calls itself another version.
OTHER_VERSION = """#!/bin/sh
if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then PYTHONPATH={other}:{root}; export PYTHONPATH; fi
exec {python} "$@"
"""
SITE = """
import commbench
commbench.__version__ = "0.0.1"
"""


@pytest.fixture
def python(tmp_path):
    """Return a Python that has another commbench on rank 1."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text(SITE)
    script = tmp_path / "python"
    script.write_text(OTHER_VERSION.format(other=other, root=ROOT, python=sys.executable))
    script.chmod(0o755)
    return script


@pytest.mark.mpi
@pytest.mark.usefixtures("mark")
@pytest.mark.parametrize("starter", ["mpirun", "conductor"])
def test_other_software_is_refused_before_anything_is_written(tmp_path, python, starter):
    """Refuse on rank 0 with code 2, once, whoever starts the ranks, and write nothing."""
    out, conductor = tmp_path / "run", tmp_path / "conduct.py"
    options = ["run", "--backend", "mpi", "--out", str(out)]
    mpi = mpirun().path
    if starter == "mpirun":
        start = [mpi, "-n", "2", "--oversubscribe", "--bind-to", "none"]
        command = [*start, str(python), "-m", "mpi4py", "-m", "commbench", *options]
    else:
        change = f"sys.executable = {str(python)!r}"
        conductor.write_text(f"import sys\nfrom commbench import cli\n{change}\ncli.main()\n")
        ranks = ["-n", "2", "--oversubscribe", "--launcher", mpi]
        command = [sys.executable, str(conductor), *options, *ranks]
    environment = {**os.environ, **mpirun().environment(), "PYTHONPATH": str(ROOT)}
    done = finished(*command, env=environment)
    assert_code(done, 2)
    assert 1 == done.stderr.count("commbench: Hosts run different software")
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("  commbench ")]
    assert {commbench.__version__, "0.0.1"} <= set(line.split())
    assert not out.exists()
