"""Attention of packed sequences with a sliding window that is longer than the sequences of the start-up probe."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

import pytest
import torch
from models import batch, make, opened, plain_scores, relative
from rloom.torch import attention
from rloom.torch.probe import LENGTHS
from test_gradients import engine, silent
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from pathlib import Path

WINDOW = 40


@pytest.mark.parametrize("family", ["mistral", "qwen2", "gemma3_text"])
def test_packed_sequences_have_the_window_of_the_model(family: str, tmp_path: Path) -> None:
    """Gemma and this Qwen have layers with the window and layers without."""
    assert max(LENGTHS) < WINDOW
    own = engine(make(family, tmp_path, window=WINDOW))
    assert own.layout == "packed"
    whole = batch((50, 40), (2, 9), (1, 70))
    expected = plain_scores(opened(tmp_path), None, whole)
    (together,) = own.score({0: whole}, 1, progress=silent)
    alone = [whole.only([i]) for i in range(3)]
    apart = own.score(dict(enumerate(alone)), 3, progress=silent)
    for scores in (together.logprob, torch.cat([s.logprob for s in apart])):
        assert relative(scores, expected.logprob) < 1e-5
    without = make(family, tmp_path / "wide", window=1000)
    assert relative(expected.logprob, plain_scores(opened(without), None, whole).logprob) > 1e-3


def test_flash_attention_is_asked_for_the_same_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """`varlen_attn` needs a GPU; the stand-in does what its documentation says."""
    lengths, numbers = (70, 9, 33), torch.Generator().manual_seed(0)
    q = torch.randn(1, 4, sum(lengths), 8, generator=numbers)
    k, v = (torch.randn(1, 2, sum(lengths), 8, generator=numbers) for _ in range(2))

    def stand_in(*args: Any, **kwargs: Any) -> Tensor:
        given = signature(varlen_attn).bind(*args, **kwargs).arguments
        assert given["max_q"] == given["max_k"] == max(lengths)
        parts, ends = [], given["cu_seq_q"].tolist()
        for start, end in zip(ends, ends[1:], strict=False):
            own = [given[name][start:end].transpose(0, 1) for name in ("query", "key", "value")]
            places = torch.arange(end - start)
            back = places[:, None] - places
            left, right = given["window_size"]
            mask = (back >= -right) & ((back <= left) | (left == -1))
            out = scaled_dot_product_attention(
                own[0], own[1], own[2], mask, scale=given["scale"], enable_gqa=given["enable_gqa"]
            )
            parts.append(out.transpose(0, 1))
        return torch.cat(parts)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", stand_in)
    for window in (None, 1, 20, 69, 70):
        expected, _ = attention.packed_attention(
            torch.nn.Identity(), q, k, v, None, 0.0, 0.3, window, sequence_lengths=lengths
        )
        assert relative(attention._varlen(q, k, v, 0.3, window, lengths), expected) < 1e-6, window
