"""verl's algorithms, imported without the rest of it.

    pip install --no-deps verl==0.9.1 tensordict omegaconf hydra-core antlr4-python3-runtime==4.9.3 codetiming \
        pyvers orjson cloudpickle importlib_metadata zipp

`ray`, which its data protocol imports and the algorithms do not use, is a stub.
"""

import importlib.metadata
import sys
from unittest.mock import MagicMock

import torch

for missing in ["ray"]:
    sys.modules.setdefault(missing, MagicMock(__path__=[], __spec__=None))

from verl.trainer.config import AlgoConfig  # noqa: E402
from verl.trainer.ppo import core_algos, rollout_corr_helper  # noqa: E402
from verl.workers.config import ActorConfig  # noqa: E402
from verl.workers.config.actor import PolicyLossConfig  # noqa: E402

from inputs import LIMIT, column, sequences  # noqa: E402

__all__ = ["AlgoConfig", "core_algos", "rollout_corr_helper"]
VERSION = importlib.metadata.version("verl")
MODES = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "sequence_sum": "seq-mean-token-sum",
    "constant_length": "seq-mean-token-sum-norm",
}


def actor(clip_low=0.2, clip_high=0.2, policy_loss=None, **more):
    return ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_low=clip_low, clip_ratio_high=clip_high,
        policy_loss=PolicyLossConfig(**(policy_loss or {})), global_batch_info={"loss_scale_factor": LIMIT}, **more,
    )  # fmt: skip


def pad(flat, lengths, width=None):
    """Rows of a matrix, filled with zeros."""
    width = width or max(lengths)
    rows = [torch.cat([flat[list(r)], torch.zeros(width - len(r), dtype=flat.dtype)]) for r in sequences(lengths)]
    return torch.stack(rows)


class Matrices:
    """One optimiser step as verl's functions take it: (rows, tokens), padded."""

    def __init__(self, x):
        self.lengths = x["lengths"]
        self.lp = column(x["logprob"]).requires_grad_()
        self.entropy = column(x["entropy"]).requires_grad_()
        self.mask = pad(torch.ones(sum(self.lengths), dtype=torch.float64), self.lengths)
        for name in ["old", "behavior", "reference", "advantage", "value", "old_value", "returns"]:
            if name in x:
                setattr(self, name, pad(column(x[name]), self.lengths))
        self.logprob = pad(self.lp, self.lengths)

    def flat(self, matrix):
        return torch.cat([matrix[i, : len(r)] for i, r in enumerate(sequences(self.lengths))])

    def aggregate(self, matrix, mode):
        return core_algos.agg_loss(matrix, self.mask, MODES[mode], loss_scale_factor=LIMIT)


def token_rewards(x, kl_coef=0.0):
    """(rewards at the last token less KL, mask, index of the group) of the episodes whose reward applies."""
    rows, index, lengths = [], [], []
    for g, rewards in enumerate(x["rewards"]):
        for e, reward in enumerate(rewards):
            if reward is None:
                continue
            r = torch.zeros(x["tokens"][g][e], dtype=torch.float64)
            r[-1] = reward
            old, reference = column(x["old"][g][e]), column(x["reference"][g][e])
            rows.append(core_algos.compute_rewards(r, old, reference, kl_coef))
            lengths.append(len(r))
            index.append(g)
    flat = torch.cat(rows)
    return pad(flat, lengths), pad(torch.ones_like(flat), lengths), index


def nested(x, matrix):
    """verl's matrix as [group][episode][token], None where the reward does not apply."""
    row = iter(matrix)
    return [
        [None if r is None else next(row)[:n].tolist() for r, n in zip(rewards, tokens)]
        for rewards, tokens in zip(x["rewards"], x["tokens"])
    ]
