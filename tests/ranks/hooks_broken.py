"""Run on one Gloo rank: print the error messages of broken hooks, in the first step and in the
next.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from gloo import batch, gradients, local_gradients, loss_of, make_ddp, make_model, run_checks

from commbench.hooks import FP16, Guard, PassThrough, PowerSGD, TopK


def done(value: object) -> torch.futures.Future:
    """Return a completed future."""
    future = torch.futures.Future()
    future.set_result(value)
    return future


def wrong_values(buffer: torch.Tensor) -> dict[str, object]:
    """Return what a future may hold in place of an averaged buffer."""
    return {
        "future of none": None,
        "short": buffer[:-1],
        "long": torch.cat([buffer, buffer]),
        "two-dimensional": buffer[None],
        "half": buffer.half(),
        "strided": torch.stack([buffer, buffer], 1)[:, 0],
        "elsewhere": buffer.to("meta"),
    }


def returning(name: str) -> Callable[[Any, Any], Any]:
    """Return a hook whose future holds a wrong value."""

    def own_hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future:
        return done(wrong_values(bucket.buffer())[name])

    return own_hook


def nothing(_: object, bucket: dist.GradBucket) -> None:
    """Return no future."""


def bare(_: object, bucket: dist.GradBucket) -> torch.Tensor:
    """Return a tensor in place of a future."""
    return bucket.buffer()


def raising(_: object, bucket: dist.GradBucket) -> torch.futures.Future:
    """Raise ZeroDivisionError in the hook."""
    return done(bucket.buffer() * (1 // 0))


def failing(_: object, bucket: dist.GradBucket) -> torch.futures.Future:
    """Raise ZeroDivisionError in a callback of the future."""
    return done(bucket.buffer()).then(lambda future: future.value()[1 // 0])


def oddly_named(first: object, second: dist.GradBucket) -> torch.futures.Future:
    """Average as a valid hook; plain DDP would reject the names of its parameters."""
    return dist.all_reduce(second.buffer().mul_(first), async_op=True).get_future()


BROKEN = {
    "none": nothing,
    "not a future": bare,
    **{name: returning(name) for name in wrong_values(torch.zeros(2))},
    "raises": raising,
    "callback raises": failing,
}


def refusal(action: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """Return the error of an action, or an empty text."""
    try:
        action(*arguments, **options)
    except Exception as error:  # noqa: BLE001 - whatever a person would see
        return f"{type(error).__name__}: {error}"
    return ""


def step(model: torch.nn.Module, data: torch.Tensor) -> None:
    """Run one backward pass."""
    loss_of(model, data).backward()


def broken() -> dict[str, list[str]]:
    """Return the errors of each broken hook, and of one valid hook."""
    errors = {}
    for name, hook in BROKEN.items():
        Guard(hook).register(model := make_ddp())
        errors[name] = [refusal(step, model, batch(0, 0))]
    Guard(oddly_named, 2.0).register(model := make_ddp())
    own = local_gradients(model, batch(0, 0))
    errors["good"] = [refusal(step, model, batch(0, 0))]
    errors["good doubles"] = [str(torch.allclose(2 * own, gradients(model)))]
    return errors


def registering() -> dict[str, str]:
    """Return the errors of models and states that a hook cannot serve."""
    used = TopK(selection="exact").register(make_ddp())
    taken = make_ddp()
    PassThrough().register(taken)
    builtin = make_ddp()
    builtin._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    double = torch.nn.parallel.DistributedDataParallel(make_model().double())
    other = TopK(selection="exact")
    other.load_state_dict(
        {
            "hook": "topk",
            "version": 1,
            "step": 1,
            "rates": {},
            "memory": {"residual": {"0.weight": torch.ones(3)}},
        }
    )
    return {
        "bare": refusal(FP16().register, make_model()),
        "used": refusal(used.register, make_ddp()),
        "taken": refusal(FP16().register, taken),
        "builtin": refusal(FP16().register, builtin),
        "double": refusal(PowerSGD().register, double),
        "double passthrough": refusal(PassThrough().register, double),
        "another state": refusal(used.load_state_dict, PowerSGD().state_dict()),
        "another model": refusal(other.register, make_ddp()),
        "another model later": refusal(used.load_state_dict, other.state_dict()),
    }


def sparse() -> list[str]:
    """Return the errors for sparse gradients."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Embedding(10, 4, sparse=True))
    FP16().register(model)
    loss = model(torch.tensor([1, 2])).sum()
    return [refusal(loss.backward)]


if __name__ == "__main__":
    run_checks({"broken": broken, "registering": registering, "sparse": sparse}, sys.argv[1:])
