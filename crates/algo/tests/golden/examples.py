"""The worked examples of the algorithms' pages: small enough to follow by hand, from rewards to derivatives.

    python examples.py > examples.json

Each is a preset with nothing overridden. Formulas come from `paper_advantages` and `paper_losses`; numbers are given to
six significant digits. `advantage` is per group, episode and token; `d_logprob` and `d_value` are per episode and token.
"""

import json
import sys

import torch

import paper_advantages as adv
import paper_losses as loss
import paper_preferences

LIMIT = 20  # far above every length: no penalty for coming near it


def six(x):
    if isinstance(x, list):
        return [six(v) for v in x]
    return float(f"{float(x):.6g}") + 0.0


def by_group(groups, name):
    return [[e.get(name) for e in g] for g in groups]


def by_token(episodes, name):
    return [v for e in episodes for v in e[name]]


def example(groups, advantage, surrogate, mode, whiten=False, kl=None, correction=None, value_clip=None, baseline=None):
    """`advantage` takes a set of groups and gives one number per episode, or one per token."""
    episodes = [e for g in groups for e in g]
    lengths = [len(e["logprob"]) for e in episodes]
    tokens = [[len(e["logprob"]) for e in g] for g in groups]
    x = {
        "lengths": lengths,
        "completion_limit": LIMIT,
        "logprob": by_token(episodes, "logprob"),
        "entropy": [0.0] * sum(lengths),
    }
    for name in ["old", "behavior", "reference", "value"]:
        if name in episodes[0]:
            x[name] = by_token(episodes, name)
    expect = {}
    if advantage is not None:
        names = ["old", "reference", "values", "last_value", "components", "steps", "prm", "prm_reference"]
        of_groups = {
            "rewards": by_group(groups, "reward"),
            "tokens": tokens,
            "baseline": baseline,
            **{n: by_group(groups, n) for n in names},
        }
        made = advantage(of_groups)
        rows, returns = made if isinstance(made, tuple) else (made, None)
        rows = adv.per_token(of_groups, rows)
        if whiten:
            rows = adv.whitened(of_groups, rows)
        expect["advantage"] = six(rows)
        x["advantage"] = [a for g in rows for e in g for a in e]
        if returns:
            expect["returns"] = six(returns)
            x["returns"] = [r for g in returns for e in g for r in e]
            x["old_value"] = by_token(episodes, "values")
    step = loss.Step(x)
    kind, knobs = surrogate
    picked = None
    if kind == "kl_cov":
        picked = loss.kl_cov_picks(step, knobs["share"])
    if kind == "clip_cov":
        picked = loss.clip_cov_candidates(step, knobs["low"], knobs["high"], knobs["cov_low"], knobs["cov_high"])
        assert len(picked) == loss.count_picked(step, knobs["share"]), "no choice is left to chance"
    terms, _ = loss.surrogate(step, kind, picked, **knobs)
    if loss.is_per_sequence(kind, knobs):
        total = terms.mean()
    else:
        w = torch.ones_like(terms) if correction is None else loss.correction(step, **correction)
        total = step.aggregate(w * terms, mode)
    if kl:
        estimator, coef = kl
        total = total + coef * step.aggregate(loss.estimate(step.lp - step.reference, estimator), mode)
    total.backward()
    per_episode = lambda leaf: six([leaf.grad[list(r)].tolist() for r in loss.sequences(lengths)])
    expect |= {"loss": six(total.item()), "d_logprob": per_episode(step.lp)}
    if picked is not None:
        expect["picked"] = picked
    if value_clip:
        value_loss = step.aggregate(loss.value_terms(step, value_clip)[0], "token_mean")
        value_loss.backward()
        expect |= {"value_loss": six(value_loss.item()), "d_value": per_episode(step.value)}
    out = {"settings": {}, "completion_limit": LIMIT, "groups": groups}
    if baseline is not None:
        out["baseline"] = baseline
    return {**out, "expect": expect}


def moved(reward, **names):
    """An episode whose first token has moved up by 0.3 (a ratio of 1.35) and whose second has moved down by 0.1."""
    return {"reward": reward, "old": [-1.0, -0.5], "logprob": [-0.7, -0.6], **names}


