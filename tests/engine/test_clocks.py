"""Tests of the clock over several hosts: on made-up clocks whose truth is known, and on ranks in a time namespace."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from commbench.engine.control import ThreadControl, run_threads
from commbench.engine.records import Row
from commbench.engine.timing.clocks import (
    FIT_POINTS,
    MAXIMUM_DRIFT,
    GlobalClock,
    Line,
    Offset,
    SynchronisedClock,
    bound_offset,
    fit_line,
    open_clock,
)
from commbench.launch.launchers import MpirunLauncher
from commbench.results import load_run

HERE = Path(__file__).parents[1]
#: Clocks count from the boot of their host.
BOOTS = st.integers(-(10**15), 10**15)
TIMES = st.integers(0, 10**15)
DRIFTS = st.floats(-MAXIMUM_DRIFT / 2, MAXIMUM_DRIFT / 2)
#: What a message takes: a microsecond, or as long as a rank that has lost its core.
DELAYS = st.integers(0, 5_000) | st.integers(0, 5_000_000)


def truth(offset_ns: int, drift: float, begun_ns: int) -> Callable[[int], int]:
    """Return another clock over this one."""
    return lambda t: t + offset_ns + round(drift * (t - begun_ns))


@given(BOOTS, DRIFTS, TIMES, st.lists(st.tuples(DELAYS, DELAYS, DELAYS), min_size=1, max_size=30))
@example(0, 0.00018796130030883476, 0, [(0, 15963, 0)])  # gained within the only exchange
def test_an_offset_is_never_further_than_its_bound(
    offset_ns: int, drift: float, begun_ns: int, delays: list[tuple[int, int, int]]
) -> None:
    """Hold the bound whatever messages take there and back, and while one clock gains on the other."""
    other = truth(offset_ns, drift, begun_ns)
    now, pings = begun_ns, []
    for there, back, between in delays:
        pings.append((now, other(now + there), now + there + back))
        now += there + back + between
    found = bound_offset(pings)
    assert abs(found.offset_ns - (other(found.at_ns) - found.at_ns)) <= found.error_ns


def test_one_quick_exchange_among_slow_ones_is_enough() -> None:
    """Bound the offset by half the fastest round trip, although the others were slow in one direction only."""
    slow = [(i * 10**6, i * 10**6 + 900_000 + 7, i * 10**6 + 901_000) for i in range(10)]
    found = bound_offset([*slow, (10**8, 10**8 + 500 + 7, 10**8 + 1000)])
    assert 7 == pytest.approx(found.offset_ns, abs=1)
    assert found.error_ns < 510 + MAXIMUM_DRIFT * 10**8


@given(BOOTS, DRIFTS, TIMES, st.lists(st.tuples(st.integers(1, 10**9), DELAYS, st.floats(-1, 1)), min_size=2))
def test_a_line_is_never_further_than_its_bound(
    offset_ns: int, drift: float, begun_ns: int, steps: list[tuple[int, int, float]]
) -> None:
    """Hold the bound between the first and the last point, wherever within its own bound every offset lies."""
    other = truth(offset_ns, drift, begun_ns)
    at, points = begun_ns, []
    for later, error, share in steps:
        at += later
        points.append(Offset(at_ns=at, offset_ns=other(at) - at + round(share * error), error_ns=error + 1))
    line, bound = fit_line(points)
    when = np.linspace(points[0].at_ns, points[-1].at_ns, 7).astype(np.int64)
    there = np.array([other(int(t)) for t in when])
    assert np.abs(line.read(when) - there).max() <= bound + 2  # whole nanoseconds


@pytest.mark.parametrize("drift", [-30e-6, 0.0, 1e-6, 80e-6])
def test_drift_is_found_through_one_sided_noise(drift: float) -> None:
    """Find the drift to a part per million from twenty offsets that lie to one side, a few of them far off."""
    draw = np.random.default_rng(5)
    late = draw.exponential(300, FIT_POINTS) + np.where(np.arange(FIT_POINTS) % 7 == 3, 2e6, 0.0)
    at = [round(i * 20e6) for i in range(FIT_POINTS)]
    points = [
        Offset(at_ns=t, offset_ns=10**12 + round(drift * t + d), error_ns=2 * d + 100)
        for t, d in zip(at, late, strict=True)
    ]
    assert drift == pytest.approx(fit_line(points)[0].drift, abs=1e-6)


def test_a_single_offset_is_a_line_without_drift() -> None:
    """Have no drift to go by, and no more error than the offset itself."""
    line, bound = fit_line([Offset(at_ns=5, offset_ns=7, error_ns=3.0)])
    assert (Line(origin_ns=5, offset_ns=7), 3.0) == (line, bound)


LINES = st.builds(Line, origin_ns=TIMES, offset_ns=BOOTS, drift=DRIFTS)
NEAR = st.integers(-(10**11), 10**11)


@given(LINES, LINES, NEAR)
def test_lines_can_be_put_together_and_turned_round(line: Line, further: Line, after: int) -> None:
    """Read a third clock through a second, and this one back, to the nanosecond within minutes of the origin."""
    here = np.array([line.origin_ns + after])
    there = line.read(here)
    near = Line(origin_ns=int(there[0]) - after // 3, offset_ns=further.offset_ns, drift=further.drift)
    assert abs(near.read(there) - line.compose(near).read(here)).max() <= 2
    assert abs(line.invert().read(there) - here).max() <= 2


# ------------------------------------------------------------------------------------------- ranks that are threads


class Clocked:
    """Clocks of several hosts in one process: host ``h`` began counting at another time and gains on the others."""

    def __init__(self, domains: str) -> None:
        self.domains = list(domains)

    def read(self, rank: int, moment_ns: int) -> int:
        """Return the clock of a rank at a moment of this process."""
        host = ord(self.domains[rank]) - ord("a")
        return moment_ns + 10**12 * host + round(40e-6 * host * (moment_ns % 10**14))

    def open(self, control: ThreadControl) -> SynchronisedClock:
        """Synchronise, with points close together."""
        return SynchronisedClock(
            control, self.domains, lambda: self.read(control.rank, time.perf_counter_ns()), spacing_s=0.001
        )

    def error_ns(self, clock: GlobalClock, rank: int) -> int:
        """Return how far a rank's reading of rank 0's clock is off now."""
        moment = time.perf_counter_ns()
        read = int(clock.to_global(np.array([self.read(rank, moment)]))[0])
        return abs(read - self.read(0, moment))


@pytest.mark.parametrize("domains", ["ab", "aab", "abba", "abcde", "abcdefgh"])
def test_every_rank_reads_rank_0_s_clock(domains: str) -> None:
    """Read it within the bound that all ranks state alike, on any number of hosts, also by ranks that lead none."""
    clocks = Clocked(domains)

    def work(control: ThreadControl) -> tuple[int, float, dict[str, Any]]:
        clock = clocks.open(control)
        return clocks.error_ns(clock, control.rank), clock.error_ns, clock.facts()

    results = run_threads(len(domains), work)
    errors, bounds, facts = zip(*results, strict=True)
    assert 1 == len(set(bounds))
    assert max(errors) <= bounds[0]
    assert 0 == errors[0]
    assert ("synchronised", len(set(domains))) == (facts[0]["method"], facts[0]["domains"])


class Lopsided(ThreadControl):
    """Messages from lower to higher ranks are slow."""

    def send_int(self, value: int, target: int) -> None:
        """Keep it back for a while."""
        if target > self.rank:
            time.sleep(0.0005)
        super().send_int(value, target)


def test_a_lopsided_network_is_within_the_bound() -> None:
    """Be off by half of what one direction takes longer, and say so."""
    clocks = Clocked("ab")

    def work(control: ThreadControl) -> tuple[int, float]:
        clock = clocks.open(Lopsided(control.rank, control.size, control._rendezvous))
        return clocks.error_ns(clock, control.rank), clock.error_ns

    (_, _), (error_ns, bound_ns) = run_threads(2, work)
    assert 200_000 < error_ns <= bound_ns


def test_a_refreshed_clock_follows_the_drift() -> None:
    """Stay within the bound after a while, having added one point."""
    clocks = Clocked("ab")

    def work(control: ThreadControl) -> list[tuple[int, float]]:
        clock = clocks.open(control)
        seen = []
        for _ in range(3):
            time.sleep(0.05)
            clock.refresh()
            seen.append((clocks.error_ns(clock, control.rank), clock.error_ns))
        return seen

    assert all(error_ns <= bound_ns for error_ns, bound_ns in run_threads(2, work)[1])


def test_a_clock_grows_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be fresh at first and again after a comparison."""

    def work(control: ThreadControl) -> list[bool]:
        clock = Clocked("ab").open(control)
        seen = [clock.is_stale()]
        control.barrier()
        monkeypatch.setattr("commbench.engine.timing.clocks.MAXIMUM_AGE_S", 0.0)
        time.sleep(0.001)
        seen.append(clock.is_stale())
        control.barrier()
        monkeypatch.setattr("commbench.engine.timing.clocks.MAXIMUM_AGE_S", 60.0)
        clock.refresh()
        return [*seen, clock.is_stale()]

    assert [[False, True, False]] * 2 == run_threads(2, work)


