"""Tests of the clock of live tuning: periods, gaps, and what counts as a synchronised pass."""

import signal
import threading
import warnings
from collections import deque
from functools import partial
from types import SimpleNamespace
from weakref import WeakValueDictionary

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from commbench.live.passes import (
    MOST_MARKS,
    Harmless,
    Pass,
    Passes,
    _Calls,
    _wrapped,
    of_steps,
    pass_times,
    period_of,
)

MS = 1_000_000


@pytest.mark.parametrize(
    ("signatures", "period"),
    [
        ([(1, 1)] * 9, 1),
        ([(1, 1), (2, 1)] * 5, 2),
        ([(0, 1), (0, 1), (0, 1), (1, 1)] * 8, 4),
        ([(1, 1)] * 30 + [(0, 1)] + [(1, 1)] * 30, 1),
        ([(1, 1)], 1),
    ],
)
def test_a_period_is_found_from_what_passes_do(signatures, period):
    """Find steps of one, two and four passes, also if one update was skipped."""
    assert period_of(signatures) == period


def test_passes_are_summed_to_steps_without_the_one_in_which_a_setting_was_tried():
    """Sum pairs of passes, and leave out the step of the pass before the last."""
    times = np.arange(12.0).reshape(6, 2)
    assert of_steps(times, 2).tolist() == [[2, 4], [10, 12]]
    assert of_steps(times, 1)[:, 0].tolist() == [0, 2, 4, 6, 10]


def test_the_losses_of_a_pass_are_added():
    """Sum the losses of accumulated batches, and state none where ``backward()`` got none."""
    passes = [Pass(index=0, resumed=MS, ended=3 * MS, gap_ns=MS), Pass(index=1, resumed=0, ended=0)]
    passes[0].losses += [torch.tensor(1.0), torch.tensor(2.0)]
    times = pass_times(passes)
    assert times[0].tolist() == [2, 1, 3]
    assert np.isnan(times[1, 2])


def test_a_loss_that_is_no_real_number_is_not_stated():
    """Go on without the loss."""
    ended = Pass(index=0, resumed=0, ended=MS)
    ended.losses.append(torch.tensor(1 + 1j))
    times = pass_times([ended])
    assert times[0, 0] == 1
    assert np.isnan(times[0, 2])


def test_a_pass_of_very_many_batches_keeps_its_begin():
    """Forget the marks of a pass that seems to have no end, but for those of its time."""
    passes = object.__new__(Passes)
    passes.open = Pass(index=3, resumed=MS, forwards=[0] * (MOST_MARKS + 1))
    passes._forget_much()
    assert passes.open == Pass(index=3, resumed=MS)


@pytest.mark.parametrize("others", [set(), {0}])
def test_a_backward_pass_of_another_thread_counts_if_it_is_alone(monkeypatch, others):
    """Leave the gradients of a pass that may be under way alone when another thread ends a pass."""
    passes = object.__new__(Passes)
    passes.fired = deque([torch.nn.Parameter(torch.ones(1))])
    passes._thread, passes._is_armed = threading.get_ident(), False
    monkeypatch.setattr(_Calls, "_under_way", {*others})
    monkeypatch.setattr(_Calls, "threads", {*others})
    monkeypatch.setattr(_Calls, "_observers", WeakValueDictionary({0: passes}))
    thread = threading.Thread(target=_wrapped(bool), args=(None,))
    thread.start()
    thread.join()
    assert bool(passes.fired) == bool(others)
    assert _Calls._under_way == others


class PreemptedError(Exception):
    """What a script raises when its time is over."""


def preempt(*_: object) -> None:
    """Handle a signal."""
    raise PreemptedError


def preempt_once(number: int, _: object) -> None:
    """Handle a signal; the next one is ignored."""
    signal.signal(number, signal.SIG_IGN)
    raise PreemptedError


@pytest.mark.parametrize("handler", [preempt, partial(preempt), preempt_once])
def test_the_exception_of_a_signal_handler_reaches_the_script(handler):
    """Raise it where it came; suppress all others."""
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with Harmless():
            raise ValueError
        with pytest.raises(PreemptedError), Harmless():
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_warning_from_a_backward_pass_names_the_line_that_it_would():
    """Count no function of commbench among those between a warning and its place."""

    def warn(_: object) -> None:
        warnings.warn("a hook of a module", stacklevel=2)

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        _wrapped(warn)(None)
    assert [__file__] == [warning.filename for warning in shown]


def test_a_pass_is_counted_although_a_signal_handler_raises_behind_it(monkeypatch):
    """Tell observers of the end of a call that raises."""
    told = []
    monkeypatch.setattr(_Calls, "tell", lambda method, *_: told.append(method))
    with pytest.raises(PreemptedError):
        _wrapped(preempt)(None)
    assert told == [Passes.before_backward, Passes.after_backward]


def test_a_pass_whose_end_was_interrupted_counts_at_the_next_forward_pass(monkeypatch):
    """Count on each rank what DDP has exchanged, also if a signal handler raises behind it."""
    passes, counted = object.__new__(Passes), []
    passes.registered = [torch.nn.Parameter(torch.ones(1))]
    passes.fired = deque(passes.registered)
    passes.open, passes.clock, passes._begun = Pass(index=4), int, 0
    passes._thread, passes._version = threading.get_ident(), 0
    passes._is_armed = passes._is_called = True
    passes._inside_handles, passes._gradient = [], deque()
    passes._on_pass, passes._on_forward = counted.append, list
    monkeypatch.setattr(Passes, "_is_reduced", preempt)
    with pytest.raises(PreemptedError):
        passes.after_backward(None)
    monkeypatch.setattr(Passes, "_is_reduced", lambda _: True)
    for _ in "ab":  # the second one has no backward pass before it
        passes._before_forward(SimpleNamespace(require_backward_grad_sync=True), (), {})
    assert [each.index for each in counted] == [4]
    assert passes.open.index == 5
    assert len(passes.open.forwards) == 2


@pytest.mark.parametrize("gradient", [None, torch.ones(1)])
def test_gradients_are_kept_if_a_backward_pass_finds_them(gradient):
    """Let a script remove its gradients between the forward and the backward pass."""
    passes = object.__new__(Passes)
    passes.registered = [torch.nn.Parameter(torch.ones(1))]
    passes.registered[0].grad = gradient
    passes.open, passes.clock, passes._thread = Pass(index=0), int, threading.get_ident()
    passes.before_backward()
    assert (gradient is not None) == passes.open.keeps_gradients


def test_another_thread_reads_no_gradient(monkeypatch):
    """Take gradients as kept: the thread of the forward pass may be changing them."""
    passes = object.__new__(Passes)
    passes.registered = []
    passes.open, passes.clock, passes._thread = Pass(index=0), int, 0
    monkeypatch.setattr(_Calls, "threads", {threading.get_ident()})
    passes.before_backward()
    assert passes.open.keeps_gradients
