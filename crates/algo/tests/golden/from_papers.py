"""Every loss and advantage as its paper has it, by autograd in float64: cases out of `paper_losses` and
`paper_advantages`.

    python from_papers.py > from_papers.json

Each loss case is {name, method, settings, inputs, loss, d_logprob, d_entropy}, and where they apply `picked` (flat
indices of the tokens that a loss of step scope singles out), `d_value`, `value_loss` (before its weight) and `metrics`.
"""

import json
import sys

import torch

import paper_advantages
import paper_corrections
from paper_cases import (
    CISPO,
    CLIP,
    DUAL,
    GSPO,
    HIGHER,
    INPUTS,
    MODES,
    REINFORCE,
    SAPO,
    SHARES,
    WIDE_GSPO,
    dppo,
    loss_case,
)


def first_losses():
    """Sets and cases from before there were other losses than the clip and the policy gradient."""
    cases = []
    for on in ["near", "wide"]:
        cases += [
            loss_case(f"grpo {on}", "grpo", {}, on, CLIP, "sequence_mean", measure=SHARES),
            loss_case(f"dr_grpo {on}", "dr_grpo", {}, on, CLIP, "constant_length"),
            loss_case(f"rloo {on}", "rloo", {}, on, REINFORCE, "sequence_sum"),
            loss_case(f"rloo by token {on}", "rloo", {"level": "token"}, on, REINFORCE, "sequence_sum"),
            loss_case(f"reinforce_pp {on}", "reinforce_pp", {}, on, CLIP, "token_mean"),
            loss_case(
                f"reinforce_pp_baseline {on}", "reinforce_pp_baseline", {}, on, CLIP, "token_mean", ("k2", 1e-4, False)
            ),
            loss_case(f"sft {on}", "sft", {}, on, ("sft", {}), "token_mean"),
            loss_case(f"dft {on}", "dft", {}, on, ("dft", {}), "token_mean"),
            loss_case(
                f"clip-higher, token mean {on}",
                "grpo",
                {"clip_high": 0.28, "loss_aggregation": "token_mean"},
                on,
                HIGHER,
                "token_mean",
            ),
        ]
        for mode in MODES:
            for estimator in ["k2", "k3", "k3+"]:
                settings = {
                    "clip_high": 0.28,
                    "dual_clip": 2.0,
                    "entropy_coef": 0.01,
                    "loss_aggregation": mode,
                    "kl": {"coef": 0.04, "estimator": estimator},
                }
                cases.append(
                    loss_case(
                        f"clip-higher, dual, {estimator}, entropy, {mode} {on}",
                        "grpo",
                        settings,
                        on,
                        DUAL,
                        mode,
                        (estimator, 0.04, False),
                        0.01,
                        measure=(*SHARES, "clip_ratio/dual"),
                    )
                )
            cases.append(
                loss_case(
                    f"reinforce {mode} {on}",
                    "grpo",
                    {"loss": "reinforce", "level": "token", "loss_aggregation": mode},
                    on,
                    REINFORCE,
                    mode,
                )
            )
    narrow = ("ppo", {"low": 0.1, "high": 0.1})
    dual = ("ppo", {"low": 0.2, "high": 0.2, "dual": 3.0})
    return cases + [
        loss_case(
            "rloo with KL in the loss and entropy",
            "rloo",
            {"entropy_coef": 0.02, "kl": {"coef": 0.1, "estimator": "k3"}},
            "wide",
            REINFORCE,
            "sequence_sum",
            ("k3", 0.1, False),
            0.02,
        ),
        loss_case("reinforce_pp, advantage per token", "reinforce_pp", {}, "uneven", CLIP, "token_mean"),
        loss_case("grpo, narrow clip", "grpo", {"clip_low": 0.1, "clip_high": 0.1}, "near", narrow, "sequence_mean"),
        loss_case("grpo beyond the clamp", "grpo", {"kl": {"coef": 0.0}}, "far", CLIP, "sequence_mean"),
        loss_case("dual clip beyond the clamp", "grpo", {"dual_clip": 3.0}, "far", dual, "sequence_mean"),
    ]


