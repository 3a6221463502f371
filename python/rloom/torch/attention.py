"""Attention within each sequence of a packed micro-batch, registered with transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.modeling_utils import AttentionInterface

from rloom.torch.sequence import to_heads, to_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed import ProcessGroup

#: Name of the implementation in a model's configuration.
PACKED = "rloom_packed"
#: Arguments that change the result and that this implementation does not have.
UNSUPPORTED = ("softcap", "s_aux", "position_bias", "head_mask")


class AttentionNotSupportedError(ValueError):
    """An attention with features that the packed form does not have."""


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    sequence_lengths: Sequence[int] = (),
    sequence_group: ProcessGroup | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """Computes causal attention within each sequence, from `[1, H, T, E]` to `[1, T, H, E]`.

    With a group, `T` is this rank's part of the tokens. Between two exchanges it has all of them for some heads.
    """
    named = [name for name in UNSUPPORTED if options.get(name) is not None]
    if named or attention_mask is not None or dropout or not getattr(module, "is_causal", True):
        raise AttentionNotSupportedError(f"{type(module).__name__}: {', '.join(named) or 'mask or dropout'}")
    if sequence_group is not None:
        query, key, value = to_heads(query, key, value, sequence_group)
    if sum(sequence_lengths) != query.shape[2]:
        raise AttentionNotSupportedError(f"{type(module).__name__} does not pass the sequences' lengths on")
    attend = _varlen if query.is_cuda and query.dtype != torch.float32 else _each
    out = attend(query, key, value, scaling, sliding_window, sequence_lengths)
    return out if sequence_group is None else to_tokens(out, sequence_group), None


def _each(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    sliding_window: int | None,
    sequence_lengths: Sequence[int],
) -> Tensor:
    """Attention of one sequence after the other."""
    outputs = []
    # One split for all: the gradient of a slice is as large as the whole.
    lengths = list(sequence_lengths)
    for q, k, v in zip(*(torch.split(x, lengths, dim=2) for x in (query, key, value)), strict=True):
        length, mask = q.shape[2], None
        if sliding_window is not None and length > sliding_window:
            places = torch.arange(length, device=q.device)
            distance = places[:, None] - places
            mask = (distance >= 0) & (distance < sliding_window)
        own = scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=mask is None and length > 1,
            scale=scaling,
            enable_gqa=key.shape[1] != query.shape[1],
        )
        outputs.append(own.transpose(1, 2))
    return torch.cat(outputs, dim=1)


def _varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    window: int | None,
    lengths: Sequence[int],
) -> Tensor:
    """Flash attention over all sequences at once."""
    from torch.nn.attention.varlen import varlen_attn

    ends = torch.tensor([0, *lengths], device=query.device).cumsum(0).to(torch.int32)
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    longest, gqa = max(lengths), key.shape[1] != query.shape[1]
    bounds = (-1 if window is None else window - 1, 0)
    out = varlen_attn(
        q, k, v, ends, ends, longest, longest, scale=scaling, window_size=bounds, enable_gqa=gqa
    )
    return cast("Tensor", out)[None]


AttentionInterface.register(PACKED, packed_attention)
