"""Micro-batches as models of Megatron-Core take them: padded sequences, of which each rank of a context has two parts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from rloom.torch.batch import Batch


@dataclass(frozen=True)
class Packing:
    """This rank's tokens of a micro-batch.

    A sequence is `2 · context` equal parts; rank `r` has parts `r` and `2 · context - 1 - r`, so that causal attention is
    equally much work on all ranks.
    """

    #: Token ids and positions in their sequence, `[T]`.
    tokens: Tensor
    positions: Tensor
    #: Number of tokens of each sequence with its padding, on all ranks.
    lengths: tuple[int, ...]
    #: Scored tokens whose predecessor is here, as indices of all scored tokens, and the indices of these predecessors.
    own: Tensor
    before: Tensor

    @staticmethod
    def of(batch: Batch, context: int, rank: int, tensor: int) -> Packing:
        """Returns the part of one of `context` ranks; `tensor` ranks divide its tokens once more between layers."""
        parts = 2 * context if context > 1 else 1
        lengths = tuple(-(-length // (parts * tensor)) * parts * tensor for length in batch.lengths)
        # Index of each token after padding, and that of each padded token on its rank.
        starts = torch.tensor([0, *accumulate(lengths)])
        of_sequence = torch.repeat_interleave(torch.tensor(batch.lengths))
        places = starts[of_sequence] + batch.positions
        padded = torch.zeros(sum(lengths), dtype=torch.long)
        padded[places] = batch.tokens
        positions = torch.cat([torch.arange(length) for length in lengths])
        size = torch.repeat_interleave(torch.tensor(lengths) // parts, torch.tensor(lengths))
        part = positions // size
        is_here = (part == rank) | (part == parts - 1 - rank)
        here = is_here.cumsum(0) - 1
        predecessors = places[batch.rows - 1] if len(batch.rows) else batch.rows
        own = is_here[predecessors].nonzero()[:, 0]
        return Packing(padded[is_here], positions[is_here], lengths, own, here[predecessors[own]])

    def parameters(self, device: torch.device) -> Any:  # noqa: ANN401
        """Returns the bounds of the sequences for attention."""
        from megatron.core.packed_seq_params import PackedSeqParams

        ends = torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32, device=device)
        longest = max(self.lengths)
        return PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=ends,
            cu_seqlens_kv=ends,
            cu_seqlens_q_padded=ends,
            cu_seqlens_kv_padded=ends,
            max_seqlen_q=longest,
            max_seqlen_kv=longest,
        )

    def joined(self, scores: Tensor, total: int, group: dist.ProcessGroup | None) -> Tensor:
        """Returns the scores of all tokens from those of `own`; only these have a gradient."""
        whole = scores.new_zeros(total).index_put((self.own.to(scores.device),), scores)
        if group is None or group.size() == 1:
            return whole
        return _SumOfAll.apply(whole, group)  # type: ignore[no-any-return, no-untyped-call]


class _SumOfAll(torch.autograd.Function):
    """Sum over ranks. Every rank computes the same loss, so each keeps the gradient of its own part."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: dist.ProcessGroup) -> Tensor:  # noqa: ANN401
        total = own.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        return gradient, None
