"""The losses as their papers have them, in PyTorch and float64. What a paper holds constant is detached; every derivative
is autograd's.

PPO 1707.06347 (clip, value loss), 1912.09729 (dual clip), REINFORCE (Williams 1992), RLOO 2402.14740 (a completion as
one action), GSPO and GSPO-token 2507.18071, GMPO 2507.20673, CISPO 2506.13585, SAPO 2511.20347, TOPR 2503.14286,
DPPO 2602.04879, Clip-Cov and KL-Cov 2505.22617, decoupled PPO 2110.00641, implicit process reward 2502.01456.
k1, k2, k3: Schulman, "Approximating KL divergence", 2020; times the ratio off the policy: 2512.02556.
Log-ratios are clamped to ±20 before `exp`; beyond, their derivative is zero.
"""

import torch

from inputs import column, sequences

CLAMP = 20.0
KINK = 1e-4  # no number comes closer to a bound than this


def exp(log_ratio):
    away(log_ratio, -CLAMP, CLAMP)
    return torch.exp(torch.clamp(log_ratio, -CLAMP, CLAMP))


def away(x, *bounds):
    for b in bounds:
        if b is not None and x.numel():
            assert (x - b).abs().min() > KINK * max(min(abs(b), 1.0), 1e-3), f"an input lies on the kink at {b}"


def clip(x, low, high):
    away(x, low, high)
    return torch.clamp(x, low, high)


class Step:
    """One optimiser step: leaves for what has a derivative, constants for the rest."""

    def __init__(self, x, ratio_to="old", log_linear=False):
        self.x = x
        self.lp = column(x["logprob"]).requires_grad_()
        self.entropy = column(x["entropy"]).requires_grad_()
        self.value = column(x["value"]).requires_grad_() if "value" in x else None
        get = lambda name: column(x[name]) if name in x else None
        self.old, self.behavior, self.reference = get("old"), get("behavior"), get("reference")
        if log_linear:
            self.old = (self.behavior + get("alpha") * (self.lp - self.behavior)).detach()
        self.base = self.behavior if ratio_to == "behavior" else self.old
        self.advantage = get("advantage")
        self.rows = [list(r) for r in sequences(x["lengths"]) if len(r)]
        masked = x.get("masked") or [False] * len(x["lengths"])
        self.trained = [not m for m, r in zip(masked, x["lengths"]) if r]
        self.outcome = [o for o, r in zip(x["outcome"], x["lengths"]) if r] if "outcome" in x else None
        self.tokens = sum(len(r) for r in self.rows)

    def by_row(self, per_row):
        """A number per sequence, for each of its tokens."""
        out = torch.zeros(self.tokens, dtype=torch.float64)
        for r, v in zip(self.rows, per_row):
            out[r] = v
        return out

    def kept(self):
        return self.by_row([float(t) for t in self.trained])

    def aggregate(self, per_token, mode):
        """A masked row adds nothing and stays in every count."""
        rows = [(per_token * self.kept())[r] for r in self.rows]
        if mode == "token_mean":
            return torch.cat(rows).sum() / self.tokens
        if mode == "sequence_mean":
            return torch.stack([r.mean() for r in rows]).mean()
        if mode == "constant_length":
            return torch.stack([r.sum() / self.x["completion_limit"] for r in rows]).mean()
        if mode == "sequence_sum":
            return torch.stack([r.sum() for r in rows]).mean()
        raise ValueError(mode)


def ppo_terms(ratio, a, low, high, dual=None):
    objective = torch.minimum(ratio * a, clip(ratio, 1 - low, 1 + high) * a)
    if dual is not None:
        away(ratio, dual)
        objective = torch.where(a < 0, torch.maximum(objective, dual * a), objective)
    return -objective


def ppo_clipped(ratio, a, low, high, dual=None):
    """Shares of tokens on a constant branch."""
    mean = lambda hit: float(hit.double().mean())
    shares = {
        "clip_ratio/low": mean((a < 0) & (ratio < 1 - low)),
        "clip_ratio/high": mean((a > 0) & (ratio > 1 + high)),
    }
    if dual is not None:
        shares["clip_ratio/dual"] = mean((a < 0) & (ratio > dual))
    return shares


def sequence_ratio(step):
    return [exp((step.lp - step.base)[r].mean()) for r in step.rows]


