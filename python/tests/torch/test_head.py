"""Log-probabilities and entropies of a vocabulary that ranks divide."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from gangs import gang
from models import back_propagate, relative
from rloom.torch import head
from rloom.torch.head import sharded_token_scores, token_scores

#: The second rank's last columns are padding; with 40 columns, its only ones are.
VOCABULARY = 67
WIDTHS = (40, 72)


def inputs() -> tuple[torch.Tensor, ...]:
    numbers = torch.Generator().manual_seed(3)
    logits = 5 * torch.randn(23, VOCABULARY, generator=numbers)
    targets = torch.randint(0, VOCABULARY, (23,), generator=numbers)
    return logits, targets, torch.rand(23, generator=numbers) + 0.5, torch.randn(2, 23, generator=numbers)


def divided(width: int) -> list[Any]:
    """Scores and this rank's gradient, in chunks of 16 rows."""
    head.CHUNK_BYTES["cpu"] = 1
    logits, targets, temperature, weights = inputs()
    padded = torch.nn.functional.pad(logits, (0, 2 * width - VOCABULARY), value=9.0)
    first = dist.get_rank() * width
    own = padded[:, first : first + width].clone().requires_grad_()
    scores = sharded_token_scores(own, VOCABULARY, targets, temperature, None)
    back_propagate((torch.stack(scores) * weights).sum())
    assert own.grad is not None
    return [x.detach().numpy() for x in (*scores, own.grad)]


@pytest.mark.parametrize("width", WIDTHS)
def test_ranks_compute_the_scores_of_the_whole_vocabulary(width: int) -> None:
    logits, targets, temperature, weights = inputs()
    whole = logits.clone().requires_grad_()
    expected = token_scores(whole, torch.eye(VOCABULARY), None, targets, temperature)
    back_propagate((torch.stack(expected) * weights).sum())
    assert whole.grad is not None
    results = [[torch.tensor(x) for x in own] for own in gang(2, divided, width)]
    for logprob, entropy, _ in results:
        assert relative(logprob, expected[0]) < 1e-6
        assert relative(entropy, expected[1]) < 1e-6
    gradient = torch.cat([own for _, _, own in results], dim=1)
    assert relative(gradient[:, :VOCABULARY], whole.grad) < 1e-6
    assert not gradient[:, VOCABULARY:].any(), "padding has no gradient"
