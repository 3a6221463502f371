"""Gradients and steps of whole methods, compared with plain PyTorch: each sequence alone, all logits, autograd."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch
from messages import pack, policy
from models import VOCABULARY, back_propagate, opened, relative
from rloom.torch.batch import Batch
from rloom.torch.loss import NativeLoss
from rloom.torch.settings import OptimizerSettings
from test_gradients import engine, silent
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import AutoModelForTokenClassification

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rloom.torch.engine import Engine

#: Prompt and completion of each sequence, by micro-batch.
SHAPES = [[(3, 9), (1, 14), (6, 2)], [(2, 7), (5, 5)], [(1, 1), (4, 11)]]
CLIP: dict[str, Any] = {"ppo_clip": {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": None}}
GSPO = {"gspo": {"clip_low": 3e-4, "clip_high": 4e-4}}
VALUE = {"coef": 0.5, "clip": 0.2}
CRITIC = {"coef": 1.0, "clip": 0.2}
OPTIMIZER = OptimizerSettings(betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1, max_grad_norm=0.5)
RATE = 1e-3


@dataclass
class Sequence:
    """A sequence and the inputs of its losses; lists by completion token."""

    tokens: Tensor
    prompt: int
    temperature: Tensor
    outcome: float
    inputs: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Scored:
    """Scores of a sequence's completion, with a graph."""

    logprob: Tensor
    entropy: Tensor
    value: Tensor


