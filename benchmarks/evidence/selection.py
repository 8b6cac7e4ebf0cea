"""Does top-k pay? Its selection against the same by torch.topk, and against what its memory allows.

``selection.py`` works on one thread, in rounds of one call each, for several kinds of data: add the
residual, choose exactly k elements, pack them, store the rest. Exit code 0 if with all data the
95 % intervals say that the compiled selection is at least 8 times as fast as by torch.topk and
takes at most 8 times as long as merely adding the two arrays, else 1.

``selection.py --gpu`` times CUDA kernels. The selection has to move 12 bytes an element at least:
gradient and residual are read, the residual is written. By torch it is done in the fewest calls
(``plain``), and as the hook's selection=exact does it. Exit code 0 if our kernels move these bytes
at 0.4 of the rate of a copy or more and are no slower than ``plain``, else 1. Data most of which is
equal is not judged: nearly every element is then marked, and the kernels move 40 bytes, not 20.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pandas as pd
from keeping import add_out, build_table, empty_out, end, own_environment, write_facts
from numpy.typing import NDArray

from commbench.cli.terminal import make_console
from commbench.engine.timing.loops import quiet_interpreter
from commbench.errors import InputError, WrongDataError
from commbench.stats import ratio_interval

#: On a CPU: at least so many times as fast as torch.topk, at most so many times as an addition.
LEAST_SPEEDUP, MOST_ADDITIONS = 8.0, 8.0
#: On a GPU: at least this share of a copy's rate, and as fast as by torch.
LEAST_SHARE, LEAST_GPU_SPEEDUP = 0.4, 1.0
#: Bytes an element that the selection has to move, and that a copy moves.
SELECTION_BYTES, COPY_BYTES = 12, 8
#: Part of the elements that are sent, and the seed of the data.
DENSITY, SEED = 0.01, 0
#: An interval of 95 % needs so many.
LEAST_ROUNDS = 6
MIB = 2**20
#: What is read between two calls: more than the cache of a core, or of any GPU.
ELSEWHERE_MIB, GPU_ELSEWHERE_MIB = 128, 1024
#: Elements that are not zero where most are: less than half of the default density.
FEW = 0.0046
#: Where large elements lie together: blocks of so many, this part of them, so many times as large
#: as the others.
BLOCK, LARGE_BLOCKS, LARGE = 4096, 0.05, 100.0
#: Residuals are zero where they would undo the ties.
WITHOUT_RESIDUAL = ("mostly zeros", "plus and minus one", "few values", "all equal", "all zero")
DATA = ("gauss", "student t2", "blocky", *WITHOUT_RESIDUAL)
#: Of these a GPU times all but two.
NOT_ON_GPU = ("blocky", "few values")
#: Data of which most elements are as large as the k-th largest.
TIED = ("plus and minus one", "all equal")
#: Milliseconds or microseconds of each call, by its name.
Times = Mapping[str, Sequence[float]]
Calls = Mapping[str, Callable[[], object]]
T = TypeVar("T")
#: Of torch, which is imported where it is needed.
Tensor: TypeAlias = Any


def draw(name: str, rng: np.random.Generator, n: int) -> NDArray[Any]:
    """Return n elements of a kind of data."""
    drawn = np.zeros(n)
    if name == "gauss":
        drawn = rng.standard_normal(n)
    elif name == "student t2":
        drawn = rng.standard_t(2, n)
    elif name == "blocky":
        is_large = rng.random(n // BLOCK + 1) < LARGE_BLOCKS
        drawn = np.where(is_large, LARGE, 1.0).repeat(BLOCK)[:n] * rng.standard_normal(n)
    elif name == "mostly zeros":
        drawn = rng.standard_normal(n) * (rng.random(n) < FEW)
    elif name == "plus and minus one":
        drawn = rng.choice([-1.0, 1.0], n)
    elif name == "few values":
        drawn = rng.choice([-1.0, 0.0, 1.0, 2.0], n, p=[0.2, 0.595, 0.2, 0.005])
    elif name == "all equal":
        drawn = np.full(n, 0.5)
    return drawn


def draw_pair(name: str, n: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return gradient and residual of n elements."""
    rng = np.random.default_rng(SEED)
    gradient = draw(name, rng, n)
    if name in WITHOUT_RESIDUAL:
        return gradient, np.zeros(n)
    residual = draw(name, rng, n)
    if name == "gauss":
        residual *= 3
    return gradient, residual


