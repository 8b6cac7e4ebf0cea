"""Tests of ``commbench compare --until-decided``: commands, order, looks, the time limit, and how
often it errs.
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import effort
import numpy as np
import pytest
from builders import make_case, make_info, make_record
from fields import fields_of
from networks import write_run

from commbench import stats
from commbench.cli.interleave import LOOKS, Side, measure_until_decided, parse_side
from commbench.errors import InputError, LaunchError
from commbench.stats import Verdict


@pytest.mark.parametrize(
    ("text", "command", "environment"),
    [
        ("run -c all_reduce", [sys.executable, "-m", "commbench", "run", "-c", "all_reduce"], {}),
        ("commbench run p2p", [sys.executable, "-m", "commbench", "run", "p2p"], {}),
        ("A=1 B='x y' run", [sys.executable, "-m", "commbench", "run"], {"A": "1", "B": "x y"}),
        ("sh -c run", ["sh", "-c", "run"], {}),
    ],
)
def test_a_command_is_of_this_version_or_names_a_program(tmp_path, text, command, environment):
    """Start this version unless the command begins with a program.

    Take variables from its front.
    """
    side = parse_side(text, "a", tmp_path)
    assert command == side.command
    assert environment == side.environment
    assert tmp_path / "a" == side.folder


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A=1",
        "report results/mine",
        "run 'p2p",
        "run --out here",
        "run --launches=3",
        "/no/such/commbench run",
    ],
)
def test_what_does_not_measure_is_refused(tmp_path, text):
    """Name the side that is no command to measure."""
    with pytest.raises(InputError, match="Command B"):
        parse_side(text, "b", tmp_path)


class Simulated:
    """Two runs whose launches are drawn when they are asked for, and a clock that each launch moves
    by a second; B takes ``ratios`` times as long, one for each of its cases.
    """

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, *ratios: float, spread: float = 0.01
    ) -> None:
        self.seconds = 0.0
        self.order = []
        self.lines = []
        self.sides = [
            Side(name=name, command=[], environment={}, folder=folder / name) for name in "ab"
        ]
        generator = np.random.default_rng(3)
        times = {name: np.exp(spread * generator.standard_normal(LOOKS[-1])) for name in "ab"}

        def launch(side: Side, launches: int) -> None:
            self.seconds += 1
            self.order.append((side.name, launches))
            records = []
            for number, time in enumerate(times[side.name][:launches]):
                for place, ratio in enumerate(ratios):
                    time_us = 10 * time * (ratio if side.name == "b" else 1)
                    case = make_case(message_bytes=8 << place)
                    records.append(make_record(case, launch=number, time_us=time_us))
            shutil.rmtree(side.folder, ignore_errors=True)
            write_run(side.folder, records, **make_info())

        monkeypatch.setattr(Side, "launch", launch)

    def decide(self, seconds: float = 1e9) -> dict[Verdict, int]:
        """Measure, and return the number of cases by verdict."""
        table = measure_until_decided(
            self.sides,
            seconds=seconds,
            report=self.lines.append,
            clock=lambda: self.seconds,
        )
        return table.counts


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(1.2, Verdict.SLOWER), (0.8, Verdict.FASTER), (1.0, Verdict.SAME)]
)
def test_it_ends_with_a_verdict(tmp_path, monkeypatch, ratio, verdict):
    """End at the first look at which the case has a verdict; launch in the order A B B A."""
    simulated = Simulated(tmp_path, monkeypatch, ratio)
    assert 1 == simulated.decide()[verdict]
    assert len(simulated.order) / 2 in LOOKS
    assert simulated.lines[-1].endswith("1 of 1 case decided")
    assert [("a", 1), ("b", 1), ("b", 2), ("a", 2), ("a", 3), ("b", 3)] == simulated.order[:6]


def test_the_time_limit_ends_it_with_a_last_look(tmp_path, monkeypatch):
    """Begin no pair of launches that would end behind the limit, and compare what there is."""
    simulated = Simulated(tmp_path, monkeypatch, 1.0, spread=0.2)
    assert 1 == simulated.decide(seconds=9)[Verdict.INCONCLUSIVE]
    assert 8 == len(simulated.order)
    assert "4 launches of each: 0 of 1 case decided" == simulated.lines[-1]


def test_a_failed_launch_names_its_log(tmp_path):
    """Raise with the exit code and the file that has the output."""
    side = Side(
        name="a", command=["sh", "-c", "echo no; exit 7"], environment={}, folder=tmp_path / "a"
    )
    with pytest.raises(
        LaunchError, match=r"Launch 1 of A ended with code 7; .*a\.log has its output"
    ):
        side.launch(1)
    assert "no\n" == (tmp_path / "a.log").read_text()


def test_a_signal_reaches_the_launch_and_ends_the_comparison(tmp_path):
    """Let the launch end in order, and exit with its code."""
    script = "trap 'echo kept; exit 143' TERM; kill -TERM $PPID; while :; do sleep 0.1; done"
    side = Side(name="a", command=["sh", "-c", script], environment={}, folder=tmp_path / "a")
    with pytest.raises(SystemExit, match=r"^143$"):
        side.launch(1)
    assert "kept\n" == (tmp_path / "a.log").read_text()


def test_a_decided_comparison_is_printed_as_any_other(commbench, monkeypatch):
    """Sort the cases, print the format, and exit with 5 for a slower case."""
    Simulated(commbench.home, monkeypatch, 0.5, 2.0)
    line = "compare --until-decided --sort --force --format json --out d -- run run"
    done = commbench(line)
    cases = json.loads(done.out)["cases"]
    assert (5, ["slower", "faster"]) == (done.code, fields_of(cases, "verdict"))


def test_commands_stay_as_typed(commbench, monkeypatch):
    """Drop no dot and no slash of a command, as of a path."""
    typed = []

    def parse(text: str, name: str, folder: Path) -> Side:
        typed.append(text)
        return parse_side("run", name, folder)

    Simulated(commbench.home, monkeypatch, 2.0)
    monkeypatch.setattr("commbench.cli.compare.parse_side", parse)
    commbench("compare --until-decided --out d -- './commbench run' 'A=b//c run'")
    assert ["./commbench run", "A=b//c run"] == typed


def test_an_interruption_says_how_to_go_on(commbench, monkeypatch):
    """Name the directory when a launch is interrupted."""

    def interrupted(*_: object) -> None:
        sys.exit(143)

    monkeypatch.setattr(Side, "launch", interrupted)
    done = commbench("compare --until-decided --out mine -- run run")
    assert (143, "") == (done.code, done.out)
    assert "Ended before a verdict; the same command with --out mine goes on." in done.err


def error_rate(wrong: Callable[[Verdict], bool], ratio: float, runs: int) -> float:
    """Return the share of simulated comparisons of which any look gives a wrong verdict."""
    generator = np.random.default_rng(11)
    errors = 0
    for _ in range(runs):
        a, b = np.exp(0.03 * generator.standard_normal((2, LOOKS[-1])))
        for launches in LOOKS:
            pair = (list(a[:launches]), list(ratio * b[:launches]))
            [comparison] = stats.compare_family([pair], looks=len(LOOKS))
            if comparison.verdict is not Verdict.INCONCLUSIVE:
                errors += wrong(comparison.verdict)
                break
    return errors / runs


@pytest.mark.parametrize(
    ("ratio", "is_wrong"),
    [
        (1.0, lambda verdict: verdict is not Verdict.SAME),
        (1.02, lambda verdict: verdict in {Verdict.SLOWER, Verdict.FASTER}),
        (1.0201, lambda verdict: verdict is Verdict.SAME),
    ],
)
def test_seven_looks_err_seldom(ratio, is_wrong):
    """Give a wrong verdict in at most 5 % of comparisons, whichever look ends them."""
    assert error_rate(is_wrong, ratio, effort.repetitions(300)) <= 0.05 + effort.slack(0.05, 300)
