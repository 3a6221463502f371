"""Losses and advantages written from their papers in PyTorch, with gradients by autograd, in float64.

    python from_papers.py > from_papers.json

Papers: PPO 1707.06347 (clip), 1912.09729 (dual clip), DAPO 2503.14476 (clip-higher, token mean),
GRPO 2402.03300 (group advantage, sequence mean, k3), Dr.GRPO 2503.20783 (no std, constant length),
RLOO 2402.14740 (leave-one-out, whole completion), REINFORCE++ 2501.03262 (KL in reward, returns, whitening),
k1/k2/k3: Schulman, "Approximating KL divergence", 2020.
"""

import json
import sys

import torch

from inputs import column, digits, far, make, sequences

INPUTS = {
    "near": make(1, [3, 5, 1, 4, 2], 0.3),
    "wide": make(2, [4, 0, 6, 1, 3], 1.2),
    "uneven": make(3, [5, 2, 4], 0.4, per_token_advantage=True),
    "far": far(make(4, [4, 3], 0.3)),
}


def aggregate(per_token, mode, x):
    rows = [per_token[list(r)] for r in sequences(x["lengths"]) if len(r)]
    if mode == "token_mean":
        return torch.cat(rows).sum() / sum(len(r) for r in rows)
    if mode == "sequence_mean":
        return torch.stack([r.mean() for r in rows]).mean()
    if mode == "constant_length":
        return torch.stack([r.sum() / x["completion_limit"] for r in rows]).mean()
    if mode == "sequence_sum":
        return torch.stack([r.sum() for r in rows]).mean()
    raise ValueError(mode)


def surrogate(lp, old, a, loss):
    if loss["kind"] == "sft":
        return -lp
    if loss["kind"] == "reinforce":
        return -a * lp
    ratio = torch.exp(torch.clamp(lp - old, -20, 20))
    clipped = torch.clamp(ratio, 1 - loss["low"], 1 + loss["high"])
    objective = torch.minimum(ratio * a, clipped * a)
    if "dual" in loss:
        objective = torch.where(a < 0, torch.maximum(objective, loss["dual"] * a), objective)
    return -objective


def kl(lp, reference, estimator):
    if estimator == "k2":
        return (lp - reference) ** 2 / 2
    return torch.exp(reference - lp) - (reference - lp) - 1


def loss_case(name, method, settings, on, loss, aggregation, kl_term=None, entropy_coef=0.0):
    x = INPUTS[on]
    lp, entropy = column(x["logprob"]).requires_grad_(), column(x["entropy"]).requires_grad_()
    old, reference, a = column(x["old"]), column(x["reference"]), column(x["advantage"])
    total = aggregate(surrogate(lp, old, a, loss), aggregation, x)
    if kl_term:
        total = total + kl_term[1] * aggregate(kl(lp, reference, kl_term[0]), aggregation, x)
    if entropy_coef:
        total = total - entropy_coef * aggregate(entropy, aggregation, x)
    total.backward()
    zero = torch.zeros_like(lp)
    return {
        "name": name,
        "method": method,
        "settings": settings,
        "inputs": on,
        "loss": digits([total])[0],
        "d_logprob": digits(lp.grad),
        "d_entropy": digits(entropy.grad if entropy.grad is not None else zero),
    }


def losses():
    clip = {"kind": "ppo", "low": 0.2, "high": 0.2}
    higher = {"kind": "ppo", "low": 0.2, "high": 0.28}
    no_kl = {"coef": 0.0}
    cases = []
    for on in ["near", "wide"]:
        cases += [
            loss_case(f"grpo {on}", "grpo", {}, on, clip, "sequence_mean"),
            loss_case(f"dr_grpo {on}", "dr_grpo", {}, on, clip, "constant_length"),
            loss_case(f"rloo {on}", "rloo", {}, on, {"kind": "reinforce"}, "sequence_sum"),
            loss_case(f"rloo by token {on}", "rloo", {"level": "token"}, on, {"kind": "reinforce"}, "sequence_sum"),
            loss_case(f"reinforce_pp {on}", "reinforce_pp", {}, on, clip, "token_mean"),
            loss_case(f"reinforce_pp_baseline {on}", "reinforce_pp_baseline", {}, on, clip, "token_mean", ("k2", 1e-4)),
            loss_case(f"sft {on}", "sft", {}, on, {"kind": "sft"}, "token_mean"),
            loss_case(
                f"clip-higher, token mean {on}",
                "grpo",
                {"clip_high": 0.28, "loss_aggregation": "token_mean"},
                on,
                higher,
                "token_mean",
            ),
        ]
        for mode in ["token_mean", "sequence_mean", "constant_length", "sequence_sum"]:
            for estimator in ["k2", "k3"]:
                cases.append(
                    loss_case(
                        f"clip-higher, dual, {estimator}, entropy, {mode} {on}",
                        "grpo",
                        {
                            "clip_high": 0.28,
                            "dual_clip": 2.0,
                            "entropy_coef": 0.01,
                            "loss_aggregation": mode,
                            "kl": {"coef": 0.04, "estimator": estimator},
                        },
                        on,
                        {**higher, "dual": 2.0},
                        mode,
                        (estimator, 0.04),
                        0.01,
                    )
                )
            cases.append(
                loss_case(
                    f"reinforce {mode} {on}",
                    "grpo",
                    {"loss": "reinforce", "level": "token", "loss_aggregation": mode},
                    on,
                    {"kind": "reinforce"},
                    mode,
                )
            )
    cases += [
        loss_case(
            "rloo with KL in the loss and entropy",
            "rloo",
            {"entropy_coef": 0.02, "kl": {"coef": 0.1, "estimator": "k3"}},
            "wide",
            {"kind": "reinforce"},
            "sequence_sum",
            ("k3", 0.1),
            0.02,
        ),
        loss_case("reinforce_pp, advantage per token", "reinforce_pp", {}, "uneven", clip, "token_mean"),
        loss_case("grpo, narrow clip", "grpo", {"clip_low": 0.1, "clip_high": 0.1}, "near", {**clip, "low": 0.1, "high": 0.1}, "sequence_mean"),
        loss_case("grpo beyond the clamp", "grpo", {"kl": no_kl}, "far", clip, "sequence_mean"),
        loss_case("dual clip beyond the clamp", "grpo", {"dual_clip": 3.0}, "far", {**clip, "dual": 3.0}, "sequence_mean"),
    ]
    return cases


