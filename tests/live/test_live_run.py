"""Tests of the run directory of a live tuning: what rank 0 writes, disk errors, and the
conclusion.
"""

import dataclasses
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from fields import fields_of
from live_builders import (
    OWN,
    STEPS_MS,
    make_blocks,
    make_live_run,
    make_options,
    open_run,
    simulate,
    with_cap,
)

from commbench.ddp.plan.cases import CONFIRM
from commbench.ddp.plan.records import TrainingRecord
from commbench.errors import InputError, LaunchError
from commbench.live.run import LiveRun, complete
from commbench.results import Store, load_run
from commbench.results.files import take_lock
from commbench.results.recommendation import Recommendation

FRESH, FRESH_FIVE = (dataclasses.replace(case, phase=CONFIRM) for case in (OWN, with_cap("5")))
#: Confirmed blocks in which 5 MiB buckets are a quarter faster.
CONFIRMED = (make_blocks(FRESH, [100.0] * 12), make_blocks(FRESH_FIVE, [80.0] * 12, first=10))
OWN_BLOCK = make_blocks(OWN, [100.0])
#: Begins a launch in the directory of the first argument, writes, and ends as the second says.
SCRIPT = """
import os, signal, sys, time
from multiprocessing.synchronize import Event
from pathlib import Path
sys.path[:0] = {paths!r}
from live_builders import open_run
from test_live_run import CONFIRMED
run = open_run(Path(sys.argv[1]))
for record in CONFIRMED:
    run.append(record)
run.add_losses(5, [2.0, 1.9])
if sys.argv[2] == "killed":
    while "confirm" not in (Path(sys.argv[1]) / "samples.jsonl").read_text().partition("\\n")[2]:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def end(run: LiveRun, ending: str, reason: str = "") -> Recommendation | None:
    """Conclude, and wait until everything is written."""
    conclusion = run.conclude(ending, reason)
    run.close()
    run.wait()
    return conclusion


def write(out: Path, *records: TrainingRecord, ending: str = "decided") -> Recommendation | None:
    """Write a launch of these records; return its conclusion."""
    run = open_run(out)
    for record in records:
        run.append(record)
    return end(run, ending)


def run_script(out: Path, ending: str) -> int:
    """Run the script in a process; return its exit code."""
    folder = Path(__file__).resolve().parent
    code = SCRIPT.format(paths=[str(folder), str(folder.parent)])
    return subprocess.run(
        [sys.executable, "-c", code, str(out), ending], check=False, timeout=120
    ).returncode


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Return the directory of a launch that was killed; tests work on copies."""
    out = tmp_path_factory.mktemp("killed") / "run"
    assert -signal.SIGKILL == run_script(out, "killed")
    assert "running" == load_run(out).info["status"]
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the directory of a complete run; tests that add to it work on copies."""
    out = tmp_path_factory.mktemp("whole") / "run"
    make_live_run(out)
    return out


def test_a_run_is_read_like_any_other(whole):
    """Read conditions, rows, losses and conclusion, with the script's own setting as baseline."""
    run = load_run(whole)
    assert "complete" == run.info["status"]
    assert "" == run.info["reason"]
    assert {
        "live": True,
        "workload": "train.py",
        "world_size": 2,
        "backend": "gloo",
        "model": 8_700_000,
    } == run.info["plan"]
    assert OWN.key == run.info["baseline"]
    assert "c0ffee" == run.info["git_commit"]
    first, *others = run.training_rows
    assert ("default", 1.0) == (first.bucket_cap_mb, first.speedup)
    assert STEPS_MS.keys() - {"default"} == set(fields_of(others, "bucket_cap_mb"))
    assert "change" == run.recommendation.verdict
    assert "5" == run.recommendation.best.bucket_cap_mb
    assert {0} == set(fields_of(run.losses, "launch"))
    ends = [record.block_at[-1] + record.block_steps for record in run.training_records]
    assert max(ends) - 1 == run.losses[-1].step
    for name in ("ddp.csv", "buckets.csv", "recommendation.json"):
        assert (whole / name).exists()


def test_each_invocation_adds_a_launch(tmp_path):
    """Add a launch per invocation, and judge over the blocks of all."""
    out = tmp_path / "mine"
    make_live_run(out, launches=3)
    run = load_run(out)
    assert [0, 1, 2] == fields_of(run.info["launches"], "launch")
    assert 3 == run.recommendation.launches
    assert run.recommendation.blocks > 0
    assert {3} == {
        row.launches for row in run.training_rows if row.bucket_cap_mb in {"default", "5"}
    }
    assert {0, 1, 2} == set(fields_of(run.losses, "launch"))


