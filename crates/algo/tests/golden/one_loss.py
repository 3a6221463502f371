"""The golden file of one loss: cases over its settings, inputs and normalisers, and the example of its page.

A loss's program calls `write` with its formula, which takes a `paper_losses.Step` and the settings and returns one term
per token, or one per sequence. Its derivatives are autograd's.

    python loss_NAME.py > loss_NAME.json
"""

import json
import sys

import torch

import examples
import paper_advantages as adv

from paper_cases import INPUTS, MODES, loss_case


def rows(step, per_token):
    """The values of a per-token array, sequence by sequence."""
    return [per_token[list(r)] for r in step.rows]


def write(name, formula, variants, mode, example, sets, advantage=adv.group, per_sequence=None):
    """`variants` are settings by label, the defaults first; `mode` is the preset's normaliser; `sets` are inputs that come
    no closer than 1e-4 to a kink."""
    formula.per_sequence = per_sequence or (lambda **settings: False)
    first = next(iter(variants.values()))
    cases = [loss_case(f"preset {name} {on}", name, {}, on, (formula, first), mode) for on in sets]
    for label, settings in variants.items():
        whole = formula.per_sequence(**settings)
        for i, on in enumerate(sets):
            modes = [None] if whole else MODES if on == "stale" else [MODES[i % len(MODES)]]
            for m in modes:
                own = {"loss": {"kind": name, **settings}}
                recipe = own if whole else {**own, "loss_aggregation": m}
                cases.append(loss_case(f"{name} {label}, {m} {on}", "grpo", recipe, on, (formula, settings), m))
        recipe = {"loss": {"kind": name, **settings}, "ratio_to": "behavior", "loss_aggregation": "token_mean"}
        if whole:
            del recipe["loss_aggregation"]
        label = f"{name} {label}, to the sampler"
        cases.append(loss_case(label, "grpo", recipe, "stale", (formula, settings), "token_mean", ratio_to="behavior"))
    made = examples.example(example, examples.of_group(advantage), (formula, first), mode)
    golden = {
        "made_with": f"torch {torch.__version__}",
        "inputs": {on: INPUTS[on] for on in [*sets, "stale"]},
        "losses": cases,
        "example": made,
    }
    json.dump(golden, sys.stdout, separators=(",", ":"))
    print()
