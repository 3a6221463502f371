"""VESPO (2602.10693) in TRL's form: the weight of a sequence is a gamma kernel of its ratio, held constant."""

import torch

import paper_losses as paper
from examples import PAIR
from one_loss import rows, write


def vespo(step, k_positive, lambda_positive, k_negative, lambda_negative):
    log_w = [d.sum() for d in rows(step, (step.lp - step.base).detach())]
    for x in log_w:
        paper.away(x, -paper.CLAMP, paper.CLAMP)
    log_w = step.by_row([x.clamp(-paper.CLAMP, paper.CLAMP) for x in log_w])
    good = step.advantage >= 0
    k = torch.where(good, k_positive, k_negative).double()
    rate = torch.where(good, lambda_positive, lambda_negative).double()
    phi = torch.exp(rate + k * log_w - rate * torch.exp(log_w))
    return -phi * step.advantage * step.lp


DEFAULTS = {"k_positive": 2.0, "lambda_positive": 3.0, "k_negative": 3.0, "lambda_negative": 2.0}
FLAT = {"k_positive": 0.5, "lambda_positive": 0.25, "k_negative": 0.0, "lambda_negative": 1.0}

if __name__ == "__main__":
    sets = ["near", "wide", "uneven", "far", "stale", "stale, mixed", "masked"]
    write("vespo", vespo, {"defaults": DEFAULTS, "flat": FLAT}, "token_mean", PAIR, sets)