def test_launches_that_disagree_are_undecided(tmp_path):
    """End undecided if a launch has decided for itself and all launches together do not."""
    out = tmp_path / "mine"
    for launch, five_ms in enumerate((105.0, 80.0)):
        records = []
        for case, step_ms in ((FRESH, 100.0), (FRESH_FIVE, five_ms)):
            medians_ms = [step_ms + number % 3 for number in range(8)]
            records.append(make_blocks(case, medians_ms, launch=launch))
        write(out, *records)
    info = load_run(out).info
    assert ["decided", "undecided"] == fields_of(info["launches"], "ending")
    assert "complete" == info["status"]


def test_a_script_with_another_setting_does_not_mix(whole, tmp_path):
    """Refuse to continue if the script's setting changed, name both, and leave the run
    unchanged.
    """
    out = shutil.copytree(whole, tmp_path / "mine")
    before = (out / "run.json").read_text()
    with pytest.raises(
        InputError, match=r"own setting was default buckets .* now it is 5 MiB buckets"
    ):
        open_run(out, own=with_cap("5"))
    assert before == (out / "run.json").read_text()
    make_live_run(out)  # the directory is free again


def test_a_launch_that_was_killed_is_ended_by_the_next(killed, tmp_path):
    """Record the end of an earlier launch that was never completed."""
    out = shutil.copytree(killed, tmp_path / "mine")
    make_live_run(out)
    run = load_run(out)
    assert [("cut", "ended"), ("ok", "decided")] == fields_of(
        run.info["launches"], "status", "ending"
    )
    assert "complete" == run.info["status"]


def linger(begun: Event) -> None:
    """Say that this process has begun, and outlive the test."""
    begun.set()
    time.sleep(60)


def test_a_forked_process_does_not_hold_the_directory(tmp_path):
    """Complete the results while a data loader of the training still runs."""
    out = tmp_path / "mine"
    run = open_run(out)
    fork = multiprocessing.get_context("fork")
    begun = fork.Event()
    child = fork.Process(target=linger, args=(begun,))
    child.start()
    try:
        assert begun.wait(60)
        end(run, "nothing")
        make_live_run(out)
    finally:
        child.kill()
        child.join()


def test_a_full_disk_stops_writing_and_nothing_else(tmp_path, monkeypatch, capfd):
    """Report a full disk in one line, decide from memory, and keep the written files valid."""
    out = tmp_path / "mine"
    append = Store.append

    def fail_later(store: Store, record: object) -> None:
        if len(store.records) == 1:
            raise LaunchError("no space is left; make room.")
        append(store, record)

    monkeypatch.setattr(Store, "append", fail_later)
    assert "change" == write(out, *CONFIRMED).verdict
    (line,) = capfd.readouterr().err.splitlines()
    assert f"no longer written to {out}, and the training goes on: no space is left" in line
    loaded = load_run(out)
    assert 1 == len(loaded.training_records)
    assert "running" == loaded.info["status"]


def test_a_disk_that_is_still_full_does_not_hide_the_conclusion(killed, tmp_path, monkeypatch):
    """Conclude from the records on disk, and report that the rest was not written."""
    out = shutil.copytree(killed, tmp_path / "mine")

    def fail(_store: Store, **_entries: object) -> None:
        raise LaunchError("no space is left; make room.")

    monkeypatch.setattr(Store, "update", fail)
    first, *_, last = complete(make_options(out))
    assert "change to 5 MiB buckets" in first
    assert "Not all results could be written: no space is left; make room." == last


@pytest.mark.parametrize("ending", ["ended", "killed"])
def test_a_script_that_ends_before_the_decision(killed, tmp_path, ending):
    """Conclude from the available blocks, in the process or, after a kill, in the command."""
    out = tmp_path / "mine"
    if ending == "killed":
        shutil.copytree(killed, out)
    else:
        assert 0 == run_script(out, ending)
        assert "cut" == load_run(out).info["status"]
    lines = complete(make_options(out))
    run = load_run(out)
    assert "cut" == run.info["status"]
    assert "the training ended too early" == run.info["reason"]
    assert ["ended"] == fields_of(run.info["launches"], "ending")
    assert (12, "change") == (run.recommendation.blocks, run.recommendation.verdict)
    assert (out / "ddp.csv").exists()
    assert "train.py on 2 ranks: change to 5 MiB buckets." == lines[0]
    assert lines[1].startswith("  In 12 confirmation blocks of 1 launch 5 MiB buckets ran ")
    assert "    bucket_cap_mb=5," in lines
    assert lines[-1].startswith(f"Results: {out}; ")


def test_a_rank_that_ends_after_its_launcher_is_waited_for(killed, tmp_path):
    """Complete a run that is in use for a moment."""
    out = shutil.copytree(killed, tmp_path / "mine")
    ending = threading.Timer(0.3, os.close, [take_lock(out)])
    ending.start()
    assert "change to 5 MiB buckets" in complete(make_options(out))[0]
    ending.join()


