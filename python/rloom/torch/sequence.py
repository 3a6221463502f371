"""Sequence parallelism: the ranks of a group divide the tokens, and in attention the heads (arXiv:2309.14509)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Split:
    """Division of the tokens of a micro-batch; tokens of no sequence fill the last part."""

    group: ProcessGroup | None
    #: Tokens of each rank, and this rank's first one.
    length: int
    first: int
    padding: int

    @staticmethod
    def of(tokens: int, group: ProcessGroup | None) -> Split:
        """Returns the division of `tokens` tokens; without a group, this rank has all."""
        if group is None:
            return Split(None, tokens, 0, 0)
        length = -(-tokens // group.size())
        return Split(group, length, group.rank() * length, length * group.size() - tokens)

    def part(self, tokens: Tensor) -> Tensor:
        """Returns this rank's part of a list over all tokens."""
        padded = torch.nn.functional.pad(tokens, (0, self.padding))
        return padded[self.first : self.first + self.length]

    def part_of_rows(self, rows: Tensor) -> Tensor:
        """Returns this rank's part of `[T, width]`."""
        padded = torch.nn.functional.pad(rows, (0, 0, 0, self.padding))
        return padded[self.first : self.first + self.length]

    def own(self, places: Tensor) -> Tensor:
        """Marks the tokens of this rank in a list of places."""
        return (places >= self.first) & (places < self.first + self.length)

    def gathered(self, own: Tensor, places: Tensor) -> Tensor:
        """Returns the scores of all `places`, which are ascending; only this rank's have a gradient."""
        if self.group is None or not len(places):
            return own
        counts = torch.bincount(places // self.length, minlength=self.group.size()).tolist()
        return _Gather.apply(own, counts, self.group)  # type: ignore[no-any-return, no-untyped-call]


class _Gather(torch.autograd.Function):
    """Joins the lists of all ranks. Every rank computes the same loss, so each keeps the gradient of its own list."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, counts: list[int], group: ProcessGroup) -> Tensor:  # noqa: ANN401
        rank = group.rank()
        start = sum(counts[:rank])
        ctx.own = slice(start, start + counts[rank])
        padded = own.new_zeros((max(counts), *own.shape[1:]))
        padded[: len(own)] = own
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        return gradient[ctx.own], None, None


class _Exchange(torch.autograd.Function):
    """Sends part `i` of the first dimension to rank `i`; the gradient goes the same way back."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: ProcessGroup) -> Tensor:  # noqa: ANN401
        ctx.group = group
        received = torch.empty(parts.shape, dtype=parts.dtype, device=parts.device)
        dist.all_to_all_single(received, parts.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        return _Exchange.forward(ctx, gradient, ctx.group), None


def to_heads(query: Tensor, key: Tensor, value: Tensor, group: ProcessGroup) -> tuple[Tensor, ...]:
    """Returns all tokens of some heads for some tokens of all heads: `[1, H, T, E]` to `[1, H / N, N · T, E]`."""
    parallel = group.size()
    # Key heads that the ranks cannot divide are repeated, the fewest times possible.
    times = parallel // math.gcd(key.shape[1], parallel)
    if times > 1:
        key, value = (x.repeat_interleave(times, dim=1) for x in (key, value))
    exchanged = []
    for x in (query, key, value):
        _, heads, tokens, size = x.shape
        parts = _exchange(x.view(parallel, heads // parallel, tokens, size), group)
        exchanged.append(parts.transpose(0, 1).reshape(1, heads // parallel, parallel * tokens, size))
    return tuple(exchanged)


def to_tokens(out: Tensor, group: ProcessGroup) -> Tensor:
    """Returns some tokens of all heads for all tokens of some heads: `[1, N · T, H / N, E]` to `[1, T, H, E]`."""
    _, tokens, heads, size = out.shape
    parts = _exchange(out.view(group.size(), tokens // group.size(), heads, size), group)
    return parts.permute(1, 0, 2, 3).reshape(1, tokens // group.size(), group.size() * heads, size)


def _exchange(parts: Tensor, group: ProcessGroup) -> Tensor:
    return _Exchange.apply(parts, group)  # type: ignore[no-any-return, no-untyped-call]
