"""Trainings of many kinds end to the bit as without commbench, tuned, watched and with faults."""

import socket
import sys
from functools import cache
from pathlib import Path

import pytest
from live_builders import run_python

from commbench.results import load_run

pytest.importorskip("torch")

FOLDER = Path(__file__).with_name("trainings")
#: Kinds whose training once hung, died or diverged; the others are slow tests.
FIRST = ("thawed", "halves")
OTHERS = (
    "preview",
    "late_hook",
    "wrapped_again",
    "twice",
    "sparse",
    "sharpness",
    "plain",
    "nested",
    "adversaries",
    "folds",
    "by_hand",
    "reentrant",
    "complex_numbers",
    "accumulated",
    "uneven",
    "unused",
    "few",
    "imported",
    "imported_at_times",
    "alarmed",
    "shared_group",
    "scaled",
    "compiled",
    "compiled_whole",
    "compiled_step",
    "averaged",
    "zero",
    "workers",
    "closure",
    "penalised",
    "adapted",
    "by_own_exchange",
    "restarted",
    "leaving",
    "flat",
    "detached",
    "dropping",
    "held",
    "late_buffer",
    "moved_out",
    "in_threads",
    "handed_over",
)
#: Kinds that torchrun starts; it takes two seconds longer.
BY_TORCHRUN = {"halves", "restarted", "leaving"}
#: Kinds whose steps cannot be tuned: too few, compiled with the buckets, without DDP's exchange,
#: with a hook whose result follows the buckets, or with a script that holds parts of buckets.
UNTUNED = (
    *("few", "imported", "compiled_whole", "by_own_exchange", "dropping", "held", "moved_out"),
)
#: Kinds whose watching once went wrong, and others.
WATCHED_SLOWLY = (
    *("reentrant", "sharpness", "sparse", "thawed", "halves", "late_hook", "wrapped_again"),
    *("twice", "adapted", "restarted", "leaving", "held", "alarmed"),
)
WATCHED = ["plain", *(pytest.param(kind, marks=pytest.mark.slow) for kind in WATCHED_SLOWLY)]
#: What is said of a kind.
SAID = {
    "uneven": "the script uses join()",
    "late_hook": "the script registers a communication hook",
    "compiled_whole": "torch.compile was applied to the DDP object",
    "few": "saw 6 backward passes with synchronisation",
    "imported": "its backward passes cannot be seen",
    "by_own_exchange": "saw 0 backward passes with synchronisation",
    "held": "the script keeps its gradients",
    "moved_out": "are no longer in the model",
    "dropping": "its own communication hook drops parts of gradients",
}
KINDS = [*FIRST, *(pytest.param(kind, marks=pytest.mark.slow) for kind in OTHERS)]
#: A method, the call that raises, and the rank: before, while and after ranks agree. From ``4+`` on
#: all calls raise. ``stop`` stops the rank for some seconds.
FIRST_FAULTS = [("store", "4+", "0"), ("construct", "2", "1")]
OTHER_FAULTS = [
    ("set", "3", "1"),
    ("get", "2", "0"),
    ("set", "4", "0"),
    ("set", "6", "all"),
    ("get", "3", "1"),
    ("get", "4", "1"),
    ("get", "5", "all"),
    ("store", "2+", "all"),
    ("store", "5+", "1"),
    ("prepare", "1", "1"),
    ("prepare", "2", "0"),
    ("construct", "1", "all"),
    ("construct", "1+", "0"),
    ("handle", "30", "1"),
    ("handle", "31", "0"),
    ("handle", "32", "1"),
    ("handle", "33", "1"),
    ("forward", "1", "all"),
    ("interrupt", "3", "1"),
    ("interrupt_end", "30", "1"),
    ("interrupt_inside", "1", "1"),
    ("stop", "11", "1"),
    ("stop", "12", "0"),
    ("stop", "31", "1"),
]
FAULTS = [*FIRST_FAULTS, *(pytest.param(*fault, marks=pytest.mark.slow) for fault in OTHER_FAULTS)]
pytestmark = [pytest.mark.mpi, pytest.mark.programs]


