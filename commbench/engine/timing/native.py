"""The timed loop in machine code: numba calls the MPI library by address, as a C loop would.

An operation is a table of C calls, so one compiled loop serves every operation. Addresses are data,
so the compiled code is cached for later processes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from commbench.engine.timing.loops import (
    Call,
    Progress,
    Repetitions,
    address_of,
    order_of,
    quiet_interpreter,
)
from commbench.engine.timing.sync import MINIMUM_SLACK_NS, Synchroniser, is_late
from commbench.errors import CommbenchError
from commbench.findings import UnsupportedError
from commbench.system.compiling import compiled

#: Columns of a call table: address, number of arguments, arguments.
MAX_ARGUMENTS = 12
#: Arguments that the System V convention passes in registers.
IN_REGISTERS = 6
ROW = 2 + MAX_ARGUMENTS
CLOCK_MONOTONIC = 1
READINGS = 1000

Integers = NDArray[np.int64]
Table = Integers
Rows = Sequence[tuple[int, ...]]
"""C calls as in `commbench.engine.timing.loops.Call.rows`."""

_is_late = compiled(is_late)


def call_table(rows: Rows) -> Table:
    """Lay out C calls as an array of shape (calls, ROW)."""
    table = np.zeros((len(rows), ROW), dtype=np.int64)
    for line, (address, *arguments) in zip(table, rows, strict=True):
        line[0] = _signed(address)
        line[1] = len(arguments)
        line[2 : 2 + len(arguments)] = [_signed(argument) for argument in arguments]
    return table


def _signed(word: int) -> int:
    """Return the same 64 bits as a signed number."""
    return ctypes.c_int64(word).value


@intrinsic
def _call_address(_typing: Any, _address: Any, arguments: Any) -> Any:
    """Call the C function at an address with integer arguments; return its int result.

    Integers narrower than 64 bits are passed in 64-bit registers, as the System V and AArch64
    conventions allow.
    """
    count = arguments.count

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        word = ir.IntType(64)
        function = ir.FunctionType(ir.IntType(32), [word] * count)
        pointer = builder.inttoptr(values[0], function.as_pointer())
        return builder.call(pointer, [builder.extract_value(values[1], i) for i in range(count)])

    return types.int32(types.int64, arguments), generate


@compiled
def _issue(table: Table) -> int:
    """Make the calls of a table in order; return how many reported an error.

    A function ignores arguments beyond its own, in registers as well as on the stack, so that two
    numbers of arguments serve all: as many as registers hold, and the most.
    """
    errors = 0
    for row in table:
        first = (row[2], row[3], row[4], row[5], row[6], row[7])
        if row[1] <= IN_REGISTERS:
            code = _call_address(row[0], first)
        else:
            further = (row[8], row[9], row[10], row[11], row[12], row[13])
            code = _call_address(row[0], first + further)
        if code != 0:
            errors += 1
    return errors


@compiled
def _now(clock: int, timespec: Integers) -> int:
    _call_address(clock, (CLOCK_MONOTONIC, timespec.ctypes.data))
    # For numba it is an int64.
    return timespec[0] * 1_000_000_000 + timespec[1]  # type: ignore[no-any-return]


@compiled
def _stamp(clock: int, stamps: Integers) -> None:
    """Fill ``stamps`` with successive readings of the clock."""
    timespec = np.zeros(2, dtype=np.int64)
    for i in range(stamps.shape[0]):
        stamps[i] = _now(clock, timespec)


@compiled
def _timed_loop(
    tables: Table,
    first: int,
    batch: int,
    barrier: Table,
    has_instant: bool,
    broadcast: Table,
    instant: Integers,
    slack_ns: int,
    origin_ns: int,
    offset_ns: int,
    drift: float,
    yield_address: int,
    clock: int,
    counters: Integers,
    start: Integers,
    end: Integers,
    late: NDArray[np.bool_],
) -> int:
    """Fill ``start``, ``end`` and ``late``; return the number of errors.

    The instant is of rank 0's clock. ``origin_ns``, ``offset_ns`` and ``drift`` are this rank's
    line over it, see `commbench.engine.timing.clocks.Line`.
    """
    timespec = np.zeros(2, dtype=np.int64)
    errors = 0
    sets = tables.shape[0]
    table = tables[first % sets]
    for repetition in range(start.shape[0]):
        if sets > 1:
            table = tables[(first + repetition) % sets]
        _issue(barrier)
        if has_instant:
            instant[0] = _now(clock, timespec) + slack_ns
            _issue(broadcast)
            target = instant[0] + offset_ns + round(drift * (instant[0] - origin_ns))
            if _is_late(_now(clock, timespec), target, 0):
                late[repetition] = True
            else:
                while _now(clock, timespec) < target:
                    if yield_address != 0:
                        _call_address(yield_address, (0,))
                late[repetition] = _is_late(_now(clock, timespec), target, slack_ns)
        counters[0] += 1
        begun = _now(clock, timespec)
        for _ in range(batch):
            errors += _issue(table)
        end[repetition] = _now(clock, timespec)
        start[repetition] = begun
        counters[1] += 1
    return errors


class NativeTimer:
    """Times calls from machine code; needs every call's ``rows``.

    Args:
        sync: how ranks start together.
        progress: counts the repetitions.
        barrier: calls before every repetition, none without synchronisation.
        broadcast: calls that broadcast ``instant`` from rank 0, for an agreed start.
        instant: one 64-bit integer.
    """

    name = "native"

    def __init__(
        self,
        sync: Synchroniser,
        progress: Progress,
        *,
        barrier: Rows,
        broadcast: Rows,
        instant: Integers,
    ) -> None:
        self.sync = sync
        self._instant = instant
        self._barrier = call_table(barrier)
        self._broadcast = call_table(broadcast)
        self._counters = progress.counters
        libc = ctypes.CDLL(None)
        self._clock = address_of(libc.clock_gettime)
        self._yield = 0
        if sync.yielding:
            self._yield = address_of(libc.sched_yield)

    def prepare(self) -> None:
        """Compile, or load from numba's cache, outside any case; then calibrate."""
        self.run([], 1, 1)
        self.sync.calibrate(MINIMUM_SLACK_NS)

    def reading_ns(self) -> float:
        """See `commbench.engine.timing.loops.Timer.reading_ns`."""
        stamps = np.zeros(READINGS, dtype=np.int64)
        _stamp(self._clock, stamps)
        return float(np.median(np.diff(stamps)))

    def run(self, calls: Sequence[Call], repetitions: int, batch: int) -> Repetitions:
        """See `commbench.engine.timing.loops.Timer.run`.

        Raises:
            CommbenchError: the library reported an error from one of the calls.
        """
        if any(not call.rows for call in calls):
            raise UnsupportedError("native_form_missing")
        start = np.zeros(repetitions, dtype=np.int64)
        end = np.zeros(repetitions, dtype=np.int64)
        late = np.zeros(repetitions, dtype=np.bool_)
        sync, clock = self.sync, self.sync.clock
        line = clock.local_line
        order = order_of(calls, repetitions, batch)
        tables = np.stack(
            [call_table([row for call in turn for row in call.rows]) for turn in order.turns]
        )
        with quiet_interpreter():
            errors = _timed_loop(
                tables,
                order.first,
                order.batch,
                self._barrier,
                sync.method == "round-time",
                self._broadcast,
                self._instant,
                sync.slack_ns,
                line.origin_ns,
                line.offset_ns,
                line.drift,
                self._yield,
                self._clock,
                self._counters,
                start,
                end,
                late,
            )
        if errors:
            raise CommbenchError(f"the library reported {errors} errors in the timed loop")
        return Repetitions(start_ns=clock.to_global(start), end_ns=clock.to_global(end), late=late)
