"""Tests that a very large run is summarised and reported in reasonable time and memory."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from builders import make_case, make_info, make_record

#: What is promised is half a minute on a quiet core; the time of the processor still grows with
#: whoever shares it.
MOST_CPU_S, MOST_BYTES = 60.0, 2 * 2**30
SUMMARISE = """
import sys
from commbench.launch.tables import write_tables
from commbench.results import Store
from commbench.results.reading import read_info
from pathlib import Path
path = Path(sys.argv[1])
with Store.open(path, read_info(path)) as store:
    write_tables(store)
    print(len(store.run.collectives))
"""


def lines() -> Iterator[str]:
    """Yield 100,000 records of 40 repetitions: four operations from each of 1,000 roots at 25
    sizes.
    """
    for operation in ("broadcast", "reduce", "gather", "scatter"):
        for root in range(1000):
            for power in range(25):
                case = make_case(operation, root=root, message_bytes=4 << power)
                yield json.dumps(
                    make_record(case, time_us=10 + 0.001 * 2**power).to_json(),
                    separators=(",", ":"),
                )


def measured(*command: str) -> tuple[str, float, int]:
    """Return a command's output, CPU time in seconds, and memory in bytes."""
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True) as process:
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert 0 == process.returncode
    return output, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_thousand_rows_are_summarised_and_reported(tmp_path):
    """Summarise, print and draw 100,000 rows, each within a minute of CPU time and 2 GiB."""
    (tmp_path / "run.json").write_text(json.dumps(make_info(status="complete", world_size=1000)))
    with (tmp_path / "samples.jsonl").open("w") as stream:
        stream.writelines(f"{line}\n" for line in lines())
    summarised = measured("-c", SUMMARISE, str(tmp_path))
    assert "100000" == summarised[0].strip()
    reported = measured("-m", "commbench", "report", str(tmp_path))
    assert (tmp_path / "report.html").stat().st_size < 4 * 10**6
    for _, seconds, size in (summarised, reported):
        assert seconds < MOST_CPU_S
        assert size < MOST_BYTES
    sys.stdout.write(f"summary {summarised[1:]}, report {reported[1:]}\n")
