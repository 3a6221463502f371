"""DRO's quadratic loss (2405.19107) in verl's form, per token."""

import paper_advantages as adv
from examples import PAIR
from one_loss import write


def dro(step, beta):
    return -(step.lp * step.advantage - beta / 2 * (step.lp - step.base) ** 2)


if __name__ == "__main__":
    sets = ["near", "wide", "uneven", "far", "stale", "stale, mixed", "masked"]
    write("dro", dro, {"defaults": {"beta": 0.1}, "strong": {"beta": 2.0}}, "token_mean", PAIR, sets, adv.group_mean)