GROUPS = [
    [1.0, 0.0, 0.0, 1.0],
    [0.25, 0.5, -1.0, 2.0],
    [0.0, 0.95, 0.95, 0.95],
    [1.0, 1.0, 1.0, 1.0],
    [0.5, None, 0.0, 1.0],
    [None, None, 0.7, None],
]
TOKENS = [[3, 1, 2, 4], [2, 5, 1, 3], [1, 2, 2, 6], [3, 3, 1, 2], [2, 4, 1, 1], [2, 1, 3, 2]]


def scores(seed):
    x = make(seed, [n for g in TOKENS for n in g], 0.2)
    ranges = iter(sequences(x["lengths"]))
    old, reference = [], []
    for g in TOKENS:
        rows = [next(ranges) for _ in g]
        old.append([[x["old"][i] for i in r] for r in rows])
        reference.append([[x["reference"][i] for i in r] for r in rows])
    return old, reference


OLD, REFERENCE = scores(11)


def advantage_case(name, method, settings, kind, kl_coef=0.0, gamma=1.0, whiten=False):
    """Per token. None is a reward that does not apply: out of every statistic, advantage 0."""
    out = []  # [group][episode] -> list per token, or None
    for g, rewards in enumerate(GROUPS):
        k1 = [column(OLD[g][e]) - column(REFERENCE[g][e]) for e in range(len(rewards))]
        if kind == "returns":
            row = []
            for e, reward in enumerate(rewards):
                if reward is None:
                    row.append(None)
                    continue
                r = -kl_coef * k1[e]
                r[-1] += reward
                n = len(r)
                discounts = torch.tensor([[gamma ** (s - t) if s >= t else 0.0 for s in range(n)] for t in range(n)], dtype=torch.float64)
                row.append((discounts @ r).tolist())
            out.append(row)
            continue
        total = [None if r is None else r - kl_coef * float(k1[e].sum()) for e, r in enumerate(rewards)]
        present = torch.tensor([r for r in total if r is not None], dtype=torch.float64)
        row = []
        for e, r in enumerate(total):
            if r is None or len(present) < 2:
                row.append(None)
                continue
            if kind == "group":
                a = (r - present.mean()) / (present.std() + 1e-4)
            elif kind == "group_mean":
                a = r - present.mean()
            else:
                others = [q for j, q in enumerate(total) if j != e and q is not None]
                a = r - sum(others) / len(others)
            row.append([float(a)] * TOKENS[g][e])
        out.append(row)
    if whiten:
        flat = torch.tensor([a for g in out for e in g if e is not None for a in e], dtype=torch.float64)
        mean, std = flat.mean(), flat.var(unbiased=False).clamp(min=1e-8).sqrt()
        out = [[None if e is None else [float((a - mean) / std) for a in e] for e in g] for g in out]
    expected = [[digits(e if e is not None else [0.0] * TOKENS[g][i]) for i, e in enumerate(row)] for g, row in enumerate(out)]
    return {"name": name, "method": method, "settings": settings, "advantage": expected}


def advantages():
    in_reward = lambda coef: {"kl": {"coef": coef, "placement": "reward"}}
    return [
        advantage_case("grpo", "grpo", {}, "group"),
        advantage_case("grpo, KL in the reward", "grpo", in_reward(0.1), "group", 0.1),
        advantage_case("grpo, whitened", "grpo", {"whiten": True}, "group", whiten=True),
        advantage_case("dr_grpo", "dr_grpo", {}, "group_mean"),
        advantage_case("rloo without KL", "rloo", {"kl": {"coef": 0.0}}, "rloo"),
        advantage_case("rloo", "rloo", {}, "rloo", 0.05),
        advantage_case("reinforce_pp", "reinforce_pp", {}, "returns", 0.01, 1.0, True),
        advantage_case("reinforce_pp, discounted", "reinforce_pp", {"gamma": 0.9, **in_reward(0.2)}, "returns", 0.2, 0.9, True),
        advantage_case("reinforce_pp, not whitened", "reinforce_pp", {"gamma": 0.5, "whiten": False}, "returns", 0.01, 0.5),
        advantage_case("reinforce_pp_baseline", "reinforce_pp_baseline", {}, "group_mean", whiten=True),
        advantage_case("reinforce_pp_baseline, KL in the reward", "reinforce_pp_baseline", in_reward(0.1), "group_mean", 0.1, whiten=True),
    ]


if __name__ == "__main__":
    json.dump(
        {
            "made_with": f"torch {torch.__version__}",
            "inputs": INPUTS,
            "losses": losses(),
            "groups": {"rewards": GROUPS, "tokens": TOKENS, "old": OLD, "reference": REFERENCE},
            "advantages": advantages(),
        },
        sys.stdout,
        separators=(",", ":"),
    )
    print()
