"""Noise on the embeddings of a micro-batch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from models import SHAPES, batch, make
from rloom.torch.model import Layout, ScoringModel, open_model

if TYPE_CHECKING:
    from pathlib import Path

    from rloom.torch.batch import Batch

BATCH = batch((3, 5), (2, 1), (6, 2))


def noisy(model: ScoringModel) -> Batch:
    numbers = torch.Generator().manual_seed(3)
    keys = tuple((ticket, 0, 0) for ticket in range(len(BATCH.lengths)))
    return replace(
        BATCH, keys=keys, noise=0.1 * torch.randn(len(BATCH.tokens), model.width, generator=numbers)
    )


def by_hand(model: ScoringModel, given: Batch) -> torch.Tensor:
    """Log-probabilities sequence by sequence, from embeddings with noise."""
    assert given.noise is not None
    found = []
    for sequence, (start, end) in enumerate(zip(given.starts, given.starts[1:], strict=False)):
        ids = given.tokens[start:end]
        embeddings = model.hf.get_input_embeddings()(ids)[None] + given.noise[start:end][None]
        logits = model.hf(inputs_embeds=embeddings).logits[0]
        for row in given.rows_by_sequence[sequence]:
            place = int(given.rows[row]) - start
            logprob = torch.log_softmax(logits[place - 1] * given.inv_temperature[row], dim=-1)
            found.append(logprob[ids[place]])
    return torch.stack(found)


@pytest.mark.parametrize("family", SHAPES)
@pytest.mark.parametrize("layout", ["packed", "masked"])
def test_noise_is_added_to_the_embeddings(family: str, layout: Layout, tmp_path: Path) -> None:
    model = open_model(str(make(family, tmp_path)), "policy")
    given = noisy(model)
    model.set_layout("masked")
    expected = by_hand(model, given).detach()
    model.set_layout(layout)
    found = model(given).logprob
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, model(BATCH).logprob, rtol=1e-2)
    # Parts of a micro-batch have their own rows of it.
    parts = [given.only([sequence]) for sequence in range(len(given.lengths))]
    assert [part.keys for part in parts] == [(key,) for key in given.keys]
    assert torch.allclose(torch.cat([model(part).logprob for part in parts]), expected, rtol=1e-4, atol=1e-5)
    found.sum().backward()
    embedding: Any = model.hf.get_input_embeddings()
    gradient = embedding.weight.grad
    assert gradient is not None
    assert bool(gradient.any())
