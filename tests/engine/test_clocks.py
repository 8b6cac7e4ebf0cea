"""Tests of the clock over several hosts: on simulated clocks with known truth, and on ranks in a
time namespace.
"""

import json
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from launching import finished, succeeded
from places import HERE
from threads import ThreadControl, run_threads

from commbench.engine.timing.clocks import (
    FIT_POINTS,
    MAXIMUM_DRIFT,
    ClockFacts,
    GlobalClock,
    Line,
    Offset,
    SynchronisedClock,
    bound_offset,
    fit_line,
    open_clock,
)

#: Clocks count from the boot of their host.
BOOTS = st.integers(-(10**15), 10**15)
TIMES = st.integers(0, 10**15)
DRIFTS = st.floats(-MAXIMUM_DRIFT / 2, MAXIMUM_DRIFT / 2)
#: What a message takes: a microsecond, or as long as a rank that has lost its core.
DELAYS = st.integers(0, 5_000) | st.integers(0, 5_000_000)


def truth(offset_ns: int, drift: float, begun_ns: int) -> Callable[[int], int]:
    """Return a clock with an offset and a drift relative to this one."""
    return lambda t: t + offset_ns + round(drift * (t - begun_ns))


@given(BOOTS, DRIFTS, TIMES, st.lists(st.tuples(DELAYS, DELAYS, DELAYS), min_size=1, max_size=30))
@example(0, 0.00018796130030883476, 0, [(0, 15963, 0)])  # gained within the only exchange
def test_an_offset_is_never_further_than_its_bound(offset_ns, drift, begun_ns, delays):
    """Keep the error of an offset within its bound for any message delays and drift."""
    other = truth(offset_ns, drift, begun_ns)
    now, pings = begun_ns, []
    for forth, back, between in delays:
        pings.append((now, other(now + forth), now + forth + back))
        now += forth + back + between
    offset = bound_offset(pings)
    assert abs(offset.offset_ns - (other(offset.at_ns) - offset.at_ns)) <= offset.error_ns


@given(
    BOOTS,
    DRIFTS,
    TIMES,
    st.lists(st.tuples(st.integers(1, 10**9), DELAYS, st.floats(-1, 1)), min_size=2),
)
def test_a_line_is_never_further_than_its_bound(offset_ns, drift, begun_ns, steps):
    """Keep the error of a line within its bound between its first and last point."""
    other = truth(offset_ns, drift, begun_ns)
    at, points = begun_ns, []
    for later, error, share in steps:
        at += later
        points.append(
            Offset(at_ns=at, offset_ns=other(at) - at + round(share * error), error_ns=error + 1)
        )
    line, bound = fit_line(points)
    when = np.linspace(points[0].at_ns, points[-1].at_ns, 7).astype(np.int64)
    expected = np.array([other(int(t)) for t in when])
    assert np.abs(line.read(when) - expected).max() <= bound + 2  # whole nanoseconds


@pytest.mark.parametrize("drift", [-30e-6, 0.0, 1e-6, 80e-6])
def test_drift_is_found_through_one_sided_noise(drift):
    """Estimate the drift to a part per million from 20 offsets with one-sided noise and
    outliers.
    """
    draw = np.random.default_rng(5)
    late = draw.exponential(300, FIT_POINTS) + np.where(np.arange(FIT_POINTS) % 7 == 3, 2e6, 0.0)
    at = [round(i * 20e6) for i in range(FIT_POINTS)]
    points = [
        Offset(at_ns=t, offset_ns=10**12 + round(drift * t + d), error_ns=2 * d + 100)
        for t, d in zip(at, late, strict=True)
    ]
    assert drift == pytest.approx(fit_line(points)[0].drift, abs=1e-6)


LINES = st.builds(Line, origin_ns=TIMES, offset_ns=BOOTS, drift=DRIFTS)
NEAR = st.integers(-(10**11), 10**11)


@given(LINES, LINES, NEAR)
def test_lines_can_be_put_together_and_turned_round(line, further, after):
    """Compose and invert lines within a nanosecond for minutes around the origin."""
    local_ns = np.array([line.origin_ns + after])
    remote_ns = line.read(local_ns)
    second_line = Line(
        origin_ns=int(remote_ns[0]) - after // 3, offset_ns=further.offset_ns, drift=further.drift
    )
    assert abs(second_line.read(remote_ns) - line.compose(second_line).read(local_ns)).max() <= 2
    assert abs(line.invert().read(remote_ns) - local_ns).max() <= 2


# --------------------------------------------------------------------------- ranks that are threads


