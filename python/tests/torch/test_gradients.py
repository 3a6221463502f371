"""Scores and gradients of one rank, compared with plain PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from models import OfValues, Weighted, back_propagate, batch, opened, plain_scores, relative
from rloom.torch import head
from rloom.torch.engine import Engine
from rloom.torch.settings import Settings
from rloom.torch.world import World
from transformers import AutoModelForTokenClassification

if TYPE_CHECKING:
    from pathlib import Path

    from rloom.torch.batch import Batch
    from rloom.torch.model import Layout

BATCHES = [batch((3, 9), (1, 14), (6, 2)), batch((2, 7), seed=3), batch((1, 1), (4, 11), seed=4)]


def engine(folder: Path, **settings: Any) -> Engine:  # noqa: ANN401
    given = Settings(str(folder), **settings)
    return Engine(given, World.join(given))


def fill_value_head(model: torch.nn.Linear) -> None:
    with torch.no_grad():
        model.weight.copy_(torch.linspace(-0.2, 0.3, model.in_features)[None])
        model.bias.fill_(0.1)


def silent(done: int) -> None:
    pass


def accumulate(own: Engine, batches: list[Batch], loss: Weighted) -> None:
    own.accumulate(dict(enumerate(batches)), len(batches), loss, silent)


def plain_gradient(
    folder: Path, loss: Weighted, *, value: bool, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    model = opened(folder, dtype)
    score = torch.nn.Linear(model.config.hidden_size, 1, dtype=dtype) if value else None
    if score is not None:
        fill_value_head(score)
    for i, own in enumerate(loss.batches):
        back_propagate(loss.value_of(i, plain_scores(model, score, own)))
    named = {name: p.grad for name, p in model.named_parameters()}
    if score is not None:
        named |= {f"score.{name}": p.grad for name, p in score.named_parameters()}
    return {name: g for name, g in named.items() if g is not None}


@pytest.mark.parametrize("value", [False, True])
@pytest.mark.parametrize("layout", ["packed", "masked", "unpacked"])
def test_gradients_are_those_of_plain_pytorch(folder: Path, layout: Layout, value: bool) -> None:
    own = engine(folder, heads="policy_and_value" if value else "policy")
    assert own.layout == "packed"
    own.model.set_layout(layout)
    if own.model.score is not None:
        fill_value_head(own.model.score)
    loss = Weighted(BATCHES)
    expected = plain_gradient(folder, loss, value=value, dtype=torch.float64)
    accumulate(own, BATCHES, loss)
    gradients = own.optimizer.gradients()
    assert gradients.keys() == expected.keys()
    off = {name: relative(g, expected[name]) for name, g in gradients.items()}
    assert max(off.values()) < 1e-5, off


def test_scores_are_those_of_plain_pytorch(folder: Path) -> None:
    own = engine(folder, heads="policy_and_value")
    assert own.model.score is not None
    fill_value_head(own.model.score)
    model = opened(folder)
    score = torch.nn.Linear(64, 1, dtype=torch.float64)
    fill_value_head(score)
    scores = own.score(dict(enumerate(BATCHES)), 3, progress=silent)
    for got, whole in zip(scores, BATCHES, strict=True):
        for a, b in zip(got, plain_scores(model, score, whole), strict=True):
            assert relative(a, b) < 1e-5


def test_logits_in_small_chunks_change_rounding_only(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = engine(qwen)
    accumulate(whole, BATCHES, Weighted(BATCHES))
    monkeypatch.setattr(head, "chunk_rows", lambda vocabulary, device: 3)
    chunked = engine(qwen)
    accumulate(chunked, BATCHES, Weighted(BATCHES))
    for name, gradient in chunked.optimizer.gradients().items():
        assert relative(gradient, whole.optimizer.gradients()[name]) < 1e-5, name


def test_logits_of_all_rows_never_exist(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest logits of a pass have as many rows as a chunk."""
    monkeypatch.setattr(head, "chunk_rows", lambda vocabulary, device: 4)
    own = engine(qwen)
    rows: list[int] = []
    compute = head.logprobs_of

    def observed(hidden: torch.Tensor, *rest: Any) -> torch.Tensor:  # noqa: ANN401
        rows.append(len(hidden))
        return compute(hidden, *rest)

    monkeypatch.setattr(head, "logprobs_of", observed)
    accumulate(own, BATCHES, Weighted(BATCHES))
    assert max(rows) == 4
    assert sum(rows) == 2 * sum(len(b.rows) for b in BATCHES)


def test_inert_sequences_are_only_scored(qwen: Path) -> None:
    whole, skipping = engine(qwen), engine(qwen)
    loss = Weighted(BATCHES, inert=(0,))
    trained = skipping.accumulate(dict(enumerate(BATCHES)), 3, loss, silent)
    assert [(t.tokens, t.skipped) for t in trained] == [(23, 12), (0, 9), (15, 2)]
    loss.skipped = ()
    accumulate(whole, BATCHES, loss)
    for name, gradient in skipping.optimizer.gradients().items():
        assert relative(gradient, whole.optimizer.gradients()[name]) < 1e-5, name


@pytest.mark.parametrize("checkpointing", ["attention", "block"])
def test_recomputed_activations_change_nothing(qwen: Path, checkpointing: str) -> None:
    kept, recomputed = engine(qwen), engine(qwen, activation_checkpointing=checkpointing)
    assert recomputed.digest() == kept.digest()
    for own in (kept, recomputed):
        accumulate(own, BATCHES, Weighted(BATCHES))
    for name, gradient in recomputed.optimizer.gradients().items():
        assert torch.equal(gradient, kept.optimizer.gradients()[name]), name


def test_a_critic_is_a_token_classifier(qwen: Path) -> None:
    critic = engine(qwen, heads="critic")
    scores = critic.score(dict(enumerate(BATCHES)), 3, progress=silent)
    assert all(not len(s.logprob) and bool((s.value == 0).all()) for s in scores)
    hf: Any = critic.model.hf
    fill_value_head(hf.score)
    model = AutoModelForTokenClassification.from_pretrained(qwen, num_labels=1, dtype=torch.float64).eval()
    fill_value_head(model.score)
    loss = Weighted(BATCHES)
    for i, whole in enumerate(BATCHES):
        for sequence in range(len(whole.lengths)):
            own = whole.only([sequence])
            values = model(input_ids=own.tokens[None]).logits[0, own.rows - 1, 0]
            weights = loss.weights[i][2][whole.scored_of([sequence])]
            back_propagate((weights * (values - 0.3) ** 2).sum())
    expected = {name: p.grad for name, p in model.named_parameters()}

    accumulate(critic, BATCHES, OfValues(BATCHES))
    gradients = critic.optimizer.gradients()
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        reference = expected[name]
        assert reference is not None
        assert relative(gradient, reference) < 1e-5, name
