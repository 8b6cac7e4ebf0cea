"""The workload ``mlp``: a perceptron of 8.4 million parameters in large matrices, so that communication dominates."""

from __future__ import annotations

from torch import nn

from commbench.ddp.plan.workload import Workload
from commbench.ddp.workloads.sampling import CLASSES, classification_loss, initial_weights, labelled_patterns

BATCH_SIZE = 32
WIDTH = 1024
LAYERS = 8


def workload(*, seed: int, rank: int, batch_size: int = BATCH_SIZE) -> Workload:
    """Return the workload as this rank sees it: 8 layers of 1024 x 1024, 33.6 MB of gradients."""
    with initial_weights(seed):
        model = network()
    return Workload(
        model=model,
        loss=classification_loss,
        batches=labelled_patterns((WIDTH,), batch_size, strength=0.2, seed=seed, rank=rank),
        batch_size=batch_size,
        steps=200,
    )


def network() -> nn.Sequential:
    """Return the perceptron, with He's initial weights so that its depth does not silence it."""
    hidden = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(WIDTH, CLASSES))
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return model
