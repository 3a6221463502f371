"""Comparison of a student's predicted distributions with those of a teacher, in chunks of rows: those of all rows never exist."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from rloom.torch.head import HeadGradients, chunk_rows, logprobs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = Literal["forward_kl", "reverse_kl", "jensen_shannon"]


@dataclass(frozen=True)
class Head:
    """A language head and its input."""

    #: Hidden states, `[S, D]`.
    hidden: Tensor
    #: Table `[V, D]`, and a bias `[V]`.
    weight: Tensor
    bias: Tensor | None

    def first(self, tokens: int) -> Head:
        """Returns the head without the rows after the first `tokens` ones."""
        return Head(self.hidden, self.weight[:tokens], None if self.bias is None else self.bias[:tokens])


@dataclass(frozen=True)
class Divergence:
    """The divergence of a student's distribution p from a teacher's q, over the whole vocabulary."""

    kind: Kind
    #: Weight of the teacher in the mixture of the generalised Jensen-Shannon divergence.
    beta: float
    #: Inverse temperature of both distributions.
    inv_temperature: float

    def value(self, lp: Tensor, lq: Tensor) -> Tensor:
        """Returns the divergence of each row from log-probabilities."""
        if self.kind == "forward_kl":
            return _sum(lq.exp(), lq - lp)
        if self.kind == "reverse_kl":
            return _sum(lp.exp(), lp - lq)
        lm = self._mixture(lp, lq)
        return self.beta * _sum(lq.exp(), lq - lm) + (1 - self.beta) * _sum(lp.exp(), lp - lm)

    def slope(self, lp: Tensor, lq: Tensor) -> Tensor:
        """Returns the derivative of each row's divergence by the logits of the student, at its temperature."""
        p = lp.exp()
        if self.kind == "forward_kl":
            return p - lq.exp()
        if self.kind == "reverse_kl":
            weighted = _product(p, lp - lq)
        else:
            weighted = (1 - self.beta) * _product(p, lp - self._mixture(lp, lq))
        return weighted - p * weighted.sum(1, keepdim=True)

    def _mixture(self, lp: Tensor, lq: Tensor) -> Tensor:
        return torch.logaddexp(lq + math.log(self.beta), lp + math.log1p(-self.beta))


@dataclass(frozen=True)
class Comparison:
    """What a micro-batch's distributions are compared with: a teacher's, or those of candidates elsewhere."""

    #: The teacher's final hidden states for the scored tokens, and the divergence.
    teacher: Head | None = None
    divergence: Divergence | None = None
    #: Candidate tokens of each scored token, `[S, k]`, and the inverse temperature of each row, `[S]`.
    candidates: Tensor | None = None
    inv_temperature: Tensor | None = None

    def only(self, rows: Tensor) -> Comparison:
        """Returns the comparison of some scored tokens."""
        teacher = self.teacher
        if teacher is not None:
            teacher = Head(teacher.hidden[rows.to(teacher.hidden.device)], teacher.weight, teacher.bias)
        candidates, inverse = (
            None if x is None else x[rows] for x in (self.candidates, self.inv_temperature)
        )
        return Comparison(teacher, self.divergence, candidates, inverse)

    def of_rank(self, own: Tensor) -> Comparison:
        """Returns the comparison of this rank's scored tokens. A teacher's hidden states are those of this rank."""
        if self.candidates is None or self.inv_temperature is None:
            return self
        return Comparison(candidates=self.candidates[own], inv_temperature=self.inv_temperature[own])

    def scores(self, student: Head) -> Tensor:
        """Returns the log-probabilities of the candidates of each row, `[S, k]`, or its divergence, `[S]`."""
        own = (student.hidden, student.weight, student.bias)
        if self.candidates is None or self.inv_temperature is None:
            return _Divergences.apply(*own, self.teacher, self.divergence)  # type: ignore[no-any-return, no-untyped-call]
        device = student.hidden.device
        of_candidates = self.candidates.to(device), self.inv_temperature.to(device)
        return _Candidates.apply(*own, *of_candidates)  # type: ignore[no-any-return, no-untyped-call]


