"""Division of the tokens of padded sequences, and of experts, among the ranks of Megatron."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from models import batch
from rloom.torch.errors import ModelError
from rloom.torch.megatron_model import check_experts
from rloom.torch.megatron_packing import Packing
from rloom.torch.model import open_model
from rloom.torch.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

BATCH = batch((3, 9), (1, 14), (6, 2), (1, 0), seed=5)


@pytest.mark.parametrize(("context", "tensor"), [(1, 1), (1, 2), (2, 1), (4, 2)])
def test_each_scored_token_has_its_predecessor_on_one_rank(context: int, tensor: int) -> None:
    parts = [Packing.of(BATCH, context, rank, tensor) for rank in range(context)]
    seen = []
    for rank, part in enumerate(parts):
        assert len(part.tokens) * context == sum(part.lengths)
        assert all(length % (tensor * (2 * context if context > 1 else 1)) == 0 for length in part.lengths)
        # The model predicts the scored token from its predecessor.
        assert torch.equal(part.tokens[part.before], BATCH.tokens[BATCH.rows[part.own] - 1])
        assert torch.equal(part.positions[part.before], BATCH.positions[BATCH.rows[part.own] - 1])
        seen.append(part.own)
        for length in part.lengths if context > 1 else ():
            size = length // (2 * context)
            own = [*range(rank * size, (rank + 1) * size)]
            own += range((2 * context - 1 - rank) * size, (2 * context - rank) * size)
            assert part.positions[: len(own)].tolist() == own
            break
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(len(BATCH.rows)))


def test_scores_of_a_context_keep_their_order_and_gradient() -> None:
    values = torch.arange(1.0, len(BATCH.rows) + 1)
    total = torch.zeros(len(BATCH.rows))
    for rank in range(2):
        part = Packing.of(BATCH, 2, rank, 1)
        own = values[part.own].clone().requires_grad_()
        whole = part.joined(own, len(BATCH.rows), None)
        (gradient,) = torch.autograd.grad((whole * values).sum(), own)
        assert torch.equal(gradient, values[part.own])
        total += whole.detach()
    assert torch.equal(total, values)


def test_only_mixtures_of_experts_divide_experts(qwen: Path) -> None:
    dense = open_model(str(qwen), "policy", meta=True)
    check_experts(Settings(str(qwen)), dense)
    settings = Settings(str(qwen), expert_parallel=2)
    with pytest.raises(ModelError, match="expert_parallel = 2: Qwen2ForCausalLM has no experts"):
        check_experts(settings, dense)
    dense.hf.config.num_experts = 4
    check_experts(settings, dense)