def fallen(reward, **names):
    """Moved by -0.1, -0.4 (a ratio of 0.67) and 0.1."""
    return {"reward": reward, "old": [-0.4, -0.9, -2.0], "logprob": [-0.5, -1.3, -1.9], **names}


def fresh(reward, logprob, **names):
    """An episode of the current policy."""
    return {"reward": reward, "old": logprob, "logprob": logprob, **names}


def of_group(formula, kl_coef=0.0):
    return lambda x: adv.group_wise(x, formula, kl_coef)


CLIP = ("ppo", {"low": 0.2, "high": 0.2})
HIGHER = ("ppo", {"low": 0.2, "high": 0.28})
GSPO = {"low": 3e-4, "high": 4e-4}
PAIR = [[moved(1.0), fallen(0.0)]]
# Sequence ratios of 1.00501, above GSPO's bound, and 1.00334.
NEAR = [
    [
        {"reward": 1.0, "old": [-1.0, -0.5], "logprob": [-0.98, -0.51]},
        {"reward": 0.0, "old": [-0.4, -0.9, -2.0], "logprob": [-0.39, -0.9, -2.0]},
    ]
]


def clipped():
    """Losses with a ratio to the policy before the step."""
    group = of_group(adv.group)
    log_space = [
        [
            {"reward": 1.0, "old": [-1.0, -0.5], "logprob": [-0.5, -0.6]},  # 0.5 is above the bound of 0.4
            {"reward": 0.0, "old": [-0.4, -0.9, -2.0], "logprob": [-0.5, -1.5, -1.9]},  # -0.6 is below -0.4
        ]
    ]
    capped = [[{"reward": 1.0, "old": [-2.0, -0.5], "logprob": [-0.3, -0.6]}, fallen(0.0)]]  # a ratio of 5.47
    lagging = [
        [
            moved(1.0, behavior=[-1.2, -0.5]),
            fallen(0.0, behavior=[-0.4, -1.0, -3.8]),  # the last token's weight of 6.05 is above 5
        ]
    ]
    # c = 2.05 at the second episode's second token alone lies between 1 and 5.
    spread = [[moved(1.0), {"reward": 0.0, "old": [-0.4, -4.5], "logprob": [-0.5, -4.4]}]]
    weight = {"level": "token", "action": "mask", "low": 0.0, "high": 5.0}
    clip_cov = {"low": 0.2, "high": 0.2, "share": 2e-4, "cov_low": 1.0, "cov_high": 5.0}
    referred = [[moved(1.0, reference=[-0.9, -0.7]), fallen(0.0, reference=[-0.6, -1.0, -1.8])]]
    return {
        "grpo": example(PAIR, group, CLIP, "sequence_mean"),
        "dr_grpo": example(PAIR, of_group(adv.group_mean), CLIP, "constant_length"),
        "dapo": example(PAIR, group, HIGHER, "token_mean"),
        "gspo": example(NEAR, group, ("gspo", GSPO), None),
        "gspo_token": example(NEAR, group, ("gspo_token", GSPO), "sequence_mean"),
        "gmpo": example(log_space, group, ("gmpo", {"low": 0.4, "high": 0.4}), None),
        "cispo": example(capped, group, ("cispo", {"cap": 5.0, "floor": 0.0}), "token_mean"),
        "sapo": example(PAIR, group, ("sapo", {"positive": 1.0, "negative": 1.05}), "sequence_mean"),
        "reinforce_pp_baseline": example(
            referred, of_group(adv.group_mean), CLIP, "token_mean", whiten=True, kl=("k2", 1e-4)
        ),
        "decoupled_ppo": example(lagging, group, CLIP, "token_mean", correction=weight),
        "clip_cov": example(spread, group, ("clip_cov", clip_cov), "token_mean"),
        "kl_cov": example(spread, group, ("kl_cov", {"share": 2e-4, "coef": 1.0}), "token_mean"),
        "raft_pp": example(PAIR, lambda x: adv.raft_pp(x, "positive"), CLIP, "sequence_mean"),
    }


