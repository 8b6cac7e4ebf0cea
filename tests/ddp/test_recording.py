"""Tests of recording in a person's own loop: the trace, no side effects, and refusals."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gloo_ranks import found_by, run_gloo_ranks

import commbench
from commbench.ddp.traces import load_trace
from commbench.errors import InputError

torch = pytest.importorskip("torch")
pytest.importorskip("numba")

from loops import (  # noqa: E402 - after the skips
    LOOPS,
    STEPS,
    Loop,
    by_hand,
    data,
    fused,
    loss_of,
    make_model,
    plain,
    plain_step,
)
from torch import nn  # noqa: E402
from torch.optim import optimizer as optimizers  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from commbench.ddp.inspection import inspect_workload  # noqa: E402
from commbench.ddp.local_step import batch_length  # noqa: E402
from commbench.ddp.recording import FEWEST, SKIPPED  # noqa: E402
from commbench.ddp.watching import MOST_PASSES, Watch  # noqa: E402
from commbench.ddp.workloads import load_workload  # noqa: E402

LAYERS = ["0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"]
#: Nothing in a loop rests for longer by itself, so that it stands out wherever it is put.
PAUSE_S = 0.1


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Compute on one thread, as these models are small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def ended(
    loop: Loop, wrap: Callable[[nn.Module], Any] = lambda model: model, *, recording: bool
) -> tuple[Any, ...]:
    """Train from the same start.

    Return the parameter bytes, the model, and the recording if any.
    """
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    trained = wrap(model)
    with commbench.record_gradients(trained) if recording else contextlib.nullcontext() as recorder:
        loop(trained, optimizer)
    return (
        [parameter.detach().numpy().tobytes() for parameter in model.parameters()],
        model,
        recorder,
    )


def hooks_of(model: nn.Module) -> int:
    """Return the number of hooks on a model, its parameters and all optimisers."""
    parameters = sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())
    everywhere = optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks
    return (
        parameters
        + len(model._forward_pre_hooks)
        + len(model._forward_hooks)
        + sum(map(len, everywhere))
    )


@pytest.mark.parametrize(
    ("loop", "passes", "batch"), LOOPS, ids=[loop.__name__ for loop, *_ in LOOPS]
)
def test_any_loop_is_recorded_and_not_changed(loop: Loop, passes: int, batch: int) -> None:
    """Train to equal bits with recording, see the last layer's gradients first, and remove all
    hooks.
    """
    without, _, _ = ended(loop, recording=False)
    parameters, model, recorder = ended(loop, recording=True)
    assert without == parameters
    assert 0 == hooks_of(model)
    assert LAYERS == [parameter.name for parameter in recorder.trace.parameters]
    assert {4, 5} == set(recorder.trace.ready_order[:2])
    assert {0, 1} == set(recorder.trace.ready_order[-2:])
    assert batch == recorder.trace.batch
    whole_steps = STEPS * passes if loop in (by_hand, fused) else STEPS
    assert whole_steps - SKIPPED == recorder.steps
    assert f"{passes} backward pass" in recorder.trace.recorded["how"]
    assert (
        0
        < max(parameter.ready_ms for parameter in recorder.trace.parameters)
        <= recorder.trace.backward_ms
    )
    assert (loop not in (by_hand, fused)) == (recorder.trace.optimizer_ms > 0)


class Wrapped(nn.Module):
    """Calls a model through a wrapper."""

    def __init__(self, model: nn.Module, call: Callable[[nn.Module, torch.Tensor], Any]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, inputs: torch.Tensor) -> Any:
        """Pass the result on."""
        return self.call(self.model, inputs)


@dataclasses.dataclass
class Output:
    """An output object as some models return it."""

    logits: torch.Tensor


CALLS: dict[str, tuple[Callable[[nn.Module, torch.Tensor], Any], Callable[[Any], torch.Tensor]]] = {
    "dict": (
        lambda model, inputs: {"kind": "x", "logits": model(inputs)},
        lambda out: out["logits"],
    ),
    "nested": (lambda model, inputs: (3, [model(inputs)]), lambda out: out[1][0]),
    "dataclass": (lambda model, inputs: Output(model(inputs)), lambda out: out.logits),
    "several": (
        lambda model, inputs: (model(inputs), model(2 * inputs)),
        lambda out: out[0] + out[1],
    ),
    "loss": (lambda model, inputs: loss_of(model(inputs)), lambda out: out[None]),
    "kept": (lambda model, inputs: checkpoint(model, inputs, use_reentrant=False), lambda out: out),
    "again": (
        lambda model, inputs: checkpoint(model, inputs.requires_grad_(), use_reentrant=True),
        lambda out: out,
    ),
    "in place": (lambda model, inputs: model(inputs), lambda out: out.mul_(0.5)),
}


@pytest.mark.parametrize("name", CALLS)
def test_any_model_is_seen(name: str) -> None:
    """Record models with any output type, also with recomputed activations."""
    call, logits = CALLS[name]

    def loop(model: Any, optimizer: torch.optim.Optimizer) -> None:
        plain(lambda inputs: logits(model(inputs)), optimizer)

    without, _, _ = ended(loop, lambda model: Wrapped(model, call), recording=False)
    parameters, _, recorder = ended(loop, lambda model: Wrapped(model, call), recording=True)
    assert without == parameters
    assert [f"model.{layer}" for layer in LAYERS] == [
        parameter.name for parameter in recorder.trace.parameters
    ]
    assert {4, 5} == set(recorder.trace.ready_order[:2])
    assert STEPS - SKIPPED == recorder.steps


@pytest.mark.filterwarnings("ignore")  # torch.compile warns of much that is its own
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_model_is_recorded(backend: str) -> None:
    """Record a compiled model with the model's own parameter names, without changing its
    training.
    """
    without, _, _ = ended(
        plain, lambda model: torch.compile(model, backend=backend), recording=False
    )
    parameters, _, recorder = ended(
        plain, lambda model: torch.compile(model, backend=backend), recording=True
    )
    assert without == parameters
    assert LAYERS == [parameter.name for parameter in recorder.trace.parameters]


# What the times are


def slowed(slow_part: str) -> Any:
    """Return the trace of a training with a pause at one place."""

    def pause(at: str) -> None:
        time.sleep(PAUSE_S if at == slow_part else 0.0)

    class Slow(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            pause("optimizer")
            return super().step(closure)

    model = make_model()
    model[2].register_forward_hook(lambda *_: pause("forward"))
    model[2].register_full_backward_hook(lambda *_: pause("backward"))
    optimizer = Slow(model.parameters(), lr=0.1)
    with commbench.record_gradients(model) as recorder:
        for step in range(STEPS):
            optimizer.zero_grad()
            pause("data")
            output = model(data(step))
            pause("loss")
            loss_of(output).backward()
            pause("clipping")
            optimizer.step()
    return recorder.trace


@pytest.mark.parametrize(
    ("slow_part", "field"),
    [
        ("forward", "forward_ms"),
        ("loss", "forward_ms"),
        ("backward", "backward_ms"),
        ("optimizer", "optimizer_ms"),
        ("data", None),
        ("clipping", None),
    ],
)
def test_time_is_noted_where_it_is_spent(slow_part: str, field: str | None) -> None:
    """Attribute a pause to the part that contains it, or to none."""
    trace = slowed(slow_part)
    times = {name: getattr(trace, name) for name in ("forward_ms", "backward_ms", "optimizer_ms")}
    if field is None:
        assert sum(times.values()) < 1e3 * PAUSE_S
    else:
        assert field == max(times, key=lambda name: times[name])
        assert times[field] >= 1e3 * PAUSE_S
    if slow_part == "backward":
        ready = {parameter.name: parameter.ready_ms for parameter in trace.parameters}
        assert (
            min(ready["0.weight"], ready["0.bias"]) - max(ready["4.weight"], ready["4.bias"])
            > 0.9e3 * PAUSE_S
        )


def test_first_steps_do_not_count() -> None:
    """Exclude the first two steps."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with commbench.record_gradients(model) as recorder:
        for step in range(SKIPPED + FEWEST):
            output = model(data(step))
            time.sleep(PAUSE_S if step < SKIPPED else 0.0)
            loss_of(output).backward()
            optimizer.step()
    assert FEWEST == recorder.steps
    assert recorder.trace.forward_ms < 1e3 * PAUSE_S


