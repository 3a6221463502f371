"""Inputs that both golden programs share. Numbers have few decimals and are rounded to f32, as RLoom reads them."""

import numpy as np

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


def sequences(lengths):
    """Ranges of each sequence in the flat arrays."""
    ends = np.cumsum(lengths).tolist()
    return [range(e - n, e) for e, n in zip(ends, lengths)]


def digits(values):
    """12 significant digits: 1e-6 is asked for."""
    plain = (v.item() if hasattr(v, "item") else v for v in values)
    return [float(f"{v:.12g}") for v in plain]
