"""Tests of the messages of hooks."""

from collections.abc import Sequence

import pytest
from fields import fields_of
from training_builders import make_training_case

from commbench.hooks.message import BucketShape, Message
from commbench.hooks.registry import read_hook

SHAPES = [(64, 3, 7, 7), (64,), (512, 1000), (5,), (128, 64, 3, 3)]
TEXTS = [
    "passthrough",
    "fp16",
    "bf16",
    "topk:0.01",
    "topk:0.01:values=float16",
    "topk:0.001:scope=parameter",
    "topk:0.01:dense_below=1000",
    "topk:0.01:dense_vectors=true",
    "topk:0.5:dense_below=10000000",
    "powersgd:1",
    "topk:0.01:exchange=aligned",
    "topk:0.01:exchange=aligned:chunk=1000000",
    "int8",
    "int8:block=32",
    "powersgd:4:min_compression_rate=8",
]


def sent_bytes(messages: Sequence[Message], world_size: int) -> float:
    """Return the bytes that a rank sends in ring all_reduces, all_gathers and all_to_alls."""
    factors = {"all_reduce": 2.0, "all_gather": 1.0, "all_to_all": 1.0}
    return sum(
        factors[m.operation] * (world_size - 1) / world_size * m.message_bytes for m in messages
    )


@pytest.mark.parametrize(("world_size", "text"), list(enumerate(TEXTS, start=2)))
def test_messages_have_the_bytes_of_the_hook(text, world_size):
    """Messages have the hook's wire_bytes for matrices, vectors and a small tensor."""
    pytest.importorskip("torch")
    from commbench.hooks import make_hook

    case = make_training_case(text, world_size=world_size)
    hook = make_hook(case.hook, density=case.density, options=case.options)
    declared = read_hook(case.hook, density=case.density, options=case.options)
    messages = declared.messages(BucketShape(shapes=SHAPES, world_size=world_size))
    expected = hook.wire_bytes(SHAPES, world_size)
    assert sent_bytes(messages, world_size) == pytest.approx(expected, abs=1)


def test_gradients_of_another_type_travel_in_it():
    """Send bfloat16 gradients in bfloat16 unless the hook casts them."""
    bucket = BucketShape(shapes=[(1000,)], world_size=2, dtype="bfloat16")
    sent = [read_hook(name).messages(bucket)[0] for name in ("none", "fp16", "bf16")]
    assert ["bfloat16", "float16", "bfloat16"] == fields_of(sent, "dtype")
    assert {2000} == set(fields_of(sent, "message_bytes"))
