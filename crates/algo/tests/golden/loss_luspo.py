"""LUSPO (2602.05261): the term of GSPO times the length of its sequence, over the number of sequences."""

import torch

import paper_losses as paper
from examples import NEAR
from one_loss import write


def luspo(step, clip_low, clip_high):
    ratios = torch.stack(paper.sequence_ratio(step))
    advantage = torch.stack([step.advantage[r][0] for r in step.rows])
    lengths = torch.tensor([float(len(r)) for r in step.rows], dtype=torch.float64)
    return lengths * paper.ppo_terms(ratios, advantage, clip_low, clip_high)


NARROW = {"clip_low": 3e-4, "clip_high": 4e-4}
WIDE = {"clip_low": 0.1, "clip_high": 0.15}

if __name__ == "__main__":
    sets = ["near", "wide", "stale", "far rows", "masked"]
    write("luspo", luspo, {"defaults": NARROW, "wide": WIDE}, None, NEAR, sets, per_sequence=lambda **_: True)
