"""The communication hooks: their options and the messages that they send, without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from commbench.errors import InputError
from commbench.hooks.message import (
    FLOAT32_BYTES,
    BucketShape,
    ChunkLayout,
    Message,
    PayloadLayout,
    PayloadPart,
    QuantisedLayout,
    Shapes,
    ValueType,
    all_reduce,
    kept_elements,
    payload_bytes,
)
from commbench.hooks.options import (
    FROM_0,
    FROM_1,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    SHARES,
    SWITCH,
    WHOLE,
    Feedback,
    HookSpec,
    one_of,
    option,
)
from commbench.system.user_files import callable_name

#: The value of top-k's option ``exchange`` with which ranks send the same chunks.
ALIGNED = "aligned"
#: Elements of a chunk by default: norms are then 0.4 % of the bytes of a dense bucket.
CHUNK = 256

Selecting = Literal["fast", "exact"]
Scope = Literal["bucket", "parameter"]
Exchange = Literal["gather", "aligned"]
FactorType = Literal["float32", "float16", "bfloat16"]


class Dense(HookSpec):
    """A hook that sends every element in one all_reduce."""

    formula = "2(p-1)/p x 4n"
    sent_dtype: ClassVar[str] = ""
    """The type in which elements are sent; empty: that of the gradients."""

    def messages(self, bucket: BucketShape) -> tuple[Message, ...]:
        """See `HookSpec.messages`."""
        return (all_reduce(bucket.elements, self.sent_dtype or bucket.dtype),)


class NoHook(Dense):
    """DDP without a hook."""

    name = "none"
    effect = "none"


class PassThrough(Dense):
    """The same all-reduce as DDP's without a hook; measures the overhead of a hook."""

    name = "passthrough"
    module = "dense"
    effect = "none"
    is_instrument = True


class FP16(Dense):
    """IEEE half precision: 11 bits of precision, overflow above 65504, underflow below 6e-8."""

    name = "fp16"
    module = "dense"
    formula = "2(p-1)/p x 2n"
    effect = "half precision"
    sent_dtype = "float16"


class BF16(Dense):
    """bfloat16: the range of float32 with 8 bits of precision."""

    name = "bf16"
    module = "dense"
    formula = "2(p-1)/p x 2n"
    effect = "half precision"
    sent_dtype = "bfloat16"


@dataclass(kw_only=True, eq=False)
class Int8(Feedback):
    """Sends int8 values with a scale per block: an all_to_all of shards, their sum in float32, an
    all_gather of sums.
    """

    name = "int8"
    module = "int8"
    formula = "2(p-1)/p x n (1 + 4/block)"

    block: int = option(FROM_1, 256)
    """Elements that share a scale; smaller blocks round less and send more."""

    runs_in_order = True

    def messages(self, bucket: BucketShape) -> tuple[Message, ...]:
        """See `HookSpec.messages`: the two halves of a quantised all-reduce."""
        layout = QuantisedLayout.of(bucket.elements, shards=bucket.world_size, block=self.block)
        nbytes = bucket.world_size * layout.row_bytes
        return (
            Message(operation="all_to_all", dtype="float32", message_bytes=nbytes),
            Message(operation="all_gather", dtype="float32", message_bytes=nbytes),
        )