def policy_gradients():
    """Losses without a ratio, and those that are weighted by a ratio to the sampler."""
    three = [[fresh(1.0, [-0.5]), fresh(0.0, [-0.2, -0.7, -1.1]), fresh(0.0, [-0.9, -0.5])]]
    against = lambda x: [[r - b for r in g] for g, b in zip(x["rewards"], x["baseline"])]
    referred = [
        [
            fresh(1.0, [-0.5, -1.0], reference=[-0.7, -1.2]),
            fresh(0.0, [-0.3], reference=[-0.2]),
            fresh(0.0, [-0.8, -0.6], reference=[-0.8, -1.0]),
        ]
    ]
    tapered = [
        [
            {"reward": 1.0, "behavior": [-1.0, -0.6], "old": [-0.8, -0.5], "logprob": [-0.8, -0.5]},
            {"reward": 0.0, "behavior": [-0.5, -0.9], "old": [-0.7, -1.0], "logprob": [-0.7, -1.0]},  # e^-0.3
            {"reward": 0.0, "behavior": [-1.5], "old": [-1.0], "logprob": [-1.0]},  # e^0.5, truncated to 1
        ]
    ]
    # The first token has moved from p = 0.20 to 0.50, along its advantage; the second episode's tokens stay inside.
    trusted = [
        [
            {"reward": 1.0, "behavior": [-1.6, -0.5], "old": [-0.7, -0.6], "logprob": [-0.7, -0.6]},
            {"reward": 0.0, "behavior": [-0.9, -2.0], "old": [-1.0, -1.8], "logprob": [-1.0, -1.8]},
        ]
    ]
    dppo = lambda divergence, limit: ("dppo", {"divergence": divergence, "limit": limit, "cap": 20.0})
    return {
        "rloo": example(referred, of_group(adv.rloo, 0.05), ("reinforce", {}), "sequence_sum"),
        "opo": example(three, adv.opo, ("reinforce", {}), "sequence_sum"),
        "gpg": example(
            [[fresh(1.0, [-0.5]), fresh(0.0, [-0.2, -0.7])], [fresh(1.0, [-0.3]), fresh(1.0, [-0.9, -0.4])]],
            adv.gpg,
            ("reinforce", {}),
            "token_mean",
        ),
        "remax": example(
            [[fresh(1.0, [-0.5, -1.0])], [fresh(0.0, [-0.3])]],
            against,
            ("reinforce", {}),
            "sequence_sum",
            baseline=[0.0, 1.0],
        ),
        "max_at_g": example(
            [[fresh(1.0, [-0.5]), fresh(0.4, [-0.2, -0.7]), fresh(0.1, [-0.9])]],
            lambda x: adv.max_at_g(x, False),
            ("reinforce", {}),
            "sequence_sum",
        ),
        "topr": example(
            tapered,
            lambda x: [[r - 0.5 for r in g] for g in x["rewards"]],
            ("topr", {"level": "sequence"}),
            "token_mean",
        ),
        "dppo_tv": example(trusted, of_group(adv.group), dppo("tv", 0.2), "token_mean"),
        "dppo_kl": example(trusted, of_group(adv.group), dppo("kl", 0.05), "token_mean"),
        "sft": example([[{"logprob": [-0.5, -1.0]}], [{"logprob": [-0.3]}]], None, ("sft", {}), "token_mean"),
        "dft": example([[{"logprob": [-0.5, -1.0]}], [{"logprob": [-0.3]}]], None, ("dft", {}), "token_mean"),
    }


def per_token():
    """Advantages that differ from token to token."""
    alone = [[moved(1.0, reference=[-1.2, -0.4])], [fallen(0.0, reference=[-0.5, -0.9, -1.8])]]
    judged = [
        [moved(1.0, values=[0.5, 0.8], value=[0.6, 1.2])],  # ended: nothing follows
        [fallen(0.0, values=[0.3, 0.1, 0.2], value=[0.3, 0.4, 0.2], last_value=0.4)],  # cut off: 0.4 follows
    ]
    step = lambda start, end, reward, state: {"start": start, "end": end, "reward": reward, "state": state}
    stepped = [
        [
            moved(1.0, reference=[-0.9, -0.7], steps=[step(0, 1, 0.0, "hall"), step(1, 2, 1.0, "door")]),
            fallen(0.0, reference=[-0.6, -1.0, -1.8], steps=[step(0, 2, 0.0, "hall"), step(2, 3, 0.0, "cave")]),
        ]
    ]
    process = [
        [
            moved(1.0, prm=[-0.8, -0.4], prm_reference=[-1.2, -0.6]),
            fallen(0.0, prm=[-0.5, -1.0, -2.2], prm_reference=[-0.5, -0.9, -1.9]),
        ]
    ]
    part = lambda right, style: [{"weight": 1.0, "value": right}, {"weight": 0.5, "value": style}]
    named = [[moved(1.2, components=part(1.0, 0.4)), fallen(0.5, components=part(0.0, 1.0))]]
    return {
        "reinforce_pp": example(alone, lambda x: adv.reinforce_pp(x, 1.0, 0.01), CLIP, "token_mean", whiten=True),
        "ppo": example(judged, lambda x: adv.gae(x, 1.0, 0.95), CLIP, "token_mean", whiten=True, value_clip=0.2),
        "gigpo": example(stepped, lambda x: adv.gigpo(x, 0.95, 1.0, True), CLIP, "sequence_mean", kl=("k3", 0.01)),
        "prime": example(process, lambda x: adv.prime(x, 1.0, 0.05), CLIP, "token_mean"),
        "gdpo": example(named, adv.gdpo, CLIP, "sequence_mean", whiten=True),
    }


