"""Losses of reward models as TRL and transformers compute them.

    pip install trl==1.16.0 torch
    python from_trl_rewards.py > rewards.json

`RewardTrainer.compute_loss` is called on a stand-in for the trainer, with rewards of few decimals as leaves, so that autograd gives
their gradients. TRL 1.16 has no trainer of process-reward models: their loss is the one of transformers' token classifiers,
`ForTokenClassification`, over two logits whose difference is RLoom's value.
"""

import json
import sys
from collections import defaultdict
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import torch
import trl
from transformers.loss.loss_utils import ForTokenClassification
from trl.trainer.reward_trainer import RewardTrainer

METRICS = ["accuracy", "margin", "min_reward", "mean_reward", "max_reward"]


def digits(x):
    return [float(f"{v:.10g}") + 0.0 for v in torch.as_tensor(x, dtype=torch.float64).flatten().tolist()]


def f32(x):
    return np.round(x, 4).astype(np.float32).astype(np.float64).tolist()


def pairs(name, rewards, margins=None, center=None):
    """`rewards` are of a chosen and a rejected completion each."""
    t = MagicMock(spec=RewardTrainer)
    same = lambda x, **_: x
    t.accelerator = SimpleNamespace(gather=same, gather_for_metrics=same)
    t.args = SimpleNamespace(center_rewards_coefficient=center)
    t._metrics = {"train": defaultdict(list)}
    t._total_train_tokens, t._tp_size = 0, 1
    flat = torch.tensor([r for i in (0, 1) for r in (pair[i] for pair in rewards)], dtype=torch.float64)
    leaf = flat[:, None].requires_grad_()
    model = MagicMock(side_effect=lambda **_: SimpleNamespace(logits=leaf))
    t.model = SimpleNamespace(training=True)
    inputs = {"attention_mask": torch.ones(len(flat), 1)}
    if margins is not None:
        inputs["margin"] = torch.tensor(margins, dtype=torch.float64)
    loss = RewardTrainer.compute_loss(t, model, inputs)
    loss.backward()
    chosen, rejected = leaf.grad.flatten().chunk(2)
    return {
        "name": name,
        "rewards": rewards,
        "margins": margins or [],
        "center": center or 0.0,
        "loss": digits([loss.detach()])[0],
        "d_reward": [digits([c, r]) for c, r in zip(chosen, rejected)],
        "metrics": {m: t._metrics["train"][m][0] for m in METRICS},
    }


def steps(name, rows):
    """`rows` have a value and a label for each step."""
    values = torch.tensor([v for row in rows for v, _ in row], dtype=torch.float64)
    labels = torch.tensor([int(label) for row in rows for _, label in row])
    rng = np.random.RandomState(5)
    wrong = torch.tensor(rng.randn(len(values)), dtype=torch.float64)
    logits = torch.stack([wrong, wrong + values], 1).requires_grad_()

    def in_f64(source, target, **_):
        # `ForTokenClassification` rounds to f32 first.
        return torch.nn.functional.cross_entropy(source, target)

    config = SimpleNamespace(num_labels=2)
    rounded = ForTokenClassification(logits, labels, config)
    loss = in_f64(logits, labels)
    assert abs(rounded.item() - loss.item()) < 1e-6
    loss.backward()
    assert torch.allclose(logits.grad[:, 0], -logits.grad[:, 1])
    d = digits(logits.grad[:, 1])
    return {"name": name, "rows": rows, "loss": digits([loss.detach()])[0], "d_value": [[d.pop(0) for _ in row] for row in rows]}


def cases():
    rng = np.random.RandomState(3)
    near, wide = ([f32(p) for p in rng.randn(n, 2) * s] for n, s in [(5, 0.4), (4, 6.0)])
    zero = [[0.0, 0.0]] * 3
    margins = lambda n: f32(np.abs(rng.randn(n)))
    out = []
    for name, rewards in [("near", near), ("wide", wide), ("zero", zero)]:
        out += [
            pairs(name, rewards),
            pairs(f"{name}, margins", rewards, margins(len(rewards))),
            pairs(f"{name}, centered", rewards, center=0.01),
            pairs(f"{name}, margins, centered", rewards, margins(len(rewards)), 0.3),
        ]
    return out


def step_cases():
    rng = np.random.RandomState(4)
    row = lambda n, s: [[v, bool(rng.rand() < 0.6)] for v in f32(rng.randn(n) * s)]
    return [
        steps("near", [row(3, 0.5), row(1, 0.5), row(4, 0.5)]),
        steps("wide", [row(2, 8.0), row(5, 8.0)]),
        steps("zero", [[[0.0, True], [0.0, False]]]),
    ]


if __name__ == "__main__":
    head = json.dumps({"trl": trl.__version__, "torch": torch.__version__.split("+")[0]})
    lines = [",\n".join(json.dumps(c) for c in made) for made in (cases(), step_cases())]
    sys.stdout.write('{"versions": ' + head + ', "pairs": [\n' + lines[0] + '\n], "steps": [\n' + lines[1] + "\n]}\n")
