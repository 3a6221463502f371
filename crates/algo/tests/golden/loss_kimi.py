"""Policy mirror descent of Kimi k1.5 (2501.12599, eq. 3): of a completion as one action, or per token as in ROLL."""

import torch

import paper_advantages as adv
from examples import PAIR
from one_loss import rows, write


def kimi(step, level, tau):
    if level == "token":
        return -step.advantage * step.lp + tau / 2 * (step.lp - step.base) ** 2
    lp = torch.stack([x.sum() for x in rows(step, step.lp)])
    moved = torch.stack([x.sum() for x in rows(step, step.lp - step.base)])
    advantage = torch.stack([x[0] for x in rows(step, step.advantage)])
    return -advantage * lp + tau / 2 * moved**2


WHOLE = {"level": "sequence", "tau": 0.1}
STRONG = {"level": "sequence", "tau": 1.5}
TOKEN = {"level": "token", "tau": 0.1}

if __name__ == "__main__":
    sets = ["near", "wide", "far rows", "stale", "masked"]
    variants = {"defaults": WHOLE, "strong": STRONG, "token": TOKEN}
    whole = lambda level, tau: level == "sequence"
    write("kimi", kimi, variants, None, PAIR, sets, adv.group_mean, per_sequence=whole)