def check(trial: HostTrial | GpuTrial) -> None:
    """Compare what the selections send and keep.

    Raises:
        WrongDataError: not the same magnitudes, or together not the sum.
    """
    magnitudes = []
    for name, select in trial.selections().items():
        trial.set_up()
        select()
        sent, is_whole = trial.sent()
        magnitudes.append(sent)
        if not is_whole:
            raise WrongDataError(
                f"What the selection {name} sends and keeps is not gradient + residual."
            )
    for other in magnitudes[1:]:
        if not np.array_equal(magnitudes[0], other):
            raise WrongDataError("The selections do not send the same magnitudes.")


class Trial:
    """The selection on a device.

    One trial serves all data: from blocks that others give back, torch.topk would make its 16
    bytes an element faster or slower as it happens, whereas a process that has not freed so much
    gets them new in every call.
    """

    def __init__(self, n: int, k: int, elsewhere: Tensor) -> None:
        import torch

        from commbench.hooks.selectors import make_selector

        self.n, self.k = n, k
        device = elsewhere.device
        arrays = torch.zeros((5, n), device=device)
        self.gradient, self.residual, self._gradient_before, self._residual_before, self._spare = (
            arrays
        )
        self._elsewhere = elsewhere
        self._fast = make_selector(n, k, "float32", fast=True, device=device)
        self._exact = make_selector(n, k, "float32", fast=False, device=device)
        self.payload = torch.zeros(8 * k, dtype=torch.uint8, device=device)

    def load(self, *pair: NDArray[Any]) -> None:
        """Take another gradient and residual."""
        import torch

        for before, drawn in zip((self._gradient_before, self._residual_before), pair, strict=True):
            before.copy_(torch.from_numpy(drawn.astype(np.float32)))

    def encode(self, selector: Any) -> None:
        """Select once."""
        selector.encode(self.gradient, self.residual, self.payload)

    def add(self) -> Tensor:
        """Return the residual, to which the gradient was added."""
        return self.residual.add_(self.gradient)

    def select_by_torch(self) -> None:
        """Select in place and with memory of its own, as one would write it by hand."""
        import torch

        indices, values = self.parts()
        total = self.add()
        torch.abs(total, out=self._spare)
        chosen = torch.topk(self._spare, self.k, sorted=False).indices
        indices.copy_(chosen)
        torch.index_select(total, 0, chosen, out=values)
        total.index_fill_(0, chosen, 0.0)

    def parts(self) -> tuple[Tensor, Tensor]:
        """Return the indices and the values of the payload."""
        import torch

        from commbench.hooks.selectors import split

        return split(self.payload, self.k, torch.float32)

    def sent(self) -> tuple[NDArray[Any], bool]:
        """Return magnitudes, and whether nothing is lost."""
        import torch

        self._exact.add(self.payload, self.residual)
        magnitudes = self.parts()[1].abs().sort()[0]
        whole = self._gradient_before + self._residual_before
        return magnitudes.cpu().numpy(), torch.equal(whole, self.residual)