class Clocked:
    """Simulated clocks of several hosts in one process, with different origins and drifts."""

    def __init__(self, domains: str) -> None:
        self.domains = list(domains)

    def read(self, rank: int, moment_ns: int) -> int:
        """Return the clock of a rank at a time of this process."""
        host = ord(self.domains[rank]) - ord("a")
        return moment_ns + 10**12 * host + round(40e-6 * host * (moment_ns % 10**14))

    def open(self, control: ThreadControl) -> SynchronisedClock:
        """Synchronise the clocks with closely spaced points."""
        return SynchronisedClock(
            control,
            self.domains,
            lambda: self.read(control.rank, time.perf_counter_ns()),
            spacing_s=0.001,
        )

    def error_ns(self, clock: GlobalClock, rank: int) -> int:
        """Return the current error of a rank's estimate of rank 0's clock."""
        moment = time.perf_counter_ns()
        read = int(clock.to_global(np.array([self.read(rank, moment)]))[0])
        return abs(read - self.read(0, moment))


@pytest.mark.parametrize("domains", ["ab", "aab", "abba", "abcde", "abcdefgh"])
def test_every_rank_reads_rank_0_s_clock(domains):
    """Estimate rank 0's clock within the common bound on any number of hosts, also over time after
    a further point.
    """
    clocks = Clocked(domains)

    def work(control: ThreadControl) -> tuple[list[tuple[int, float]], ClockFacts]:
        clock = clocks.open(control)
        read = []
        for _ in range(2):
            read.append((clocks.error_ns(clock, control.rank), clock.error_ns))
            time.sleep(0.05)
            clock.refresh()
        return read, clock.facts

    results = run_threads(len(domains), work)
    for of_ranks in zip(*(read for read, _ in results), strict=True):
        errors, bounds = zip(*of_ranks, strict=True)
        assert 1 == len(set(bounds))
        assert 0 == errors[0] <= max(errors) <= bounds[0]
    facts = results[0][1]
    assert "synchronised" == facts["method"]
    assert len(set(domains)) == facts["domains"]


def test_a_clock_grows_stale(monkeypatch):
    """Become stale after some time, and fresh again after a comparison."""

    def work(control: ThreadControl) -> list[bool]:
        clock = Clocked("ab").open(control)
        is_stale = [clock.is_stale()]
        control.barrier()
        monkeypatch.setattr("commbench.engine.timing.clocks.MAXIMUM_AGE_S", 0.0)
        time.sleep(0.001)
        is_stale.append(clock.is_stale())
        control.barrier()
        monkeypatch.setattr("commbench.engine.timing.clocks.MAXIMUM_AGE_S", 60.0)
        clock.refresh()
        return [*is_stale, clock.is_stale()]

    assert [[False, True, False]] * 2 == run_threads(2, work)


def test_one_clock_needs_no_comparing():
    """Use stamps unchanged if all ranks read one clock, and compare clocks otherwise."""
    exact, *_ = run_threads(2, open_clock, ["x", "x"])
    assert exact.is_shared is True
    assert 0.0 == exact.error_ns
    assert exact.is_stale() is False
    assert {"method": "shared", "domains": 1, "error_us": 0.0, "drift_ppm": 0.0} == exact.facts
    assert (7, Line()) == (exact.to_local(7), exact.local_line)
    apart, *_ = run_threads(2, open_clock, ["x", "y"])
    assert not apart.is_shared


# ------------------------------------------------------------------------ ranks in a time namespace

#: Rank 1 lives 1000 s in the future; unlike any other host, its true offset is known.
AHEAD = """#!/bin/sh
[ "${OMPI_COMM_WORLD_RANK:-$RANK}" = 1 ] && exec unshare --time --monotonic 1000 "$@"
exec "$@"
"""


@pytest.fixture
def ahead(tmp_path):
    """Return a program that starts another, with rank 1 in a separate time namespace."""
    if finished("unshare", "--time", "true").returncode:
        pytest.skip("needs time namespaces")
    script = tmp_path / "ahead.sh"
    script.write_text(AHEAD)
    script.chmod(0o755)
    return str(script)


@pytest.mark.mpi
@pytest.mark.usefixtures("forks")
@pytest.mark.lab
@pytest.mark.parametrize("launcher", ["mpirun", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_ranks_estimate_a_simulated_offset(launcher, ahead, mpirun, mpi_environment):
    """Estimate an offset of 1000 s between two real ranks within the bound."""
    script = [sys.executable, "-m", "mpi4py", str(HERE / "ranks" / "clocks_apart.py")]
    command = [mpirun.path, "-n", "2", "--oversubscribe", ahead, *script]
    if launcher == "torchrun":
        pytest.importorskip("torch")
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            "--no-python",
            ahead,
        ]
        command += [sys.executable, str(HERE / "ranks" / "clocks_apart.py")]
    estimate = json.loads(succeeded(*command, env=mpi_environment).strip().splitlines()[-1])
    assert 1000 == pytest.approx(estimate["true_s"], abs=1e-6)
    assert 0 < estimate["bounds_ns"][0] < 10**7
    assert all(
        error <= bound
        for error, bound in zip(estimate["errors_ns"], estimate["bounds_ns"], strict=True)
    )
