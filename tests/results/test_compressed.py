"""Tests of runs whose samples are compressed: read by every command, and nothing is added."""

import gzip
from pathlib import Path

import pytest
from builders import MIB, STEADY, make_case, make_info, make_launches
from pages import write_run

from commbench.errors import InputError
from commbench.results import Store, check_out, load_run

RECORDS = [
    record
    for size in (1024, 64 * 1024, MIB)
    for record in make_launches(STEADY, make_case(message_bytes=size))
]


def compress(run: Path) -> Path:
    """Compress the samples of a run; return the new file."""
    plain = run / "samples.jsonl"
    compressed = run / "samples.jsonl.gz"
    compressed.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    return compressed


@pytest.mark.parametrize(
    "line",
    [
        "report {} --format csv",
        "compare {} other",
        "check {} --expect allowed.expect",
        "export {} --format openmetrics",
        "predict {} --world-size 4 --rate 1gbit",
    ],
)
def test_commands_print_the_same_of_compressed_samples(commbench, line):
    """Print what is printed of the plain samples."""
    for name in ("mine", "other"):
        write_run(commbench.home / name, RECORDS)
    (commbench.home / "allowed.expect").write_text("all_reduce@1M: time <= 1s\n")
    plain = commbench(line.format("mine"))
    assert 0 == plain.code, plain.err
    compress(commbench.home / "mine")
    compressed = commbench(line.format("mine"))
    assert (0, plain.out) == (compressed.code, compressed.out)


@pytest.mark.parametrize("content", ["cut", "empty", "foreign", "changed", "a line", "a directory"])
def test_damaged_compressed_samples_are_one_sentence(commbench, content):
    """End with code 2 and name the file."""
    file = compress(write_run(commbench.home / "mine", RECORDS))
    whole = file.read_bytes()
    if content == "cut":
        file.write_bytes(whole[: len(whole) // 2])
    if content == "empty":
        file.write_bytes(b"")
    if content == "foreign":
        file.write_bytes(b"x" * 100)
    if content == "changed":
        middle = len(whole) // 2
        file.write_bytes(whole[:middle] + bytes(9) + whole[middle + 9 :])
    if content == "a line":
        file.write_bytes(gzip.compress(b"x\n" + gzip.decompress(whole)))
    if content == "a directory":
        file.unlink()
        file.mkdir()
    commbench.refuses("report mine --format csv", "samples.jsonl.gz")


def test_nothing_is_added_to_compressed_samples(tmp_path):
    """Refuse to resume, name the remedy, and write nothing."""
    run = write_run(tmp_path / "mine", RECORDS)
    file = compress(run)
    before = sorted(run.iterdir())
    for add in (check_out, lambda path: Store.open(path, make_info())):
        with pytest.raises(InputError, match=f"gunzip {file}"):
            add(run)
    assert before == sorted(run.iterdir())


def test_plain_samples_count_where_both_are(tmp_path):
    """Read and resume the plain file beside a compressed one."""
    run = write_run(tmp_path / "mine", RECORDS[:6])
    plain = (run / "samples.jsonl").read_bytes()
    compress(run).write_bytes(b"")
    (run / "samples.jsonl").write_bytes(plain)
    check_out(run)
    assert 6 == len(load_run(run).records)
