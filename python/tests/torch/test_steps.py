"""Optimizer steps, saves and restores of one rank."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from models import OfValues, Weighted, back_propagate, batch, make, opened, plain_scores, relative
from rloom.torch import files
from rloom.torch.errors import CheckpointError, ModelError, NotFiniteError, RankError
from rloom.torch.settings import OptimizerSettings
from safetensors.torch import load_file
from test_gradients import BATCHES, accumulate, engine, silent
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

if TYPE_CHECKING:
    from pathlib import Path

    from rloom.torch.engine import Engine

SETTINGS = OptimizerSettings(betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1, max_grad_norm=0.5)


def weights(own: Engine) -> dict[str, torch.Tensor]:
    return {name: w.detach().clone() for name, w in own.model.named_weights().items()}


def train(own: Engine, steps: range) -> None:
    for step in steps:
        batches = [batch((3, 9), (1, 14), seed=step), batch((2, 7), seed=100 + step)]
        accumulate(own, batches, Weighted(batches))
        own.step(1e-2 / (step + 1))


def test_steps_are_those_of_adamw_with_clipping(qwen: Path) -> None:
    """Matrices and the embedding decay, norms and biases do not; the norm is taken before clipping."""
    own = engine(qwen, optimizer=SETTINGS)
    model = opened(qwen)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in model.named_parameters()}
    for step in range(3):
        loss = Weighted(BATCHES)
        for i, whole in enumerate(BATCHES):
            back_propagate(loss.value_of(i, plain_scores(model, None, whole)))
        accumulate(own, BATCHES, loss)
        norm = own.step(1e-2)
        named = dict(model.named_parameters())
        expected = torch.stack([p.grad.norm() for p in named.values() if p.grad is not None]).norm()
        assert abs(norm / float(expected) - 1) < 1e-5
        with torch.no_grad():
            for name, p in named.items():
                assert p.grad is not None
                g = p.grad * min(1.0, 0.5 / (float(expected) + 1e-6))
                m, v = moments[name]
                m.mul_(0.9).add_(0.1 * g)
                v.mul_(0.95).add_(0.05 * g * g)
                root = (v / (1 - 0.95 ** (step + 1))).sqrt()
                p.mul_(1 - 1e-2 * (0.1 if p.ndim > 1 else 0.0))
                p.sub_(1e-2 * (m / (1 - 0.9 ** (step + 1))) / (root + 1e-6))
                p.grad = None
    for name, w in weights(own).items():
        expected_weight = dict(model.named_parameters())[name]
        moved = (expected_weight - before[name]).norm()
        assert float((w.double() - expected_weight).detach().norm() / moved) < 1e-3, name


def test_a_step_without_any_coefficient_decays(qwen: Path) -> None:
    own = engine(qwen, optimizer=SETTINGS)
    before = weights(own)
    accumulate(own, BATCHES[1:2], Weighted(BATCHES[1:2], inert=(0,)))
    assert own.step(1e-2) == 0.0
    after = weights(own)
    assert relative(after["model.embed_tokens.weight"], before["model.embed_tokens.weight"] * 0.999) < 1e-6
    assert torch.equal(after["model.norm.weight"], before["model.norm.weight"])


def test_a_gradient_that_is_not_finite_changes_nothing(qwen: Path) -> None:
    own = engine(qwen)
    before = own.digest()
    loss = Weighted(BATCHES)
    loss.weights[1][0, 2] = float("inf")
    accumulate(own, BATCHES, loss)
    with pytest.raises(NotFiniteError, match="gradient"):
        own.step(1e-2)
    assert own.digest() == before
    fresh = engine(qwen)
    for each in (own, fresh):
        train(each, range(1))
    assert own.digest() == fresh.digest()


def test_an_error_drops_the_gradient_of_earlier_calls(qwen: Path) -> None:
    own = engine(qwen)
    accumulate(own, BATCHES, Weighted(BATCHES))
    with torch.no_grad():
        norm = own.model.named_weights()["model.norm.weight"]
        kept = norm.clone()
        norm.fill_(float("nan"))
    with pytest.raises(NotFiniteError, match="log_probability"):
        accumulate(own, BATCHES, Weighted(BATCHES))
    with torch.no_grad():
        norm.copy_(kept)
    assert all(not g.any() for g in own.optimizer.gradients().values())


def test_the_reference_stays(qwen: Path, tmp_path: Path) -> None:
    own = engine(qwen, reference=str(make("qwen2", tmp_path, seed=9)))
    given = dict(enumerate(BATCHES))
    before = own.score(given, 3, which="reference", progress=silent)
    policy = own.score(given, 3, progress=silent)
    assert relative(before[0].logprob, policy[0].logprob) > 1e-2
    train(own, range(2))
    after = own.score(given, 3, which="reference", progress=silent)
    assert torch.equal(before[0].logprob, after[0].logprob)
    with pytest.raises(RankError, match="no reference"):
        engine(qwen).score(given, 3, which="reference", progress=silent)


@pytest.mark.parametrize("heads", ["policy", "policy_and_value", "critic"])
def test_a_restored_engine_continues_with_the_same_bits(qwen: Path, tmp_path: Path, heads: str) -> None:
    saved = engine(qwen, heads=heads, optimizer=SETTINGS)
    if heads == "critic":
        train_values(saved, range(2))
    else:
        train(saved, range(2))
    listed = files.save(saved, tmp_path)
    assert all((tmp_path / name).stat().st_size == size for name, size in listed)
    names = {name for name, _ in listed}
    assert {"config.json", "model.safetensors"} <= names
    assert ("trainer/value_head.safetensors" in names) == (heads == "policy_and_value")
    restored = engine(qwen, heads=heads, optimizer=SETTINGS)
    files.restore(restored, tmp_path)
    assert restored.digest() == saved.digest()
    for own in (saved, restored):
        (train_values if heads == "critic" else train)(own, range(2, 4))
    assert restored.digest() == saved.digest()


def train_values(own: Engine, steps: range) -> None:
    for _ in steps:
        accumulate(own, BATCHES, OfValues(BATCHES))
        own.step(1e-2)


def test_transformers_opens_a_saved_folder(folder: Path, tmp_path: Path) -> None:
    own = engine(folder)
    train(own, range(1))
    files.save(own, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    named = dict(model.named_parameters())
    for name, w in weights(own).items():
        assert torch.equal(named[name], w), name
    assert set(load_file(tmp_path / "model.safetensors")) == set(weights(own))
    generation = (folder / "generation_config.json").read_bytes()
    assert (tmp_path / "generation_config.json").read_bytes() == generation
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == json.loads((folder / "config.json").read_text())["architectures"]


def test_transformers_opens_a_saved_critic(qwen: Path, tmp_path: Path) -> None:
    own = engine(qwen, heads="critic")
    train_values(own, range(1))
    files.save(own, tmp_path)
    named = dict(AutoModelForTokenClassification.from_pretrained(tmp_path).named_parameters())
    for name, w in weights(own).items():
        assert torch.equal(named[name], w), name


def test_a_folder_of_another_model_is_refused(qwen: Path, tmp_path: Path) -> None:
    own = engine(make("llama", tmp_path / "llama"))
    files.save(own, tmp_path / "saved")
    with pytest.raises(CheckpointError, match="other tensors"):
        files.restore(engine(qwen), tmp_path / "saved")
    (tmp_path / "saved" / "model.safetensors").write_bytes(b"half")
    with pytest.raises(ModelError, match="cannot open"):
        files.restore(own, tmp_path / "saved")
    with pytest.raises(ModelError, match="cannot open"):
        engine(tmp_path / "nothing")
