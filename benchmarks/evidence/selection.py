"""Does top-k pay? Its compiled selection against the same by torch.topk, and against merely adding
the two arrays.

``selection.py`` works on one thread, in rounds of one call each, for several
kinds of data: add the residual, choose exactly k elements, pack them, store the rest. Exit code 0
if with all data the 95 % intervals say that the selection is at least 8 times as fast as with
torch.topk and takes at most 8 times as long as the addition, else 1.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from keeping import add_out, empty_out, end, own_environment, write_facts
from numpy.typing import NDArray
from rich.table import Table

from commbench.cli.terminal import make_console
from commbench.engine.timing.loops import quiet_interpreter
from commbench.errors import WrongDataError
from commbench.results.tables import csv_text
from commbench.stats import Interval, ratio_interval

if TYPE_CHECKING:
    import torch

Floats: TypeAlias = NDArray[np.float32]

#: At least so many times as fast as torch.topk, and at most so many times as long as the addition.
LEAST_SPEEDUP, MOST_ADDITIONS = 8.0, 8.0
#: What is aimed at beyond that.
AIMED_SPEEDUP, AIMED_ADDITIONS = 12.0, 4.0
#: An interval of 95 % needs so many.
LEAST_ROUNDS = 6
MIB = 2**20
#: What is read between two calls.
ELSEWHERE_MIB = 128

#: Elements that are not zero where most are: less than half of the default density.
FEW = 0.0046
#: Where large elements lie together: blocks of so many, this part of them, so many times as large
#: as the others.
BLOCK, LARGE_BLOCKS, LARGE = 4096, 0.05, 100.0

#: (gradient, residual) of n elements by the name of the data; residuals are zero where they would
#: undo the ties.
DATA: dict[str, Callable[[np.random.Generator, int], tuple[Any, Any]]] = {
    "gauss": lambda rng, n: (rng.standard_normal(n), 3 * rng.standard_normal(n)),
    "student t2": lambda rng, n: (rng.standard_t(2, n), rng.standard_t(2, n)),
    "blocky": lambda rng, n: (
        _blocks(rng, n) * rng.standard_normal(n),
        _blocks(rng, n) * rng.standard_normal(n),
    ),
    "mostly zeros": lambda rng, n: (rng.standard_normal(n) * (rng.random(n) < FEW), np.zeros(n)),
    "all equal": lambda _, n: (np.full(n, 0.5), np.zeros(n)),
    "plus and minus one": lambda rng, n: (rng.choice([-1.0, 1.0], n), np.zeros(n)),
    "few values": lambda rng, n: (
        rng.choice([-1.0, 0.0, 1.0, 2.0], n, p=[0.2, 0.595, 0.2, 0.005]),
        np.zeros(n),
    ),
    "all zero": lambda _, n: (np.zeros(n), np.zeros(n)),
}


def _blocks(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    """Factors for n elements."""
    return np.where(rng.random(n // BLOCK + 1) < LARGE_BLOCKS, LARGE, 1.0).repeat(BLOCK)[:n]


class Trial:
    """The three things that are timed, and their memory.

    It serves all kinds of data: from blocks that others give back, torch.topk would make its 16
    bytes an element faster or slower as it happens, whereas a process that has not freed so much
    gets them new in every call.
    """

    def __init__(self, n: int, k: int) -> None:
        import torch

        from commbench.hooks.compression.selection import TopKSelector

        self.n, self.k = n, k
        self.gradient, self.residual, self._gradient_before, self._residual_before = np.zeros(
            (4, n), dtype=np.float32
        )
        self._elsewhere = np.zeros(ELSEWHERE_MIB * MIB // 4, dtype=np.float32)
        self._selector = TopKSelector(n, k)
        self.payload = np.zeros(self._selector.payload_bytes, dtype=np.uint8)
        self._magnitudes = torch.empty(n)
        self._step = 0

    def load(self, gradient: NDArray[np.floating], residual: NDArray[np.floating]) -> None:
        """Take other data."""
        self._gradient_before[:], self._residual_before[:] = gradient, residual

    def calls(self) -> dict[str, Callable[[], None]]:
        """What is timed, by name."""
        return {"commbench": self.select, "topk": self.select_by_torch, "add": self.add}

    def set_up(self) -> None:
        """Undo what the last call did and fill the caches as training does: the gradient was
        written just before.
        """
        self.residual[:] = self._residual_before
        self._elsewhere.sum()
        self.gradient[:] = self._gradient_before

    def select(self) -> None:
        """Encode one step in place."""
        self._step += 1
        self._selector.encode(self.gradient, self.residual, self.payload, step=self._step)

    def select_by_torch(self) -> None:
        """The same by torch.topk, in place and with memory of its own, as one would write it by
        hand.
        """
        import torch

        total = self._tensor(self.residual).add_(self._tensor(self.gradient))
        torch.abs(total, out=self._magnitudes)
        chosen = torch.topk(self._magnitudes, self.k, sorted=False).indices
        payload = torch.from_numpy(self.payload)
        payload[: 4 * self.k].view(torch.int32).copy_(chosen)
        torch.index_select(total, 0, chosen, out=payload[4 * self.k :].view(torch.float32))
        total.index_fill_(0, chosen, 0.0)

    def add(self) -> None:
        """Only add the gradient to the residual."""
        self._tensor(self.residual).add_(self._tensor(self.gradient))

    @staticmethod
    def _tensor(array: Floats) -> torch.Tensor:
        import torch

        return torch.from_numpy(array)

    def check(self) -> None:
        """Compare what the two selections send and keep.

        Raises:
            WrongDataError: not the same magnitudes, or together not the sum.
        """
        whole, sent = self._gradient_before + self._residual_before, []
        for call in (self.select, self.select_by_torch):
            self.set_up()
            call()
            indices, values = (
                self.payload[: 4 * self.k].view(np.int32),
                self.payload[4 * self.k :].view(np.float32),
            )
            np.add.at(self.residual, indices, values)
            sent.append(np.sort(np.abs(values)))
            if not np.array_equal(whole, self.residual):
                raise WrongDataError(
                    f"What {call.__name__} sends and keeps is not the sum of gradient and residual."
                )
        if not np.array_equal(sent[0], sent[1]):
            raise WrongDataError("The two selections do not send the same magnitudes.")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kind of data.

    Times are medians over rounds, ratios are of these, their intervals over pairs of a round.
    """

    data: str
    elements: int
    k: int
    rounds: int
    commbench_ms: float
    topk_ms: float
    add_ms: float
    speedup: float
    """torch.topk / commbench."""
    speedup_ci_low: float
    speedup_ci_high: float
    additions: float
    """commbench / addition."""
    additions_ci_low: float
    additions_ci_high: float

    @property
    def passed(self) -> bool:
        """Whether both intervals lie where they should."""
        return self.speedup_ci_low >= LEAST_SPEEDUP and self.additions_ci_high <= MOST_ADDITIONS

    @property
    def aimed(self) -> bool:
        """Whether both ratios are as aimed at."""
        return self.speedup >= AIMED_SPEEDUP and self.additions <= AIMED_ADDITIONS


