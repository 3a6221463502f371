"""Losses, advantages and corrections as verl computes them, where it is right: `DISAGREEMENTS.md` has the rest.

pip install (see verl_library.py)
python from_verl.py > from_verl.json
"""

import json
import sys

import numpy as np
import torch

from groups import GROUP_SETS
from inputs import digits, make, nested, stale, with_extras
from verl_library import (
    MODES,
    VERSION,
    AlgoConfig,
    Matrices,
    actor,
    core_algos,
    nested,
    pad,
    rollout_corr_helper,
    token_rewards,
)

INPUTS = {
    "near": with_extras(41, make(41, [3, 5, 1, 4, 2], 0.3)),
    "wide": with_extras(42, make(42, [4, 0, 6, 1, 3], 1.2)),
    "uneven": with_extras(43, make(43, [5, 2, 4], 0.4, per_token_advantage=True)),
    "stale": stale(),
}


def without_last(x, **more):
    """The set without its last group, of which one episode is left: verl takes its reward for the advantage."""
    return {**{k: v[:-1] for k, v in x.items()}, **more}


def ended(x):
    """verl knows no episode that was cut off."""
    none = [[None for _ in g] for g in x["tokens"]]
    return {**x, "last_value": none, "truncated": [[False for _ in g] for g in x["tokens"]]}


SETS = {
    "compared": ended(without_last(GROUP_SETS["base"])),
    "contrast": GROUP_SETS["contrast"],
    "all equal": GROUP_SETS["all equal"],
}


def loss_case(name, method, settings, on, verl_loss, mode, config, kl=None, entropy_coef=0.0, to="old", weights=None):
    x = Matrices(INPUTS[on])
    loss_fn = core_algos.get_policy_loss_fn(verl_loss)
    total, metrics = loss_fn(
        getattr(x, to), x.logprob, x.advantage, x.mask, MODES[mode], config, weights and weights(x)
    )
    alone = torch.autograd.grad(total, x.lp, retain_graph=True)[0]
    if kl:
        estimator, coef = kl
        total = total + coef * x.aggregate(core_algos.kl_penalty(x.logprob, x.reference, estimator), mode)
    if entropy_coef:
        total = total - entropy_coef * x.aggregate(pad(x.entropy, x.lengths), mode)
    total.backward()
    zero = torch.zeros_like(x.entropy)
    return {
        "name": name, "method": method, "settings": nested(settings), "inputs": on, "loss": digits([total])[0],
        "d_logprob": digits(x.lp.grad), "d_entropy": digits(x.entropy.grad if x.entropy.grad is not None else zero),
    }, x, alone, metrics  # fmt: skip


def just(case):
    return case[0]


def clipped_losses():
    cases = []
    for on in ["near", "wide", "uneven", "stale"]:
        for mode in MODES:
            settings = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0, "loss_aggregation": mode}
            cases.append(
                just(loss_case(f"vanilla, {mode} {on}", "grpo", settings, on, "vanilla", mode, actor(0.2, 0.28)))
            )
        for estimator in ["k2", "k3", "k3+"]:
            settings = {
                "dual_clip": 2.0, "loss_aggregation": "token_mean", "entropy_coef": 0.01,
                "kl": {"coef": 0.05, "estimator": estimator},
            }  # fmt: skip
            how = {"kl": (estimator, 0.05), "entropy_coef": 0.01}
            case = loss_case(
                f"vanilla, {estimator}, entropy {on}",
                "grpo",
                settings,
                on,
                "vanilla",
                "token_mean",
                actor(clip_ratio_c=2.0),
                **how,
            )
            cases.append(just(case))
    return cases


