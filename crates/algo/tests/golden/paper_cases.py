"""Inputs of the losses by name, and construction of the cases."""

import random

import torch

import paper_losses as paper
from inputs import digits, far, far_rows, make, mixed, nested, stale, with_extras

MODES = ["token_mean", "sequence_mean", "constant_length", "sequence_sum"]


def input_sets():
    near = with_extras(1, make(1, [3, 5, 1, 4, 2], 0.3))
    lag = stale()
    mask = [
        False,
        True,
        True,
        False,
        False,
        True,
        False,
        False,
        False,
        False,
    ]  # an empty row and a row of one token among them
    return {
        "near": near,
        "wide": with_extras(2, make(2, [4, 0, 6, 1, 3], 1.2)),
        "uneven": with_extras(3, make(3, [5, 2, 4], 0.4, per_token_advantage=True)),
        "far": with_extras(4, far(make(4, [4, 3], 0.3))),
        "far rows": with_extras(5, far_rows(make(5, [2, 3, 1, 2, 3], 0.3))),
        "stale": lag,
        "stale, mixed": mixed(lag),
        "masked": {**lag, "masked": mask},
        "masked, mixed": {**mixed(lag), "masked": mask},
    }


INPUTS = input_sets()


def loss_case(
    name,
    method,
    settings,
    on,
    surrogate,
    mode,
    kl=None,
    entropy_coef=0.0,
    ratio_to="old",
    log_linear=False,
    correction=None,
    value=None,
    measure=(),
    max_staleness=0,
):
    """`mode` is the normaliser of per-token terms; a surrogate that is one term per sequence has the number of
    sequences. `value`: (weight, clip) of a shared backbone's value loss."""
    step = paper.Step(INPUTS[on], ratio_to, log_linear)
    kind, knobs = surrogate
    picked = None
    if kind == "kl_cov":
        picked = paper.kl_cov_picks(step, knobs["share"])
    if kind == "clip_cov":
        candidates = paper.clip_cov_candidates(step, knobs["low"], knobs["high"], knobs["cov_low"], knobs["cov_high"])
        count = min(paper.count_picked(step, knobs["share"]), len(candidates))
        picked = sorted(random.Random(name).sample(candidates, count))
    terms, metrics = paper.surrogate(step, kind, picked, **knobs)
    w = torch.ones(step.tokens, dtype=torch.float64)
    if correction is not None:
        w = paper.correction(step, has_ratio=kind != "reinforce", **correction)
        metrics = {
            **metrics,
            "correction/effective_sample_size": paper.effective_sample_size(w),
            "correction/weight_mean": float(w.mean()),
        }
    if paper.is_per_sequence(kind, knobs):
        per_row = torch.stack([w[r][0] for r in step.rows])
        assert all((w[r] == w[r][0]).all() for r in step.rows), "one term per sequence has one weight"
        total = (per_row * terms * torch.tensor(step.trained, dtype=torch.float64)).mean()
    else:
        total = step.aggregate(w * terms, mode)
    if kl:
        estimator, coef, by_ratio = kl
        per_token = paper.estimate(step.lp - step.reference, estimator)
        if by_ratio:
            # A mean over the sampler's tokens is that over the policy's by their ratio.
            to_sampler = correction is not None and "level" in correction
            ratio = paper.exp(step.lp - (step.behavior if to_sampler else step.base))
            # E[ρ(lp − ref)∇lp] is the gradient of the KL: k3+ has it already, and a derivative of ρ would bias it.
            per_token = (ratio.detach() if estimator == "k3+" else ratio) * per_token
        total = total + coef * step.aggregate(per_token, mode)
    if entropy_coef:
        total = total - entropy_coef * step.aggregate(step.entropy, mode)
    case = {"name": name, "method": method, "settings": nested(settings), "inputs": on}
    if max_staleness:
        case["max_staleness"] = max_staleness
    if value:
        coef, clip_by = value
        per_token, shares = paper.value_terms(step, clip_by)
        value_loss = step.aggregate(per_token, "token_mean")
        total = total + coef * value_loss
        case["value_loss"] = digits([value_loss])[0]
        metrics = {**metrics, **shares}
    total.backward()
    zero = torch.zeros_like(step.lp)
    gradient = lambda leaf: digits(leaf.grad if leaf.grad is not None else zero)
    case |= {"loss": digits([total])[0], "d_logprob": gradient(step.lp), "d_entropy": gradient(step.entropy)}
    if value:
        case["d_value"] = gradient(step.value)
    if picked is not None:
        case["picked"] = picked
    if measure:
        case["metrics"] = {m: digits([metrics[m]])[0] for m in measure}
    return case


CLIP = ("ppo", {"low": 0.2, "high": 0.2})
HIGHER = ("ppo", {"low": 0.2, "high": 0.28})
DUAL = ("ppo", {"low": 0.2, "high": 0.28, "dual": 2.0})
REINFORCE = ("reinforce", {})
CISPO = ("cispo", {"cap": 5.0, "floor": 0.0})
SAPO = ("sapo", {"positive": 1.0, "negative": 1.05})
GSPO = {"low": 3e-4, "high": 4e-4}
WIDE_GSPO = {"low": 0.1, "high": 0.15}
SHARES = ("clip_ratio/low", "clip_ratio/high")


def dppo(divergence, limit):
    return "dppo", {"divergence": divergence, "limit": limit, "cap": 20.0}