class Plain:
    """A model of transformers in f64, and a value head."""

    def __init__(self, folder: Path, heads: str) -> None:
        self.heads = heads
        if heads == "critic":
            kind: Any = AutoModelForTokenClassification
            self.model = kind.from_pretrained(folder, num_labels=1, dtype=torch.float64).eval()
            self.score = self.model.score
        else:
            self.model = opened(folder)
            self.score = torch.nn.Linear(self.model.config.hidden_size, 1, dtype=torch.float64)
        self.named = dict(self.model.named_parameters())
        if heads == "policy_and_value":
            self.named |= {f"score.{name}": p for name, p in self.score.named_parameters()}
        fill(self.score)
        groups = [
            {"params": [p for p in self.named.values() if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in self.named.values() if p.ndim == 1], "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(groups, lr=RATE, betas=OPTIMIZER.betas, eps=OPTIMIZER.eps)

    def scored(self, own: Sequence) -> Scored:
        outputs = self.model(input_ids=own.tokens[None], output_hidden_states=True, use_cache=False)
        before = slice(own.prompt - 1, len(own.tokens) - 1)
        if self.heads == "critic":
            value = outputs.logits[0, before, 0]
            return Scored(value, value, value)
        logprobs = torch.log_softmax(outputs.logits[0, before] / own.temperature[:, None], -1)
        taken = logprobs.gather(1, own.tokens[own.prompt :, None])[:, 0]
        value = self.score(outputs.hidden_states[-1][0, before])[:, 0]
        return Scored(taken, -(logprobs.exp() * logprobs).sum(-1), value)

    def step(self) -> float:
        norm = torch.nn.utils.clip_grad_norm_(self.named.values(), OPTIMIZER.max_grad_norm)
        self.adamw.step()
        self.adamw.zero_grad()
        return float(norm)


@torch.no_grad()
def fill(head: torch.nn.Linear) -> None:
    head.weight.copy_(torch.linspace(-0.2, 0.3, head.in_features)[None])
    head.bias.fill_(0.1)


def clipped(lp: Tensor, old: Tensor, a: Tensor, low: float = 0.2, high: float = 0.2) -> Tensor:
    ratio = (lp - old).exp()
    return -torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a)


def value_loss(v: Tensor, i: dict[str, Tensor]) -> Tensor:
    bounded = i["old_value"] + (v - i["old_value"]).clamp(-0.2, 0.2)
    return 0.5 * torch.maximum((v - i["returns"]) ** 2, (bounded - i["returns"]) ** 2)


def grpo(s: Scored, own: Sequence, tokens: int, sequences: int) -> Tensor:
    away = own.inputs["reference"] - s.logprob
    kl = away.exp() - away - 1
    term = clipped(s.logprob, own.inputs["old"], own.inputs["advantage"]) + 0.05 * kl - 0.02 * s.entropy
    return term.mean() / sequences


def ppo(s: Scored, own: Sequence, tokens: int, sequences: int) -> Tensor:
    return clipped(s.logprob, own.inputs["old"], own.inputs["advantage"]).sum() / tokens


def ppo_with_value(s: Scored, own: Sequence, tokens: int, sequences: int) -> Tensor:
    return ppo(s, own, tokens, sequences) + 0.5 * value_loss(s.value, own.inputs).sum() / tokens


def critic(s: Scored, own: Sequence, tokens: int, sequences: int) -> Tensor:
    return value_loss(s.value, own.inputs).sum() / tokens


def gspo(s: Scored, own: Sequence, tokens: int, sequences: int) -> Tensor:
    mean, zero = (s.logprob - own.inputs["old"]).mean(), torch.zeros((), dtype=torch.float64)
    return clipped(mean, zero, own.inputs["advantage"][0], 3e-4, 4e-4) / sequences


def reward_model(s: Scored, own: Sequence, tokens: int, sequences: int) -> Tensor:
    total = 0.05 * (s.logprob - own.inputs["reference"]).sum()
    outcome = torch.tensor(own.outcome, dtype=torch.float64)
    return binary_cross_entropy_with_logits(total, outcome) / sequences


KL = {"coef": 0.05, "estimator": "k3", "ratio": False}
#: Heads, objective for the ranks, and the loss of a sequence in plain PyTorch.
METHODS: dict[str, tuple[str, dict[str, Any], Callable[[Scored, Sequence, int, int], Tensor]]] = {
    "grpo": ("policy", policy(CLIP, "sequence_mean", kl=KL, entropy_coef=0.02), grpo),
    "ppo": ("policy", policy(CLIP, "token_mean"), ppo),
    "ppo_with_value": ("policy_and_value", policy(CLIP, "token_mean", value=VALUE), ppo_with_value),
    "ppo_critic": ("critic", {"value": CRITIC}, critic),
    "gspo": ("policy", policy(GSPO, "sequence_mean"), gspo),
    "prime_reward_model": (
        "policy",
        policy({"implicit_reward": {"beta": 0.05}}, "token_mean"),
        reward_model,
    ),
}


def sequences(plain: Plain, step: int, spread: float, is_even: bool) -> list[list[Sequence]]:
    """Returns micro-batches whose old policy is near the present one, so that some ratios are clipped."""
    numbers = torch.Generator().manual_seed(step)

    def sequence(prompt: int, completion: int) -> Sequence:
        def noise(scale: float) -> Tensor:
            return scale * torch.randn(completion, generator=numbers)

        own = Sequence(
            torch.randint(0, VOCABULARY, (prompt + completion,), generator=numbers),
            prompt,
            torch.rand(completion, generator=numbers) + 0.5,
            float(torch.randint(0, 2, (), generator=numbers)),
        )
        with torch.no_grad():
            scored = plain.scored(own)
        lp, value = scored.logprob.float(), scored.value.float()
        own.inputs = {
            "advantage": noise(1.0)[:1].expand(completion) if is_even else noise(1.0),
            "behavior": lp,
            "old": lp + noise(spread),
            "reference": lp + noise(0.5),
            "returns": value + noise(0.5),
            "old_value": value + noise(0.3),
        }
        return own

    return [[sequence(*shape) for shape in shapes] for shapes in SHAPES]


def packed(micro_batch: list[Sequence]) -> Batch:
    lengths = [len(s.tokens) for s in micro_batch]
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    rows = [
        torch.arange(start + s.prompt, start + length)
        for start, length, s in zip(starts, lengths, micro_batch, strict=True)
    ]
    return Batch(
        torch.cat([s.tokens for s in micro_batch]),
        tuple(lengths),
        torch.cat(rows),
        torch.cat([1 / s.temperature for s in micro_batch]),
    )


def message(objective: dict[str, Any], batches: list[list[Sequence]], tokens: int, count: int) -> bytes:
    def inputs(micro_batch: list[Sequence]) -> dict[str, Any]:
        ends = torch.tensor([len(s.tokens) - s.prompt for s in micro_batch]).cumsum(0).tolist()
        lists = {
            name: torch.cat([s.inputs[name] for s in micro_batch]).tolist() for name in micro_batch[0].inputs
        }
        rows = [{"start": start, "end": end} for start, end in zip([0, *ends], ends, strict=False)]
        return {"rows": rows, "outcome": [s.outcome for s in micro_batch], **lists}

    counts = {"tokens": tokens, "sequences": count, "completion_limit": 16}
    return pack({"objective": objective, "counts": counts, "inputs": [inputs(batch) for batch in batches]})


def accumulate(own: Engine, plain: Plain, name: str, step: int) -> None:
    """Accumulates the same step on both."""
    _, objective, loss = METHODS[name]
    spread = 1e-3 if name == "gspo" else 0.3
    batches = sequences(plain, step, spread, is_even=name in ("gspo", "prime_reward_model"))
    everything = [s for batch in batches for s in batch]
    tokens = sum(len(s.tokens) - s.prompt for s in everything)
    native = NativeLoss(message(objective, batches, tokens, len(everything)))
    own.accumulate({i: packed(b) for i, b in enumerate(batches)}, len(batches), native, silent)
    for s in everything:
        back_propagate(loss(plain.scored(s), s, tokens, len(everything)))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_as_in_plain_pytorch(qwen: Path, name: str) -> None:
    heads = METHODS[name][0]
    own, plain = engine(qwen, heads=heads, optimizer=OPTIMIZER), Plain(qwen, heads)
    hf: Any = own.model.hf
    for head in (own.model.score, hf.score if heads == "critic" else None):
        if head is not None:
            fill(head)
    before = {name: w.detach().clone() for name, w in plain.named.items()}
    for step in range(5):
        accumulate(own, plain, name, step)
        gradients = own.optimizer.gradients()
        assert gradients.keys() == plain.named.keys()
        if step == 0:
            off = {n: relative(g, plain.named[n].grad) for n, g in gradients.items()}
            assert max(off.values()) <= 1e-5, off
        assert own.step(RATE) == pytest.approx(plain.step(), rel=1e-4)
    with torch.no_grad():
        weights = own.model.named_weights()
        off_by, moved = (
            torch.stack([(a - b[n]).norm() for n, a in plain.named.items()]).norm() for b in (weights, before)
        )
    assert float(off_by) <= 1e-3 * float(moved)