class Asking(ThreadControl):
    """Notes whom this rank asks for the time."""

    asked: list[int]

    def send_int(self, value: int, target: int) -> None:
        """Note a question; answers are times, and long."""
        if value == 1:
            self.asked.append(target)
        super().send_int(value, target)


def test_hosts_are_compared_along_a_binomial_tree() -> None:
    """Ask the rank whose number lacks the highest bit, so that p hosts take the rounds of their binary digits."""

    def work(control: ThreadControl) -> set[int]:
        asking = Asking(control.rank, control.size, control._rendezvous)
        asking.asked = []
        Clocked("abcdef").open(asking)
        return set(asking.asked)

    assert [set(), {0}, {0}, {1}, {0}, {1}] == run_threads(6, work)


def test_one_clock_needs_no_comparing() -> None:
    """Take stamps as they are where all ranks read one clock, and compare clocks where they do not."""
    exact, *_ = run_threads(2, lambda control: open_clock(control, ["x", "x"]))
    assert (True, 0.0, False) == (exact.is_shared, exact.error_ns, exact.is_stale())
    assert {"method": "shared", "domains": 1, "error_us": 0.0, "drift_ppm": 0.0} == exact.facts()
    assert (7, Line()) == (exact.to_local(7), exact.local_line)
    apart, *_ = run_threads(2, lambda control: open_clock(control, ["x", "y"]))
    assert not apart.is_shared


