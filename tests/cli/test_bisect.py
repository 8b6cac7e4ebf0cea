"""Tests of ``run --bisect``: refusals, racks, a run on the fake backend, and planted faults on
emulated clusters.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Command
from labs import mark

from commbench.cli.bisect import parse_bisect

__all__ = ["mark"]  # a fixture

RUN = "run -c all_to_all --sizes 1K --backend fake -n 4"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            f"{RUN} --bisect 1",
            "--bisect 1 is no factor above 1; write how many times the time is slow, e.g. 1.5.",
        ),
        (f"{RUN} --bisect nan", "--bisect nan is no factor above 1"),
        (
            f"{RUN} --bisect 1.5 --launches 3",
            "--launches was given with --bisect, which chooses its launches",
        ),
        (
            f"{RUN} --racks racks.txt",
            "--racks racks.txt is of --bisect; add it, or leave the file out.",
        ),
        (f"{RUN} --bisect 1.5 --racks absent", "--racks absent cannot be read"),
        (
            f"{RUN} --bisect 1.5 --racks bad.py",
            "Line 1 of bad.py is not understood: 'SUITE = 1 / 0'; write HOST RACK",
        ),
        (
            f"{RUN} --bisect 1.5 --sizes 1K,2K",
            "--bisect searches by one case and 2 cases were asked for; name one",
        ),
        (
            f"{RUN} --bisect 1.5 --pattern split:2",
            "--bisect takes a collective with data on all ranks and no --env",
        ),
        (
            f"{RUN} --bisect 1.5 --env A=1,2",
            "--bisect searches by one case and 3 cases were asked for",
        ),
        (
            "run -c latency --sizes 8 --backend fake -n 4 --bisect 1.5",
            "--bisect takes a collective with data",
        ),
        (
            "run -c barrier --backend fake -n 4 --bisect 1.5",
            "--bisect takes a collective with data",
        ),
    ],
)
def test_a_search_that_cannot_be_is_refused(commbench: Command, line: str, sentence: str) -> None:
    """Refuse a search in one sentence, and write nothing."""
    commbench.refuses(f"{line} --oversubscribe --launcher torchrun", sentence)


def test_ranks_that_run_already_are_refused(
    commbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refuse to search inside a launcher, which cannot start ranks again."""
    for name, value in {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    commbench.refuses(
        f"{RUN} --bisect 1.5 --role rank",
        "--bisect starts ranks often, and these are started already",
    )


def test_racks_are_read_from_a_file(tmp_path: Path) -> None:
    """Read a host and a label on each line, and ignore comments and empty lines."""
    file = tmp_path / "racks"
    file.write_text("# the hall\nnode0 A\n\nnode1   B  # by the door\n")
    assert {"factor": 1.5, "racks": {"node0": "A", "node1": "B"}} == parse_bisect(1.5, file, None)


@pytest.mark.mpi
@pytest.mark.usefixtures("forks")
def test_equal_ranks_have_no_slow_set_and_the_run_resumes(commbench: Command) -> None:
    """Search on the fake backend to its end; the same command measures lost records again."""
    options = f"--oversubscribe --visits 1 --bisect 1.5 --out {commbench.home}/r"
    line = f"run -c broadcast --sizes 1K --backend fake -n 4 {options}"
    done = commbench(line)
    sentence = (
        "no slow set: of fake broadcast 1 KiB float32, 4 ranks together and their halves are within"
        " 1.5 times"
    )
    assert 0 == done.code, done.err
    assert f"Slow: {sentence}" in " ".join(done.out.split())
    folder = commbench.home / "r"
    samples = (folder / "samples.jsonl").read_text().splitlines(keepends=True)
    measured = [json.loads(line) for line in samples]
    assert {"flat", "ranks:0-1", "ranks:2-3", "ranks:0+2", "ranks:1+3"} == {
        r["case"]["pattern"] for r in measured
    }
    assert [1, 5, 5, 5] == [sum(r["launch"] == launch for r in measured) for launch in range(4)]
    assert sentence in json.loads((folder / "run.json").read_text())["suspects_remarks"][0]
    (folder / "samples.jsonl").write_text("".join(samples[:8]))
    assert 0 == commbench(line).code
    assert len(samples) == len((folder / "samples.jsonl").read_text().splitlines())


def search_in_lab(out: Path, *shape: str) -> str:
    """Return the sentence of a search among four emulated hosts in two racks."""
    lab = (
        sys.executable,
        "-m",
        "commbench",
        "lab",
        "run",
        "--hosts",
        "4",
        "--racks",
        "2",
        "--rate",
        "80mbit",
        *shape,
    )
    words = (
        "-c",
        "all_to_all",
        "--sizes",
        "1M",
        "--backend",
        "mpi",
        "--visits",
        "1",
        "--bisect",
        "1.65",
    )
    command = [*lab, "--", sys.executable, "-m", "commbench", "run", *words, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    return " ".join(done.stdout.split("Slow: ")[1].split("\n- ")[0].split())


@pytest.mark.lab
@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("mark")
def test_hosts_behind_a_starved_uplink_are_named(tmp_path: Path) -> None:
    """Name both racks' hosts: only all four together are slow, by 4/3 of the rates' ratio against a
    pair.
    """
    sentence = search_in_lab(tmp_path / "run", "--uplink", "60mbit")
    assert sentence.startswith(
        "host0, host1, host2, host3 (across racks 0 and 1) are slow only together: they take "
    )


@pytest.mark.lab
@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("mark")
def test_a_slow_pair_is_told_by_pairs(tmp_path: Path) -> None:
    """End at a pair with the slow host, and refer to the matrix."""
    sentence = search_in_lab(tmp_path / "run", "--slow", "host3=30mbit")
    assert sentence.startswith(("the pair host1, host3 (", "the pair host2, host3 ("))
    assert "is slow by itself" in sentence
    assert "`commbench run matrix` measures every pair" in sentence


@pytest.mark.lab
@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("mark")
def test_a_sound_cluster_has_no_slow_set(tmp_path: Path) -> None:
    """Name no set where uplinks are as fast as hosts."""
    assert search_in_lab(tmp_path / "run").startswith(
        "no slow set: of mpi all_to_all 1 MiB float32, 4 hosts together"
    )