def other_losses():
    cases = []
    for i, on in enumerate(["near", "wide", "stale", "uneven"]):
        mode = list(MODES)[i]
        with_mode = lambda settings: {**settings, "loss_aggregation": mode}  # noqa: B023
        add = lambda name, settings, *how, **more: cases.append(  # noqa: B023
            just(loss_case(f"{name} {on}", "grpo", with_mode(settings), on, *how, **more))  # noqa: B023
        )
        add("gpg", {"loss": "reinforce", "level": "token"}, "gpg", mode, actor())
        add("cispo", {"loss": "cispo", "weight_cap": 1.3, "weight_floor": 0.8}, "cispo", mode, actor(0.2, 0.3))
        add("gspo_token", {"loss": "gspo_token", "clip_low": 0.1, "clip_high": 0.15}, "gspo", mode, actor(0.1, 0.15))
        for divergence, limit in [("tv", 0.2), ("tv", 0.03), ("kl", 0.05), ("kl", 0.003)]:
            settings = {"loss": f"dppo_{divergence}", "divergence_limit": limit, "weight_cap": 20.0}
            config = actor(limit, limit, clip_ratio_c=20.0)
            add(f"dppo_{divergence}, {limit}", settings, f"dppo_{divergence}", mode, config, to="behavior")
        sapo = {"loss": "sapo", "tau_positive": 1.0, "tau_negative": 1.05, "loss_aggregation": "sequence_mean"}
        cases.append(just(loss_case(f"sapo {on}", "grpo", sapo, on, "sapo", "sequence_mean", actor())))
    for on in ["near", "stale"]:
        gspo = {"loss": "gspo", "clip_low": 3e-4, "clip_high": 4e-4}
        cases.append(just(loss_case(f"gspo {on}", "grpo", gspo, on, "gspo", "sequence_mean", actor(3e-4, 4e-4))))
    # Its mean is over all rows, with and without tokens: a set without empty rows.
    gmpo = {"loss": "gmpo", "clip_low": 0.1, "clip_high": 0.2}
    cases.append(just(loss_case("gmpo near", "grpo", gmpo, "near", "geo_mean", "token_mean", actor(0.1, 0.2))))
    return cases


def covariance_losses():
    """verl takes the covariance of the current log-probabilities, we that of those before the step: cases where the
    picked tokens are the same, and of `clip_cov` the tokens that verl's draw has picked."""
    cases = []
    for on in ["near", "uneven"]:
        torch.manual_seed(7)
        settings = {
            "loss": "clip_cov",
            "clip_low": 0.2,
            "clip_high": 0.2,
            "cov_share": 0.17,
            "cov_low": 0.1,
            "cov_high": 3.0,
        }
        knobs = {"clip_cov_ratio": 0.17, "clip_cov_lb": 0.1, "clip_cov_ub": 3.0}
        mean = {"loss_aggregation": "token_mean"}
        case, x, gradient, metrics = loss_case(
            f"clip_cov {on}", "grpo", {**settings, **mean}, on, "clip_cov", "token_mean", actor(policy_loss=knobs)
        )
        ratio, a = torch.exp(x.lp.detach() - x.flat(x.old)), x.flat(x.advantage)
        unclipped = ~(((a > 0) & (ratio > 1.2)) | ((a < 0) & (ratio < 0.8)))
        case["picked"] = [t for t in range(len(a)) if unclipped[t] and gradient[t] == 0]
        assert len(case["picked"]) == round(metrics["actor/pg_clipfrac"] * len(a)) > 0
        cases.append(case)
    for on, share in [("near", 0.08), ("uneven", 0.31), ("stale", 0.17)]:
        settings = {"loss": "kl_cov", "cov_share": share, "cov_coef": 0.5, "loss_aggregation": "token_mean"}
        knobs = {"kl_cov_ratio": share, "ppo_kl_coef": 0.5}
        case, x, gradient, _ = loss_case(
            f"kl_cov {on}", "grpo", settings, on, "kl_cov", "token_mean", actor(policy_loss=knobs)
        )
        ratio, a = torch.exp(x.lp.detach() - x.flat(x.old)), x.flat(x.advantage)
        plain = -a * ratio / len(a)
        picked = [t for t in range(len(a)) if abs(gradient[t] - plain[t]) > 1e-9]
        cov = (a - a.mean()) * (x.flat(x.old) - x.flat(x.old).mean())
        assert sorted(torch.topk(cov, max(1, int(len(a) * share))).indices.tolist()) == picked
        cases.append({**case, "picked": picked})
    return cases