def reward_models():
    """One pair with a margin, and two completions in steps; derivatives by autograd."""
    f64 = lambda x: torch.tensor(x, dtype=torch.float64).requires_grad_()
    pair = [
        {"reward": 1.0, "margin": 0.25, "value": [0.1, 0.4], "last_value": 0.7},
        {"reward": 0.0, "value": [0.1, -0.2, 0.3], "last_value": -0.1},
    ]
    chosen, rejected = (f64(e["last_value"]) for e in pair)
    loss = -torch.nn.functional.logsigmoid(chosen - rejected - pair[0]["margin"])
    loss.backward()
    made = {"reward_model": [pair], "prm": []}
    expect = {
        "reward_model": {
            "loss": six(loss.item()),
            "d_logprob": [[], []],
            "d_value": [[0.0] * len(e["value"]) for e in pair],
            "d_last_value": [six(chosen.grad), six(rejected.grad)],
        }
    }
    step = lambda start, end, right: {"start": start, "end": end, "reward": float(right)}
    episodes = [
        {"value": [0.2, 0.5, 1.2, -0.4], "last_value": -0.8, "steps": [step(0, 2, True), step(2, 4, False)]},
        {"value": [0.0, 0.1], "last_value": -0.5, "steps": [step(0, 2, True)]},
    ]
    # The values after the steps: before the third token, and after the last ones.
    values = f64([1.2, -0.8, -0.5])
    logits = torch.stack([torch.zeros_like(values), values], 1)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor([1, 0, 1]))
    loss.backward()
    d = six(values.grad.tolist())
    made["prm"] = [[e] for e in episodes]
    expect["prm"] = {
        "loss": six(loss.item()),
        "d_logprob": [[], []],
        "d_value": [[0.0, 0.0, d[0], 0.0], [0.0, 0.0]],
        "d_last_value": d[1:],
    }
    whole = lambda name: {"settings": {}, "completion_limit": LIMIT, "groups": made[name], "expect": expect[name]}
    return {name: whole(name) for name in made}


def distilled():
    """Forward KL at three tokens over a vocabulary of two, in two demonstrations."""

    def forward_kl(p, q):
        p, q = (torch.tensor(x, dtype=torch.float64) for x in (p, q))
        return float((q * (q / p).log()).sum())

    first = [forward_kl([0.5, 0.5], [0.25, 0.75]), forward_kl([0.1, 0.9], [0.1, 0.9])]
    second = [forward_kl([0.8, 0.2], [0.5, 0.5])]
    groups = [
        [{"logprob": [-0.693147, -0.105361], "divergence": six(first)}],
        [{"logprob": [-1.60944], "divergence": six(second)}],
    ]
    expect = {"loss": six(sum(first + second) / 3), "d_logprob": [[], []], "d_divergence": six([[1 / 3, 1 / 3], [1 / 3]])}
    return {"distill": {"settings": {}, "completion_limit": LIMIT, "groups": groups, "expect": expect}}


if __name__ == "__main__":
    examples = reward_models() | distilled() | clipped() | policy_gradients() | per_token() | paper_preferences.examples(six)
    lines = [f"{json.dumps(name)}: {json.dumps(e)}" for name, e in examples.items()]
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")