def test_instants_lead_back_to_the_local_clock() -> None:
    """Find the local time of an instant of rank 0's clock, as the native loop does by the line."""

    def work(control: ThreadControl) -> tuple[int, int]:
        clock = Clocked("ab").open(control)
        here = Clocked("ab").read(control.rank, time.perf_counter_ns())
        instant = int(clock.to_global(np.array([here]))[0])
        return clock.to_local(instant) - here, int(clock.local_line.read(np.array([instant]))[0]) - here

    assert all(abs(apart) <= 2 for result in run_threads(2, work) for apart in result)


# --------------------------------------------------------------------------------------- ranks in a time namespace

ATTEMPTS = 2
#: Rank 1 lives 1000 s in the future; unlike any other host, its true offset is known.
AHEAD = """#!/bin/sh
[ "${OMPI_COMM_WORLD_RANK:-$RANK}" = 1 ] && exec unshare --time --monotonic 1000 "$@"
exec "$@"
"""


@pytest.fixture
def ahead(tmp_path: Path) -> str:
    """A program that starts another, on rank 1 in a time namespace of its own."""
    if subprocess.run(["unshare", "--time", "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs time namespaces")
    script = tmp_path / "ahead.sh"
    script.write_text(AHEAD)
    script.chmod(0o755)
    return str(script)


def run(command: list[str], environment: dict[str, str]) -> str:
    """Run a launch; what it printed."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.mark.mpi
@pytest.mark.usefixtures("forks")
@pytest.mark.lab
@pytest.mark.parametrize("launcher", ["mpirun", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_ranks_estimate_a_simulated_offset(
    launcher: str, ahead: str, mpirun: MpirunLauncher, mpi_environment: dict[str, str]
) -> None:
    """Estimate 1000 s between two real ranks within the stated bound, at once and later."""
    script = [sys.executable, "-m", "mpi4py", str(HERE / "ranks" / "clocks_apart.py")]
    command = [str(mpirun.mpirun), "-n", "2", "--oversubscribe", ahead, *script]
    if launcher == "torchrun":
        pytest.importorskip("torch")
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python", ahead]
        command += [sys.executable, str(HERE / "ranks" / "clocks_apart.py")]
    found = json.loads(run(command, mpi_environment).strip().splitlines()[-1])
    assert 1000 == pytest.approx(found["true_s"], abs=1e-6)
    assert 0 < found["bounds_ns"][0] < 10**7
    assert all(error <= bound for error, bound in zip(found["errors_ns"], found["bounds_ns"], strict=True))


@pytest.mark.mpi
@pytest.mark.usefixtures("forks")
@pytest.mark.lab
def test_round_time_works_between_clocks(
    ahead: str, tmp_path: Path, mpirun: MpirunLauncher, mpi_environment: dict[str, str]
) -> None:
    """Start together across clocks 1000 s apart, take as long as on one clock, and state the bound."""
    program = [sys.executable, "-m", "mpi4py", "-m", "commbench", "run", "--backend", "mpi", "--budget", "quick"]
    program += ["--collective", "all_reduce", "--sizes", "4M", "--sync", "round-time"]
    start = [str(mpirun.mpirun), "-n", "2", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]

    def launch(name: str, *wrapper: str) -> tuple[Row, dict[str, Any]]:
        """Measure until ranks start on time, which a machine that others use prevents now and then."""
        for attempt in range(ATTEMPTS):
            out = tmp_path / f"{name}{attempt}"
            run([*start, *wrapper, *program, "--out", str(out)], mpi_environment)
            (row,) = load_run(out).rows
            if row.status == "ok":
                break
        return row, load_run(out).info["clock"]

    (one, clock_of_one), (two, clock_of_two) = launch("one"), launch("two", ahead)
    assert ["shared", "synchronised"] == [clock_of_one["method"], clock_of_two["method"]]
    assert clock_of_one["error_us"] == 0 < clock_of_two["error_us"]
    assert [("round-time", "native")] * 2 == [(row.sync, row.loop) for row in (one, two)]
    times = [row.time_us_min or 0.0 for row in (one, two)]
    alike = 0 < max(times) < 5 * min(times)
    if not alike and os.getloadavg()[0] > 2 * (os.cpu_count() or 1):
        pytest.skip(f"ranks cannot start together on a machine this busy: {one.reason or two.reason or times}")
    assert alike, (one, two)
    assert 0 <= (two.skew_us or 0) < (two.time_us or 0)


def test_stamps_of_a_wrong_clock_would_show() -> None:
    """The test of these tests: a clock that takes its own stamps for rank 0's is far off the truth."""
    assert Clocked("ab").error_ns(GlobalClock(), 1) > 10**11
    assert all(a < b for a, b in pairwise([Clocked("ab").read(0, 1), Clocked("ab").read(1, 1)]))