def test_long_training_is_recorded_at_its_beginning() -> None:
    """Remove the hooks after enough passes, during the training."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with commbench.record_gradients(model) as recorder:
        for step in range(MOST_PASSES + 5):
            plain_step(model, optimizer, data(step))
        assert 0 == hooks_of(model)
    assert MOST_PASSES - SKIPPED == recorder.steps


def test_two_recordings_at_once_see_the_same() -> None:
    """Record the same in nested blocks."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with (
        commbench.record_gradients(model) as outer,
        commbench.record_gradients(model, batch=7, name="mine") as inner,
    ):
        plain(model, optimizer)
    assert outer.trace.ready_order == inner.trace.ready_order
    assert ("sequential", 4, "mine", 7) == (
        outer.trace.name,
        outer.trace.batch,
        inner.trace.name,
        inner.trace.batch,
    )


def test_nothing_of_the_training_is_kept_alive() -> None:
    """Keep no graph and no gradient while recording."""
    model = make_model()
    with commbench.record_gradients(model):
        for step in range(STEPS):
            loss_of(model(data(step))).backward()
        model.zero_grad(set_to_none=True)
        gc.collect()
        alive = [
            tensor
            for tensor in gc.get_objects()
            if type(tensor) is torch.Tensor and tensor.grad_fn is not None
        ]
    assert [] == alive