def gmpo(step, low, high):
    out, clipped = [], {"clip_ratio/low": 0.0, "clip_ratio/high": 0.0}
    for r in step.rows:
        away((step.lp - step.base)[r], -CLAMP, CLAMP)
        log_ratio = torch.clamp((step.lp - step.base)[r], -CLAMP, CLAMP)
        a = step.advantage[r][0]
        s = torch.sign(a)
        bounded = s * torch.minimum(s * log_ratio, s * clip(log_ratio, -low, high))
        out.append(-a * torch.exp(bounded.mean()))
        clipped["clip_ratio/low"] += float(((a < 0) & (log_ratio < -low)).sum()) / step.tokens
        clipped["clip_ratio/high"] += float(((a > 0) & (log_ratio > high)).sum()) / step.tokens
    return torch.stack(out), clipped


def dppo_keep(step, divergence, limit):
    p, q, a = step.lp.detach().exp(), step.behavior.exp(), step.advantage
    if divergence == "tv":
        d = (p - q).abs()
    else:
        d = q * torch.log(q / p) + (1 - q) * torch.log((1 - q) / (1 - p))
    away(d, limit)
    drop = (d > limit) & ((p - q) * a > 0)
    share = lambda hit: float(hit.double().mean())
    return (~drop).double(), {"clip_ratio/low": share(drop & (a < 0)), "clip_ratio/high": share(drop & (a > 0))}


def covariance(step):
    """c_t = (A_t − mean A)(old_t − mean old) over the step."""
    return (step.advantage - step.advantage.mean()) * (step.old - step.old.mean())


def count_picked(step, share):
    exact = share * step.tokens
    assert exact < 0.5 or abs(exact - round(exact)) > 1e-3, "a share of a whole number of tokens is left to rounding"
    return max(1, int(exact))


def kl_cov_picks(step, share):
    c, k = covariance(step), count_picked(step, share)
    order = torch.argsort(c, descending=True)
    assert c[order[k - 1]] - c[order[k]] > KINK
    return sorted(order[:k].tolist())


def clip_cov_candidates(step, low, high, cov_low, cov_high):
    c, ratio, a = covariance(step), exp(step.lp - step.old).detach(), step.advantage
    away(c, cov_low, cov_high)
    clipped = ((a > 0) & (ratio > 1 + high)) | ((a < 0) & (ratio < 1 - low))
    return [t for t in range(step.tokens) if cov_low < c[t] < cov_high and not clipped[t]]


def surrogate(step, kind, picked=None, **k):
    """(per token or per sequence, shares of clipped tokens)."""
    a, lp = step.advantage, step.lp
    if callable(kind):
        return kind(step, **k), {}
    if kind == "sft":
        return -lp, {}
    if kind == "dft":  # arXiv 2508.05629, eq. 9
        return -torch.exp(lp).detach() * lp, {}
    if kind == "reinforce":
        return -a * lp, {}
    if kind == "ppo":
        ratio = exp(lp - step.base)
        return ppo_terms(ratio, a, **k), ppo_clipped(ratio, a, **k)
    if kind in ("gspo", "gspo_token"):
        s = sequence_ratio(step)
        shares = ppo_clipped(step.by_row([x.detach() for x in s]), a, **k)
        if kind == "gspo":
            per_row = torch.stack([a[r][0] for r in step.rows])
            return ppo_terms(torch.stack(s), per_row, **k), shares
        inside = step.by_row([float((lp - step.base)[r].mean().abs() <= CLAMP) for r in step.rows])
        moving = torch.exp(lp - lp.detach())  # 1, with the derivative of lp
        return ppo_terms(
            step.by_row([x.detach() for x in s]) * torch.where(inside > 0, moving, moving.detach()), a, **k
        ), shares
    if kind == "gmpo":
        return gmpo(step, **k)
    if kind == "cispo":
        ratio = exp(lp - step.base).detach()
        share = lambda hit: float(hit.double().mean())
        shares = {"clip_ratio/low": share(ratio < k["floor"]), "clip_ratio/high": share(ratio > k["cap"])}
        return -clip(ratio, k["floor"] or None, k["cap"]) * a * lp, shares
    if kind == "sapo":
        tau = torch.where(a > 0, k["positive"] + 0 * a, k["negative"] + 0 * a)  # in float64
        return -a * (4 / tau) * torch.sigmoid(tau * (exp(lp - step.base) - 1)), {}
    if kind == "topr":
        log_ratio = (lp - step.behavior).detach()
        if k["level"] == "sequence":
            log_ratio = step.by_row([log_ratio[r].sum() for r in step.rows])
        away(log_ratio, 0.0)
        w = torch.where(a >= 0, torch.ones_like(a), torch.clamp(exp(log_ratio), max=1.0))
        return -w * a * lp, {}
    if kind == "dppo":
        keep, shares = dppo_keep(step, k["divergence"], k["limit"])
        w = exp(lp - step.behavior).detach()
        away(w, k["cap"])
        return -keep * torch.clamp(w, max=k["cap"]) * a * lp, shares
    if kind == "clip_cov":
        per_token = ppo_terms(exp(lp - step.base), a, k["low"], k["high"])
        return per_token * held(step, picked, 0.0, 1.0), {}
    if kind == "kl_cov":
        log_ratio = lp - step.base
        return -exp(log_ratio) * a + held(step, picked, k["coef"], 0.0) * log_ratio.abs(), {}
    if kind == "prm":
        s = torch.stack([k["beta"] * (lp - step.reference)[r].sum() for r in step.rows])
        outcome = torch.tensor(step.outcome, dtype=torch.float64)
        return torch.nn.functional.binary_cross_entropy_with_logits(s, outcome, reduction="none"), {}
    raise ValueError(kind)


