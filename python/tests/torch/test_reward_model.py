"""Reward models in folders made by transformers."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from rloom.functions.errors import RefusedError
from rloom.functions.loading import load
from rloom.functions.reward_model import batches
from rloom.functions.serving import Server
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
    Qwen2ForTokenClassification,
)

if TYPE_CHECKING:
    from pathlib import Path

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
PROMPTS = ["1+1=", "10+10=", "2+2=", "3"]
COMPLETIONS = ["2", "2000000", "__", "3"]


def save(
    path: Path,
    template: str | None = None,
    pad: int | None = 0,
    side: str = "right",
    kind: Any = Qwen2ForSequenceClassification,
    labels: int = 1,
) -> Any:
    """Saves a tiny reward model with a character tokenizer. Returns the tokenizer."""
    vocabulary = {letter: number for number, letter in enumerate("_0123456789+=ua")}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token="_"))  # noqa: S106
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=characters,
        pad_token="_",  # noqa: S106
        eos_token="_",  # noqa: S106
        padding_side=side,
    )
    tokenizer.chat_template = template
    torch.manual_seed(1)
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=24,
        num_labels=labels,  # type: ignore[call-arg]
        pad_token_id=pad,
    )
    model: Any = kind(config)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return tokenizer


def opened(folder: Path, tokens: int = 16, **options: Any) -> Any:
    """The function of a reward model that computes at most `tokens` tokens at a time."""
    return load("reward_model:" + json.dumps({"folder": str(folder), "batch_tokens": tokens, **options}))


@pytest.mark.parametrize("tokens", [1, 16, 1000])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pad", [None, 0])
@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_scores_are_the_outputs_of_the_model(
    template: str | None, pad: int | None, side: str, tokens: int, tmp_path: Path
) -> None:
    tokenizer = save(tmp_path, template, pad, side)
    score = opened(tmp_path, tokens)
    scores = score(prompts=PROMPTS, completions=COMPLETIONS)
    own: Any = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    for prompt, completion, found in zip(PROMPTS, COMPLETIONS, scores, strict=True):
        text = f"{prompt}{completion}" if template is None else f"u{prompt}a{completion}"
        with torch.inference_mode():
            expected = own(input_ids=torch.tensor([tokenizer.encode(text)])).logits.item()
        assert found == pytest.approx(expected, abs=1e-5)
    assert scores[0] != pytest.approx(scores[1], abs=1e-3)
    if template is not None:
        messages = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
        answers = [[{"role": "assistant", "content": completion}] for completion in COMPLETIONS]
        assert score(prompts=messages, completions=answers) == scores


@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_folders_of_rloom_end_texts_as_in_training(template: str | None, tmp_path: Path) -> None:
    tokenizer = save(tmp_path, template)
    tokenizer.eos_token = "9"  # noqa: S105
    tokenizer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "rloom": {"end_token": True}}))
    score = opened(tmp_path)
    own: Any = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()

    def check(scores: list[float], whole: str) -> None:
        with torch.inference_mode():
            expected = own(input_ids=torch.tensor([tokenizer.encode(whole)])).logits.item()
        assert scores == pytest.approx([expected, expected], abs=1e-5)

    # Without an end-of-text token one is added; what follows the last one is left out. A text is read as it is.
    check(score(prompts=["1", "1"], completions=["2", "293"]), "129")
    if template is not None:
        user, assistant = [{"role": "user", "content": "1"}], [{"role": "assistant", "content": "2"}]
        check(score(prompts=[user] * 2, completions=[assistant] * 2), "u1a29")


@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_values_are_made_of_the_steps(template: str | None, tmp_path: Path) -> None:
    tokenizer = save(tmp_path, template, kind=Qwen2ForTokenClassification, labels=2)
    own: Any = AutoModelForTokenClassification.from_pretrained(tmp_path).eval()

    def right(text: str) -> float:
        """The probability that the step at the end of a text is right."""
        with torch.inference_mode():
            logits = own(input_ids=torch.tensor([tokenizer.encode(text)])).logits[0, -1]
        return float(logits.softmax(-1)[1])

    steps = [right("1=2+"), right("1=2+33+"), right("1=2+33+4+")]
    assert max(steps) - min(steps) > 1e-3
    wanted = {
        "min": min(steps),
        "product": steps[0] * steps[1] * steps[2],
        "mean": sum(steps) / 3,
        "last": steps[2],
    }
    for reduce, value in wanted.items():
        score = opened(tmp_path, steps={"reduce": reduce, "separator": "+"})
        # Blank steps are left out; a completion without steps is one.
        found = score(prompts=["1=", "1=", "3="], completions=["2+33+4", "2++33+4+", ""])
        assert found == pytest.approx([value, value, right("3=+")], abs=1e-5), reduce
    save(tmp_path / "one", kind=Qwen2ForTokenClassification)
    with pytest.raises(RefusedError, match="it has 1 labels, not wrong and right"):
        opened(tmp_path / "one", steps={"reduce": "min", "separator": "+"})


@pytest.mark.parametrize("labels", [1, 2])
def test_adapters_of_peft_are_added_to_their_base(labels: int, tmp_path: Path) -> None:
    peft = importlib.import_module("peft")
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    tokenizer = save(base, kind=Qwen2ForCausalLM)
    kind: Any = Qwen2ForSequenceClassification if labels == 1 else Qwen2ForTokenClassification
    torch.manual_seed(3)
    shape = {"r": 2, "target_modules": ["q_proj", "down_proj"], "init_lora_weights": False}
    config = peft.LoraConfig(**shape, task_type="SEQ_CLS" if labels == 1 else "TOKEN_CLS")
    own = peft.get_peft_model(kind.from_pretrained(base, num_labels=labels), config).eval()
    own.save_pretrained(adapter)
    tokenizer.save_pretrained(adapter)
    assert not (adapter / "config.json").exists()
    options: dict[str, Any] = {} if labels == 1 else {"steps": {"separator": "=", "reduce": "last"}}
    found = opened(adapter, **options)(prompts=PROMPTS[:2], completions=["2", "1=7="])
    for prompt, completion, value in zip(PROMPTS, ["2", "1=7="], found, strict=False):
        text = prompt + completion + ("=" if labels == 2 and completion == "2" else "")
        with torch.inference_mode():
            logits = own(input_ids=torch.tensor([tokenizer.encode(text)])).logits[0]
        expected = logits[0] if labels == 1 else torch.sigmoid(logits[-1, 1] - logits[-1, 0])
        assert value == pytest.approx(expected.item(), abs=1e-5)
    # The base alone has no head.
    with pytest.raises(RefusedError, match="no reward model"):
        opened(base, **options)


def test_texts_of_similar_lengths_are_computed_together() -> None:
    assert list(batches([5, 1, 4, 2], 8)) == [[1, 3], [2], [0]]
    assert list(batches([5, 1, 4, 2], 20)) == [[1, 3, 2, 0]]
    assert list(batches([3, 3], 0)) == [[0], [1]]
    assert list(batches([], 9)) == []


def test_other_folders_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "policy", kind=Qwen2ForCausalLM)
    with pytest.raises(RefusedError, match="the tensors score.weight are missing"):
        opened(tmp_path / "policy")
    with pytest.raises(RefusedError, match="it has no config.json"):
        opened(tmp_path / "absent")
    (tmp_path / "policy" / "config.json").write_text("{}")
    with pytest.raises(RefusedError, match="transformers cannot open"):
        opened(tmp_path / "policy")


def test_texts_that_the_model_does_not_hold_are_errors(tmp_path: Path) -> None:
    save(tmp_path)
    score = opened(tmp_path)
    with pytest.raises(ValueError, match="the text has 25 tokens, the reward model holds 1 to 24"):
        score(prompts=["1"], completions=["2" * 24])
    score(prompts=["1"], completions=["2" * 23])


def test_exceptions_may_say_what_failed() -> None:
    class NoDiskError(Exception):
        failure_kind = "infrastructure"

    def fail(completion: str) -> float:
        raise NoDiskError if completion == "disk" else ValueError

    server = Server(lambda _: fail)
    server.answer({"id": 1, "hello": {"v": 1, "role": "reward", "function": "f", "group": False}})
    for completion, kind in (("disk", "infrastructure"), ("value", "function")):
        sample = {"prompt": "1", "answer": "", "row": {}, "completion": completion}
        answer = server.answer({"id": 2, "judge": {"samples": [sample]}})
        assert answer["error"]["kind"] == kind, answer