def corrections():
    """Weights and rejection by verl's functions, on its clipped loss. Rejected tokens stay in the count here, which is
    given; by default verl leaves them out (`DISAGREEMENTS.md`)."""
    cases = []
    weigh, reject = (
        rollout_corr_helper.compute_rollout_correction_weights,
        rollout_corr_helper.compute_rollout_rejection_mask,
    )
    for level, action, low, high in [
        ("token", "clamp", 0.0, 2.0),
        ("token", "mask", 0.5, 5.0),
        ("sequence", "clamp", 0.0, 3.0),
        ("sequence", "mask", 0.2, 35.0),
    ]:
        threshold = high if action == "clamp" else f"{low}_{high}"
        measured = {}

        def weights(x):
            w, metrics = weigh(x.old - x.behavior, x.mask, level, threshold)  # noqa: B023
            measured.update(metrics)  # noqa: B023
            return w

        settings = {
            "loss_aggregation": "token_mean",
            "dual_clip": 3.0,
            "correction": {"level": level, "action": action, "low": low, "high": high},
        }
        case = just(
            loss_case(f"{action} {level}", "grpo", settings, "stale", "vanilla", "token_mean", actor(), weights=weights)
        )
        case["metrics"] = {
            "correction/effective_sample_size": digits([measured["rollout_is_eff_sample_size"]])[0],
            "correction/weight_mean": digits([measured["rollout_is_mean"]])[0],
        }
        cases.append(case)
    for estimator, level, low, high in [
        ("k1", "token", -0.3, 0.2), ("k2", "token", None, 0.5), ("k3", "token", None, 2.0), ("k1", "sequence_mean", -0.15, 0.4),
        ("k2", "sequence_mean", None, 0.4), ("k3", "sequence_mean", None, 0.26), ("k2", "sequence_max", None, 0.3), ("k3", "sequence_max", None, 1.0),
    ]:  # fmt: skip
        threshold = f"{np.exp(low)}_{np.exp(high)}" if estimator == "k1" else str(high)
        option = f"{level.replace('sequence', 'seq')}_{estimator}"
        c = {"reject": estimator, "reject_level": level, "reject_high": high} | (
            {} if low is None else {"reject_low": low}
        )
        settings = {"loss_aggregation": "token_mean", "dual_clip": 3.0, "correction": c}
        kept = lambda x: reject(x.old - x.behavior, x.mask, option, threshold)[0]  # noqa: B023
        cases.append(
            just(
                loss_case(
                    f"reject {estimator} {level}",
                    "grpo",
                    settings,
                    "stale",
                    "vanilla",
                    "token_mean",
                    actor(),
                    weights=kept,
                )
            )
        )
    return cases


def value_cases():
    cases = []
    for on in INPUTS:
        for clip_by in [0.2, 0.5]:
            x = Matrices(INPUTS[on])
            leaf = x.flat(x.value).requires_grad_()
            loss, share = core_algos.compute_value_loss(
                pad(leaf, x.lengths), x.returns, x.old_value, x.mask, clip_by, "token-mean"
            )
            loss.backward()
            cases.append(
                {
                    "name": f"values clipped at {clip_by} {on}",
                    "inputs": on,
                    "clip": clip_by,
                    "value_loss": digits([loss])[0],
                    "d_value": digits(leaf.grad),
                    "metrics": {"value_clip_ratio": digits([share])[0]},
                }  # fmt: skip
            )
    return cases


def advantage_case(name, method, settings, on, matrix, **more):
    x = SETS[on]
    rows = nested(x, matrix)
    expected = [
        [digits(e if e is not None else [0.0] * n) for e, n in zip(row, tokens)]
        for row, tokens in zip(rows, x["tokens"])
    ]
    return {"name": name, "method": method, "settings": nested(settings), "groups": on, "advantage": expected, **more}