def held(step, picked, there, elsewhere):
    out = torch.full((step.tokens,), elsewhere, dtype=torch.float64)
    out[picked] = there
    return out


PER_SEQUENCE = {"gspo", "gmpo", "prm"}


def is_per_sequence(kind, knobs):
    """A loss with its own file is a function of its settings."""
    own = getattr(kind, "per_sequence", None)
    return own(**knobs) if own else kind in PER_SEQUENCE


def estimate(log_ratio, estimator):
    """k1, k2, k3 of KL(p ‖ q) at a token of p, from log p − log q."""
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return log_ratio**2 / 2
    k3 = torch.exp(-log_ratio) + log_ratio - 1
    if estimator == "k3":
        return k3
    k2 = log_ratio**2 / 2
    return k3.detach() + k2 - k2.detach()  # k3+


def correction(
    step,
    level=None,
    action=None,
    low=None,
    high=None,
    reject=None,
    reject_level=None,
    reject_low=None,
    reject_high=None,
    has_ratio=True,
):
    """The weight of each token: sg(π_old/β), bounded, times whether its token or sequence is kept. A loss without a
    ratio takes one step per batch: its old policy is the one that is trained."""
    old = step.old if has_ratio else step.lp.detach()
    log_ratio = old - step.behavior
    w = torch.ones(step.tokens, dtype=torch.float64)
    if level is not None:
        if level == "sequence":
            log_ratio = step.by_row([log_ratio[r].sum() for r in step.rows])
        elif level == "geometric":
            log_ratio = step.by_row([log_ratio[r].mean() for r in step.rows])
        w = exp(log_ratio)
        away(w, low, high)
        if action == "clamp":
            w = torch.clamp(w, low, high)
        else:
            w = w * ((w >= (low or 0.0)) & (w <= high)).double()
    if reject is not None:
        d = estimate(step.behavior - old, reject)  # the tokens are β's
        if reject_level == "sequence_mean":
            d = step.by_row([d[r].mean() for r in step.rows])
        elif reject_level == "sequence_max":
            d = step.by_row([d[r].max() for r in step.rows])
        away(d, reject_low, reject_high)
        keep = d <= reject_high
        if reject_low is not None:
            keep = keep & (d >= reject_low)
        w = w * keep.double()
    return w


def value_terms(step, clip_by):
    v, r, old = step.value, column(step.x["returns"]), column(step.x["old_value"])
    plain = (v - r) ** 2
    if not clip_by:
        return plain / 2, {}
    away((v - old).abs(), clip_by)
    bounded = (old + torch.clamp(v - old, -clip_by, clip_by) - r) ** 2
    active = (v - old).abs() > clip_by
    away((plain - bounded)[active], 0.0)
    return torch.maximum(plain, bounded) / 2, {"value_clip_ratio": float((active & (bounded > plain)).double().mean())}


def explained_variance(step):
    """1 − Var(R − V)/Var(R) over the step's tokens."""
    r = column(step.x["returns"])
    return 1 - float((r - step.value.detach()).var() / r.var())


def effective_sample_size(w):
    """(Σw)²/(n Σw²), 1 where all weights are equal."""
    return float(w.sum() ** 2 / (len(w) * (w**2).sum()))
