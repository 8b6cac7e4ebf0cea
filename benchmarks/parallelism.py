"""What does training beyond DDP ask of the network? Its messages at a given model size, between
those who send them.

The model and how it is divided are the constants below; a variable of the same name with COMMBENCH_
before it changes
one: `COMMBENCH_HIDDEN=4096 commbench run parallelism`. `python benchmarks/parallelism.py` prints
the messages and how many there are in a step, so that times from the run can be added up. Ranks are
numbered as Megatron-LM does: neighbours share a layer (tensor parallelism), the halves of the
cluster are pipeline stages.
"""

import os
from dataclasses import dataclass

from commbench import Sweep
from commbench.collectives.datatypes import find_dtype
from commbench.units import format_size


def constant(name: str, default: int) -> int:
    """A number of the model, which the environment may change."""
    return int(os.environ.get(f"COMMBENCH_{name}", default))


HIDDEN = constant("HIDDEN", 1024)  # width of the model: these defaults are GPT-2 medium's
LAYERS = constant("LAYERS", 24)
SEQUENCE = constant("SEQUENCE", 1024)  # tokens of one sample
MICRO_BATCH = constant("MICRO_BATCH", 1)  # samples that pass a pipeline stage together
MICRO_BATCHES = constant("MICRO_BATCHES", 8)  # of them in a step
TENSOR = constant("TENSOR", 2)  # ranks that share a layer; must divide the number of ranks
STAGES = constant("STAGES", 2)  # pipeline stages
EXPERTS_PER_TOKEN = constant("EXPERTS_PER_TOKEN", 2)  # experts that see a token
DTYPE = os.environ.get(
    "COMMBENCH_DTYPE", "float32"
)  # bfloat16 on GPUs; many MPI libraries cannot reduce in it

BYTES = find_dtype(DTYPE).itemsize
LAYERS_HERE = LAYERS // STAGES
#: One micro-batch between two layers: batch x sequence x hidden.
ACTIVATIONS = MICRO_BATCH * SEQUENCE * HIDDEN * BYTES
#: One layer's weights on one rank, 12 h^2: attention 4 h^2, MLP 8 h^2 (Narayanan et al., SC'21).
LAYER_WEIGHTS = 12 * HIDDEN**2 * BYTES // TENSOR


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """One kind of message: how large, between whom, how often a rank waits for it in a step."""

    what: str
    operation: str
    pattern: str
    message_bytes: int
    per_step: int


TRAFFIC = [
    # Two in the forward and two in the backward pass of a layer (Shoeybi et al., Megatron-LM, 2019,
    # figure 4).
    Traffic(
        what="tensor parallelism: partial sums of activations",
        operation="all_reduce",
        pattern=f"split:{TENSOR}",
        message_bytes=ACTIVATIONS,
        per_step=4 * LAYERS_HERE * MICRO_BATCHES,
    ),
    # 1F1B: in the steady state a stage sends activations on and gets gradients back (Narayanan et
    # al., SC'21, 2.2).
    Traffic(
        what="pipeline: activations forward, gradients back",
        operation="sendrecv",
        pattern="bisection",
        message_bytes=ACTIVATIONS,
        per_step=MICRO_BATCHES,
    ),
    # ZeRO stage 3 gathers the weights of a layer for each pass (Rajbhandari et al., SC'20, section
    # 7.2.2) ...
    Traffic(
        what="ZeRO: a layer's weights, before each pass",
        operation="all_gather",
        pattern=f"stride:{TENSOR}",
        message_bytes=LAYER_WEIGHTS,
        per_step=2 * LAYERS_HERE,
    ),
    # ... and scatters the sum of its gradients; stages 1 and 2 scatter as much and gather once.
    Traffic(
        what="ZeRO: a layer's gradients",
        operation="reduce_scatter",
        pattern=f"stride:{TENSOR}",
        message_bytes=LAYER_WEIGHTS,
        per_step=LAYERS_HERE,
    ),
    # To the experts and back, in both passes; every second layer has experts (Lepikhin et al.,
    # GShard, 2021).
    Traffic(
        what="experts: tokens there and back",
        operation="all_to_all",
        pattern=f"stride:{TENSOR}",
        message_bytes=EXPERTS_PER_TOKEN * ACTIVATIONS,
        per_step=4 * (LAYERS_HERE // 2) * MICRO_BATCHES,
    ),
]

SUITE = [
    Sweep(
        operations=(traffic.operation,),
        patterns=(traffic.pattern,),
        sizes=(traffic.message_bytes,),
        dtypes=(DTYPE,),
    )
    for traffic in TRAFFIC
]

if __name__ == "__main__":
    print(f"{'what':50} {'operation':15} {'pattern':10} {'message':>10} {'a step':>7}")
    for each in TRAFFIC:
        size = format_size(each.message_bytes)
        print(f"{each.what:50} {each.operation:15} {each.pattern:10} {size:>10} {each.per_step:>7}")