def time_rounds(trial: Trial, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of every call, after a round to warm up; each round begins with another call."""
    calls = list(trial.calls().items())
    times: dict[str, list[float]] = {name: [] for name, _ in calls}
    for number in range(-1, rounds):
        for name, call in calls[number % 3 :] + calls[: number % 3]:
            trial.set_up()
            with quiet_interpreter():
                begun = time.perf_counter_ns()
                call()
                ended = time.perf_counter_ns()
            if number >= 0:
                times[name].append((ended - begun) / 1e6)
    return times


def summarise(data: str, trial: Trial, times: Mapping[str, Sequence[float]]) -> Row:
    """Return the row of one kind of data."""
    speedup, faster = _ratio(times["commbench"], times["topk"])
    additions, slower = _ratio(times["add"], times["commbench"])
    return Row(
        data=data,
        elements=trial.n,
        k=trial.k,
        rounds=len(times["add"]),
        **{f"{name}_ms": float(np.median(values)) for name, values in times.items()},
        speedup=speedup,
        speedup_ci_low=faster.low,
        speedup_ci_high=faster.high,
        additions=additions,
        additions_ci_low=slower.low,
        additions_ci_high=slower.high,
    )


def _ratio(below: Sequence[float], above: Sequence[float]) -> tuple[float, Interval]:
    return ratio_interval(below, above, level=0.95, seed=0, paired=True)


def write_results(
    out: Path, rows: Sequence[Row], times: Mapping[str, Any], facts: Mapping[str, Any]
) -> None:
    """Write run.json (all times and the conditions) and selection.csv (one line for each kind of
    data).
    """
    contents = {
        **facts,
        "environment": own_environment(),
        "threads": 1,
        "least_speedup": LEAST_SPEEDUP,
        "most_additions": MOST_ADDITIONS,
        "passed": all(row.passed for row in rows),
        "times_ms": times,
    }
    write_facts(out / "run.json", "selection", contents)
    (out / "selection.csv").write_text(
        csv_text(rows, [*(each.name for each in fields(Row)), "passed"])
    )


def build_table(rows: Sequence[Row]) -> Table:
    """The rows for people."""
    table = Table(box=None, pad_edge=False)
    table.add_column("data", no_wrap=True)
    for name in (
        "ms",
        "topk ms",
        "add ms",
        "topk / ours [95 % CI]",
        "ours / add [95 % CI]",
        "",
        "aim",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.data,
            f"{row.commbench_ms:.2f}",
            f"{row.topk_ms:.1f}",
            f"{row.add_ms:.2f}",
            f"{row.speedup:.1f} [{row.speedup_ci_low:.1f}, {row.speedup_ci_high:.1f}]",
            f"{row.additions:.2f} [{row.additions_ci_low:.2f}, {row.additions_ci_high:.2f}]",
            "PASS" if row.passed else "FAIL",
            "met" if row.aimed else "missed",
        )
    return table


def measure(options: argparse.Namespace) -> int:
    """Time all kinds of data, write and show the results; return the exit code."""
    import torch

    from commbench.hooks.compression.selection import prepare

    out = empty_out(options.out, "selection")
    torch.set_num_threads(1)
    prepare()
    started, n = (
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
        int(options.mib * MIB) // 4,
    )
    trial = Trial(n, max(1, round(options.density * n)))
    rows, times = [], {}
    for name, draw in DATA.items():
        trial.load(*draw(np.random.default_rng(options.seed), n))
        trial.check()
        times[name] = time_rounds(trial, options.rounds)
        rows.append(summarise(name, trial, times[name]))
    out.mkdir(parents=True, exist_ok=True)
    facts = {
        "started": started,
        "seed": options.seed,
        "mib": options.mib,
        "density": options.density,
    }
    write_results(out, rows, times, facts)
    console = make_console()
    console.print(build_table(rows))
    answer = "PASS" if all(row.passed for row in rows) else "FAIL"
    console.print(
        f"At least {LEAST_SPEEDUP:g} times as fast as torch.topk, at most {MOST_ADDITIONS:g} times"
        f" as long as adding: {answer} (aim: {AIMED_SPEEDUP:g} and {AIMED_ADDITIONS:g}). Results:"
        f" {out}",
        soft_wrap=True,
    )
    return 0 if answer == "PASS" else 1


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Compare commbench's top-k selection with torch.topk on one thread."
    )
    parser.add_argument(
        "--mib", type=float, default=25.0, help="size of the gradient (default 25, DDP's bucket)"
    )
    parser.add_argument(
        "--density",
        type=float,
        default=0.01,
        help="which part of the elements is sent (default 0.01)",
    )
    parser.add_argument(
        "--rounds", type=int, default=21, help="rounds for each kind of data (default 21)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the data (default 0)")
    add_out(parser, "selection")
    options = parser.parse_args()
    if options.rounds < LEAST_ROUNDS:
        parser.error(f"--rounds is {options.rounds}; give at least {LEAST_ROUNDS}")
    if not 0 < options.density <= 1:
        parser.error(f"--density is {options.density}; give more than 0 and at most 1")
    if options.mib * MIB < 4:  # noqa: PLR2004 - bytes of one element
        parser.error(f"--mib is {options.mib}; give at least one element")
    return options


def main() -> None:
    """Read the command line and leave with the exit code."""
    options = parse_options()
    end("selection", lambda: measure(options))


if __name__ == "__main__":
    main()
