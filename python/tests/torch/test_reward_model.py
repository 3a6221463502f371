"""The recipe that rewards with a model of transformers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForSequenceClassification

if TYPE_CHECKING:
    from types import ModuleType

RECIPE = Path(__file__).parents[3] / "recipes" / "reward_model.py"
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"


def recipe() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reward_model", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def folder(path: Path, template: str | None) -> tuple[Any, Any]:
    """Saves a tiny reward model with a character tokenizer."""
    vocabulary = {letter: number for number, letter in enumerate("_0123456789+=ua")}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token="_"))  # noqa: S106
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=characters, pad_token="_", eos_token="_")  # type: ignore[no-untyped-call]  # noqa: S106
    tokenizer.chat_template = template
    torch.manual_seed(1)
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_labels=1,  # type: ignore[call-arg]
        pad_token_id=0,
    )
    model: Any = Qwen2ForSequenceClassification(config)  # type: ignore[no-untyped-call]
    model.eval()
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return tokenizer, model


@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_scores_are_the_outputs_of_the_model(
    template: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, model = folder(tmp_path, template)
    monkeypatch.setenv("RLOOM_REWARD_MODEL", str(tmp_path))
    prompts, completions = ["1+1=", "10+10="], ["2", "2000000"]
    scores = recipe().score(completions, prompts)
    for prompt, completion, score in zip(prompts, completions, scores, strict=True):
        text = f"{prompt}{completion}" if template is None else f"u{prompt}a{completion}"
        with torch.inference_mode():
            own = model(input_ids=torch.tensor([tokenizer.encode(text)])).logits.item()
        assert score == pytest.approx(own, abs=1e-5)
    assert scores[0] != pytest.approx(scores[1], abs=1e-3)
    if template is not None:
        messages = [[{"role": "user", "content": prompt}] for prompt in prompts]
        answers = [[{"role": "assistant", "content": completion}] for completion in completions]
        assert recipe().score(answers, messages) == scores