def test_frozen_parameters_are_left_out() -> None:
    """Record only trained parameters, and read the batch size from the first tensor."""
    model = make_model()
    model[0].requires_grad_(requires_grad=False)
    with commbench.record_gradients(
        Wrapped(model, lambda inner, inputs: inner(inputs))
    ) as recorder:
        for step in range(STEPS):
            loss_of(recorder._outer(inputs=data(step))).backward()
    assert [f"model.{name}" for name in LAYERS[2:]] == [
        parameter.name for parameter in recorder.trace.parameters
    ]
    assert 4 == recorder.trace.batch
    assert (9, 1) == (
        batch_length([(3, None), {"a": {"b": torch.ones(9, 2)}}]),
        batch_length((3, "x")),
    )


# What is refused


@contextlib.contextmanager
def refused(says: str) -> Iterator[None]:
    """Expect an error of one sentence."""
    with pytest.raises(InputError, match=says) as caught:
        yield
    assert "\n" not in str(caught.value)


def unused(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Return a model that omits a layer in every other step."""
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(
            model(data(step)) if step % 2 else model[4](model[3](model[2](torch.ones(4, 12))))
        ).backward()
        optimizer.step()


def test_too_few_steps_are_refused(tmp_path: Path) -> None:
    """Refuse too few steps with both numbers, and write nothing."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        refused("4 training steps with a backward pass were seen and 5 are needed"),
        commbench.record_gradients(model, tmp_path / "t.json") as recorder,
    ):
        for step in range(4):
            plain_step(model, optimizer, data(step))
    assert [] == list(tmp_path.iterdir())
    assert 0 == hooks_of(model)
    with refused("until the block"):
        recorder.save(tmp_path / "t.json")


def test_forward_pass_must_be_seen() -> None:
    """Report that the loop called another module, or none."""
    model = make_model()
    with refused("no forward pass of the model was seen"), commbench.record_gradients(model):
        for step in range(STEPS):
            loss_of(model.forward(data(step))).backward()
    with refused("0 training steps"), commbench.record_gradients(model):
        pass


