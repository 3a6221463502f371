"""Adapters over a base in 4 bits, compared with PEFT over a model that transformers quantizes by bitsandbytes."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from models import OfValues, Weighted, make, plain_scores, relative
from rloom.torch import adapter, files
from rloom.torch.errors import MissingPackageError, ModelError
from rloom.torch.model import open_model
from test_adapters import agreed_gradients, lora, scores
from test_gradients import BATCHES, accumulate, engine
from test_steps import SETTINGS, train
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

if TYPE_CHECKING:
    from pathlib import Path

    from rloom.torch.engine import Engine
    from rloom.torch.model import Scores

SHAPES: list[dict[str, Any]] = [
    {"quantize": "nf4"},
    {"quantize": "nf4", "rslora": True, "targets": ["q_proj", "down_proj"]},
    {"quantize": "nf4", "dora": True},
]


def trained(base: Path, steps: int = 2, dtype: Any = "f32", **shape: Any) -> Engine:  # noqa: ANN401
    own = engine(base, lora=lora(base, **shape), reference=str(base), optimizer=SETTINGS, dtype=dtype)
    train(own, range(steps))
    return own


def by_bitsandbytes(folder: Path) -> Any:  # noqa: ANN401
    """Opens a folder by transformers, in 4 bits, and computes in f32."""
    kind = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", quantization_config=kind, device_map="cpu"
    )
    # In evaluation it would compute in bf16 on some processors.
    return model.train()


def by_peft(folder: Path) -> Any:  # noqa: ANN401
    """Opens an adapter by PEFT, to be trained over a base in 4 bits."""
    peft = importlib.import_module("peft")
    base = peft.PeftConfig.from_pretrained(folder).base_model_name_or_path
    return peft.PeftModel.from_pretrained(by_bitsandbytes(base), folder, is_trainable=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_peft_over_bitsandbytes(
    qwen: Path, tmp_path: Path, shape: dict[str, Any]
) -> None:
    own = trained(qwen, **shape)
    files.save(own, tmp_path)
    agreed_gradients(own, by_peft(tmp_path))


@pytest.mark.parametrize("shape", SHAPES)
def test_published_weights_are_those_that_are_trained(
    qwen: Path, tmp_path: Path, shape: dict[str, Any]
) -> None:
    own = trained(qwen, **shape)
    listed = files.save(own, tmp_path / "saved")
    assert {adapter.CONFIG, adapter.TENSORS, "config.json"} <= {name for name, _ in listed}
    files.write_model(own, tmp_path / "published", is_exact=False, merges=True)
    expected = by_peft(tmp_path / "saved")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "published", dtype=torch.float32)
    assert not hasattr(found.config, "quantization_config")
    tokens = BATCHES[0].tokens[None]
    difference = float((found(tokens).logits - expected(tokens).logits).detach().abs().max())
    assert difference < 1e-4
    published = engine(tmp_path / "published")
    for a, b in zip(scores(published), scores(own), strict=True):
        assert relative(a.logprob, b.logprob) < 1e-5


@pytest.mark.parametrize("shape", SHAPES[::2])
def test_weights_in_bf16_are_published_rounded(qwen: Path, tmp_path: Path, shape: dict[str, Any]) -> None:
    own = trained(qwen, dtype="bf16", **shape)
    assert all(weight.dtype == torch.float32 for weight in own.model.named_weights().values())
    files.write_model(own, tmp_path, is_exact=False, merges=True)
    published = engine(tmp_path, dtype="bf16")
    for a, b in zip(scores(published), scores(own), strict=True):
        assert float((a.logprob - b.logprob).abs().max()) < 0.2


@pytest.mark.parametrize("shape", SHAPES[::2])
def test_the_reference_is_the_quantized_policy_at_the_start(
    qwen: Path, tmp_path: Path, shape: dict[str, Any]
) -> None:
    new = trained(qwen, 0, **shape)
    base, digest = scores(new), new.reference_digest()
    found = plain_scores(by_bitsandbytes(qwen), None, BATCHES[0])
    assert relative(base[0].logprob, found.logprob) < 1e-5
    assert relative(base[0].logprob, scores(engine(qwen))[0].logprob) > 1e-3
    train(new, range(2))
    assert relative(scores(new)[0].logprob, base[0].logprob) > 1e-3
    assert same(scores(new, reference=True), base)
    assert new.reference_digest() == digest == trained(qwen, 1, **shape).reference_digest()
    files.save(new, tmp_path)
    continued = engine(qwen, lora=lora(tmp_path, **shape), reference=str(tmp_path))
    assert continued.digest() == new.digest()
    assert same(scores(continued), scores(new))
    assert continued.reference_digest() != digest


def test_the_digest_of_the_reference_tells_bases_apart(qwen: Path, tmp_path: Path) -> None:
    """Twice the weights have the same numbers in 4 bits, and other scales."""
    model = AutoModelForCausalLM.from_pretrained(qwen)
    with torch.no_grad():
        model.get_parameter("model.layers.0.mlp.up_proj.weight").mul_(2.0)
    model.save_pretrained(tmp_path)
    first, second = (
        engine(base, lora=lora(base, **SHAPES[0]), reference=str(base)) for base in (qwen, tmp_path)
    )
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(first.model.base_weights()[name], second.model.base_weights()[name])
    assert first.digest() == second.digest()
    assert first.reference_digest() != second.reference_digest()


def same(some: list[Scores], others: list[Scores]) -> bool:
    return all(torch.equal(a.logprob, b.logprob) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_training_repeats_its_bits(qwen: Path, tmp_path: Path, dtype: str) -> None:
    shape: dict[str, Any] = {"quantize": "nf4", "dropout": 0.3}
    saved = trained(qwen, dtype=dtype, **shape)
    files.save(saved, tmp_path)
    restored = engine(qwen, lora=lora(qwen, **shape), optimizer=SETTINGS, dtype=dtype)
    files.restore(restored, tmp_path)
    for own in (saved, restored):
        train(own, range(2, 4))
    again = trained(qwen, 4, dtype=dtype, **shape)
    assert restored.digest() == saved.digest() == again.digest()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_passes_without_a_gradient_have_the_same_bits(
    qwen: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    # On processors with bf16 instructions bitsandbytes would compute these passes in another way.
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: True)
    own = trained(qwen, dtype=dtype, quantize="nf4")
    seen: dict[int, torch.Tensor] = {}

    class Seen(Weighted):
        """Keeps the scores that the loss saw."""

        def evaluate(self, micro_batch: int, scores: Scores) -> Any:
            seen[micro_batch] = scores.logprob
            return super().evaluate(micro_batch, scores)

    before = scores(own)
    accumulate(own, BATCHES, Seen(BATCHES))
    for i, expected in enumerate(before):
        assert torch.equal(seen[i], expected.logprob)


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("heads", ["policy", "policy_and_value", "reward"])
def test_all_linear_layers_but_heads_are_quantized(tmp_path: Path, family: str, heads: Any) -> None:
    base = make(family, tmp_path / "base")
    own = engine(base, heads=heads, lora=lora(base, quantize="nf4", targets=["q_proj"]))
    head = own.model.hf.get_output_embeddings() if heads != "reward" else own.model.hf.score  # type: ignore[no-untyped-call]
    packed, peft = importlib.import_module("bitsandbytes").nn.Linear4bit, importlib.import_module("peft")
    for name, module in own.model.named_modules():
        if isinstance(module, torch.nn.Linear):
            is_whole = module is head or module is own.model.score or "lora_" in name
            assert isinstance(module, packed) != is_whole, name
    adapted = [x for x in own.model.modules() if isinstance(x, peft.tuners.lora.bnb.Linear4bit)]
    assert len(adapted) == len(own.model.layers())
    assert all(weight.dtype == torch.float32 for weight in own.model.named_weights().values())
    start = own.digest()
    accumulate(own, BATCHES, OfValues(BATCHES) if heads == "reward" else Weighted(BATCHES))
    own.step(1e-2)
    assert own.digest() != start


def test_weights_take_a_quarter_of_bf16(qwen: Path) -> None:
    whole, own = (engine(qwen, lora=lora(qwen, **shape), dtype="bf16") for shape in ({}, SHAPES[0]))
    packed = own.model.base_weights()
    ratios = []
    for name, weight in whole.model.base_weights().items():
        state = getattr(packed[name], "quant_state", None)
        assert (state is not None) == ("_proj.weight" in name), name
        if state is not None:
            tensors = (packed[name], state.absmax, state.state2.absmax)
            ratios.append(sum(x.nbytes for x in tensors) / weight.nbytes)
    # 4 bits, 8 for the scale of 64 weights, and 32 for that of 256 scales, instead of 16.
    assert 0.2578 < min(ratios) <= max(ratios) < 0.26


def test_what_cannot_be_computed_is_refused(qwen: Path) -> None:
    settings = lora(qwen, quantize="nf4")
    for is_meta in (False, True):
        with pytest.raises(ModelError, match="`lora.quantize` needs one rank, without `offload`"):
            open_model(str(qwen), "policy", meta=is_meta, lora=settings)
    with pytest.raises(ModelError, match="computes in f32 or bf16, not in torch.float64"):
        engine(qwen, lora=settings, dtype="f64")


def test_bitsandbytes_is_named_where_it_is_missing(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    missing = "`lora.quantize` needs the Python package bitsandbytes"
    with pytest.raises(MissingPackageError, match=missing) as raised:
        engine(qwen, lora=lora(qwen, quantize="nf4"))
    assert "pip install bitsandbytes" in str(raised.value.fields["hint"])
    engine(qwen, lora=lora(qwen))
