"""Preference losses from the papers, on sums over completions, in f64. Autograd gives their gradients.

A step is a list of groups of episodes with `logprob`, `reference` and `reward`: pairs with the chosen completion first
(rewards 1 and 0), or single completions with their label.
"""

import math

import torch
import torch.nn.functional as F

ls, sg = F.logsigmoid, torch.sigmoid


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


class Completion:
    def __init__(self, lp, episode, full=None, tail=1.0):
        self.n = len(lp)
        full = self.n if full is None else full
        weight = tensor([1.0 if t < full else tail for t in range(self.n)])
        reference = episode.get("reference")
        self.lp = (weight * lp).sum()
        self.ref = (weight * tensor(reference)).sum() if reference else self.lp.detach()
        self.d = self.lp - self.ref
        self.p = self.lp / self.n
        self.sharp = tensor(episode.get("sharpened", [0.0])).sum()
        self.good = episode["reward"] > 0.5


def divergence(d, name, alpha):
    if name == "reverse_kl":
        return d
    if name == "forward_kl":
        return 1 - torch.exp(-d)
    if name == "js":
        return math.log(2) + ls(d)
    return (torch.exp((alpha - 1) * d) - 1) / (alpha - 1)


def dpo(c, r, beta=0.1, average=False, divergence_=("reverse_kl", 0.5)):
    score = lambda y: divergence(y.d, *divergence_) / (y.n if average else 1)
    return -ls(beta * (score(c) - score(r)))


def odds(p):
    return p - torch.log1p(-torch.exp(p))


def smoothed(x, e):
    return -(1 - e) * ls(x) - e * ls(-x)


def discopop(c, r, beta=0.1, tau=0.05):
    x = beta * (c.d - r.d)
    m = sg(x / tau)
    return (1 - m) * -ls(x) + m * torch.exp(-x)


def exo(c, r, beta=0.1, e=1e-3):
    x = beta * (c.d - r.d)
    return sg(x) * (ls(x) - math.log(1 - e)) + sg(-x) * (ls(-x) - math.log(e))


def wpo(c, r, beta=0.1):
    # At half the temperature p becomes p²/Σ p², so that lp − log Σ p² is the difference of the two log-probabilities.
    weight = lambda y: torch.exp((y.sharp - y.lp.detach()) / y.n)
    return weight(c) * weight(r) * dpo(c, r, beta)


PAIRS = {
    "dpo": dpo,
    "cdpo": lambda c, r, beta=0.1, e=0.1: smoothed(beta * (c.d - r.d), e),
    "robust": lambda c, r, beta=0.1, e=0.1: (
        (-(1 - e) * ls(beta * (c.d - r.d)) + e * ls(-beta * (c.d - r.d))) / (1 - 2 * e)
    ),
    "hinge": lambda c, r, beta=0.1: torch.relu(1 - beta * (c.d - r.d)),
    "ipo": lambda c, r, beta=0.1, average=True: (
        (c.d / (c.n if average else 1) - r.d / (r.n if average else 1) - 1 / (2 * beta)) ** 2
    ),
    "orpo": lambda c, r, beta=0.1: -c.p - beta * ls(odds(c.p) - odds(r.p)),
    "cpo": lambda c, r, beta=0.1, alpha=1.0: -ls(beta * (c.lp - r.lp)) - alpha * c.lp,
    "simpo": lambda c, r, beta=2.0, gamma=1.0: -ls(beta * (c.p - r.p) - gamma),
    "nca": lambda c, r, beta=0.1: -ls(beta * c.d) - 0.5 * ls(-beta * c.d) - 0.5 * ls(-beta * r.d),
    "exo": exo,
    "sppo": lambda c, r, beta=0.1: (c.d - 1 / (2 * beta)) ** 2 + (r.d + 1 / (2 * beta)) ** 2,
    "apo_zero": lambda c, r, beta=0.1: 1 - sg(beta * c.d) + sg(beta * r.d),
    "apo_down": lambda c, r, beta=0.1: sg(beta * c.d) + 1 - sg(beta * (c.d - r.d)),
    "discopop": discopop,
    "wpo": wpo,
}


def kto(y, z, beta=0.1, desirable=1.0, undesirable=1.0):
    if y.good:
        return desirable * (1 - sg(beta * (y.d - z)))
    return undesirable * (1 - sg(beta * (z - y.d)))


def bco(y, delta, beta=0.1):
    return -ls(beta * y.d - delta) if y.good else -ls(-(beta * y.d - delta))


