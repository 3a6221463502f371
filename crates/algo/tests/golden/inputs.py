"""Inputs of the losses, shared by the golden programs. Numbers have few decimals and are rounded to f32, as RLoom
reads them."""

import numpy as np

# Settings of a recipe that belong to the table of the advantage or of the loss.
ADVANTAGE_KEYS = """mean_from std_from std_epsilon divide_by_std gamma lambda baseline episode_weight step_weight states_from
keep""".split()
LOSS_KEYS = """level clip_low clip_high dual_clip weight_cap weight_floor tau_positive tau_negative divergence_limit
    cov_share cov_low cov_high cov_coef""".split()


def nested(flat):
    """Settings as a recipe has them, from flat ones: the keys of the advantage and the loss go into their tables."""
    out = {}
    for table, keys in [("advantage", ADVANTAGE_KEYS), ("loss", LOSS_KEYS)]:
        if isinstance(flat.get(table), dict):  # nested already
            out[table] = flat[table]
            continue
        own = {key: value for key, value in flat.items() if key in keys}
        if table == "advantage" and "beta" in flat:
            own["beta"] = flat["beta"]
        if own:
            kind = {"kind": flat[table]} if table in flat else {}
            out[table] = {**kind, **own}
        elif table in flat:
            out[table] = flat[table]
    moved = {"advantage", "loss", "beta", *ADVANTAGE_KEYS, *LOSS_KEYS}
    return {**out, **{key: value for key, value in flat.items() if key not in moved}}


LIMIT = 8  # completion limit, the constant of `constant_length`


def column(values):
    """f64 tensor of the f32 values that the decimals stand for."""
    import torch

    return torch.tensor(np.array(values, dtype=np.float32).astype(np.float64))


def make(seed, lengths, spread, per_token_advantage=False):
    """One optimiser step: `lengths` policy tokens per sequence. Kept away from the kinks of every clip used."""
    rng = np.random.RandomState(seed)
    n = sum(lengths)
    logprob = np.round(-rng.gamma(1.5, 0.8, n) - 0.01, 4)
    log_ratio = rng.randn(n) * spread
    kinks = np.log([0.8, 1.2, 1.28, 0.9, 1.1, 2.0, 3.0])
    for i in range(n):
        while np.abs(log_ratio[i] - kinks).min() < 0.01:
            log_ratio[i] = rng.randn() * spread
    old = np.round(logprob - log_ratio, 4)
    reference = np.round(logprob - rng.randn(n) * 0.5, 4)
    per_row = np.round(rng.randn(len(lengths)), 4)
    if per_token_advantage:
        advantage = np.round(rng.randn(n), 4)
    else:
        advantage = np.repeat(per_row, lengths)
    return {
        "lengths": list(lengths),
        "completion_limit": LIMIT,
        "logprob": logprob.tolist(),
        "entropy": np.round(rng.uniform(0.0, 3.0, n), 4).tolist(),
        "old": old.tolist(),
        "reference": reference.tolist(),
        "advantage": advantage.tolist(),
    }


def far(inputs):
    """The same with log-ratios beyond the clamp of 20, in both directions and for both signs of the advantage."""
    inputs = {**inputs, "old": list(inputs["old"]), "advantage": list(inputs["advantage"])}
    for i, (log_ratio, advantage) in enumerate([(25.0, 1.5), (25.0, -1.5), (-25.0, 1.5), (-25.0, -1.5)]):
        inputs["old"][i] = round(inputs["logprob"][i] - log_ratio, 4)
        inputs["advantage"][i] = advantage
    return inputs


def with_extras(seed, inputs):
    """Adds what only some losses read. Drawn apart, so that the arrays above stay what they were."""
    rng = np.random.RandomState(seed + 1000)
    n, rows = sum(inputs["lengths"]), len(inputs["lengths"])
    old = np.array(inputs["old"])
    behavior = np.minimum(old + rng.randn(n) * 0.15, -0.01 - rng.uniform(0.0, 0.05, n))
    old_value = rng.randn(n) * 0.6
    value = old_value + rng.randn(n) * 0.5
    return {
        **inputs,
        "behavior": np.round(behavior, 4).tolist(),
        "alpha": rng.choice([0.0, 0.25, 0.5, 0.75, 1.0], n).tolist(),
        "value": np.round(value, 4).tolist(),
        "old_value": np.round(old_value, 4).tolist(),
        "returns": np.round(value + rng.randn(n) * 0.8, 4).tolist(),
        "outcome": rng.choice([0.0, 1.0, 0.25], rows).tolist(),
    }


def stale():
    """A sampler that lags: log(old/behavior) of single tokens beyond 2, 5 and 20 and below 1/2, of whole sequences on
    either side of their bounds; an empty row, rows of one token, a row with advantage 0."""
    rng = np.random.RandomState(31)
    lengths = [4, 0, 1, 6, 3, 5, 2, 3, 4, 1]
    n = sum(lengths)
    weight = rng.randn(n) * 0.12 + np.repeat([0.05, 0.0, 0.1, -0.05, -0.15, 0.05, -0.2, 0.0, 0.22, -0.9], lengths)
    for i, w in {1: 2.4, 6: 6.0, 7: 25.0, 8: 0.3, 13: 3.1, 18: 0.12, 22: 30.0}.items():
        weight[i] = np.log(w)
    behavior = -rng.gamma(1.2, 0.5, n) - 0.03
    for i in [6, 7, 22]:  # far below, so that old and lp stay probabilities
        behavior[i] -= 3.5
    behavior[28] = -0.4
    old = np.minimum(behavior + weight, -0.02)
    moved = rng.randn(n) * 0.3 + np.repeat([0.3, 0.0, -0.3, -0.3, 0.5, -0.1, 0.1, 0.0, -0.6, 0.1], lengths)
    logprob = np.minimum(old + moved, -0.01 - rng.uniform(0.0, 0.02, n))
    per_row = [0.8, 0.0, -0.7, -1.1, 1.3, 0.5, -0.4, 0.0, -0.9, 0.6]
    x = {
        "lengths": lengths,
        "completion_limit": LIMIT,
        "logprob": np.round(logprob, 4).tolist(),
        "entropy": np.round(rng.uniform(0.0, 3.0, n), 4).tolist(),
        "old": np.round(old, 4).tolist(),
        "reference": np.round(logprob - rng.randn(n) * 0.4, 4).tolist(),
        "advantage": np.repeat(per_row, lengths).tolist(),
    }
    return {**with_extras(31, x), "behavior": np.round(behavior, 4).tolist()}


def mixed(inputs):
    """The same with an advantage per token, including zeros."""
    advantage = np.round(np.random.RandomState(77).randn(len(inputs["logprob"])), 4)
    advantage[::7] = 0.0
    return {**inputs, "advantage": advantage.tolist()}


def far_rows(inputs):
    """Whole sequences beyond the clamp, each with one advantage."""
    log_ratio = np.repeat([25.0, -25.0, 25.0, -25.0, 0.5], inputs["lengths"])
    return {
        **inputs,
        "old": np.round(np.array(inputs["logprob"]) - log_ratio, 4).tolist(),
        "advantage": np.repeat([1.5, -1.5, -0.5, 0.5, 1.0], inputs["lengths"]).tolist(),
    }


def sequences(lengths):
    """Ranges of each sequence in the flat arrays."""
    ends = np.cumsum(lengths).tolist()
    return [range(e - n, e) for e, n in zip(ends, lengths)]


def digits(values):
    """12 significant digits: 1e-6 is asked for."""
    plain = (v.item() if hasattr(v, "item") else v for v in values)
    return [float(f"{v:.12g}") for v in plain]
