"""Tests of the conventions of other tools, against the figures of their sources."""

import re
import sys

import pytest
from builders import read_records
from fields import fields_of
from launching import succeeded

from commbench.collectives.cases import all_cases
from commbench.interop.conventions import CONVENTIONS

#: Tool, operation, size; warm-up, batch and repetitions.
REPETITIONS = """
osu         all_reduce        8192    100    1   1000
osu         all_reduce       16384     10    1    100
osu         latency              1    100    1  10000
osu         latency        1048576     10    1   1000
osu         bandwidth           64     10    1    100
osu         bandwidth        65536      2    1     20
imb         all_reduce           4   1100    1   1000
imb         all_reduce       65536    704    1    640
imb         all_reduce     4194304     20    1     10
imb         latency          65536    704  640      1
imb         all_gather       65536    704    1    640
nccl-tests  all_reduce           8      1   20      1
"""


@pytest.mark.parametrize("line", REPETITIONS.strip().splitlines())
def test_tools_repeat_as_their_sources_say(line):
    """Take the loops of osu_util.h, fewer above 8 KiB; IMB repeats at most 1000 times and 40 MiB,
    after as many trials and a tenth, at least 10 times, of warm-up, and reads the clock around its
    loop of messages; nccl-tests times 20 operations together.
    """
    tool, operation, size, *expected = line.split()
    suite = CONVENTIONS[tool].suite({"operations": (operation,), "sizes": (int(size),)}, 2)
    (found,) = CONVENTIONS[tool].fixed(all_cases(suite.sweeps, 2)[:1], 2).values()
    assert expected == [str(n) for n in (found.warmups, found.batch, found.repetitions)]
    assert (1, False) == (found.visits, found.is_probed)


def test_nccl_tests_measures_out_of_place_and_in_place():
    """Time float32 operations back to back over NCCL."""
    cases = all_cases(CONVENTIONS["nccl-tests"].suite({}, 2).sweeps, 2)
    assert {(False, "pipelined", "nccl", "float32"), (True, "pipelined", "nccl", "float32")} == set(
        fields_of(cases, "in_place", "mode", "backend", "dtype")
    )
    assert 8 == cases[0].message_bytes
    assert 128 * 2**20 == cases[-1].message_bytes


@pytest.mark.parametrize(
    ("tool", "axes", "first", "most"),
    [
        ("osu", {}, "mpi barrier False 1 int8", 2**20),
        ("imb", {}, "mpi barrier False 4 float32", 2**22),
        ("osu", {"operations": ("latency",)}, "mpi none None 1 int8", 2**22),
        ("imb", {"operations": ("latency",)}, "mpi none None 1 int8", 2**22),
        (
            "osu",
            {"operations": ("all_gather",), "sizes": (1024,)},
            "mpi barrier False 4096 int8",
            4096,
        ),
        (
            "imb",
            {"operations": ("all_gather",), "sizes": (1024,)},
            "mpi barrier False 4096 int8",
            4096,
        ),
        (
            "osu",
            {"backends": ("gloo",), "dtypes": ("float64",), "sizes": (64,)},
            "gloo barrier False 64 float64",
            64,
        ),
    ],
)
def test_tools_of_mpi_measure(tool, axes, first, most):
    """Measure collectives out of place behind a barrier, and point to point back to back; a size is
    one share, what is given replaces the tool's.
    """
    cases = all_cases(CONVENTIONS[tool].suite(axes, 4).sweeps, 4)
    case, last = cases[0], cases[-1]
    found = f"{case.backend} {case.sync} {case.in_place} {case.message_bytes} {case.dtype}"
    assert (first, most) == (found, last.message_bytes)


@pytest.mark.mpi
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    ("tool", "words", "repetitions"),
    [
        ("osu", "-c all_reduce,latency --sizes 8,16K", {8: [1000, 10_000], 16384: [100, 1000]}),
        ("imb", "-c all_reduce,latency --sizes 8,64K", {8: [3, 1000], 65536: [3, 640]}),
        ("nccl-tests", "--sizes 8,16K --backend mpi --in-place in", {8: [3], 16384: [3]}),
    ],
)
def test_real_ranks_measure_as_the_tool(tool, words, repetitions, tmp_path):
    """Repeat exactly as often as the tool, and print its text if our own import reads it back."""
    arguments = ["run", "--as", tool, *words.split(), "-n", "2", "--launches", "1", "--out", "run"]
    printed = succeeded(sys.executable, "-m", "commbench", *arguments, cwd=tmp_path)
    records = read_records(tmp_path / "run")
    assert not any(record.probes_us for record in records)
    for size, counts in repetitions.items():
        made = [len(record.times_us) for record in records if record.case.message_bytes == size]
        assert counts == sorted(made)
    if tool != "imb":  # a line for each case
        lines = re.findall(r"^\s*\d+\s", printed, re.MULTILINE)
        assert len(records) == len(lines)
