"""PowerSGD: each gradient matrix as a product of two low-rank factors, refined by one power
iteration per step.

Vogels, Karimireddy and Jaggi, 2019, with error feedback and warm start. torch's powerSGD_hook
issues collectives from callbacks, which hangs or aborts on Gloo with more than one bucket.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from commbench.hooks import catalogue
from commbench.hooks.base import Launched, StateDict, Stopwatch
from commbench.hooks.feedback import Layout, Slot, Span, is_finite, on_host, poison, put
from commbench.hooks.ordering import OrderedHook


@dataclass(frozen=True, kw_only=True)
class _Matrix:
    """One tensor as a matrix: its span of the bucket, and its factors, which are views of the
    messages.
    """

    span: Span
    p: Tensor
    """Shape (rows, r)."""
    q: Tensor
    """Shape (columns, r): the warm start, from the previous step."""
    next_q: Tensor
    """Shape (columns, r): the result of this step, before the check that it is finite."""

    def of(self, flat: Tensor) -> Tensor:
        """Return the matrix as a view of a buffer of the bucket."""
        return self.span.flat(flat).view(len(self.p), len(self.q))


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """One bucket's two messages: the left factors with all uncompressed tensors, then the right
    factors.
    """

    matrices: Sequence[_Matrix]
    rest: Sequence[tuple[Span, Tensor]]
    first: Tensor
    second: Tensor
    warm: Tensor


class PowerSGD(catalogue.PowerSGD, OrderedHook):
    """Sends r (rows + columns) numbers in place of rows x columns: the factors of each matrix.

    With feedback, the part that the factors do not represent is added to the next gradient.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._warm: dict[str, Tensor] = {}
        self._type: torch.dtype = getattr(torch, self.values)

    def exchange_bucket(self, buffer: Tensor, slot: Slot, watch: Stopwatch) -> Launched:
        """Project on the autograd thread.

        All-reduce, orthogonalise and project back in an ordered job.
        """
        if self.is_dense:
            return self.send_dense(buffer, watch)
        plan = self.channel_of(slot, buffer)
        self._project(plan, buffer.add_(slot.residual))
        future = self.submit(lambda: self._refine(plan, buffer, slot, watch))
        watch.encoded()
        return future, lambda _: buffer

    def _project(self, plan: _Plan, total: Tensor) -> None:
        """Compute P = M Q / ranks for every matrix.

        If the bucket is not finite, send NaN to all ranks.
        """
        for matrix in plan.matrices:
            torch.mm(matrix.of(total), _unit(matrix.q), out=matrix.p)
        for span, whole in plan.rest:
            whole.copy_(span.flat(total))
        self._round(plan.first.div_(self.world_size))
        poison(plan.first, unless=is_finite(total))

    def _round(self, message: Tensor) -> Tensor:
        """Round a message to the type in which it is sent."""
        return message.copy_(message.to(self._type))

    def _sum(self, message: Tensor) -> None:
        """Sum a rounded message over the ranks, in the type in which it is sent."""
        sent = message.to(self._type)  # the message itself if it has this type
        dist.all_reduce(sent, group=self._private)
        message.copy_(sent)

    def _refine(self, plan: _Plan, total: Tensor, slot: Slot, watch: Stopwatch) -> Tensor:
        """Run both all-reduces of a bucket.

        All ranks take the same branches because they have the same sums.
        """
        watch.started()
        self._sum(plan.first)
        start = watch.clock()
        finite = is_finite(plan.first)
        if not on_host(finite) or finite:
            self._project_back(plan, total, slot.residual, finite)
            watch.worked(start)
            if plan.matrices:
                self._sum(plan.second)
            start = watch.clock()
            finite &= is_finite(plan.second)
        self._restore(plan, total, finite)
        watch.worked(start)
        return total

    def _project_back(self, plan: _Plan, total: Tensor, residual: Tensor, finite: Tensor) -> None:
        """Orthonormalise P, compute Q = M^T P, and keep M - P Q^T as the residual.

        As in the paper's algorithm 2, Q is this rank's. With the mean over ranks, the residuals
        would diverge by the accumulated differences between the ranks' gradients.
        """
        for matrix in plan.matrices:
            matrix.p.copy_(torch.linalg.qr(matrix.p).Q)
            torch.mm(matrix.of(total).T, matrix.p, out=matrix.next_q)
        self._round(plan.second.div_(self.world_size))
        if on_host(finite):
            self._subtract_sent(plan, total, residual)
        else:  # values that are not finite also reach this line
            self._subtract_sent(plan, total, total)
            put(residual, total, where=finite)

    def _subtract_sent(self, plan: _Plan, total: Tensor, left: Tensor) -> None:
        """Write to ``left``, which may be ``total``, what this rank's messages lack of it."""
        for span, _ in plan.rest:
            whole = span.flat(total)
            sent = self._round(whole / self.world_size)
            torch.sub(whole, sent, alpha=self.world_size, out=span.flat(left))
        for matrix in plan.matrices:
            arguments = matrix.of(total), matrix.p, matrix.next_q.T
            torch.addmm(*arguments, alpha=-self.world_size, out=matrix.of(left))

    def _restore(self, plan: _Plan, total: Tensor, finite: Tensor) -> None:
        """Rebuild the averaged bucket from its factors and restore the loss scale.

        NaN if it is not finite.
        """
        put(plan.warm, plan.second, where=finite)
        for matrix in plan.matrices:
            torch.mm(matrix.p, matrix.q.T, out=matrix.of(total))
        for span, whole in plan.rest:
            span.flat(total).copy_(whole)
        if self.is_scaled:
            total.mul_(self._scale)
        poison(total, unless=finite)

    # Plans

    def make_channel(self, layout: Layout, like: Tensor) -> _Plan:
        """Lay out both messages, and fill in the warm factors, or the initial ones.

        Warm factors stay for the next bucket of their parameter.
        """
        factors = [self.factors(span.shape, span.stride) for span in layout.spans]
        lefts, rights = [], []
        for span, shape in zip(layout.spans, factors, strict=True):
            lefts.append(shape.rows * shape.rank if shape else span.numel)
            rights.append(shape.columns * shape.rank if shape else 0)
        first, second = like.new_zeros(sum(lefts)), like.new_zeros(sum(rights))
        warm = torch.zeros_like(second)
        parts = first.split(lefts), warm.split(rights), second.split(rights)
        matrices, rest = [], []
        for span, shape, p, q, next_q in zip(layout.spans, factors, *parts, strict=True):
            if shape is None:
                rest.append((span, p))
                continue
            right = shape.columns, shape.rank
            matrix = _Matrix(
                span=span,
                p=p.view(shape.rows, shape.rank),
                q=q.view(right),
                next_q=next_q.view(right),
            )
            matrix.q.copy_(self._first_q(span.name, right))
            self._warm[span.name] = matrix.q
            matrices.append(matrix)
        return _Plan(matrices=matrices, rest=rest, first=first, second=second, warm=warm)

    def _first_q(self, name: str, shape: tuple[int, int]) -> Tensor:
        warm = self._warm.get(name)
        if warm is not None and warm.shape == shape:
            return warm
        return torch.randn(shape, generator=seeded(self.seed, name))

    # Checkpoints

    def state_dict(self) -> StateDict:
        """See `FeedbackHook.state_dict`; includes the warm right factors by parameter name."""
        return super().state_dict() | {"q": {name: q.clone() for name, q in self._warm.items()}}

    def load_state_dict(self, state: StateDict) -> None:
        """See `FeedbackHook.load_state_dict`; includes the warm factors."""
        super().load_state_dict(state)
        self._warm = {name: q.clone() for name, q in state["q"].items()}


def _unit(q: Tensor) -> Tensor:
    """Return right factors of unit columns for the projection: P would else overflow or underflow,
    because their elements are as large as the gradients.

    P then spans the same space, and nothing but its space is used.
    """
    largest = q.abs().amax(dim=0)
    scaled = q / torch.where(largest > 0, largest, 1.0)  # so that squares do not overflow
    return torch.nn.functional.normalize(scaled, dim=0)


def seeded(*parts: object) -> torch.Generator:
    """Return a generator seeded by all parts and nothing else."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=4).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))
