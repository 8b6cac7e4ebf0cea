"""Tests of step boundaries in a person's loop, and of reading times without waiting inside a
step.
"""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
optimizers = importlib.import_module("torch.optim.optimizer")

from commbench.live.boundaries import Boundaries, Step  # noqa: E402
from commbench.live.session import step_times  # noqa: E402

BATCH, WIDTH = 4, 3


@pytest.fixture
def model() -> Any:
    """Return a small model."""
    return torch.nn.Linear(WIDTH, WIDTH)


@pytest.fixture
def steps(model: Any) -> Iterator[list[Step]]:
    """Return the list of begun steps."""
    begun: list[Step] = []
    boundaries = Boundaries(model, lambda _, step: begun.append(step))
    yield begun
    boundaries.close()


def backward(model: Any) -> None:
    """Run a forward and a backward pass."""
    model(torch.ones(BATCH, WIDTH)).sum().backward()


def sgd(model: Any) -> Any:
    """Return an optimiser of the model."""
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_step_begins_after_the_optimiser(model: Any, steps: list[Step]) -> None:
    """Count two accumulation passes as one step, with losses and batch."""
    optimizer = sgd(model)
    for _ in range(3):
        backward(model)
        backward(model)
        optimizer.step()
    assert [0, 1, 2] == [step.index for step in steps]
    assert [(2, 2, BATCH)] * 3 == [(step.passes, len(step.losses), step.batch) for step in steps]
    assert all(step.updated_ns is not None and step.updated_ns > step.host_ns for step in steps)


def test_a_skipped_step_ends_where_gradients_are_released(model: Any, steps: list[Step]) -> None:
    """Start a step at the release of gradients if a GradScaler skipped the optimiser."""
    optimizer = sgd(model)
    for _ in range(3):
        backward(model)
        optimizer.zero_grad(set_to_none=True)
    assert 3 == len(steps)


def test_two_forward_passes_without_a_backward_are_one_step(model: Any, steps: list[Step]) -> None:
    """Start a step at released gradients only after a backward pass."""
    model(torch.ones(BATCH, WIDTH))
    backward(model)
    assert [2] == [step.passes for step in steps]


@pytest.mark.parametrize("evaluate", ["eval", "no_grad"])
def test_evaluation_is_no_step(model: Any, steps: list[Step], evaluate: str) -> None:
    """Ignore forward passes in evaluation mode and without gradients."""
    optimizer = sgd(model)
    backward(model)
    optimizer.step()
    if evaluate == "eval":
        model.eval()
        model(torch.ones(BATCH, WIDTH))
        model.train()
    else:
        with torch.no_grad():
            model(torch.ones(BATCH, WIDTH))
    assert 1 == len(steps)


def test_the_optimiser_of_another_model_begins_no_step(model: Any, steps: list[Step]) -> None:
    """Watch only optimisers with parameters of the model."""
    other = torch.nn.Linear(WIDTH, WIDTH)
    backward(model)
    backward(other)
    sgd(other).step()
    backward(model)
    assert 1 == len(steps)


def test_closing_leaves_nothing(model: Any) -> None:
    """Remove every hook and restore torch's backward function, also after two boundaries."""
    before = torch.autograd.backward
    first, second = (Boundaries(model, lambda *_: None) for _ in range(2))
    first.close()
    second.close()
    assert before is torch.autograd.backward
    assert not model._forward_pre_hooks
    assert not optimizers._global_optimizer_post_hooks


class Event:
    """Stands in for a GPU event, and counts the host's waits."""

    waits = 0

    def __init__(self, at_ms: float) -> None:
        self.at_ms = at_ms

    def synchronize(self) -> None:
        """Wait for the GPU."""
        Event.waits += 1

    def elapsed_time(self, end: "Event") -> float:
        """Return the milliseconds until another event."""
        return end.at_ms - self.at_ms


def test_no_step_waits_for_a_gpu(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record events at boundaries, and read them only when a block's times are requested."""
    made: list[Event] = []

    def clock() -> Event:
        made.append(Event(20.0 * len(made)))
        return made[-1]

    clock_of: Callable[[object], Callable[[], Event]] = lambda _: clock  # noqa: E731
    monkeypatch.setattr("commbench.live.boundaries.clock_of", clock_of)
    begun: list[Step] = []
    boundaries = Boundaries(model, lambda _, step: begun.append(step))
    optimizer = sgd(model)
    for _ in range(4):
        backward(model)
        optimizer.step()
    boundaries.close()
    assert 0 == Event.waits
    assert [20.0] * 3 == step_times(begun)[:, 0].tolist()
    assert 0 < Event.waits