class HostTrial(Trial):
    """The selection on one thread."""

    unit = "ms"

    def __init__(self, n: int, k: int) -> None:
        import torch

        from commbench.hooks.selectors import prepare

        torch.set_num_threads(1)
        prepare(torch.device("cpu"))
        elsewhere = np.zeros(ELSEWHERE_MIB * MIB // 4, dtype=np.float32)
        super().__init__(n, k, torch.from_numpy(elsewhere))

    def selections(self) -> Calls:
        """Return the two selections."""
        return {"commbench": lambda: self.encode(self._fast), "topk": self.select_by_torch}

    def set_up(self) -> None:
        """Fill the caches as training does: the gradient was written just before."""
        self.residual.copy_(self._residual_before)
        self._elsewhere.sum()
        self.gradient.copy_(self._gradient_before)

    def time_rounds(self, rounds: int) -> dict[str, list[float]]:
        """Time beside an addition, by the clock."""

        def time_ms(call: Callable[[], object]) -> float:
            with quiet_interpreter():
                begun = time.perf_counter_ns()
                call()
                ended = time.perf_counter_ns()
            return (ended - begun) / 1e6

        return in_turn({**self.selections(), "add": self.add}, self.set_up, rounds, time_ms)

    def row_of(self, data: str, times: Times) -> dict[str, Any]:
        """Judge torch.topk / commbench and commbench / addition."""
        row = {**ratio("speedup", times, "topk", "commbench")}
        row |= ratio("additions", times, "commbench", "add")
        is_fast = row["speedup_ci_low"] >= LEAST_SPEEDUP
        row["passed"] = is_fast and row["additions_ci_high"] <= MOST_ADDITIONS
        return row


class GpuTrial(Trial):
    """The selection on a GPU."""

    unit = "us"

    def __init__(self, n: int, k: int) -> None:
        import torch

        device = torch.device("cuda", torch.cuda.current_device())
        super().__init__(n, k, torch.zeros(GPU_ELSEWHERE_MIB * MIB // 4, device=device))

    def selections(self) -> Calls:
        """Return our kernels, the fewest calls of torch, and selection=exact."""
        return {
            "commbench": lambda: self.encode(self._fast),
            "plain": self.select_by_torch,
            "exact": lambda: self.encode(self._exact),
        }

    def set_up(self) -> None:
        """Fill the cache with something else, which is only read: what had been written would have
        to leave the cache within what is timed next. The host meanwhile gets ahead.
        """
        self.residual.copy_(self._residual_before)
        self.gradient.copy_(self._gradient_before)
        self._elsewhere.amax()

    def time_rounds(self, rounds: int) -> dict[str, list[float]]:
        """Time by events, beside a copy of the gradient."""
        copy = partial(self._spare.copy_, self._gradient_before)
        return time_on_gpu({**self.selections(), "copy": copy}, self.set_up, rounds)

    def row_of(self, data: str, times: Times) -> dict[str, Any]:
        """Judge the share of a copy's rate, and plain / commbench."""
        relative = SELECTION_BYTES / COPY_BYTES
        row = {
            "copy_GBps": COPY_BYTES * self.n / np.median(times["copy"]) / 1e3,
            "moved_GBps": SELECTION_BYTES * self.n / np.median(times["commbench"]) / 1e3,
            **ratio("share", times, "copy", "commbench", relative),
            **ratio("speedup", times, "plain", "commbench"),
        }
        is_fast = row["share_ci_low"] >= LEAST_SHARE
        row["passed"] = is_fast and row["speedup_ci_low"] >= LEAST_GPU_SPEEDUP
        if data in TIED:
            row["passed"] = None  # not judged
        return row

    def large_copy_GBps(self, rounds: int) -> float:
        """Return the rate of a copy that is too large for the cache to matter."""
        import torch

        target = torch.empty_like(self._elsewhere)
        copy = partial(target.copy_, self._elsewhere)
        times = time_on_gpu({"copy": copy}, lambda: None, rounds)["copy"]
        return float(2 * target.nbytes / np.median(times) / 1e3)


def in_turn(
    named: Calls,
    set_up: Callable[[], object],
    rounds: int,
    time_call: Callable[[Callable[[], object]], T],
) -> dict[str, list[T]]:
    """Return what ``time_call`` finds of every call, after a round to warm up.

    Each round begins with another call.
    """
    calls = list(named.items())
    found: dict[str, list[T]] = {name: [] for name in named}
    for number in range(-1, rounds):
        turn = number % len(calls)
        for name, call in calls[turn:] + calls[:turn]:
            set_up()
            timed = time_call(call)
            if number >= 0:
                found[name].append(timed)
    return found


def time_on_gpu(named: Calls, set_up: Callable[[], object], rounds: int) -> dict[str, list[float]]:
    """Return the microseconds of every call by events, see `in_turn`."""
    import torch

    def between(call: Callable[[], object]) -> tuple[Any, Any]:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        return first, last

    events = in_turn(named, set_up, rounds, between)
    torch.cuda.synchronize()
    return {
        name: [1e3 * first.elapsed_time(last) for first, last in pairs]
        for name, pairs in events.items()
    }


def find_gpu() -> tuple[str, int]:
    """Return the name of the GPU in use, and the bytes of its L2.

    Raises:
        InputError: there is none, or cupy cannot compile for it.
    """
    import torch

    from commbench.hooks.compilers import cupy_wheel
    from commbench.hooks.selectors import SLOW, fast_selection, prepare

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


def ratio(name: str, times: Times, above: str, below: str, factor: float = 1.0) -> dict[str, Any]:
    """Return a ratio of medians with its interval over pairs of a round, as columns."""
    value, interval = ratio_interval(times[below], times[above])
    return {
        name: factor * value,
        f"{name}_ci_low": factor * interval.low,
        f"{name}_ci_high": factor * interval.high,
    }


def measure(options: argparse.Namespace) -> int:
    """Time all kinds of data; write run.json (all times and the conditions) and selection.csv (a
    line for each kind of data), and show the results.

    Return the exit code.
    """
    out = empty_out(options.out, "selection")
    facts: dict[str, Any] = {"seed": SEED, "mib": options.mib, "density": DENSITY}
    facts["started"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
    n = int(options.mib * MIB) // 4
    k = max(1, round(DENSITY * n))
    trial: HostTrial | GpuTrial
    names: Sequence[str] = DATA
    if options.gpu:
        facts["device"], facts["l2_bytes"] = find_gpu()
        trial = gpu = GpuTrial(n, k)
        facts["large_copy_GBps"] = gpu.large_copy_GBps(options.rounds)
        names = [name for name in DATA if name not in NOT_ON_GPU]
    else:
        trial = HostTrial(n, k)
    rows = []
    times = {}
    for name in names:
        trial.load(*draw_pair(name, n))
        check(trial)
        timed = trial.time_rounds(options.rounds)
        times[name] = timed
        row: dict[str, Any] = {"data": name, "elements": n, "k": k, "rounds": options.rounds}
        for call, values in timed.items():
            row[f"{call}_{trial.unit}"] = float(np.median(values))
        rows.append(row | trial.row_of(name, timed))
    passed = all(row["passed"] is not False for row in rows)
    out.mkdir(parents=True, exist_ok=True)
    facts |= {"environment": own_environment(), "passed": passed, f"times_{trial.unit}": times}
    write_facts(out / "run.json", "selection", facts)
    pd.DataFrame(rows).to_csv(out / "selection.csv", index=False)
    text = f"{'PASS' if passed else 'FAIL'}. Results: {out}"
    make_console().print(build_table(rows), text, sep="\n", soft_wrap=True)
    return int(not passed)


def main() -> None:
    """Read the command line and leave with the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpu", action="store_true", help="time CUDA kernels")
    parser.add_argument("--mib", type=float, default=25.0, help="of the gradient (default 25)")
    parser.add_argument("--rounds", type=int, default=21, help="for each kind (default 21)")
    add_out(parser, "selection")
    options = parser.parse_args()
    if options.rounds < LEAST_ROUNDS:
        parser.error(f"--rounds is {options.rounds}; give at least {LEAST_ROUNDS}")
    end("selection", lambda: measure(options))


if __name__ == "__main__":
    main()
