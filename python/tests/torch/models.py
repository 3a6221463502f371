"""Tiny models, batches and losses of the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from rloom.torch.batch import Batch
from rloom.torch.loss import Coefficients
from rloom.torch.model import Scores
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHAPES = ("qwen2", "llama", "mistral")
VOCABULARY = 512


def make(family: str, folder: Path, seed: int = 0, window: int | None = None) -> Path:
    """Writes a model with random weights; `window` limits the attention of some layers."""
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.1,
        "bos_token_id": None,
        "eos_token_id": 5,
    }
    sliding: dict[str, Any] = {
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "max_window_layers": 2,
    }
    configs: dict[str, Callable[[], PreTrainedConfig]] = {
        "qwen2": lambda: Qwen2Config(**shape, **sliding, tie_word_embeddings=True),
        "qwen3": lambda: Qwen3Config(**shape, head_dim=16, tie_word_embeddings=True),
        "llama": lambda: LlamaConfig(**shape, tie_word_embeddings=False),
        "mistral": lambda: MistralConfig(**shape, sliding_window=window or 6),
        "gemma3_text": lambda: Gemma3TextConfig(
            **shape,
            head_dim=16,
            sliding_window=window,
            layer_types=["sliding_attention", "full_attention"] * 2,
        ),
    }
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(configs[family]())  # type: ignore[no-untyped-call]
    # Biases and norms are initialised to constants; other values show whether they arrive.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        eos_token_id=5, temperature=0.7, do_sample=True
    )
    model.save_pretrained(folder)
    return folder


def batch(*shapes: tuple[int, int], seed: int = 1) -> Batch:
    """Returns sequences of `(prompt, completion)` tokens."""
    numbers = torch.Generator().manual_seed(seed)
    lengths = tuple(prompt + completion for prompt, completion in shapes)
    rows, start = [], 0
    for prompt, completion in shapes:
        rows += list(range(start + prompt, start + prompt + completion))
        start += prompt + completion
    tokens = torch.randint(0, VOCABULARY, (sum(lengths),), generator=numbers)
    temperature = torch.rand(len(rows), generator=numbers) + 0.5
    return Batch(tokens, lengths, torch.tensor(rows), temperature)


def opened(folder: Path, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """Opens a folder by transformers."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager"
    )
    return model


def back_propagate(loss: Tensor) -> None:
    """Calls `backward`, which has no types."""
    loss.backward()  # type: ignore[no-untyped-call]


class Weighted:
    """A loss that is linear in log-probabilities and entropies and quadratic in values."""

    divergence = None

    def __init__(self, batches: list[Batch], inert: tuple[int, ...] = ()) -> None:
        numbers = torch.Generator().manual_seed(2)
        self.batches = batches
        self.skipped = inert
        self.weights = [torch.randn(3, len(b.rows), generator=numbers) for b in batches]
        for b, weights in zip(batches, self.weights, strict=True):
            # Of one sign, so that the value head's bias has a gradient without cancellation.
            weights[2].abs_()
            weights[:, b.scored_of(inert)] = 0.0

    def inert(self, micro_batch: int) -> list[bool]:
        return [i in self.skipped for i in range(len(self.batches[micro_batch].lengths))]

    def noisy(self, batch: Batch, width: int) -> Batch:  # noqa: ARG002
        return batch

    def evaluate(self, micro_batch: int, scores: Scores) -> Coefficients:
        by_logprob, by_entropy, by_value = self.weights[micro_batch]
        d_value = 2 * by_value * (scores.value - 0.3) if len(scores.value) else torch.empty(0)
        return Coefficients(by_logprob, by_entropy, d_value)

    def value_of(self, micro_batch: int, scores: Scores) -> Tensor:
        """Returns the loss itself, for plain back-propagation."""
        by_logprob, by_entropy, by_value = self.weights[micro_batch].to(scores.logprob.dtype)
        total: Tensor = (by_logprob * scores.logprob).sum() + (by_entropy * scores.entropy).sum()
        if len(scores.value):
            total = total + (by_value * (scores.value - 0.3) ** 2).sum()
        return total


def plain_scores(model: PreTrainedModel, value_head: torch.nn.Linear | None, whole: Batch) -> Scores:
    """Scores by the textbook: each sequence alone, all logits, plain attention."""
    logprob, entropy, value, last = [], [], [], []
    for i in range(len(whole.lengths)):
        own = whole.only([i])
        outputs = model(input_ids=own.tokens[None], output_hidden_states=True, use_cache=False)
        logits = outputs.logits[0, own.rows - 1] * own.inv_temperature.to(outputs.logits.dtype)[:, None]
        logprobs = torch.log_softmax(logits, -1)
        logprob.append(logprobs.gather(1, own.tokens[own.rows, None])[:, 0])
        entropy.append(-(logprobs.exp() * logprobs).sum(-1))
        if value_head is not None:
            hidden = outputs.hidden_states[-1][0]
            value.append(value_head(hidden[own.rows - 1])[:, 0])
            last.append(value_head(hidden[-1:])[:, 0])
    empty = torch.empty(0)
    return Scores(
        torch.cat(logprob),
        torch.cat(entropy),
        torch.cat(value) if value else empty,
        torch.cat(last) if last else empty,
        empty,
        empty,
    )


def relative(a: Tensor, b: Tensor) -> float:
    """Returns the relative L2 distance of two tensors."""
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm().clamp(min=1e-30))


class OfValues(Weighted):
    """The part of the loss that a critic learns from."""

    def evaluate(self, micro_batch: int, scores: Scores) -> Coefficients:
        none = torch.empty(0)
        return Coefficients(none, none, super().evaluate(micro_batch, scores).d_value)