LABELS = {"kto": kto, "bco": bco}


def aot(pairs, beta=0.1, e=0.0, paired=True):
    by = lambda values: torch.sort(torch.stack(values)).values
    if paired:
        delta = by([c.lp - r.lp for c, r in pairs]) - by([c.ref - r.ref for c, r in pairs])
    else:
        delta = by([c.d for c, _ in pairs]) - by([r.d for _, r in pairs])
    return smoothed(beta * delta, e).mean()


def mpo(c, r, chosen_tokens):
    """The weights of MPO; the likelihood is a mean over the chosen tokens of the step."""
    quality = -ls(0.1 * c.d) - ls(-0.1 * r.d)
    return 0.8 * dpo(c, r) + 0.2 * quality - 1.0 * c.lp / chosen_tokens


def step(groups, loss, anchor=0.0, tail=1.0, **settings):
    """Loss of a step and its gradient by each log-probability, per episode."""
    episodes = [e for g in groups for e in g]
    lps = [tensor(e["logprob"]).requires_grad_() for e in episodes]
    full = [min(len(e["logprob"]) for e in g) for g in groups for _ in g]
    made = [Completion(lp, e, f, tail) for lp, e, f in zip(lps, episodes, full)]
    pairs = list(zip(made[::2], made[1::2]))
    if loss == "aot":
        total = aot(pairs, **settings)
    elif loss == "mpo":
        total = torch.stack([mpo(c, r, anchor) for c, r in pairs]).mean()
    elif loss in LABELS:
        total = torch.stack([LABELS[loss](y, anchor, **settings) for y in made]).mean()
    else:
        total = torch.stack([PAIRS[loss](c, r, **settings) for c, r in pairs]).mean()
    total.backward()
    return total.item(), [lp.grad.tolist() for lp in lps]


def examples(six):
    """The worked examples of the pages."""
    chosen = {"reward": 1.0, "logprob": [-0.5, -1.0], "reference": [-0.7, -0.9]}
    rejected = {"reward": 0.0, "logprob": [-0.4, -0.8, -1.2], "reference": [-0.3, -0.9, -1.0]}
    easy = [
        {"reward": 1.0, "logprob": [-0.6], "reference": [-1.0]},
        {"reward": 0.0, "logprob": [-1.5, -0.9], "reference": [-1.2, -0.8]},
    ]
    bare = lambda e: {k: v for k, v in e.items() if k != "reference"}
    out = {}
    for loss in [*PAIRS, *LABELS, "aot", "mpo"]:
        groups, anchor = [[chosen, rejected]], None
        if loss in ["orpo", "cpo", "simpo"]:
            groups = [[bare(chosen), bare(rejected)]]
        elif loss == "wpo":
            groups = [[chosen | {"sharpened": [-0.3, -0.7]}, rejected | {"sharpened": [-0.2, -0.5, -1.4]}]]
        elif loss == "aot":
            groups = [[chosen, rejected], easy]
        elif loss == "mpo":
            groups, anchor = [[chosen, rejected], easy], 1.5  # chosen completions of two tokens and of one
        elif loss in LABELS:
            groups = [[chosen], [rejected]]
            # The mean of beta * d over the two is -0.005; the mismatched completions of kto have a mean of 0.25.
            anchor = 0.25 if loss == "kto" else -0.005
        value, grad = step(groups, loss, anchor or 0.0)
        entry = {"settings": {}, "completion_limit": 20, "groups": groups}
        if anchor is not None:
            entry["anchor"] = anchor
        out[loss] = entry | {"expect": {"loss": six(value), "d_logprob": six(grad)}}
    # Two samples of each task with their rewards: the better one was sampled second in the first group.
    sampled = [[rejected | {"reward": 0.2}, chosen | {"reward": 0.7}], [easy[0] | {"reward": 1.0}, easy[1] | {"reward": 0.5}]]
    out["online_dpo"] = online(sampled, six)
    return out


def online(groups, six):
    """DPO on the best and the worst sample of each group, in the order in which they were sampled."""
    better_first = [sorted(g, key=lambda e: -e["reward"]) for g in groups]
    value, grad = step(better_first, "dpo")
    grads = dict(zip([id(e) for g in better_first for e in g], grad))
    expect = {"loss": six(value), "d_logprob": six([grads[id(e)] for g in groups for e in g])}
    return {"settings": {}, "completion_limit": 20, "groups": groups, "expect": expect}
