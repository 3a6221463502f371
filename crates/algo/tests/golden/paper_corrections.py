"""Cases of the other terms of a loss: weights and rejection, the proximal policy, KL, masked rows, values."""

import paper_losses as paper
from inputs import digits
from paper_cases import (
    CISPO,
    CLIP,
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


def corrections():
    bounds = {
        ("token", "clamp"): {"high": 2.0},
        ("token", "mask"): {"low": 0.5, "high": 5.0},
        ("sequence", "clamp"): {"low": 0.25, "high": 3.0},
        ("sequence", "mask"): {"low": 0.2, "high": 35.0},
        ("geometric", "clamp"): {"low": 0.7, "high": 1.5},
        ("geometric", "mask"): {"low": 0.5, "high": 2.5},
    }
    limits = {
        ("k1", "token"): {"reject_low": -0.3, "reject_high": 0.2},
        ("k2", "token"): {"reject_high": 0.5},
        ("k3", "token"): {"reject_high": 2.0},
        ("k1", "sequence_mean"): {"reject_low": -0.15, "reject_high": 0.4},
        ("k2", "sequence_mean"): {"reject_high": 0.4},
        ("k3", "sequence_mean"): {"reject_high": 0.26},
        ("k1", "sequence_max"): {"reject_low": -0.1, "reject_high": 0.3},
        ("k2", "sequence_max"): {"reject_high": 0.3},
        ("k3", "sequence_max"): {"reject_high": 1.0},
    }
    rejects = [{"reject": estimator, "reject_level": level, **limit} for (estimator, level), limit in limits.items()]
    measure = ("correction/effective_sample_size", "correction/weight_mean")
    token_mean = {"loss_aggregation": "token_mean"}
    cases = []
    for (level, action), bound in bounds.items():
        for reject in [{}, *rejects]:
            c = {"level": level, "action": action, **bound, **reject}
            name = f"{action} {level}" + (f", reject {reject['reject']} {reject['reject_level']}" if reject else "")
            cases.append(
                loss_case(
                    name,
                    "grpo",
                    {"correction": c, **token_mean},
                    "stale",
                    CLIP,
                    "token_mean",
                    correction=c,
                    measure=measure,
                )
            )
    for c in rejects:
        name = f"reject {c['reject']} {c['reject_level']}"
        cases.append(
            loss_case(
                name,
                "grpo",
                {"correction": c, **token_mean},
                "stale",
                CLIP,
                "token_mean",
                correction=c,
                measure=measure,
            )
        )
    tis, icepop = (
        {"level": "token", "action": "clamp", "high": 2.0},
        {"level": "token", "action": "mask", "low": 0.5, "high": 5.0},
    )
    for mode in MODES:  # KL and entropy keep their weight of 1
        settings = {
            "correction": icepop,
            "loss_aggregation": mode,
            "entropy_coef": 0.02,
            "kl": {"coef": 0.1, "estimator": "k3"},
        }
        cases.append(
            loss_case(
                f"icepop, k3, entropy, {mode}",
                "grpo",
                settings,
                "stale, mixed",
                CLIP,
                mode,
                ("k3", 0.1, False),
                0.02,
                correction=icepop,
            )
        )
    for name, settings, surrogate in [
        ("reinforce", {"loss": "reinforce", "level": "token"}, REINFORCE),
        ("cispo", {"loss": "cispo", "weight_cap": 5.0, "weight_floor": 0.0}, CISPO),
        ("sapo", {"loss": "sapo", "tau_positive": 1.0, "tau_negative": 1.05}, SAPO),
    ]:
        cases.append(
            loss_case(
                f"truncated weights on {name}",
                "grpo",
                {**settings, "correction": tis, **token_mean},
                "stale",
                surrogate,
                "token_mean",
                correction=tis,
            )
        )
    for level in ["sequence", "geometric"]:  # one term per sequence with one weight per sequence
        c = {"level": level, "action": "clamp", "low": 0.25, "high": 3.0}
        for name, settings, surrogate in [
            ("gspo", {"loss": "gspo", "clip_low": 0.1, "clip_high": 0.15}, ("gspo", WIDE_GSPO)),
            ("gmpo", {"loss": "gmpo", "clip_low": 0.4, "clip_high": 0.4}, ("gmpo", {"low": 0.4, "high": 0.4})),
        ]:
            cases.append(
                loss_case(
                    f"{level} weights on {name}",
                    "grpo",
                    {**settings, "correction": c},
                    "stale",
                    surrogate,
                    "sequence_mean",
                    correction=c,
                )
            )
    return cases


def proximal():
    cases = []
    weight = {"level": "token", "action": "mask", "low": 0.0, "high": 5.0}
    for mode in MODES:
        for on in ["stale", "stale, mixed"]:
            base = {"clip_low": 0.2, "clip_high": 0.2, "loss_aggregation": mode}
            decoupled = {**base, "correction": weight}
            cases.append(
                loss_case(
                    f"decoupled, {mode} {on}", "grpo", decoupled, on, CLIP, mode, correction=weight, measure=SHARES
                )
            )
            cases.append(
                loss_case(
                    f"log-linear, {mode} {on}",
                    "grpo",
                    {**decoupled, "proximal": "log_linear"},
                    on,
                    CLIP,
                    mode,
                    log_linear=True,
                    correction=weight,
                    max_staleness=2,
                )
            )
            cases.append(
                loss_case(
                    f"ratio to the sampler, {mode} {on}",
                    "grpo",
                    {**base, "ratio_to": "behavior"},
                    on,
                    CLIP,
                    mode,
                    ratio_to="behavior",
                )
            )
    token_mean = {"loss_aggregation": "token_mean", "ratio_to": "behavior"}
    cispo = {"loss": "cispo", "weight_cap": 5.0, "weight_floor": 0.0, **token_mean}
    cases.append(loss_case("cispo to the sampler", "grpo", cispo, "stale", CISPO, "token_mean", ratio_to="behavior"))
    return cases


def by_default():
    """What each method does about stale samples where nothing is said."""
    mask = lambda level: {"level": level, "action": "mask", "low": 0.0, "high": 5.0}
    truncate = lambda level: {"level": level, "action": "clamp", "low": 0.0, "high": 2.0}
    gmpo = ("gmpo", {"low": 0.4, "high": 0.4})
    kl_cov = ("kl_cov", {"share": 2e-4, "coef": 1.0})
    table = [
        ("grpo", CLIP, "sequence_mean", mask("token")),
        ("dr_grpo", CLIP, "constant_length", mask("token")),
        ("dapo", HIGHER, "token_mean", mask("token")),
        ("raft_pp", CLIP, "sequence_mean", mask("token")),
        ("prime", CLIP, "token_mean", mask("token")),
        ("ppo", CLIP, "token_mean", mask("token")),
        ("decoupled_ppo", CLIP, "token_mean", mask("token")),
        ("sapo", SAPO, "sequence_mean", mask("token")),
        ("kl_cov", kl_cov, "token_mean", mask("token")),
        ("gspo", ("gspo", GSPO), "sequence_mean", mask("geometric")),
        ("gspo_token", ("gspo_token", GSPO), "sequence_mean", mask("geometric")),
        ("gmpo", gmpo, "sequence_mean", mask("geometric")),
        ("rloo", REINFORCE, "sequence_sum", truncate("sequence")),
        ("opo", REINFORCE, "sequence_sum", truncate("sequence")),
        ("remax", REINFORCE, "sequence_sum", truncate("sequence")),
        ("max_at_g", REINFORCE, "sequence_sum", truncate("sequence")),
        ("gpg", REINFORCE, "token_mean", truncate("token")),
    ]
    measure = ("correction/effective_sample_size", "correction/weight_mean")
    cases = [
        loss_case(f"{m}, {on}", m, {}, on, loss, mode, correction=c, measure=measure, max_staleness=2)
        for m, loss, mode, c in table
        for on in (["stale", "stale, mixed"] if c["level"] == "token" else ["stale"])
    ]
    cispo = dict(ratio_to="behavior", max_staleness=2)
    cases.append(loss_case("cispo, stale", "cispo", {}, "stale", CISPO, "token_mean", **cispo))
    to_sampler = [("topr", ("topr", {"level": "sequence"})), ("dppo_tv", dppo("tv", 0.2)), ("dppo_kl", dppo("kl", 0.05))]
    for name, loss in to_sampler:
        cases.append(loss_case(f"{name}, stale", name, {}, "stale", loss, "token_mean", max_staleness=2))
    off = {"correction": {"level": "none"}}
    cases.append(loss_case("grpo, stale, left alone", "grpo", off, "stale", CLIP, "sequence_mean", max_staleness=2))
    for estimator in ["k2", "k3", "k3+"]:
        kl = {"kl": {"coef": 0.2, "estimator": estimator, "ratio": True}}
        cases.append(
            loss_case(
                f"grpo, stale, {estimator} x ratio",
                "grpo",
                kl,
                "stale",
                CLIP,
                "sequence_mean",
                (estimator, 0.2, True),
                correction=mask("token"),
                max_staleness=2,
            )
        )
    return cases


def divergences():
    cases = []
    for estimator in ["k2", "k3", "k3+"]:
        for by_ratio in [False, True]:
            kl = {"coef": 0.2, "estimator": estimator, **({"ratio": True} if by_ratio else {})}
            for on, mode in [
                ("near", "sequence_mean"),
                ("wide", "token_mean"),
                ("stale, mixed", "token_mean"),
                ("far", "token_mean"),
            ]:
                if on == "far" and not by_ratio:
                    continue
                settings = {"clip_low": 0.2, "clip_high": 0.2, "loss_aggregation": mode, "kl": kl}
                name = f"{estimator}{' x ratio' if by_ratio else ''} {on}"
                cases.append(loss_case(name, "grpo", settings, on, CLIP, mode, (estimator, 0.2, by_ratio)))
        kl = {"coef": 0.2, "estimator": estimator, "ratio": True}
        settings = {"loss_aggregation": "token_mean", "kl": kl, "ratio_to": "behavior"}
        cases.append(
            loss_case(
                f"{estimator} x ratio to the sampler",
                "grpo",
                settings,
                "stale",
                CLIP,
                "token_mean",
                (estimator, 0.2, True),
                ratio_to="behavior",
            )
        )
    return cases


def masked_rows():
    cases = []
    terms = {"entropy_coef": 0.02, "kl": {"coef": 0.1, "estimator": "k3"}}
    for mode in MODES:
        settings = {"clip_low": 0.2, "clip_high": 0.2, "loss_aggregation": mode, **terms}
        cases.append(
            loss_case(
                f"ppo_clip, {mode} masked", "grpo", settings, "masked, mixed", CLIP, mode, ("k3", 0.1, False), 0.02
            )
        )
    cases += [
        loss_case(
            "gspo masked",
            "grpo",
            {"loss": "gspo", "clip_low": 0.1, "clip_high": 0.15},
            "masked",
            ("gspo", WIDE_GSPO),
            "sequence_mean",
        ),
        loss_case(
            "gmpo masked",
            "grpo",
            {"loss": "gmpo", "clip_low": 0.4, "clip_high": 0.4},
            "masked",
            ("gmpo", {"low": 0.4, "high": 0.4}),
            "sequence_mean",
        ),
        loss_case("rloo masked", "rloo", {}, "masked", REINFORCE, "sequence_sum"),
        loss_case("sft masked", "sft", {}, "masked", ("sft", {}), "token_mean"),
        loss_case(
            "value loss masked",
            "ppo",
            {"critic": {"backbone": "shared", "coef": 0.5, "clip": 0.2}},
            "masked",
            CLIP,
            "token_mean",
            value=(0.5, 0.2),
        ),
    ]
    return cases


def shared_values():
    """The policy's loss and that of a value head on the same backbone."""
    cases = []
    for on in ["near", "wide", "stale", "uneven"]:
        for clip_by in [0.0, 0.2, 0.5]:
            settings = {"critic": {"backbone": "shared", "coef": 0.5, "clip": clip_by}}
            measure = ("value_clip_ratio",) if clip_by else ()
            cases.append(
                loss_case(
                    f"ppo, values clipped at {clip_by} {on}",
                    "ppo",
                    settings,
                    on,
                    CLIP,
                    "token_mean",
                    value=(0.5, clip_by),
                    measure=measure,
                )
            )
    return cases


def value_cases():
    """The loss of a separate critic, and its explained variance."""
    cases = []
    for on in ["near", "wide", "stale", "masked", "uneven"]:
        for clip_by in [0.0, 0.2, 0.5]:
            step = paper.Step(INPUTS[on])
            per_token, metrics = paper.value_terms(step, clip_by)
            loss = step.aggregate(per_token, "token_mean")
            loss.backward()
            if on != "masked":
                metrics = {**metrics, "explained_variance": paper.explained_variance(step)}
            else:
                metrics = {}
            cases.append(
                {
                    "name": f"values clipped at {clip_by} {on}",
                    "inputs": on,
                    "clip": clip_by or None,
                    "value_loss": digits([loss])[0],
                    "d_value": digits(step.value.grad),
                    "metrics": {k: digits([v])[0] for k, v in metrics.items()},
                }
            )
    return cases
