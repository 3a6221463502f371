"""Log-probability and entropy of scored tokens in chunks of rows: logits of all rows never exist."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

#: Bytes of the logits of a chunk, by kind of device.
CHUNK_BYTES = {"cpu": 32 << 20, "cuda": 256 << 20}


def token_scores(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, inv_temperature: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the log-probability of each row's target and the entropy of the row, at its temperature.

    `hidden` is `[S, D]`, `weight` `[V, D]`. The backward pass computes the logits of a chunk again.
    """
    return _Scores.apply(hidden, weight, bias, targets, inv_temperature)  # type: ignore[no-any-return, no-untyped-call]


def chunk_rows(vocabulary: int, device: torch.device) -> int:
    """Returns the number of rows whose logits are held at a time."""
    return max(16, CHUNK_BYTES.get(device.type, CHUNK_BYTES["cuda"]) // (4 * vocabulary))


class _Scores(torch.autograd.Function):
    """With `z = logits / temperature` and `p = softmax(z)`: `logprob(j) = z_j - lse`, `H = lse - Σ p·z`."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        inv_temperature: Tensor,
    ) -> tuple[Tensor, Tensor]:
        rows = hidden.shape[0]
        logprob = torch.empty(rows, dtype=_precision(hidden), device=hidden.device)
        entropy = torch.empty_like(logprob)
        size = chunk_rows(weight.shape[0], hidden.device)
        for start in range(0, rows, size):
            own = slice(start, min(start + size, rows))
            logprobs = logprobs_of(hidden[own], weight, bias, inv_temperature[own])
            logprob[own] = logprobs.gather(1, targets[own, None])[:, 0]
            entropy[own] = -_weighted(logprobs.exp(), logprobs)
        ctx.save_for_backward(hidden, weight, bias, targets, inv_temperature, entropy)
        return logprob, entropy

    @staticmethod
    def backward(ctx: Any, d_logprob: Tensor, d_entropy: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        hidden, weight, bias, targets, inv_temperature, entropy = ctx.saved_tensors
        gradients = HeadGradients(hidden, weight, bias, needs_weight=ctx.needs_input_grad[1])
        rows, size = hidden.shape[0], chunk_rows(weight.shape[0], hidden.device)
        for start in range(0, rows, size):
            own = slice(start, min(start + size, rows))
            logprobs = logprobs_of(hidden[own], weight, bias, inv_temperature[own])
            d_logits = _without_target(logprobs, entropy[own], d_logprob[own], d_entropy[own])
            d_logits.scatter_add_(1, targets[own, None], d_logprob[own, None])
            gradients.add(own, d_logits.mul_(inv_temperature[own, None]))
        return (*gradients.result(), None, None)


class HeadGradients:
    """Gradients of a head's input, table and bias from those of its logits, chunk by chunk."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, *, needs_weight: bool) -> None:
        self.hidden, self.weight, self.bias, self.needs_weight = hidden, weight, bias, needs_weight
        self.precision = _precision(hidden)
        self.d_hidden = torch.zeros_like(hidden)
        self.d_weight: Tensor | None = None
        self.d_bias: Tensor | None = None
        if bias is not None:
            self.d_bias = torch.zeros(bias.shape, dtype=self.precision, device=bias.device)

    def add(self, rows: slice, d_logits: Tensor) -> None:
        """Adds those of a chunk, whose logits are those of the first tokens."""
        hidden, width = self.hidden[rows], d_logits.shape[1]
        if self.d_bias is not None:
            self.d_bias[:width] += d_logits.sum(0)
        typed = d_logits.to(hidden.dtype)
        torch.mm(typed, self.weight[:width], out=self.d_hidden[rows])
        if not self.needs_weight:
            return
        if self.d_weight is None:
            self.d_weight = typed.T @ hidden
        elif typed.dtype == self.precision:
            self.d_weight.addmm_(typed.T, hidden)
        else:
            self.d_weight = self.d_weight.to(self.precision).add_(typed.T @ hidden)

    def result(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Returns the gradients of input, table and bias."""
        d_weight, d_bias = self.d_weight, self.d_bias
        if d_weight is None and self.needs_weight:
            d_weight = torch.zeros_like(self.weight)
        if d_weight is not None and len(d_weight) < len(self.weight):
            others = d_weight.new_zeros((len(self.weight) - len(d_weight), d_weight.shape[1]))
            d_weight = torch.cat([d_weight, others])
        to_weight = None if d_weight is None else d_weight.to(self.weight.dtype)
        to_bias = None if d_bias is None or self.bias is None else d_bias.to(self.bias.dtype)
        return self.d_hidden, to_weight, to_bias


class _ShardedScores(torch.autograd.Function):
    """The same from logits of which each rank of a group has some columns."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        logits: Tensor,
        vocabulary: int,
        targets: Tensor,
        inv_temperature: Tensor,
        group: dist.ProcessGroup | None,
    ) -> tuple[Tensor, Tensor]:
        first = dist.get_rank(group) * logits.shape[1]
        # The last columns may be padding.
        ctx.size = size = min(max(vocabulary - first, 0), logits.shape[1])
        places = targets - first
        is_own = (places >= 0) & (places < size)
        places = places.where(is_own, 0)
        logprob = torch.empty(len(logits), dtype=_precision(logits), device=logits.device)
        entropy, normalizer = torch.empty_like(logprob), torch.empty_like(logprob)
        for own in _chunks(logits):
            z = logits[own, :size].to(logprob.dtype) * inv_temperature[own, None].to(logprob.dtype)
            top = z.amax(1) if size else z.new_full((len(z),), torch.finfo(z.dtype).min)
            dist.all_reduce(top, dist.ReduceOp.MAX, group)
            z -= top[:, None]
            target = z.gather(1, places[own, None])[:, 0].where(is_own[own], 0) if size else 0 * top
            p = z.exp()
            sums = torch.stack([p.sum(1), _weighted(p, z), target])
            dist.all_reduce(sums, group=group)
            normalizer[own] = top + sums[0].log()
            logprob[own] = sums[2] - sums[0].log()
            entropy[own] = sums[0].log() - sums[1] / sums[0]
        ctx.save_for_backward(logits, places, is_own, inv_temperature, normalizer, entropy)
        return logprob, entropy

    @staticmethod
    def backward(ctx: Any, d_logprob: Tensor, d_entropy: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        logits, places, is_own, inv_temperature, normalizer, entropy = ctx.saved_tensors
        d_all, size = torch.zeros_like(logits), ctx.size
        for own in _chunks(logits):
            inverse = inv_temperature[own, None].to(normalizer.dtype)
            logprobs = logits[own, :size].to(normalizer.dtype) * inverse - normalizer[own, None]
            d_logits = _without_target(logprobs, entropy[own], d_logprob[own], d_entropy[own])
            if size:
                d_logits.scatter_add_(1, places[own, None], (d_logprob * is_own)[own, None])
            d_all[own, :size] = d_logits.mul_(inverse).to(d_all.dtype)
        return d_all, None, None, None, None


def sharded_token_scores(
    logits: Tensor, vocabulary: int, targets: Tensor, inv_temperature: Tensor, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor]:
    """Returns what `token_scores` returns, where each rank of a group has equally many columns of the logits, `[S, V / N]`."""
    return _ShardedScores.apply(logits, vocabulary, targets, inv_temperature, group)  # type: ignore[no-any-return, no-untyped-call]


def _chunks(logits: Tensor) -> list[slice]:
    rows, vocabulary = logits.shape
    size = chunk_rows(vocabulary, logits.device)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def _without_target(logprobs: Tensor, entropy: Tensor, d_logprob: Tensor, d_entropy: Tensor) -> Tensor:
    """Derivative by logit i, `d_logprob · ([i = target] - p_i) - d_entropy · p_i · (ln p_i + H)`, but for the target's term."""
    factor = logprobs + entropy[:, None]
    factor.mul_(d_entropy[:, None]).add_(d_logprob[:, None])
    return factor.mul_(logprobs.exp_()).neg_()


def _precision(hidden: Tensor) -> torch.dtype:
    """Scores are at least f32."""
    return torch.promote_types(hidden.dtype, torch.float32)


def logprobs_of(hidden: Tensor, weight: Tensor, bias: Tensor | None, inv_temperature: Tensor) -> Tensor:
    """Returns the log-probabilities of all tokens, `[S, V]`."""
    logits = torch.nn.functional.linear(hidden, weight, bias).to(_precision(hidden))
    return torch.log_softmax(logits.mul_(inv_temperature.to(logits.dtype)[:, None]), dim=-1)


def _weighted(p: Tensor, logprobs: Tensor) -> Tensor:
    """Sum of `p · ln p` by row; a probability of 0 adds nothing."""
    return p.mul_(logprobs.clamp(min=torch.finfo(p.dtype).min)).sum(-1)
