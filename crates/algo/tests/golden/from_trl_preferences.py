"""Preference losses as TRL's own trainers compute them: their methods are called on stand-ins for the trainer.

    pip install trl==1.16.0 torch
    python from_trl_preferences.py > preferences.json

`DPOTrainer._compute_loss` and `KTOTrainer._compute_loss` get the log-probabilities of a stand-in model as leaves, so that autograd
gives their gradients. `odds_ratio_loss` and `cpo_loss` get those of completions. Cases without a library, and those where
it has only a part of the loss, are from `paper_preferences`. See DISAGREEMENTS.md for the differences.
"""

import json
import sys
from collections import defaultdict
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import torch
import torch.nn.functional as F
import trl
from trl.experimental.cpo.cpo_trainer import CPOTrainer
from trl.experimental.orpo.orpo_trainer import ORPOTrainer
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_trainer import KTOTrainer

import paper_preferences as paper

PROMPT = 2


def digits(x):
    return [float(f"{v:.10g}") + 0.0 for v in torch.as_tensor(x, dtype=torch.float64).flatten().tolist()]


def make(seed, lengths, spread):
    """Pairs of completions with log-probabilities of few decimals, rounded to f32 as RLoom reads them."""
    rng = np.random.RandomState(seed)
    f32 = lambda x: np.round(x, 4).astype(np.float32).astype(np.float64).tolist()
    groups = []
    for pair in lengths:
        group = []
        for n, reward in zip(pair, [1.0, 0.0]):
            logprob = -rng.gamma(1.5, 0.8, n) - 0.01
            group.append({"reward": reward, "logprob": f32(logprob), "reference": f32(logprob - rng.randn(n) * spread)})
        groups.append(group)
    return groups


INPUTS = {
    "near": make(31, [(3, 5), (1, 4), (6, 2), (2, 2)], 0.2),
    "wide": make(32, [(4, 2), (7, 9), (1, 1)], 3.0),
    "zero": [[{**e, "reference": e["logprob"]} for e in g] for g in make(33, [(3, 2), (2, 4)], 1.0)],
}


def sharpened(groups):
    """The same completions with log-probabilities at half the temperature, which a policy can have: 2·lp − log Σ p² ≤ 0."""
    rng = np.random.RandomState(34)
    at_half = lambda lp: np.round(2 * np.array(lp) * rng.uniform(0.2, 0.9, len(lp)), 4).astype(np.float32).astype(np.float64)
    return [[{**e, "sharpened": at_half(e["logprob"]).tolist()} for e in g] for g in groups]


def accelerator():
    same = lambda x, **_: x
    return SimpleNamespace(
        gather=same, gather_for_metrics=same, num_processes=1, device=torch.device("cpu"), unwrap_model=same
    )


def model(flat, lengths, sum_sq=None):
    """A model whose log-probabilities are `flat`, after a prompt, and whose log Σ p² is `sum_sq`."""
    width = PROMPT - 1 + max(lengths)
    rows, start = [], 0
    for n in lengths:
        own = flat[start : start + n]
        start += n
        rows.append(F.pad(own, (PROMPT - 1, width - (PROMPT - 1) - n)))
    lp = torch.stack(rows)
    if sum_sq is not None:
        sum_sq = model(sum_sq, lengths)().log_probs
    zero = torch.zeros_like(lp)
    out = SimpleNamespace(log_probs=lp, entropy=zero, mean_logits=zero, is_top1=zero.bool(), log_sum_sq_probs=sum_sq)
    return lambda **_: out


def trainer(cls, reference, **given):
    t = MagicMock(spec=cls)
    t.model = torch.nn.Module()
    t.model.is_gradient_checkpointing = False
    t.ref_model = reference
    t.accelerator = accelerator()
    t._metrics = {"train": defaultdict(list)}
    t.args = SimpleNamespace(discopop_tau=0.05, gradient_checkpointing_kwargs=None, gradient_checkpointing=False)
    base = {
        "beta": 0.1, "precompute_ref_logps": False, "aux_loss_enabled": False, "ld_alpha": None, "use_weighting": False,
        "f_divergence_type": "reverse_kl", "f_alpha_divergence_coef": 0.5, "label_smoothing": 0.0, "_total_train_tokens": 0,
        "_tp_size": 1,
    }
    for key, value in {**base, **given}.items():
        setattr(t, key, value)
    return t


def inputs(lengths):
    width = PROMPT + max(lengths)
    mask = torch.tensor([[0] * PROMPT + [1] * n + [0] * (width - PROMPT - n) for n in lengths])
    ids = torch.zeros(mask.shape, dtype=torch.long)
    return {"input_ids": ids, "attention_mask": torch.ones_like(mask), "completion_mask": mask}


def leaf(episodes):
    flat = [x for e in episodes for x in e["logprob"]]
    return torch.tensor(flat, dtype=torch.float64).requires_grad_()