def presets():
    """Each preset's loss with nothing overridden."""
    weight = {"level": "token", "action": "mask", "low": 0.0, "high": 5.0}
    clip_cov = {"low": 0.2, "high": 0.2, "share": 2e-4, "cov_low": 1.0, "cov_high": 5.0}
    table = {
        "dapo": (HIGHER, "token_mean"),
        "gspo": (("gspo", GSPO), "sequence_mean"),
        "gspo_token": (("gspo_token", GSPO), "sequence_mean"),
        "gmpo": (("gmpo", {"low": 0.4, "high": 0.4}), "sequence_mean"),
        "cispo": (CISPO, "token_mean"),
        "sapo": (SAPO, "sequence_mean"),
        "opo": (REINFORCE, "sequence_sum"),
        "gpg": (REINFORCE, "token_mean"),
        "remax": (REINFORCE, "sequence_sum"),
        "max_at_g": (REINFORCE, "sequence_sum"),
        "topr": (("topr", {"level": "sequence"}), "token_mean"),
        "raft_pp": (CLIP, "sequence_mean"),
        "gdpo": (CLIP, "sequence_mean"),
        "prime": (CLIP, "token_mean"),
        "gigpo": (CLIP, "sequence_mean", ("k3", 0.01, False)),
        "ppo": (CLIP, "token_mean"),
        "dppo_tv": (dppo("tv", 0.2), "token_mean"),
        "dppo_kl": (dppo("kl", 0.05), "token_mean"),
        "kl_cov": (("kl_cov", {"share": 2e-4, "coef": 1.0}), "token_mean"),
        "clip_cov": (("clip_cov", clip_cov), "token_mean"),
    }
    cases = [loss_case(f"preset {m} {on}", m, {}, on, *spec) for m, spec in table.items() for on in ["near", "stale"]]
    decoupled = lambda name, settings, **how: loss_case(
        name, "decoupled_ppo", settings, "stale", CLIP, "token_mean", correction=weight, **how
    )
    cases.append(decoupled("preset decoupled_ppo stale", {}))
    log_linear = {"log_linear": True, "max_staleness": 2}
    cases.append(decoupled("preset decoupled_ppo, log-linear", {"proximal": "log_linear"}, **log_linear))
    return cases


def per_token_losses():
    """name -> (settings, surrogate, sets): each is taken over all four aggregations."""
    on = ["near", "wide", "stale", "stale, mixed", "uneven"]
    return {
        "cispo": ({"loss": "cispo", "weight_cap": 5.0, "weight_floor": 0.0}, CISPO, on),
        "cispo, narrow": (
            {"loss": "cispo", "weight_cap": 1.28, "weight_floor": 0.8},
            ("cispo", {"cap": 1.28, "floor": 0.8}),
            on,
        ),
        "sapo": ({"loss": "sapo", "tau_positive": 1.0, "tau_negative": 1.05}, SAPO, on),
        "sapo, steep": (
            {"loss": "sapo", "tau_positive": 3.0, "tau_negative": 8.0},
            ("sapo", {"positive": 3.0, "negative": 8.0}),
            on,
        ),
        "gspo_token": ({"loss": "gspo_token", "clip_low": 0.1, "clip_high": 0.15}, ("gspo_token", WIDE_GSPO), on),
        "topr": ({"loss": "topr", "level": "sequence"}, ("topr", {"level": "sequence"}), on),
        "topr by token": ({"loss": "topr", "level": "token"}, ("topr", {"level": "token"}), on),
        "dppo_tv": ({"loss": "dppo_tv", "divergence_limit": 0.2, "weight_cap": 20.0}, dppo("tv", 0.2), on),
        "dppo_tv, narrow": ({"loss": "dppo_tv", "divergence_limit": 0.03, "weight_cap": 20.0}, dppo("tv", 0.03), on),
        "dppo_kl": ({"loss": "dppo_kl", "divergence_limit": 0.05, "weight_cap": 20.0}, dppo("kl", 0.05), on),
        "dppo_kl, narrow": ({"loss": "dppo_kl", "divergence_limit": 0.003, "weight_cap": 20.0}, dppo("kl", 0.003), on),
        "clip_cov": (
            {"loss": "clip_cov", "clip_low": 0.2, "clip_high": 0.2, "cov_share": 0.17, "cov_low": 0.1, "cov_high": 1.5},
            ("clip_cov", {"low": 0.2, "high": 0.2, "share": 0.17, "cov_low": 0.1, "cov_high": 1.5}),
            on,
        ),
        "kl_cov": (
            {"loss": "kl_cov", "cov_share": 0.17, "cov_coef": 1.0},
            ("kl_cov", {"share": 0.17, "coef": 1.0}),
            on,
        ),
        "kl_cov, one token": (
            {"loss": "kl_cov", "cov_share": 2e-4, "cov_coef": 0.3},
            ("kl_cov", {"share": 2e-4, "coef": 0.3}),
            ["near", "stale"],
        ),
    }


