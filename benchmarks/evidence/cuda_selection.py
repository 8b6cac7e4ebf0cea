"""Is top-k selection on a GPU as fast as its memory? Its CUDA kernels against a copy, and against
the same by torch.

``cuda_selection.py`` times, in rounds of one call each and for several kinds of
data: add the residual, choose exactly k elements, pack them, store the rest. That has to move 12
bytes an element at least: gradient and residual are read, the residual is written. By torch it is
done twice: in the fewest calls (``plain``: add, abs, torch.topk, gather, scatter), and as the
hook's selection=exact does it, which also looks whether all is finite and does not write where it
is not. Exit code 0 if the 95 % intervals say that our kernels move these 12 bytes at LEAST_SHARE of
the rate of a copy or more, and are no slower than ``plain``, else 1. Data most of which is equal is
shown and not judged: nearly every element is then marked, and the kernels move 40 bytes in place of
20.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from keeping import add_out, empty_out, end, own_environment, write_facts
from numpy.typing import NDArray
from rich.table import Table

from commbench.cli.terminal import make_console
from commbench.errors import InputError, WrongDataError
from commbench.results.tables import csv_text
from commbench.stats import ratio_interval

#: Of the rate of a copy, at least; and what is aimed at beyond that.
LEAST_SHARE, AIMED_SHARE = 0.4, 0.5
#: Bytes an element that the selection has to move, and that a copy moves.
SELECTION_BYTES, COPY_BYTES = 12, 8
#: An interval of 95 % needs so many.
LEAST_ROUNDS = 6
MIB = 2**20
#: What is read between two calls, more than any GPU's cache holds; and what is copied to see the
#: memory's own rate.
ELSEWHERE_MIB = 1024
#: Elements that are not zero where most are: less than half of the default density.
FEW = 0.0046
#: Data of which most elements are as large as the k-th largest.
TIED = frozenset({"plus and minus one", "all equal"})

#: (gradient, residual) of n elements by the name of the data.
DATA: dict[str, Callable[[np.random.Generator, int], tuple[Any, Any]]] = {
    "gauss": lambda rng, n: (rng.standard_normal(n), 3 * rng.standard_normal(n)),
    "student t2": lambda rng, n: (rng.standard_t(2, n), rng.standard_t(2, n)),
    "mostly zeros": lambda rng, n: (rng.standard_normal(n) * (rng.random(n) < FEW), np.zeros(n)),
    "plus and minus one": lambda rng, n: (rng.choice([-1.0, 1.0], n), np.zeros(n)),
    "all equal": lambda _, n: (np.full(n, 0.5), np.zeros(n)),
    "all zero": lambda _, n: (np.zeros(n), np.zeros(n)),
}


class Trial:
    """What is timed, and its memory on the GPU."""

    def __init__(self, n: int, k: int) -> None:
        import torch

        from commbench.hooks.selectors import make_selector

        self.n, self.k = n, k
        self._device = torch.device("cuda", torch.cuda.current_device())
        arrays = torch.zeros((5, n), device=self._device)
        self.gradient, self.residual, self._gradient_before, self._residual_before, self._copied = (
            arrays
        )
        self._elsewhere = torch.zeros(ELSEWHERE_MIB * MIB // 4, device=self._device)
        self._selectors = {
            "commbench": make_selector(n, k, "float32", fast=True, device=self._device),
            "exact": make_selector(n, k, "float32", fast=False, device=self._device),
        }
        self.payload = torch.zeros(8 * k, dtype=torch.uint8, device=self._device)
        self._step = 0

    def load(self, gradient: NDArray[np.floating], residual: NDArray[np.floating]) -> None:
        """Take other data."""
        import torch

        for tensor, array in ((self._gradient_before, gradient), (self._residual_before, residual)):
            tensor.copy_(torch.from_numpy(array.astype(np.float32)))

    def calls(self) -> dict[str, Callable[[], object]]:
        """What is timed, by name."""
        return {
            **self.selections(),
            "copy": lambda: self._copied.copy_(self._gradient_before),
        }

    def selections(self) -> dict[str, Callable[[], object]]:
        """What sends and keeps the same."""
        return {
            "commbench": lambda: self._select("commbench"),
            "plain": self._select_plainly,
            "exact": lambda: self._select("exact"),
        }

    def set_up(self) -> None:
        """Undo what the last call did, and fill the cache with something else.

        The host meanwhile gets ahead.

        Something else is only read: what had been written would have to leave the cache within what
        is timed next.
        """
        self.residual.copy_(self._residual_before)
        self.gradient.copy_(self._gradient_before)
        self._elsewhere.amax()

    def large_copy_rate(self, rounds: int) -> float:
        """The GB/s of a copy that is too large for the cache to matter, the median over rounds."""
        import torch

        target = torch.empty_like(self._elsewhere)
        times = time_rounds({"copy": lambda: target.copy_(self._elsewhere)}, lambda: None, rounds)[
            "copy"
        ]
        return float(2 * target.nbytes / np.median(times) / 1e3)

    def _select(self, name: str) -> None:
        """Encode one step in place, by one of the hook's selections."""
        self._step += 1
        self._selectors[name].encode(
            self.gradient, self.residual, self.payload, out_residual=self.residual, step=self._step
        )

    def _select_plainly(self) -> None:
        """The same in as few calls of torch as it takes where everything is finite."""
        import torch

        from commbench.hooks.selectors import split

        indices, values = split(self.payload, self.k, torch.float32)
        total = self.residual.add_(self.gradient)
        _, chosen = torch.topk(total.abs(), self.k, sorted=False)
        indices.copy_(chosen)
        torch.gather(total, 0, chosen, out=values)
        total.scatter_(0, chosen, 0.0)

    def check(self) -> None:
        """Compare what the selections send and keep.

        Raises:
            WrongDataError: not the same magnitudes, or together not the sum.
        """
        import torch

        whole, sent = self._gradient_before + self._residual_before, []
        for name, select in self.selections().items():
            self.set_up()
            select()
            self._selectors["exact"].add(self.payload, self.residual)
            sent.append(self.payload[4 * self.k :].view(torch.float32).abs().sort().values)
            if not torch.equal(whole, self.residual):
                raise WrongDataError(
                    f"What the selection {name} sends and keeps is not gradient + residual."
                )
        if not all(torch.equal(sent[0], other) for other in sent[1:]):
            raise WrongDataError("The selections do not send the same magnitudes.")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kind of data.

    Times are medians over rounds, ratios are of these, their intervals over pairs of a round.
    """

    data: str
    elements: int
    k: int
    rounds: int
    commbench_us: float
    plain_us: float
    exact_us: float
    copy_us: float
    copy_GBps: float  # noqa: N815 - as in commbench's tables
    moved_GBps: float  # noqa: N815 - as above
    """12 bytes an element over the time of the selection."""
    share: float
    """moved_GBps / copy_GBps."""
    share_ci_low: float
    share_ci_high: float
    speedup: float
    """plain / commbench."""
    speedup_ci_low: float
    speedup_ci_high: float

    @property
    def passed(self) -> bool | None:
        """Whether both intervals lie where they should; None where that is not judged."""
        if self.data in TIED:
            return None
        return self.share_ci_low >= LEAST_SHARE and self.speedup_ci_low >= 1.0


def time_rounds(
    named: Mapping[str, Callable[[], object]], set_up: Callable[[], object], rounds: int
) -> dict[str, list[float]]:
    """Microseconds of every call by events, after a round to warm up.

    Each round begins with another call.
    """
    import torch

    calls = list(named.items())
    stamps: dict[str, list[tuple[Any, Any]]] = {name: [] for name, _ in calls}
    for number in range(-1, rounds):
        turn = number % len(calls)
        for name, call in calls[turn:] + calls[:turn]:
            set_up()
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            call()
            last.record()
            if number >= 0:
                stamps[name].append((first, last))
    torch.cuda.synchronize()
    return {
        name: [1e3 * first.elapsed_time(last) for first, last in pairs]
        for name, pairs in stamps.items()
    }


def summarise(data: str, n: int, k: int, times: Mapping[str, Sequence[float]]) -> Row:
    """Return the row of one kind of data."""
    relative = SELECTION_BYTES / COPY_BYTES
    copied, sharing = ratio_interval(
        times["commbench"], times["copy"], level=0.95, seed=0, paired=True
    )
    speedup, faster = ratio_interval(
        times["commbench"], times["plain"], level=0.95, seed=0, paired=True
    )
    medians = {name: float(np.median(values)) for name, values in times.items()}
    return Row(
        data=data,
        elements=n,
        k=k,
        rounds=len(times["copy"]),
        **{f"{name}_us": median for name, median in medians.items()},
        copy_GBps=COPY_BYTES * n / medians["copy"] / 1e3,
        moved_GBps=SELECTION_BYTES * n / medians["commbench"] / 1e3,
        share=relative * copied,
        share_ci_low=relative * sharing.low,
        share_ci_high=relative * sharing.high,
        speedup=speedup,
        speedup_ci_low=faster.low,
        speedup_ci_high=faster.high,
    )


def write_results(
    out: Path, rows: Sequence[Row], times: Mapping[str, Any], facts: Mapping[str, Any]
) -> None:
    """Write run.json (all times and the conditions) and cuda_selection.csv (one line for each kind
    of data).
    """
    contents = {
        **facts,
        "environment": own_environment(),
        "least_share": LEAST_SHARE,
        "passed": have_passed(rows),
        "times_us": times,
    }
    write_facts(out / "run.json", "cuda_selection", contents)
    (out / "cuda_selection.csv").write_text(
        csv_text(rows, [*(each.name for each in fields(Row)), "passed"])
    )


def have_passed(rows: Sequence[Row]) -> bool:
    """Whether all that are judged have."""
    return all(row.passed is not False for row in rows)


def build_table(rows: Sequence[Row]) -> Table:
    """The rows for people."""
    table = Table(box=None, pad_edge=False)
    table.add_column("data", no_wrap=True)
    shares = ("share of a copy's [95 % CI]", "plain / ours [95 % CI]")
    for name in ("us", "plain us", "exact us", "copy us", "GB/s", *shares, "", "aim"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.data,
            f"{row.commbench_us:.0f}",
            f"{row.plain_us:.0f}",
            f"{row.exact_us:.0f}",
            f"{row.copy_us:.0f}",
            f"{row.moved_GBps:.0f}",
            f"{row.share:.2f} [{row.share_ci_low:.2f}, {row.share_ci_high:.2f}]",
            f"{row.speedup:.1f} [{row.speedup_ci_low:.1f}, {row.speedup_ci_high:.1f}]",
            {True: "PASS", False: "FAIL", None: "not judged"}[row.passed],
            "met" if row.share >= AIMED_SHARE else "missed",
        )
    return table


def remark_on_cache(n: int, cache_bytes: int) -> str:
    """What the cache has to do with the times of n elements; empty where not much."""
    if 4 * n > cache_bytes:
        return ""
    return (
        f"An array of {4 * n / MIB:g} MiB fits in the L2 of {cache_bytes / MIB:g} MiB: all rates in"
        " the table are in part the cache's, a copy's too, and not the memory's."
    )


def find_gpu() -> tuple[str, int]:
    """The name of the GPU in use, and the bytes of its L2.

    Raises:
        InputError: there is none, or cupy cannot compile for it.
    """
    try:
        import torch

        from commbench.hooks.compilers import cupy_wheel
        from commbench.hooks.selectors import SLOW, fast_selection, prepare
    except ImportError as error:
        raise InputError(
            "This needs PyTorch, which is not installed: pip install torch."
        ) from error
    if not torch.cuda.is_available():
        raise InputError("This times a GPU, and PyTorch finds none that CUDA can use.")
    device = torch.device("cuda", torch.cuda.current_device())
    if fast_selection(device) == SLOW:
        raise InputError(
            f"This needs cupy for CUDA, which is not installed: pip install '{cupy_wheel()}'."
        )
    prepare(device)
    properties = torch.cuda.get_device_properties(device)
    return str(properties.name), int(getattr(properties, "L2_cache_size", 0))


def measure(options: argparse.Namespace) -> int:
    """Time all kinds of data, write and show the results; return the exit code."""
    out = empty_out(options.out, "cuda_selection")
    device, cache_bytes = find_gpu()
    started, n = (
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
        int(options.mib * MIB) // 4,
    )
    trial = Trial(n, max(1, round(options.density * n)))
    rows, times = [], {}
    for name, draw in DATA.items():
        trial.load(*draw(np.random.default_rng(options.seed), n))
        trial.check()
        times[name] = time_rounds(trial.calls(), trial.set_up, options.rounds)
        rows.append(summarise(name, n, trial.k, times[name]))
    out.mkdir(parents=True, exist_ok=True)
    large_copy, remark = trial.large_copy_rate(options.rounds), remark_on_cache(n, cache_bytes)
    facts = {
        "started": started,
        "device": device,
        "seed": options.seed,
        "mib": options.mib,
        "density": options.density,
        "l2_bytes": cache_bytes,
        "large_copy_GBps": large_copy,
    }
    write_results(out, rows, times, facts)
    console = make_console()
    console.print(build_table(rows))
    answer = "PASS" if have_passed(rows) else "FAIL"
    console.print(
        " ".join(
            filter(None, (f"A copy of {ELSEWHERE_MIB} MiB moves {large_copy:.0f} GB/s.", remark))
        )
    )
    console.print(
        f"{device}: at least {LEAST_SHARE:g} of a copy's rate, no slower than torch (plain):"
        f" {answer} (aim: {AIMED_SHARE:g}). Results: {out}",
        soft_wrap=True,
    )
    return 0 if answer == "PASS" else 1


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Compare commbench's top-k selection on a GPU with copying memory."
    )
    parser.add_argument(
        "--mib", type=float, default=100.0, help="size of the gradient (default 100)"
    )
    parser.add_argument(
        "--density",
        type=float,
        default=0.01,
        help="which part of the elements is sent (default 0.01)",
    )
    parser.add_argument(
        "--rounds", type=int, default=31, help="rounds for each kind of data (default 31)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the data (default 0)")
    add_out(parser, "cuda_selection")
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
    end("cuda_selection", lambda: measure(options))


if __name__ == "__main__":
    main()
