"""LoRA adapters on ranks, compared with PEFT and among each other."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from gangs import gang
from models import Weighted, back_propagate, opened, plain_scores, relative
from rloom.torch import adapter, files
from rloom.torch.errors import MissingPackageError, ModelError
from rloom.torch.settings import LoraSettings
from test_gradients import BATCHES, accumulate, engine, silent
from test_steps import SETTINGS, train, weights
from transformers import AutoModelForCausalLM

if TYPE_CHECKING:
    from pathlib import Path

    from rloom.torch.engine import Engine
    from rloom.torch.model import Scores
    from torch import Tensor

SHAPES: list[dict[str, Any]] = [
    {},
    {"rslora": True, "targets": ["q_proj", "down_proj"]},
    {"dora": True},
]


def lora(start: Path, **settings: Any) -> LoraSettings:  # noqa: ANN401
    default = LoraSettings(
        rank=4,
        alpha=6.0,
        rslora=False,
        dora=False,
        dropout=0.0,
        targets=["all-linear"],
        seed=3,
        start=str(start),
    )
    return replace(default, **settings)


def trained(base: Path, steps: int = 2, **settings: Any) -> Engine:  # noqa: ANN401
    own = engine(base, lora=lora(base, **settings), reference=str(base), optimizer=SETTINGS)
    train(own, range(steps))
    return own


def by_peft(folder: Path, dtype: torch.dtype = torch.float64) -> Any:  # noqa: ANN401
    """Opens an adapter by PEFT, to be trained."""
    peft = importlib.import_module("peft")
    base = peft.PeftConfig.from_pretrained(folder).base_model_name_or_path
    return peft.PeftModel.from_pretrained(opened(base, dtype), folder, is_trainable=True).to(dtype)


def scores(own: Engine, *, reference: bool = False, is_masked: bool = False) -> list[Scores]:
    given = dict(enumerate(BATCHES))
    return own.score(
        given,
        len(BATCHES),
        which="reference" if reference else "policy",
        progress=silent,
        is_masked=is_masked,
    )


def agreed_gradients(own: Engine, model: Any) -> dict[str, Tensor]:  # noqa: ANN401
    """Checks scores and gradients against those of the same adapter in PEFT, and returns the gradients."""
    loss = Weighted(BATCHES)
    for i, whole in enumerate(BATCHES):
        found = plain_scores(model, None, whole)
        assert relative(scores(own)[i].logprob, found.logprob) < 1e-5
        back_propagate(loss.value_of(i, found))
    named = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    expected = {
        name.replace(".default", "").replace(f"{adapter.MAGNITUDE}.weight", adapter.MAGNITUDE): gradient
        for name, gradient in named.items()
    }
    accumulate(own, BATCHES, loss)
    gradients = own.optimizer.gradients()
    assert gradients.keys() == expected.keys()
    off = {name: relative(g, expected[name]) for name, g in gradients.items()}
    assert max(off.values()) < 1e-5, off
    return gradients


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_peft(qwen: Path, tmp_path: Path, shape: dict[str, Any]) -> None:
    own = trained(qwen, **shape)
    files.save(own, tmp_path)
    gradients = agreed_gradients(own, by_peft(tmp_path))
    assert (f"{adapter.PREFIX}model.layers.0.self_attn.k_proj.lora_A.weight" in gradients) == (
        "targets" not in shape
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_the_reference_is_the_policy_at_the_start(qwen: Path, tmp_path: Path, shape: dict[str, Any]) -> None:
    base = scores(engine(qwen))
    new = engine(qwen, lora=lora(qwen, **shape), reference=str(qwen))
    digest = new.reference_digest()
    for reference in (False, True):
        for own, expected in zip(scores(new, reference=reference), base, strict=True):
            assert torch.equal(own.logprob, expected.logprob)
    train(new, range(2))
    after = scores(new)
    assert all(
        torch.equal(a.logprob, b.logprob) for a, b in zip(scores(new, reference=True), base, strict=True)
    )
    assert relative(after[0].logprob, base[0].logprob) > 1e-3
    assert new.reference_digest() == digest
    assert all(torch.equal(a.logprob, b.logprob) for a, b in zip(scores(new), after, strict=True))
    files.save(new, tmp_path)
    continued = engine(qwen, lora=lora(tmp_path, **shape), reference=str(tmp_path))
    assert continued.digest() == new.digest()
    assert continued.reference_digest() != digest
    train(continued, range(1))
    found = scores(continued, reference=True)
    assert all(torch.equal(a.logprob, b.logprob) for a, b in zip(found, after, strict=True))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES[::2])
def test_folders_hold_the_adapter_or_its_sum_with_the_base(
    qwen: Path, tmp_path: Path, shape: dict[str, Any], dtype: str
) -> None:
    own = engine(qwen, lora=lora(qwen, **shape), dtype=dtype)
    train(own, range(2))
    listed = files.save(own, tmp_path / "saved")
    assert {"adapter_config.json", "adapter_model.safetensors", "config.json"} <= {name for name, _ in listed}
    assert not any(name.startswith("model") for name, _ in listed)
    published = {
        name for name, _ in files.write_model(own, tmp_path / "published", is_exact=False, merges=True)
    }
    assert published == {"config.json", "generation_config.json", "model.safetensors"}
    expected = by_peft(tmp_path / "saved", torch.float32).eval()
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "published", dtype=torch.float32)
    tokens = BATCHES[0].tokens[None]
    difference = float((found(tokens).logits - expected(tokens).logits).detach().abs().max())
    assert difference < (1e-4 if dtype == "f32" else 0.2)


@pytest.mark.parametrize("shape", SHAPES[::2])
def test_a_restored_adapter_continues_with_the_same_bits(
    qwen: Path, tmp_path: Path, shape: dict[str, Any]
) -> None:
    saved = trained(qwen, **shape, dropout=0.3)
    files.save(saved, tmp_path)
    restored = engine(qwen, lora=lora(qwen, **shape, dropout=0.3), optimizer=SETTINGS)
    files.restore(restored, tmp_path)
    for own in (saved, restored):
        train(own, range(2, 4))
    assert restored.digest() == saved.digest()


@pytest.mark.parametrize("layout", ["packed", "unpacked"])
def test_dropout_masks_training_alone(qwen: Path, layout: Any) -> None:
    own, plain = trained(qwen, dropout=0.5), trained(qwen)
    masked = scores(own, is_masked=True)
    assert all(relative(a.logprob, b.logprob) > 1e-3 for a, b in zip(masked, scores(own), strict=True))
    assert torch.equal(masked[0].logprob, scores(own, is_masked=True)[0].logprob)
    # With the same weights, passes without masks are those of an adapter without dropout.
    with torch.no_grad():
        for name, weight in plain.model.named_weights().items():
            weight.copy_(own.model.named_weights()[name])
    assert torch.equal(scores(plain)[0].logprob, scores(own)[0].logprob)

    class Seen(Weighted):
        """Keeps the scores that the loss saw."""

        def evaluate(self, micro_batch: int, scores: Scores) -> Any:
            seen[micro_batch] = scores.logprob
            return super().evaluate(micro_batch, scores)

    seen: dict[int, torch.Tensor] = {}
    gradients: list[dict[str, torch.Tensor]] = []
    for each in (own, engine(qwen, lora=own.settings.lora, activation_checkpointing="block")):
        with torch.no_grad():
            for name, weight in each.model.named_weights().items():
                weight.copy_(own.model.named_weights()[name])
        each.optimizer.steps = own.optimizer.steps
        each.model.set_layout(layout)
        accumulate(each, BATCHES, Seen(BATCHES, inert=(0,)))
        for i, expected in enumerate(scores(each, is_masked=True)):
            assert relative(seen[i], expected.logprob) < 1e-5
        gradients.append(each.optimizer.gradients())
    assert max(relative(g, gradients[0][name]) for name, g in gradients[1].items()) < 1e-5
    own.step(1e-2)
    assert relative(scores(own, is_masked=True)[0].logprob, masked[0].logprob) > 1e-3


def on_ranks(base: Path, folder: Path, shape: dict[str, Any], dtype: str) -> dict[str, Any]:
    own = engine(base, lora=lora(base, **shape), reference=str(base), dtype=dtype)
    reference = scores_of_rank(own)
    train_ranks(own)
    again = scores_of_rank(own)
    files.save(own, folder / "saved")
    files.write_model(own, folder / "published", is_exact=False, merges=True)
    return {
        "weights": {name: own.world.whole(w).numpy() for name, w in own.model.named_weights().items()},
        "is_same_reference": all(
            torch.equal(a.logprob, b.logprob) for a, b in zip(reference, again, strict=True)
        ),
    }


def scores_of_rank(own: Engine) -> list[Scores]:
    given = {i: b for i, b in enumerate(BATCHES[:2]) if i % own.world.groups == own.world.group}
    return own.score(given, 2, which="reference", progress=silent)


def train_ranks(own: Engine) -> None:
    for _ in range(3):
        given = {i: b for i, b in enumerate(BATCHES) if i % own.world.groups == own.world.group}
        own.accumulate(given, len(BATCHES), Weighted(BATCHES), silent)
        own.step(1e-2)


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES[2:])
def test_two_ranks_train_as_one(qwen: Path, tmp_path: Path, shape: dict[str, Any]) -> None:
    (tmp_path / "one").mkdir()
    one = on_ranks(qwen, tmp_path / "one", shape, "f32")
    start = weights(engine(qwen, lora=lora(qwen, **shape)))
    first, second = gang(2, on_ranks, qwen, tmp_path, shape, "f32")
    for name, expected in one["weights"].items():
        assert (first["weights"][name] == second["weights"][name]).all()
        moved = float((torch.from_numpy(expected) - start[name]).norm())
        assert float(torch.from_numpy(first["weights"][name] - expected).norm()) < 1e-3 * moved, name
    assert one["is_same_reference"]
    assert first["is_same_reference"]
    assert second["is_same_reference"]
    models = [AutoModelForCausalLM.from_pretrained(tmp_path / own / "published") for own in ("one", ".")]
    tokens = BATCHES[0].tokens[None]
    assert relative(models[0](tokens).logits, models[1](tokens).logits) < 1e-4


@pytest.mark.long
def test_two_ranks_compute_in_bf16(qwen: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    one = on_ranks(qwen, tmp_path / "one", {}, "bf16")
    two, _ = gang(2, on_ranks, qwen, tmp_path, {}, "bf16")
    start = weights(engine(qwen, lora=lora(qwen)))
    flat = {
        key: torch.cat([torch.as_tensor(w).flatten() for w in named.values()])
        for key, named in {"one": one["weights"], "two": two["weights"], "start": start}.items()
    }
    assert relative(flat["two"] - flat["start"], flat["one"] - flat["start"]) < 0.3


def test_other_settings_are_refused(qwen: Path, tmp_path: Path) -> None:
    files.save(trained(qwen, 1), tmp_path)
    for shape in ({"rank": 2}, {"alpha": 2.0}, {"dora": True}, {"targets": ["q_proj"]}):
        with pytest.raises(ModelError, match="the adapter was made with"):
            engine(qwen, lora=lora(tmp_path, **shape))
    with pytest.raises(ModelError, match="no linear layer c_attn; `lora.targets` may name q_proj, k_proj"):
        engine(qwen, lora=lora(qwen, targets=["q_proj", "c_attn"]))
    (tmp_path / adapter.TENSORS).write_bytes(b"half")
    with pytest.raises(ModelError, match="header"):
        engine(qwen, lora=lora(tmp_path))


def test_peft_is_named_where_it_is_missing(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingPackageError, match="`trainer.lora` needs the Python package peft") as raised:
        engine(qwen, lora=lora(qwen))
    assert "pip install peft" in str(raised.value.fields["hint"])


def test_a_critic_starts_from_the_sum(qwen: Path, tmp_path: Path) -> None:
    own = trained(qwen)
    files.save(own, tmp_path / "adapter")
    files.write_model(own, tmp_path / "merged", merges=True)
    of_adapter = engine(qwen, heads="critic", merged=str(tmp_path / "adapter"))
    expected = weights(engine(tmp_path / "merged", heads="critic"))
    for name, weight in weights(of_adapter).items():
        assert relative(weight, expected[name]) < 1e-6, name