@dataclass(kw_only=True, eq=False)
class TopK(Feedback):
    """Sends k = ceil(density x n) elements per bucket or per parameter, largest first, in one
    all_gather per bucket.
    """

    name = "topk"
    module = "topk"
    formula = (
        "(p-1) messages of k x (4 + value bytes), padded to 4, and the tensors sent whole as"
        " they are; with `exchange=aligned` 2(p-1)/p x 4 (n/chunk + k)"
    )
    number = "density"
    usual = "topk:0.01"

    density: float = option(SHARE, 0.01)
    """k/n."""
    selection: Selecting = option(one_of(Selecting), "fast")
    """``fast`` is the compiled selection, on NVIDIA's GPUs by cupy; with ``exact``, or on a GPU
    without cupy, torch.topk selects. All send exactly the k largest elements; they differ in the
    choice among ties. With ``exchange=aligned``, ``fast`` is compiled for the host, and torch works
    with chunks on GPUs."""
    values: ValueType = option(one_of(ValueType), "float32")
    """The type in which values are sent; the rounding error of float16 stays in the residual."""
    scope: Scope = option(one_of(Scope), "bucket")
    """The elements among which k are selected. With ``bucket`` the result depends on the bucket
    size."""
    dense_below: int = option(FROM_0, 0)
    """Tensors of fewer elements are sent whole."""
    dense_vectors: bool = option(SWITCH, default=False)
    """Tensors of one dimension (biases, norms) are sent whole."""
    exchange: Exchange = option(one_of(Exchange), "gather")
    """With ``gather`` each rank sends its own elements to all ranks. With ``aligned`` the ranks sum
    the norms of their chunks, choose the same chunks and sum only these; values, scope and the
    dense options cannot be given."""
    chunk: int = option(FROM_1, CHUNK)
    """Elements of a chunk with ``exchange=aligned``; density is then the share of chunks."""
    momentum: float = option(NOT_NEGATIVE, 0.0)
    """Momentum correction of Deep Gradient Compression (Lin et al. 2018): u = m u + g is
    accumulated in place of g, and zeroed for sent elements. The optimiser must then have no
    momentum."""
    clip: float = option(NOT_NEGATIVE, 0.0)
    """Each tensor's norm is clipped to ``clip`` / sqrt(ranks) before compression (same source)."""
    warmup: Sequence[float] = option(SHARES, ())
    """Densities of equal parts of the first ``warmup_steps`` steps (same source)."""
    warmup_steps: int = option(FROM_0, 0)
    """Steps over which ``warmup`` goes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum >= 1 or (self.momentum and not self.feedback):
            raise InputError(
                f"Hook topk was given momentum {self.momentum:g}: it is below 1 and needs feedback."
            )
        if bool(self.warmup) != bool(self.warmup_steps):
            raise InputError(
                "Hook topk was given one of warmup and warmup_steps: densities need steps, and"
                " steps them."
            )
        is_by_tensor = self.scope == "parameter" or self.dense_below > 0 or self.dense_vectors
        if self.runs_in_order and (is_by_tensor or self.values != "float32"):
            raise InputError(
                "Hook topk was given exchange aligned and one of values, scope, dense_below,"
                " dense_vectors: chunks of the whole bucket are sent as float32, so leave these"
                " out."
            )
        if not self.runs_in_order and self.chunk != CHUNK:
            raise InputError(
                f"Hook topk was given chunk {self.chunk} and exchange gather: chunks need"
                " exchange=aligned."
            )

    @property
    def runs_in_order(self) -> bool:
        """See `HookSpec.runs_in_order`: values wait for the norms of the chunks."""
        return self.exchange == ALIGNED

    @property
    def compiles(self) -> bool:
        """Whether compiled code selects, which takes seconds to compile."""
        return self.selection == "fast"

    def messages(self, bucket: BucketShape) -> tuple[Message, ...]:
        """See `HookSpec.messages`: one all_gather of payloads and tensors sent whole, or one
        all_reduce if all tensors are; of chunks, two all_reduces: all norms, then the values.
        """
        if self.runs_in_order:
            chunks = ChunkLayout.of(bucket.elements, density=self.density, chunk=self.chunk)
            values = chunks.sent_chunks * chunks.chunk
            return (all_reduce(chunks.chunks), all_reduce(values))
        payload = self.layout(bucket.shapes, self.density)
        if not payload.sparse:
            return (all_reduce(bucket.elements),)
        gathered = bucket.world_size * payload.nbytes
        return (Message(operation="all_gather", dtype="float32", message_bytes=gathered),)

    def layout(self, shapes: Shapes, density: float) -> PayloadLayout:
        """Lay out the message of a bucket whose tensors have these shapes."""
        sparse = []  # start, elements, k
        dense = []
        start = selected = 0
        for shape in shapes:
            numel = math.prod(shape)
            if numel and (numel < self.dense_below or (self.dense_vectors and len(shape) <= 1)):
                dense.append((start, numel, 0))
            elif numel:
                sparse.append((start, numel, kept_elements(numel, density)))
                selected += numel
            start += numel
        if self.scope == "bucket" and sparse:
            # One selection over the whole bucket: the tensors sent whole are zeroed first, so none
            # is selected.
            sparse = [(0, start, kept_elements(selected, density))]
        parts = []
        offset = 0
        for first, numel, k in sparse + dense:
            nbytes = payload_bytes(k, self.values) if k else FLOAT32_BYTES * numel
            part = PayloadPart(start=first, numel=numel, k=k, offset=offset, nbytes=nbytes)
            parts.append(part)
            offset += nbytes
        count = len(sparse)
        return PayloadLayout(sparse=tuple(parts[:count]), dense=tuple(parts[count:]), nbytes=offset)


class MatrixFactors(NamedTuple):
    """A tensor as the matrix that PowerSGD factorises: factors of shapes (rows, rank) and (columns,
    rank).
    """

    rows: int
    columns: int
    rank: int


@dataclass(kw_only=True, eq=False)
class PowerSGD(Feedback):
    """Sends r (rows + columns) numbers in place of rows x columns, in two dependent all-reduces a
    bucket.
    """

    name = "powersgd"
    module = "powersgd"
    formula = "2(p-1)/p x value bytes x (sum of r (rows + columns) + what is sent whole)"
    number = "rank"
    usual = "powersgd:2"

    rank: int = option(FROM_1, 1)
    """r, the number of columns of the factors."""
    start: int = option(FROM_0, 2)
    """Number of first steps without compression."""
    min_compression_rate: float = option(POSITIVE, 2.0)
    """Tensors are sent whole unless they shrink by more than this."""
    values: FactorType = option(one_of(FactorType), "float32")
    """The type in which factors and whole tensors are sent and summed; what rounding takes from
    this rank's part stays in the residual."""
    seed: int = option(WHOLE, 0)
    """For the first right factors, which are the same on all ranks."""

    runs_in_order = True

    def messages(self, bucket: BucketShape) -> tuple[Message, ...]:
        """See `HookSpec.messages`: two all_reduces, the left factors with all tensors that are sent
        whole, then the right factors.
        """
        left = right = 0
        for shape in bucket.shapes:
            factors = self.factors(shape)
            if factors is None:
                left += math.prod(shape)
            else:
                left += factors.rows * factors.rank
                right += factors.columns * factors.rank
        if not right:
            return (all_reduce(left, self.values),)
        return (all_reduce(left, self.values), all_reduce(right, self.values))

    def factors(self, shape: Sequence[int], stride: Sequence[int] = ()) -> MatrixFactors | None:
        """Return the factors of a tensor; None if it is sent whole.

        Args:
            shape: of the tensor.
            stride: the tensor's memory order; empty: the order of its dimensions.
        """
        numel = math.prod(shape)
        if len(shape) < 2 or numel == 0:  # a matrix has two sides
            return None
        rows = shape[0]
        if stride:
            _, rows = max(zip(stride, shape, strict=True))
        columns = numel // rows
        rank = min(self.rank, rows, columns)
        if numel <= self.min_compression_rate * rank * (rows + columns):
            return None
        return MatrixFactors(rows, columns, rank)


@dataclass(kw_only=True, eq=False)
class FileHook(HookSpec):
    """A callable of a user's file; its bytes can only be measured."""

    name = "FILE.py:CALLABLE"
    formula = "measured"

    source: str
    """``FILE.py:CALLABLE``."""

    def __post_init__(self) -> None:
        self.name = callable_name(self.source)  # type: ignore[misc] # a class attribute of others