def test_a_complete_run_is_left_as_it_is(whole):
    """Repeat the conclusion of a complete run without rewriting it."""
    files = [file for file in whole.iterdir() if file.name != ".lock"]
    before = [file.read_bytes() for file in files]
    assert "change to 5 MiB buckets" in complete(make_options(whole))[0]
    assert before == [file.read_bytes() for file in files]


def test_only_launches_of_the_command_are_its_conclusion(whole, tmp_path):
    """Report that nothing was tuned if all launches are of an earlier command, and on a host
    without rank 0 where the results are.
    """
    out, witness = tmp_path / "mine", tmp_path / "witness"
    witness.touch()
    for options in (make_options(out), make_options(whole, invocation="second")):
        assert complete(options)[0].startswith("Nothing was tuned: a line above says why, or no")
    (line,) = complete(make_options(out, witness=str(witness)))
    assert line.startswith("The ranks of this command were tuned.")


def test_a_run_under_a_command_leaves_the_tables_to_it(tmp_path, monkeypatch):
    """Start no process inside the training, and write no table there if a command on this host
    does.
    """
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    out = tmp_path / "mine"
    options = make_options(out, witness=str(tmp_path / "witness"))
    run = open_run(out, options=options)
    for record in CONFIRMED:
        run.append(record)
    end(run, "decided")
    assert "complete" == load_run(out).info["status"]
    assert (out / "recommendation.json").exists()
    assert not (out / "ddp.csv").exists()
    assert "change to 5 MiB buckets" in complete(options)[0]
    assert (out / "ddp.csv").exists()


def test_ranks_that_outlive_the_command_write_their_tables(tmp_path):
    """Write the tables if the command has gone when the training ends."""
    place = tmp_path / "command"
    place.mkdir()
    run = open_run(tmp_path / "mine", options=make_options(tmp_path / "mine", witness=f"{place}/w"))
    for record in CONFIRMED:
        run.append(record)
    place.rmdir()
    end(run, "decided")
    assert (tmp_path / "mine" / "ddp.csv").exists()


def test_every_model_has_its_conclusion(whole, tmp_path):
    """Conclude the directories of models trained one after the other, and no older one beside."""
    outs = [shutil.copytree(whole, tmp_path / name) for name in ("mine", "mine-2")]
    (tmp_path / "mine-3").mkdir()
    (tmp_path / "mine-3" / "run.json").write_text('{"schema": 2}')
    lines = complete(make_options(outs[0]))
    ends = [line for line in lines if line.startswith("Results: ")]
    for out, line in zip(outs, ends, strict=True):
        assert line.startswith(f"Results: {out}; ")


def test_a_run_without_a_comparison_says_so(tmp_path):
    """Report why there is no comparison if no block ended."""
    out = tmp_path / "mine"
    assert end(open_run(out), "released", "the script uses join()") is None
    assert "Tuning has no result, because the script uses join()." == complete(make_options(out))[0]


def test_writing_takes_no_time_of_the_training(tmp_path, monkeypatch):
    """Return from every call while the disk is busy."""
    seconds = 0.1
    append = Store.append

    def append_slowly(store: Store, record: object) -> None:
        time.sleep(seconds)
        append(store, record)

    run = open_run(tmp_path / "mine")
    monkeypatch.setattr(Store, "append", append_slowly)
    records, _ = simulate()
    began = time.monotonic()
    for record in records[:10]:
        run.append(record)
    assert time.monotonic() - began < 5 * seconds
    end(run, "decided")
    written = load_run(tmp_path / "mine").training_records
    assert 10 == sum(len(record.block_at) for record in written)


def test_a_script_may_wait_until_its_threads_have_ended(tmp_path):
    """Write by a thread that Python's list of threads does not have."""
    threads = threading.enumerate()
    run = open_run(tmp_path / "mine")
    assert threads == threading.enumerate()
    for record in CONFIRMED:
        run.append(record)
    end(run, "decided")
    assert threads == threading.enumerate()
    assert (tmp_path / "mine" / "ddp.csv").exists()


def test_each_block_is_one_line(tmp_path):
    """Read blocks as the one record of their setting, and each of an earlier version's records."""
    parts = [
        dataclasses.replace(OWN_BLOCK, block=number, forward_ms=float(number), block_at=(number,))
        for number in (1, 2, 3)
    ]
    whole = make_blocks(with_cap("5"), [80.0] * 3)
    records = (*parts, make_blocks(with_cap("5"), [80.0]), whole)
    write(tmp_path / "mine", *records, ending="steps")
    assert 5 == len((tmp_path / "mine" / "samples.jsonl").read_text().splitlines())
    loaded = load_run(tmp_path / "mine")
    own, *_, of_an_earlier_version = loaded.training_records
    assert 9 == len(own.step_ms)
    assert [1, 2, 3] == [*own.block_at]
    assert 2.0 == own.forward_ms
    assert [*whole.block_at] == [*of_an_earlier_version.block_at]
    assert {3} == set(fields_of(loaded.training_rows, "blocks"))