def most_probable(head: Head, k: int, vocabulary: int, inv_temperature: float) -> tuple[Tensor, Tensor]:
    """Returns the `k` most probable of the first `vocabulary` tokens of each row, `[S, k]`, and their log-probabilities.

    Probabilities are those among these tokens, in descending order; of equal ones the smaller id is first.
    """
    own = head.first(vocabulary)
    k = min(k, len(own.weight))
    ids, found = [], []
    for rows in _chunks(own):
        logprobs = _logprobs(own, rows, inv_temperature)
        order = logprobs.sort(dim=1, descending=True, stable=True)
        ids.append(order.indices[:, :k])
        found.append(order.values[:, :k])
    if not ids:
        empty = head.hidden.new_empty((0, k), dtype=torch.float32)
        return empty.long(), empty
    return torch.cat(ids), torch.cat(found)


class _Divergences(torch.autograd.Function):
    """The divergence of each row. Rows of either head that the other one does not have belong to no token."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        teacher: Head,
        divergence: Divergence,
    ) -> Tensor:
        student = Head(hidden, weight, bias)
        ctx.save_for_backward(hidden, weight, bias)
        ctx.teacher, ctx.divergence = teacher, divergence
        precision = torch.promote_types(hidden.dtype, torch.float32)
        found = torch.empty(len(hidden), dtype=precision, device=hidden.device)
        for rows, lp, lq in _both(student, teacher, divergence):
            found[rows] = divergence.value(lp, lq)
        return found

    @staticmethod
    def backward(ctx: Any, d_value: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        hidden, weight, bias = ctx.saved_tensors
        gradients = HeadGradients(hidden, weight, bias, needs_weight=ctx.needs_input_grad[1])
        for rows, lp, lq in _both(Head(hidden, weight, bias), ctx.teacher, ctx.divergence):
            slope = ctx.divergence.slope(lp, lq)
            gradients.add(rows, slope.mul_(d_value[rows, None] * ctx.divergence.inv_temperature))
        return (*gradients.result(), None, None)


class _Candidates(torch.autograd.Function):
    """Log-probabilities of candidate tokens, `[S, k]`."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        ids: Tensor,
        inv_temperature: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(hidden, weight, bias, ids, inv_temperature)
        precision = torch.promote_types(hidden.dtype, torch.float32)
        found = torch.empty(ids.shape, dtype=precision, device=hidden.device)
        for rows in _chunks(Head(hidden, weight, bias)):
            logprobs = logprobs_of(hidden[rows], weight, bias, inv_temperature[rows])
            found[rows] = logprobs.gather(1, ids[rows])
        return found

    @staticmethod
    def backward(ctx: Any, d_logprob: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        hidden, weight, bias, ids, inv_temperature = ctx.saved_tensors
        gradients = HeadGradients(hidden, weight, bias, needs_weight=ctx.needs_input_grad[1])
        for rows in _chunks(Head(hidden, weight, bias)):
            p = logprobs_of(hidden[rows], weight, bias, inv_temperature[rows]).exp_()
            d_logits = p.mul_(-d_logprob[rows].sum(1, keepdim=True))
            d_logits.scatter_add_(1, ids[rows], d_logprob[rows])
            gradients.add(rows, d_logits.mul_(inv_temperature[rows, None]))
        return (*gradients.result(), None, None)


def _both(student: Head, teacher: Head, divergence: Divergence) -> Any:  # noqa: ANN401
    """Yields chunks of rows with the log-probabilities of both, over the tokens that both have."""
    tokens = min(len(student.weight), len(teacher.weight))
    for rows in _chunks(student):
        heads: Sequence[Head] = (student.first(tokens), teacher.first(tokens))
        lp, lq = (_logprobs(head, rows, divergence.inv_temperature) for head in heads)
        yield rows, lp, lq.to(lp.dtype)


def _logprobs(head: Head, rows: slice, inv_temperature: float) -> Tensor:
    hidden = head.hidden[rows]
    return logprobs_of(hidden, head.weight, head.bias, hidden.new_full((len(hidden),), inv_temperature))


def _chunks(head: Head) -> list[slice]:
    rows, size = len(head.hidden), chunk_rows(len(head.weight), head.hidden.device)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def _product(p: Tensor, logarithm: Tensor) -> Tensor:
    """`p · logarithm`; a probability of 0 gives 0."""
    return p * logarithm.clamp(min=torch.finfo(p.dtype).min, max=torch.finfo(p.dtype).max)


def _sum(p: Tensor, logarithm: Tensor) -> Tensor:
    return _product(p, logarithm).sum(1)