def by_aggregation():
    cases = []
    for name, (settings, surrogate, sets) in per_token_losses().items():
        measure = SHARES if surrogate[0] in ("cispo", "gspo_token", "dppo") else ()
        for i, on in enumerate(sets):
            # One set in all modes; the others in one each, so that every mode meets several.
            for mode in MODES if on == "stale" else [MODES[i % 4]]:
                with_mode = {**settings, "loss_aggregation": mode}
                cases.append(loss_case(f"{name}, {mode} {on}", "grpo", with_mode, on, surrogate, mode, measure=measure))
    for mode in MODES:
        settings = {"clip_low": 0.2, "clip_high": 0.28, "loss_aggregation": mode}
        cases.append(
            loss_case(f"ppo_clip, {mode} stale, mixed", "grpo", settings, "stale, mixed", HIGHER, mode, measure=SHARES)
        )
    return cases


def whole_sequences():
    """One term per sequence; with KL and entropy, which stay per token."""
    cases = []
    extra = {"loss_aggregation": "token_mean", "entropy_coef": 0.02, "kl": {"coef": 0.1, "estimator": "k2"}}
    for on in ["near", "wide", "stale", "far rows"]:
        measure = SHARES if on in ("near", "stale") else ()
        for name, settings, surrogate in [
            ("gspo", {"loss": "gspo", "clip_low": 3e-4, "clip_high": 4e-4}, ("gspo", GSPO)),
            ("gspo, wide", {"loss": "gspo", "clip_low": 0.1, "clip_high": 0.15}, ("gspo", WIDE_GSPO)),
            ("gmpo", {"loss": "gmpo", "clip_low": 0.4, "clip_high": 0.4}, ("gmpo", {"low": 0.4, "high": 0.4})),
            ("gmpo, narrow", {"loss": "gmpo", "clip_low": 0.1, "clip_high": 0.2}, ("gmpo", {"low": 0.1, "high": 0.2})),
        ]:
            cases.append(loss_case(f"{name} {on}", "grpo", settings, on, surrogate, "sequence_mean", measure=measure))
            if on != "far rows":
                with_extra = {**settings, **extra}
                cases.append(
                    loss_case(
                        f"{name}, k2, entropy {on}",
                        "grpo",
                        with_extra,
                        on,
                        surrogate,
                        "token_mean",
                        ("k2", 0.1, False),
                        0.02,
                    )
                )
        token = {"loss": "gspo_token", "clip_low": 3e-4, "clip_high": 4e-4, "loss_aggregation": "sequence_mean"}
        cases.append(
            loss_case(
                f"gspo_token, paper's clip {on}",
                "grpo",
                token,
                on,
                ("gspo_token", GSPO),
                "sequence_mean",
                measure=measure,
            )
        )
    for beta in [0.05, 0.5]:
        for on in ["near", "wide", "stale", "masked"]:
            settings = {"beta": beta}
            cases.append(
                loss_case(
                    f"implicit reward, {beta} {on}", "prime_prm", settings, on, ("prm", {"beta": beta}), "sequence_mean"
                )
            )
    return cases


def beyond_the_clamp():
    far = {"loss_aggregation": "token_mean"}
    return [
        loss_case(
            "cispo far",
            "grpo",
            {"loss": "cispo", "weight_cap": 5.0, "weight_floor": 0.0, **far},
            "far",
            CISPO,
            "token_mean",
        ),
        loss_case(
            "sapo far",
            "grpo",
            {"loss": "sapo", "tau_positive": 1.0, "tau_negative": 1.05, **far},
            "far",
            SAPO,
            "token_mean",
        ),
        loss_case(
            "kl_cov far",
            "grpo",
            {"loss": "kl_cov", "cov_share": 0.3, "cov_coef": 1.0, **far},
            "far",
            ("kl_cov", {"share": 0.3, "coef": 1.0}),
            "token_mean",
        ),
    ]


def losses():
    parts = [
        first_losses,
        presets,
        by_aggregation,
        whole_sequences,
        beyond_the_clamp,
        paper_corrections.corrections,
        paper_corrections.proximal,
        paper_corrections.by_default,
        paper_corrections.divergences,
        paper_corrections.masked_rows,
        paper_corrections.shared_values,
    ]
    cases = [case for part in parts for case in part()]
    names = [c["name"] for c in cases]
    assert len(names) == len(set(names)), [n for n in names if names.count(n) > 1]
    return cases


if __name__ == "__main__":
    json.dump(
        {
            "made_with": f"torch {torch.__version__}",
            "inputs": INPUTS,
            "losses": losses(),
            "values": paper_corrections.value_cases(),
            "groups": paper_advantages.GROUP_SETS,
            "advantages": paper_advantages.advantages(),
        },
        sys.stdout,
        separators=(",", ":"),
    )
    print()
