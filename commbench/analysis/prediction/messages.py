"""The messages of a training step: those that hooks send for the buckets of a model."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.errors import InputError
from commbench.hooks.message import BucketShape, Message, Shapes
from commbench.hooks.registry import read_hook


def messages_of(
    case: TrainingCase,
    elements: int,
    world_size: int,
    *,
    shapes: Shapes | None = None,
    dtype: str = "float32",
) -> tuple[Message, ...]:
    """Return the collectives that a case's hook issues for a bucket of gradients, in order, after
    any warm-up.

    Args:
        case: the configuration; the step without DDP sends nothing.
        elements: of the bucket.
        world_size: number of ranks.
        shapes: of the bucket's tensors, in its order; for hooks that treat tensors differently.
        dtype: of the gradients; sparsifying hooks take float32 only.

    Raises:
        InputError: no hook has this name, or its messages depend on the shapes and ``shapes`` is
            None.
    """
    if not case.uses_ddp:
        return ()
    hook = read_hook(case.hook, density=case.density, options=case.options)
    if shapes is None and hook.needs_shapes:
        raise InputError(
            f"What hook {case.hook_name} sends was asked for from the number of elements alone, but"
            " it depends on the shapes of the tensors: give these, from an inspection of the"
            " workload."
        )
    bucket = BucketShape(elements=elements, world_size=world_size, shapes=shapes, dtype=dtype)
    return hook.messages(bucket)


def tensors_of(facts: WorkloadFacts, indices: Sequence[int]) -> tuple[int, Shapes | None, str]:
    """Return the elements, the shapes (None unless all are known) and the data type of
    parameters.
    """
    parameters = [facts.parameters[i] for i in indices]
    shapes = [parameter.shape for parameter in parameters if parameter.shape is not None]
    elements = sum(parameter.numel for parameter in parameters)
    return elements, shapes if len(shapes) == len(parameters) else None, parameters[0].dtype