def free_port() -> int:
    """Return a port that nothing uses now."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def start(*words: str, before: tuple[str, ...] = ()) -> tuple[int, list[str], str]:
    """Return exit code, digests of all ranks, and standard error of a Python command."""
    done = run_python([*before, *words], FOLDER)
    return done.returncode, done.stdout.split(), done.stderr


def run(*words: str, before: tuple[str, ...] = (), ranks: int = 2) -> tuple[int, list[str], str]:
    """Return the same of a training."""
    if BY_TORCHRUN.isdisjoint(words):
        return start("ranks.py", str(ranks), str(free_port()), *words, before=before)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]
    if "restarted" in words:
        launcher += ["--max-restarts", "1"]
    return start(*launcher, *words, before=before)


@cache
def plain_end(kind: str, ranks: int = 2) -> tuple[int, list[str]]:
    """Return the exit code and the digests of a training without commbench."""
    return run("kinds.py", kind, ranks=ranks)[:2]


def commbench(*words: str) -> tuple[str, ...]:
    """Return the beginning of a command line."""
    return "-m", "commbench", *words, "--", sys.executable


@pytest.mark.parametrize("kind", KINDS)
def test_a_tuned_training_ends_as_a_plain_one(kind, tmp_path):
    """End with the same bits and exit code, and say what came of it."""
    before = commbench("tune", "--allow", "none", "--out", str(tmp_path / "run"))
    code, digests, errors = run("kinds.py", kind, before=before)
    assert (code, digests) == plain_end(kind), errors
    assert (code == 0) == (kind != "leaving")
    assert SAID.get(kind, "on 2 ranks") in errors
    assert "Traceback" not in errors or kind in {"leaving", "restarted"}
    assert "tuning failed" not in errors
    assert any(tmp_path.glob("run*/ddp.csv")) == (kind not in UNTUNED)


@pytest.mark.parametrize("kind", WATCHED)
def test_a_watched_training_ends_as_a_plain_one(kind, tmp_path):
    """End with the same bits and exit code, and leave a run."""
    before = commbench("watch", "--steps", "60", "--out", str(tmp_path / "run"))
    code, digests, errors = run("kinds.py", kind, before=before)
    assert (code, digests) == plain_end(kind), errors
    watched = load_run(tmp_path / "run")
    assert watched.info["suite"] == "watch"
    assert watched.training_rows
    assert kind not in {"plain", "halves"} or watched.bucket_rows


def test_a_training_stops_after_the_decision(tmp_path):
    """Tune a script by its own call, which ends early with exit code 0."""
    code, digests, errors = start("spawned.py", str(free_port()), str(tmp_path / "run"))
    assert (code, digests) == (0, []), errors
    (launch,) = load_run(tmp_path / "run").info["launches"]
    assert launch["ending"] == "steps"


@pytest.mark.slow
def test_ranks_that_a_script_spawns_end_as_plain_ones(tmp_path):
    """End with the digests of the same training under torchrun."""
    before = commbench("tune", "--out", str(tmp_path / "run"))
    code, digests, errors = start("spawned.py", str(free_port()), before=before)
    assert (code, digests) == plain_end("plain"), errors
    assert (tmp_path / "run" / "ddp.csv").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "unused", "accumulated", "shared_group"])
def test_three_tuned_ranks_end_alike(kind, tmp_path):
    """End with equal replicas; sums of three numbers depend on their order."""
    before = commbench("tune", "--allow", "none", "--out", str(tmp_path / "run"))
    code, digests, errors = run("kinds.py", kind, before=before, ranks=3)
    assert (code, len(digests), len(set(digests))) == (0, 3, 1), errors


@pytest.mark.parametrize(("method", "call", "rank"), FAULTS)
def test_a_fault_of_commbench_harms_no_training(method, call, rank, tmp_path):
    """End as without commbench although one of its functions raises, or a rank is stopped."""
    before = commbench("tune", "--allow", "none", "--out", str(tmp_path / "run"))
    code, digests, errors = run("faulty.py", method, call, rank, before=before)
    assert (code, digests) == plain_end("plain"), errors
    assert "Traceback" not in errors
    if "AbsentError" in errors:  # no rank can go back without the one that has stopped
        assert "goes on with its own setting" not in errors
