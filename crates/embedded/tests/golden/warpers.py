"""Distributions that transformers' logits warpers give, for tests/embedded/samplers.rs.

    python crates/embedded/tests/golden/warpers.py

writes warpers.json to this folder. Each case has logits, settings and, for each token that can be drawn, its
probability; and the chi-squared value that a sampler of this distribution exceeds with probability 1e-6.
Logits are float32 (that is what the engine gets); the warpers run on them in float64.
Made with transformers 5.23.0, torch 2.15.0, scipy for the chi-squared quantile.
"""

import json
from pathlib import Path

import scipy.stats
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

ALPHA = 1e-6
# Cells with fewer expected draws than this are joined into one.
DRAWS, FEWEST = 8_000, 10.0

ROWS = {
    # name: (vocabulary, spread of the logits)
    "small": (23, 2.0),
    "flat": (300, 0.5),
    "steep": (512, 4.0),
}
SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 1.7},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 0.8, "top_k": 1},
    {"temperature": 1.0, "top_k": 10_000},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.3, "top_p": 0.35},
    {"temperature": 1.0, "top_p": 0.001},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 0.7, "min_p": 1.0},
    {"temperature": 1.2, "top_k": 40, "top_p": 0.95, "min_p": 0.02},
    {"temperature": 0.9, "top_k": 17, "top_p": 0.6, "min_p": 0.3},
]


def warp(logits, temperature, top_k=0, top_p=1.0, min_p=0.0):
    """In the order of GenerationMixin._get_logits_processor."""
    warpers = [TemperatureLogitsWarper(temperature)]
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        warpers.append(TopPLogitsWarper(top_p))
    if min_p:
        warpers.append(MinPLogitsWarper(min_p))
    scores = logits.double()[None]
    for warper in warpers:
        scores = warper(None, scores)
    return scores.softmax(-1)[0]


def main():
    generator = torch.Generator().manual_seed(20)
    cases = []
    rows = {name: torch.randn(v, generator=generator) * spread for name, (v, spread) in ROWS.items()}
    # Equal logits at the border of top-k: transformers keeps all of them.
    rows["ties"] = torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0, 2.0, 0.0, -1.0])
    for name, logits in rows.items():
        for settings in SETTINGS:
            # What top-p keeps of equal logits depends on torch's sort: not comparable.
            if name == "ties" and "top_p" in settings:
                continue
            if name == "ties" and "top_k" in settings:
                settings = {**settings, "top_k": min(settings["top_k"], 4)}
            probabilities = warp(logits, **settings)
            expected = probabilities * DRAWS
            cells = int((expected >= FEWEST).sum())
            cells += bool(((expected > 0) & (expected < FEWEST)).any())
            limit = scipy.stats.chi2.isf(ALPHA, cells - 1) if cells > 1 else 0.0
            cases.append(
                {
                    "row": name,
                    "settings": settings,
                    "support": {str(i): p for i, p in enumerate(probabilities.tolist()) if p > 0.0},
                    "chi_squared_limit": limit,
                }
            )
    golden = {
        "draws": DRAWS,
        "fewest": FEWEST,
        "rows": {name: logits.tolist() for name, logits in rows.items()},
        "cases": cases,
    }
    Path(__file__).with_name("warpers.json").write_text(json.dumps(golden, indent=None) + "\n")


main()