def test_unused_and_sparse_parameters_are_refused() -> None:
    """Name the parameters that DDP cannot train."""
    model = nn.ModuleDict(
        {"table": nn.Embedding(9, 3, sparse=True), "idle": nn.Linear(3, 1), "used": nn.Linear(3, 1)}
    )

    def forward(inner: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        return inner["used"](inner["table"](inputs))

    with (
        refused(r"model\.table\.weight got a sparse"),
        commbench.record_gradients(Wrapped(model, forward)) as recorder,
    ):
        for _ in range(STEPS):
            recorder._outer(torch.ones(4, dtype=torch.long)).sum().backward()
    model["table"].sparse = False
    model.zero_grad()
    with (
        refused(r"model\.idle\.weight, model\.idle\.bias got no gradient in 4 of 4"),
        commbench.record_gradients(Wrapped(model, forward)) as recorder,
    ):
        for _ in range(STEPS):
            recorder._outer(torch.ones(4, dtype=torch.long)).sum().backward()


def test_error_in_the_block_passes_by(tmp_path: Path) -> None:
    """Raise the training's error, write nothing and remove the hooks."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fail() -> None:
        with commbench.record_gradients(model, tmp_path / "t.json"):
            plain(model, optimizer)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [] == list(tmp_path.iterdir())
    assert 0 == hooks_of(model)
    plain(model, optimizer)


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize(
    ("model", "arguments", "says"),
    [
        (lambda: 3, {}, "given a int"),
        (nn.Tanh, {}, "no trainable parameters"),
        (lambda: nn.LazyLinear(3), {}, "without initial values"),
        (lambda: nn.Linear(2, 2, dtype=torch.complex64), {}, "not floating point"),
        (lambda: nn.Linear(2, 2), {"batch": 0}, "batch of 0"),
        (lambda: nn.Linear(2, 2), {"path": "/nowhere/at/all.json"}, "cannot be written"),
    ],
)
def test_unsuitable_arguments_are_refused_at_once(
    model: Callable[[], Any], arguments: dict[str, Any], says: str
) -> None:
    """Refuse unsuitable arguments before the training."""
    with refused(says):
        commbench.record_gradients(model(), **arguments)


def test_backward_passes_of_other_graphs_are_ignored() -> None:
    """Ignore backward passes of graphs from before and after the block."""
    model = make_model()
    before = loss_of(model(data(0)))
    watch = Watch(model, dict(model.named_parameters()))
    before.backward()
    after = loss_of(model(data(1)))
    watch.close()
    after.backward()
    assert ([], True) == (watch.passes, watch.has_stray)


# Real ranks, and the replay


@pytest.fixture(scope="module")
def recorded(forked_python: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Return what two ranks recorded in several loops, and the directory that rank 0 wrote to."""
    folder = tmp_path_factory.mktemp("recorded")
    return (
        found_by(
            run_gloo_ranks(forked_python, 2, "record_loop.py", str(folder), store=folder / "store")
        ),
        folder,
    )


@pytest.mark.parametrize("name", ["plain", "views", "static", "unused", "accumulate", "compress"])
def test_training_on_ranks_is_not_changed(recorded: tuple[Any, Path], name: str) -> None:
    """End with equal bits on both ranks; only rank 0 writes; the order is DDP's."""
    outcome = recorded[0][name]
    assert [True, True, True, False] == [
        outcome[key] for key in ("same", "agree", "written", "written elsewhere")
    ]
    assert (3, 8, 2) == (outcome["steps"], outcome["batch"], outcome["ranks"])
    assert not any(parameter.startswith("module.") for parameter in outcome["names"])
    assert not outcome["logged"] or outcome["order"] == [
        int(index) for index in outcome["logged"].split(",")
    ]


def test_recording_is_replayed(recorded: tuple[Any, Path]) -> None:
    """Inspect the replay of a recording: same names, shapes, order and batch."""
    file = recorded[1] / "plain-0.json"
    trace = load_trace(str(file))
    facts = inspect_workload(load_workload(f"trace:{file}", seed=0, rank=0, world_size=1))
    assert [parameter.name for parameter in trace.parameters] == [
        parameter.name for parameter in facts.parameters
    ]
    assert [parameter.numel for parameter in trace.parameters] == [
        parameter.numel for parameter in facts.parameters
    ]
    assert (trace.ready_order, 8) == (facts.ready_order, facts.batch_size)


@pytest.mark.mpi
@pytest.mark.usefixtures("forks")
def test_recording_is_trained_elsewhere(recorded: tuple[Any, Path], tmp_path: Path) -> None:
    """Train a recording on two ranks, without the model and its data."""
    pytest.importorskip("mpi4py")
    program = [
        sys.executable,
        "-m",
        "commbench",
        "train",
        "--workload",
        f"trace:{recorded[1] / 'plain-0.json'}",
    ]
    program += ["--bucket-cap-mb", "default", "--hook", "none", "--steps", "4", "--launches", "1"]
    program += [
        "--confirm-launches",
        "1",
        "-n",
        "2",
        "--oversubscribe",
        "--out",
        str(tmp_path / "r"),
    ]
    done = subprocess.run(program, capture_output=True, text=True, timeout=200, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    records = commbench.load_run(tmp_path / "r").training_records
    assert {"none", "local"} == {record.case.hook for record in records if record.status == "ok"}
    assert {8} == {record.case.batch_per_rank for record in records}