def case(name, method, settings, on, groups, loss, grad, anchor=None, metrics=None, source="trl"):
    out = {
        "name": f"{name} {on}", "source": source, "method": method, "preference": settings, "groups": groups,
        "loss": digits([loss])[0], "d_logprob": digits(grad), "metrics": metrics or {},
    }
    return out if anchor is None else {**out, "anchor": anchor}


def dpo(name, method, on, loss_type, settings=None, anchor=None, **given):
    """`loss_type` is a name, or a dictionary of weights by name."""
    losses = loss_type if isinstance(loss_type, dict) else {loss_type: 1.0}
    weighting = given.get("use_weighting", False)
    groups = sharpened(INPUTS[on]) if weighting else INPUTS[on]
    # The batch has all chosen completions before all rejected ones.
    order = [e for i in (0, 1) for g in groups for e in [g[i]]]
    lengths = [len(e["logprob"]) for e in order]
    lp = leaf(order)
    ref = torch.tensor([x for e in order for x in e["reference"]], dtype=torch.float64)
    t = trainer(DPOTrainer, model(ref, lengths), loss_types=[*losses], loss_weights=[*losses.values()], **given)
    at_half = torch.tensor([x for e in order for x in e["sharpened"]], dtype=torch.float64) if weighting else None
    sum_sq = 2 * lp.detach() - at_half if weighting else None
    loss = DPOTrainer._compute_loss(t, model(lp, lengths, sum_sq), inputs(lengths), False)
    loss.backward()
    parts = torch.split(lp.grad, lengths)
    pairs = len(groups)
    grad = torch.cat([parts[i + j * pairs] for i in range(pairs) for j in (0, 1)])
    names = ["rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "logps/chosen", "logps/rejected"]
    metrics = {n: t._metrics["train"][n][0] for n in names}
    return case(name, method, settings or {}, on, groups, loss, grad, anchor=anchor, metrics=metrics)


def mpo(name, on, losses, **given):
    """A weighted list of losses; `losses` has TRL's name, the weight, and the table of RLoom's loss."""
    settings = {"losses": [{**own, "weight": weight} for _, weight, own in losses]}
    # The mean number of tokens of a chosen completion.
    anchor = float(np.mean([len(g[0]["logprob"]) for g in INPUTS[on]]))
    return dpo(name, "mpo", on, {loss: weight for loss, weight, _ in losses}, settings, anchor, **given)


def kto(name, on, settings=None, **given):
    episodes = [e for g in INPUTS[on] for e in g]
    lengths = [len(e["logprob"]) for e in episodes]
    lp = leaf(episodes)
    ref = torch.tensor([x for e in episodes for x in e["reference"]], dtype=torch.float64)
    anchored = given.get("loss_type", "kto") == "kto"
    base = {"loss_type": "kto", "calculate_KL": anchored, "desirable_weight": 1.0, "undesirable_weight": 1.0}
    t = trainer(KTOTrainer, model(ref, lengths), **{**base, **given})
    mismatched = [torch.full((len(episodes),), 0.5, dtype=torch.float64), torch.full((len(episodes),), 0.1, dtype=torch.float64)]
    t._compute_kl_logps = lambda *_: mismatched.pop(0) if anchored else None
    batch = {**inputs(lengths), "label": torch.tensor([e["reward"] > 0.5 for e in episodes])}
    loss = KTOTrainer._compute_loss(t, model(lp, lengths), batch, False)
    loss.backward()
    names = ["rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "logps/rejected"]
    metrics = {n: t._metrics["train"][n][0] for n in names}
    groups = [[e] for e in episodes]
    return case(name, "kto", settings or {}, on, groups, loss, lp.grad, anchor=0.4 if anchored else None, metrics=metrics)


def of_completions(name, method, on, loss, settings=None):
    """A loss of the mean or summed log-probabilities of completions."""
    groups = INPUTS[on]
    lps = [leaf(g) for g in groups]
    halves = [torch.split(lp, [len(e["logprob"]) for e in g]) for lp, g in zip(lps, groups)]
    total = loss([c for c, _ in halves], [r for _, r in halves])
    total.backward()
    return case(name, method, settings or {}, on, groups, total, torch.cat([lp.grad for lp in lps]))


def orpo(chosen, rejected):
    mean = lambda lps: torch.stack([lp.mean() for lp in lps])
    t = SimpleNamespace(beta=0.1, accelerator=accelerator())
    with_f64 = lambda x: SimpleNamespace(float=lambda: x)  # TRL rounds to f32
    ratio = ORPOTrainer.odds_ratio_loss(t, with_f64(mean(chosen)), with_f64(mean(rejected)))[0]
    return (-mean(chosen) - ratio).mean()


def cpo(chosen, rejected, reduce=torch.sum, nll=1.0, **given):
    of = lambda lps: torch.stack([reduce(lp) for lp in lps])
    t = SimpleNamespace(alpha=0.0, label_smoothing=0.0, accelerator=accelerator(), **given)
    losses = CPOTrainer.cpo_loss(t, of(chosen), of(rejected))[0]
    return (losses - nll * torch.stack([lp.sum() for lp in chosen])).mean()


def papers(on):
    """Losses that TRL 1.16 has not, and all of them again from the papers."""
    flat = lambda grad: [x for row in grad for x in row]
    pairs, alone = INPUTS[on], [[e] for g in INPUTS[on] for e in g]
    out = []
    for method in [*paper.PAIRS, "aot"]:
        own = sharpened(pairs) if method == "wpo" else pairs
        loss, grad = paper.step(own, method)
        out.append(case(f"{method}, paper", method, {}, on, own, loss, flat(grad), source="paper"))
    for method, anchor in [("kto", 0.4), ("bco", -0.3)]:
        loss, grad = paper.step(alone, method, anchor)
        out.append(case(f"{method}, paper", method, {}, on, alone, loss, flat(grad), anchor=anchor, source="paper"))
    alpha = {"divergence": "alpha", "alpha": 0.3}
    loss, grad = paper.step(pairs, "dpo", divergence_=("alpha", 0.3))
    out.append(case("dpo, alpha, paper", "dpo", alpha, on, pairs, loss, flat(grad), source="paper"))
    loss, grad = paper.step(pairs, "ipo", average=False)
    out.append(case("ipo, sums, paper", "ipo", {"average": False}, on, pairs, loss, flat(grad), source="paper"))
    return out


def cases():
    out = []
    for on in INPUTS:
        simpo = lambda c, r: cpo(c, r, torch.mean, 0.0, loss_type="simpo", beta=2.0, simpo_gamma=1.0)
        smoothing = {"label_smoothing": 0.1}
        out += [
            dpo("dpo", "dpo", on, "sigmoid"),
            dpo("dpo, beta", "dpo", on, "sigmoid", {"beta": 0.5}, beta=0.5),
            dpo("sigmoid_norm", "dpo", on, "sigmoid_norm", {"average": True}),
            dpo("forward_kl", "dpo", on, "sigmoid", {"divergence": "forward_kl"}, f_divergence_type="forward_kl"),
            dpo("js", "dpo", on, "sigmoid", {"divergence": "js"}, f_divergence_type="js_divergence"),
            dpo("ld_alpha", "dpo", on, "sigmoid", {"tail_weight": 0.4}, ld_alpha=0.4),
            dpo("robust", "robust", on, "robust", label_smoothing=0.1),
            dpo("hinge", "hinge", on, "hinge"),
            dpo("ipo", "ipo", on, "ipo"),
            dpo("nca_pair", "nca", on, "nca_pair"),
            dpo("exo_pair", "exo", on, "exo_pair", label_smoothing=1e-3),
            dpo("sppo_hard", "sppo", on, "sppo_hard"),
            dpo("apo_zero", "apo_zero", on, "apo_zero"),
            dpo("apo_down", "apo_down", on, "apo_down"),
            dpo("discopop", "discopop", on, "discopop"),
            dpo("use_weighting", "wpo", on, "sigmoid", use_weighting=True),
            dpo("aot", "aot", on, "aot"),
            dpo("aot, smoothed", "aot", on, "aot", smoothing, label_smoothing=0.1),
            dpo("aot_unpaired", "aot", on, "aot_unpaired", {"paired": False}),
            mpo("mpo", on, [
                ("sigmoid", 0.8, {"kind": "dpo"}), ("bco_pair", 0.2, {"kind": "bco_pair"}), ("sft", 1.0, {"kind": "sft"})
            ]),
            mpo("bco_pair", on, [("bco_pair", 1.0, {"kind": "bco_pair"})]),
            mpo("sft", on, [("sft", 0.5, {"kind": "sft"}), ("hinge", 0.25, {"kind": "hinge"})]),
            mpo("ipo and aot", on, [
                ("ipo", 0.3, {"kind": "ipo", "beta": 0.2}), ("aot", 0.7, {"kind": "aot", "beta": 0.2, "label_smoothing": 0.1})
            ], beta=0.2, label_smoothing=0.1),
            kto("kto", on),
            kto("kto, weights", on, {"desirable_weight": 1.5, "undesirable_weight": 0.5}, desirable_weight=1.5, undesirable_weight=0.5),
            kto("apo_zero_unpaired", on, {"anchor": False}, loss_type="apo_zero_unpaired"),
            of_completions("orpo", "orpo", on, orpo),
            of_completions("cpo", "cpo", on, lambda c, r: cpo(c, r, loss_type="sigmoid", beta=0.1)),
            of_completions("simpo", "simpo", on, simpo),
            *papers(on),
        ]
    return out


if __name__ == "__main__":
    lines = [json.dumps(c) for c in cases()]
    head = json.dumps({"trl": trl.__version__, "torch": torch.__version__.split("+")[0]})
    sys.stdout.write('{"versions": ' + head + ', "cases": [\n' + ",\n".join(lines) + "\n]}\n")