def advantages():
    cases = []
    config = AlgoConfig()
    for on, x in SETS.items():
        rewards, mask, index = token_rewards(x)
        index = np.array(index)
        of = lambda name, **more: core_algos.get_adv_estimator_fn(name)(
            rewards, response_mask=mask, index=index, **more
        )[0]  # noqa: B023
        add = lambda name, method, settings, matrix: cases.append(
            advantage_case(f"{name} {on}", method, settings, on, matrix)
        )  # noqa: B023
        add("grpo", "grpo", {"std_epsilon": 1e-6}, of("grpo"))
        add("dr_grpo", "dr_grpo", {}, of("grpo", norm_adv_by_std_in_grpo=False))
        add("rloo without KL", "rloo", {"kl": {"coef": 0.0}}, of("rloo"))
        add("opo", "opo", {}, of("opo"))
        add("grpo_passk", "max_at_g", {}, of("grpo_passk", config={"norm_adv_by_std_in_grpo": False}))
        if on != "all equal":  # where it has 0/(0 + 1e-6) as we do, but nothing to compare
            divided = of("grpo_passk", config={"norm_adv_by_std_in_grpo": True})
            add("grpo_passk, by the deviation", "max_at_g", {"divide_by_std": True, "std_epsilon": 1e-6}, divided)
        baselines = torch.tensor(
            [b for b, g in zip(x["baseline"], x["rewards"]) for r in g if r is not None], dtype=torch.float64
        )
        remax, _ = core_algos.compute_remax_outcome_advantage(rewards, baselines, mask)
        add("remax", "remax", {}, remax)
    x = SETS["compared"]
    for gamma, kl_coef in [(1.0, 0.01), (0.9, 0.2)]:
        rewards, mask, _ = token_rewards(x, kl_coef)
        _, returns = core_algos.compute_reinforce_plus_plus_outcome_advantage(rewards, mask, AlgoConfig(gamma=gamma))
        settings = {"gamma": gamma, "whiten": False, "kl": {"coef": kl_coef, "placement": "reward"}}
        cases.append(
            advantage_case(f"reinforce_plus_plus, returns, {gamma}", "reinforce_pp", settings, "compared", returns)
        )
    for gamma, lam, kl_coef in [(1.0, 0.95, 0.0), (0.9, 0.8, 0.0), (0.95, 0.9, 0.1)]:
        rewards, mask, _ = token_rewards(x, kl_coef)
        flat = [v for g, vs in zip(x["rewards"], x["values"]) for r, e in zip(g, vs) if r is not None for v in e]
        lengths = mask.sum(1).int().tolist()
        values = pad(torch.tensor(np.array(flat, dtype=np.float32).astype(np.float64)), lengths)
        # Padding is an observation to it: values and errors of the last token pass through unchanged.
        _, returns = core_algos.compute_gae_advantage_return(rewards, values, mask, gamma, lam)
        settings = {"gamma": gamma, "lambda": lam, "whiten": False}
        if kl_coef:
            settings["kl"] = {"coef": kl_coef, "placement": "reward"}
        rows = [[e and digits(e) for e in g] for g in nested(x, returns)]
        cases.append(
            advantage_case(f"gae, {gamma}, {lam}", "ppo", settings, "compared", returns - values, returns=rows)
        )
    assert config is not None
    return cases


if __name__ == "__main__":
    made = {
        "made_with": f"verl {VERSION}, torch {torch.__version__}",
        "inputs": INPUTS,
        "losses": clipped_losses() + other_losses() + covariance_losses() + corrections(),
        "values": value_cases(),
        "groups": SETS,
        "advantages": advantages(),
    }
    names = [c["name"] for c in made["losses"]]
    assert len(names) == len(set(names)), [n for n in names if names.count(n) > 1]
    json.dump(made, sys.stdout, separators=(",", ":"))
    print()
