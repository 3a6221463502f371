"""Where a library computes something else than its paper, or than we do: each entry's numbers are made here, by calling
the library on a small case.

    pip install (see verl_library.py) trl==1.16.0
    python disagreements.py > DISAGREEMENTS.md
"""

from unittest.mock import patch

import numpy as np
import torch
import trl
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

import from_trl
from verl_library import VERSION, AlgoConfig, actor, core_algos, rollout_corr_helper

INTRODUCTION = f"""# Where libraries disagree

Made by `disagreements.py` with verl {VERSION} and TRL {trl.__version__}: every number of theirs is what the library's own
function returned, but for those of the last section. None of these is a golden. "Ours" is the definition on the algorithm's page.
"""


def show(x):
    if isinstance(x, torch.Tensor):
        x = x.detach().tolist()
    if isinstance(x, (list, tuple)):
        return "[" + ", ".join(show(v) for v in x) + "]"
    return f"{x:.6g}" if isinstance(x, float) else str(x)


def t(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def outcome(rewards, groups, name, **more):
    """An estimator's advantages of episodes of one token each."""
    scores = t(*[[r] for r in rewards])
    made = core_algos.get_adv_estimator_fn(name)(
        scores, response_mask=torch.ones_like(scores), index=np.array(groups), **more
    )
    return made[0][:, 0]


ENTRIES = []


def entry(library, name):
    def add(write):
        ENTRIES.append((library, name, write))
        return write

    return add


@entry("verl", "gpg: α")
def gpg_alpha():
    got = outcome([1.0, 0.0, 1.0, 1.0], [0, 0, 1, 1], "gpg")
    return f"""α = samples / samples with a non-zero reward. The paper (2504.02546) has samples / samples in groups whose
rewards are not all equal. Rewards [1, 0] and [1, 1]: verl's α is 4/3 and its advantages {show(got)}; the paper's α is 2
and its advantages [1, -1, 0, 0]. Rewards [-1, 1] in both groups give 1 either way."""


@entry("verl", "grpo, rloo, opo, gpg, reinforce++-baseline: a group of one")
def group_of_one():
    parts = []
    for name in ["grpo", "rloo", "rloo_vectorized", "opo", "gpg"]:
        parts.append(f"{name} {show(outcome([0.7], [0], name))}")
    return f"""The only episode of a group has no other to be compared with. With reward 0.7: {"; ".join(parts)}: the raw reward
becomes the advantage (baseline 0, deviation 1), but for `rloo_vectorized`, which gives 0 and so disagrees with `rloo`.
Ours: 0, and counted."""


@entry("verl", "grpo: ε and near-equal rewards")
def near_equal():
    got = outcome([1.0, 1.0 + 1e-7, 1.0, 1.0], [0] * 4, "grpo")
    return f"""ε of the deviation is 1e-6 where we have 1e-4 (`std_epsilon`, with which the goldens agree). A spread below
the resolution of float32 still counts: rewards [1, 1 + 1e-7, 1, 1] give {show(got)}; ours are 0."""


@entry("verl", "masked_whiten: which variance")
def whitening():
    x = t([1.0, 2.0, 4.0, 0.0])
    got = core_algos.verl_F.masked_whiten(x, torch.ones_like(x))[0]
    ours = ((x - x.mean()) / x.var(unbiased=False).sqrt())[0]
    zero = core_algos.verl_F.masked_whiten(t([1.0, 1.0, 1.0 + 1e-5]), torch.ones(1, 3, dtype=torch.float64))[0]
    return f"""(A − mean)/sqrt(var + 1e-8) with the variance of n − 1. Ours: the population's, and max(var, 1e-8). [1, 2, 4,
0]: verl {show(got)}, ours {show(ours)}, smaller by sqrt((n − 1)/n), 1e-4 at 5000 tokens. [1, 1, 1.00001]: verl
{show(zero)}. So of `gae`, `reinforce_plus_plus`, `reinforce_plus_plus_baseline` and `gdpo` only what comes before
whitening is a golden. One token is an error in verl; 0 in ours."""


@entry("verl", "gae: an episode that was cut off")
def truncated():
    rewards, values = t([0.0, 0.0]), t([0.5, 0.4])
    _, returns = core_algos.compute_gae_advantage_return(rewards, values, torch.ones_like(values), 1.0, 1.0)
    return f"""There is no value after the last token: a truncated episode is taken for one that ended. No reward, values
[0.5, 0.4], γ = λ = 1: returns {show(returns[0])}. Cut off where the value is 0.3, ours are [0.3, 0.3]."""


@entry("verl", "remax: KL in the reward")
def remax_kl():
    rewards = t([-0.1, -0.2, 1.0])
    got, _ = core_algos.compute_remax_outcome_advantage(
        rewards, torch.tensor([0.5], dtype=torch.float64), torch.ones_like(rewards)
    )
    return f"""Rewards to go less the baseline, so that with KL in the reward each token has its own advantage:
penalties [0.1, 0.2, 0] and reward 1 against 0.5 give {show(got[0])}. Ours takes the episode as one action: [0.2, 0.2,
0.2]. Without KL they agree (golden)."""


@entry("verl", "grpo_passk: ε; an all-equal group")
def passk():
    got = outcome([0.4, 0.1, 1.0], [0] * 3, "grpo_passk", config={"norm_adv_by_std_in_grpo": True})
    ours = 0.6 / (float(t([0.4, 0.1, 1.0]).std()) + 1e-4)
    return f"""Divides by std + 1e-6 unless told not to; ours does not divide unless told to, by std + 1e-4. Rewards [0.4,
0.1, 1]: verl {show(got)}, ours divided {show([0.0, 0.0, ours])}, undivided [0, 0, 0.6]. A group of one is an error in verl."""


@entry("verl", "gdpo: precision")
def gdpo():
    table = {"a": np.array([0.1, 0.2, 0.4]), "b": np.array([1.0, 0.0, 0.5])}
    mask = torch.ones(3, 2, dtype=torch.float64)
    batch = {"prompts": torch.zeros(3, 1), "attention_mask": torch.ones(3, 3, dtype=torch.long)}
    config = AlgoConfig(gdpo_reward_keys=["a", "b"], gdpo_reward_weights=[1.0, 0.5])
    got, _ = core_algos.compute_gdpo_outcome_advantage(
        mask, mask, np.zeros(3), config=config, non_tensor_batch=table, batch=batch
    )
    return f"""float32 inside, ε 1e-6, and the whitening above. Components [0.1, 0.2, 0.4] and [1, 0, 0.5], weights 1 and 0.5,
two tokens each: verl {show(got[:, 0])}. A component that does not apply has no place. Its whitening counts tokens, as ours
does; see TRL's below for the paper's."""


@entry("verl", "gspo: the clamp")
def gspo_clamp():
    lp = t([-0.5]).requires_grad_()
    loss, _ = core_algos.compute_policy_loss_gspo(
        t([-12.5]), lp, t([-1.0]), torch.ones(1, 1), "seq-mean-token-mean", actor(3e-4, 4e-4)
    )
    return f"""The mean log-ratio is clamped at 10 from above alone, with no gradient beyond; ours at ±20. At 12 with A = -1:
verl's loss is {show(loss.item())} = e¹⁰ and its derivative {show(torch.autograd.grad(loss, lp)[0].item())}; ours are
both {show(float(np.exp(12)))}. The aggregation is the configured one in this version (it was forced before); with anything but
`seq-mean-token-mean` it is not GSPO's."""


@entry("verl", "sapo: the aggregation")
def sapo_mode():
    lp, old, a, mask = (
        t([-0.5, -0.6], [-0.3, 0.0]),
        t([-0.6, -0.7], [-0.3, 0.0]),
        t([1.0, 1.0], [-1.0, 0.0]),
        t([1.0, 1.0], [1.0, 0.0]),
    )
    f = lambda rows, mode: core_algos.compute_policy_loss_sapo(old[rows], lp[rows], a[rows], mask[rows], mode, actor())[
        0
    ].item()
    got = [f([0, 1], mode) for mode in ["token-mean", "seq-mean-token-mean"]]
    by_token = (2 * f([0], "token-mean") + f([1], "token-mean")) / 3
    return f"""Always `seq-mean-token-mean`, whatever is configured: sequences of 2 and 1 tokens give {show(got[0])} under
`token-mean` and {show(got[1])} under `seq-mean-token-mean`; the mean over tokens is {show(by_token)}. Ours follows the
setting; the preset is the paper's."""


@entry("verl", "geo_mean: a mean over the micro-batch")
def geo_mean():
    lp, old = t([-0.5, -0.6], [-0.3, -0.9], [-1.0, 0.0]), t([-0.6, -0.7], [-0.3, -0.8], [-1.1, 0.0])
    a, mask = t([1.0, 1.0], [-1.0, -1.0], [0.5, 0.5]), t([1.0, 1.0], [1.0, 1.0], [1.0, 0.0])
    f = lambda rows: core_algos.compute_policy_loss_geo_mean(
        old[rows], lp[rows], a[rows], mask[rows], "token-mean", actor(0.4, 0.4)
    )[0].item()
    empty = mask * t([1.0], [1.0], [0.0])
    with_empty = core_algos.compute_policy_loss_geo_mean(old, lp, a, empty, "token-mean", actor(0.4, 0.4))[0].item()
    return f"""`torch.mean` over the rows it is given: the loss of three sequences is {show(f([0, 1, 2]))}; as micro-batches of
two and one it is {show(f([0, 1]))} and {show(f([2]))}, whose mean is {show((f([0, 1]) + f([2])) / 2)}. Rows without a token
count as sequences: with the third emptied, {show(with_empty)}, where the mean over two is {show(with_empty * 1.5)}.
Token weights of a correction are multiplied up to their geometric mean; ours rejects token weights for one term per sequence."""


@entry("verl", "cispo: both sides")
def cispo():
    lp, old = t([-0.5, -0.5]), t([-0.2, -2.5])
    loss, _ = core_algos.compute_policy_loss_cispo(
        old, lp, t([1.0, 1.0]), torch.ones(1, 2), "token-mean", actor(0.2, 0.28)
    )
    return f"""The weight is clipped into [1 − ε_low, 1 + ε_high]. Ratios [0.741, 7.39], A = 1, lp = -0.5: verl's loss
{show(loss.item())}, weights 0.8 and 1.28. MiniMax's paper leaves the lower side open: 0.741 stays. Ours: cap and floor
are absolute, with floor 1 − ε_low and cap 1 + ε_high it agrees (golden)."""


@entry("verl", "dppo_tv, dppo_kl: the cap that a default run has")
def dppo_cap():
    lp, old, a = t([-3.0]), t([-6.0]), t([1.0])
    default = core_algos.compute_policy_loss_dppo_tv(old, lp, a, torch.ones(1, 1), "token-mean", actor())[0].item()
    paper = core_algos.compute_policy_loss_dppo_tv(
        old, lp, a, torch.ones(1, 1), "token-mean", actor(clip_ratio_c=20.0)
    )[0].item()
    return f"""The function's default is 20, but `ActorConfig.clip_ratio_c` is always there and is 3: a ratio of e³ = 20.1
has a loss of {show(default)} by default and {show(paper)} with 20. Both take the ratio to `old_log_prob`: the paper's
anchor is the sampler. `dppo_kl` adds 1e-8 inside its logarithms. δ of both is `clip_ratio`, 0.2."""


@entry("verl", "clip_cov, kl_cov: which covariance, which tokens")
def covariance():
    lp, old = t([-0.1, -1.2, -0.2, -1.0]), t([-0.4, -2.0, -0.1, -1.1])
    a = t([1.5, 0.1, 1.4, -0.2])
    knobs = {"kl_cov_ratio": 0.25, "ppo_kl_coef": 1.0}
    leaf = lp.clone().requires_grad_()
    loss, _ = core_algos.compute_policy_loss_kl_cov(
        old, leaf, a, torch.ones(1, 4), "token-mean", actor(policy_loss=knobs)
    )
    plain = -a * torch.exp(lp - old) / 4
    picked = (torch.autograd.grad(loss, leaf)[0] - plain).abs().argmax().item()
    c = (a - a.mean()) * (old - old.mean())
    sizes = []
    spread = {"clip_cov_ratio": 0.5, "clip_cov_lb": 0.0, "clip_cov_ub": 9.0}
    for seed in range(8):
        torch.manual_seed(seed)
        leaf = old.clone().requires_grad_()
        loss, _ = core_algos.compute_policy_loss_clip_cov(
            old, leaf, a, torch.ones(1, 4), "token-mean", actor(policy_loss=spread)
        )
        g = torch.autograd.grad(loss, leaf)[0][0]
        sizes.append(tuple(i for i in range(4) if g[i] == 0))
    return f"""c_t is taken with the *current* log-probabilities and over the micro-batch; ours with those before the step,
over the step, so that neither split nor order changes the picks. One of four tokens: verl picks token {picked}, by `old`
it is token {c.argmax().item()}. At least one token is picked in every micro-batch. The draw of `clip_cov` is an unseeded
`torch.randperm`: eight runs picked two of four tokens as {sorted(set(sizes))}. `PolicyLossConfig.ppo_kl_coef` is 0.1, where the
paper and the function's docstring have 1. Log-ratios are not clamped."""


@entry("verl", "k3: the clamps")
def k3():
    lp = t([-4.0, -30.0]).requires_grad_()
    got = core_algos.kl_penalty(lp, t([-1.0, -1.0]), "k3")
    g = torch.autograd.grad(got.sum(), lp)[0]
    plus = core_algos.kl_penalty(lp, t([-1.0, -1.0]), "k3+")
    return f"""The estimate is clamped to ±10, the log-ratio to ±20, and both clamps have no gradient beyond: a token that
the policy has all but given up is not pulled back. ref − lp = [3, 29]: verl {show(got)}, derivatives {show(g)}, `k3+`
{show(plus)}. Ours: e³ − 4 = {show(float(np.exp(3) - 4))}, derivative {show(float(1 - np.exp(3)))}; beyond 20 along the
tangent. Below 10 they agree (goldens)."""


@entry("verl", "rejection: bounds of k1, and the count")
def rejection():
    log_ratio = torch.log(t([0.3, 0.6, 1.0, 2.5, 4.0]))
    kept, _ = rollout_corr_helper.compute_rollout_rejection_mask(
        log_ratio, torch.ones_like(log_ratio), "token_k1", "0.5_5.0"
    )
    loss = core_algos.agg_loss(torch.ones_like(log_ratio), kept, "token-mean").item()
    return f""""0.5_5.0" reads like the bounds of the ratio π_train/π_rollout that IcePop has, but k1 = −log of that ratio is
held between log 0.5 and log 5: ratios [0.3, 0.6, 1, 2.5, 4] keep {show(kept[0])}, which is [0.2, 2]. Rejected tokens leave
`response_mask` and so the normaliser: with {int(kept.sum())} of 5 tokens kept at a loss of 1 each, `token-mean` gives
{show(loss)}; ours stays at {show(float(kept.mean()))} (they stay in the count). There is no `seq_max_k1`, no geometric weight."""


@entry("verl", "vanilla: the dual clip")
def dual():
    lp, old, a = t([-0.5]), t([-2.5]), t([-1.0])
    got = core_algos.compute_policy_loss_vanilla(old, lp, a, torch.ones(1, 1), "token-mean", actor())[0].item()
    return f"""On by default at c = 3: a ratio of 7.39 with A = -1 has a loss of {show(got)}. Ours is off by default (7.38906)."""


def trl_loss(lp, old, advantages, mask, num_items=None, spg=1, **knobs):
    leaf = lp.clone().requires_grad_()
    trainer = from_trl.loss_trainer(GRPOTrainer, leaf, torch.zeros_like(lp), **knobs)
    trainer.args.steps_per_generation = spg
    inputs = {
        "prompt_ids": torch.zeros(len(lp), 1, dtype=torch.long), "prompt_mask": torch.ones(len(lp), 1),
        "completion_ids": torch.zeros(mask.shape, dtype=torch.long), "completion_mask": mask, "advantages": advantages,
        "old_per_token_logps": old, "num_items_in_batch": mask.sum() if num_items is None else torch.tensor(float(num_items)),
    }  # fmt: skip
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss.item(), torch.autograd.grad(loss, leaf)[0]


@entry("TRL", "dapo, cispo: the normaliser")
def trl_normaliser():
    lp, mask = t([-0.5, -0.5, -0.5], [-0.5, 0.0, 0.0]), t([1.0, 1.0, 1.0], [1.0, 0.0, 0.0])
    got, _ = trl_loss(lp, lp, t(1.0, 1.0), mask, num_items=6, spg=2, loss_type="dapo")
    return f"""The tokens of the whole generation batch, divided by the number of windows it is split into: not those of the
optimiser step. With `steps_per_generation` 2 and a generation batch of 6 tokens, a step of 4 tokens with a loss of -1 each
gives {show(got)} (4/3), and the other step of 2 tokens -0.666667. A mean over the step's tokens is -1 for both; with one
window they agree (golden)."""


@entry("TRL", "bnpo: a local mean")
def trl_bnpo():
    lp, a = t([-0.5, -0.5, -0.5], [-0.5, 0.0, 0.0]), t(1.0, -1.0)
    mask = t([1.0, 1.0, 1.0], [1.0, 0.0, 0.0])
    whole, _ = trl_loss(lp, lp, a, mask, loss_type="bnpo")
    parts = [
        trl_loss(lp[i : i + 1], lp[i : i + 1], a[i : i + 1], mask[i : i + 1], loss_type="bnpo")[0] for i in range(2)
    ]
    return f"""A mean over the tokens of each micro-batch, so that its value depends on the split: two sequences of 3 and 1
tokens with A = 1 and -1 give {show(whole)} together, and {show(parts)} one by one, mean {show(sum(parts) / 2)}. Not offered."""


@entry("TRL", "cispo: ε_high is the cap")
def trl_cispo():
    lp, old = t([-0.5, -0.5]), t([-0.5, -2.5])
    got, gradient = trl_loss(
        lp, old, t(1.0), torch.ones(1, 2, dtype=torch.float64), loss_type="cispo", epsilon_high=0.28
    )
    return f"""`epsilon_high` is the largest weight itself, not 1 + ε_high: with 0.28 even a ratio of 1 is cut to 0.28. Ratios [1,
7.39], A = 1: loss {show(got)}, derivatives {show(gradient[0])}. Its recommended value is 5.0, as ours (`weight_cap`)."""


@entry("TRL", "sequence-level ratio: the normaliser")
def trl_gspo():
    lp, old = t([-0.5, -0.6, -0.7], [-0.3, 0.0, 0.0]), t([-0.6, -0.6, -0.6], [-0.4, 0.0, 0.0])
    mask = t([1.0, 1.0, 1.0], [1.0, 0.0, 0.0])
    f = lambda kind: trl_loss(
        lp,
        old,
        t(1.0, -1.0),
        mask,
        loss_type=kind,
        importance_sampling_level="sequence",
        epsilon_low=0.3,
        epsilon_high=0.4,
    )[0]
    return f"""GSPO is `importance_sampling_level="sequence"` with `loss_type="grpo"` ({show(f("grpo"))}); with the default
`dapo` the same sequences are weighted by their lengths ({show(f("dapo"))})."""


@entry("TRL", "delta")
def trl_delta():
    lp, old = t([-0.5]), t([-1.5])
    with_delta, _ = trl_loss(lp, old, t(1.0), t([1.0]), loss_type="grpo", delta=1.1)
    negative, _ = trl_loss(lp, old, t(-1.0), t([1.0]), loss_type="grpo", delta=1.1)
    return f"""Clamps the ratio for both signs of A before the clip: with delta = 1.1 < 1 + ε the loss at a ratio of 2.72 is
{show(with_delta)} for A = 1 (PPO: -1.2) and {show(negative)} for A = -1. A dual clip acts on A < 0 alone; above 1 + ε they are
the same (golden). `clip_ratio/high` is counted after the clamp."""


@entry("TRL", "log-ratios are not clamped")
def trl_clamp():
    loss, gradient = trl_loss(t([-0.5]), t([-25.5]), t(-1.0), t([1.0]), loss_type="grpo")
    return f"""At a log-ratio of 25 with A = -1 the loss is {show(loss)} and its derivative {show(gradient.item())}; ours e²⁰ =
{show(float(np.exp(20)))} and 0."""


@entry("TRL", "entropy bonus: its own normaliser")
def trl_entropy():
    lp, mask = t([-0.5, -0.5, -0.5], [-0.5, 0.0, 0.0]), t([1.0, 1.0, 1.0], [1.0, 0.0, 0.0])
    leaf = t([1.0, 1.0, 1.0], [2.0, 0.0, 0.0]).requires_grad_()
    trainer = from_trl.loss_trainer(GRPOTrainer, lp, leaf, loss_type="grpo", entropy_coef=1.0)
    inputs = {
        "prompt_ids": torch.zeros(2, 1, dtype=torch.long), "prompt_mask": torch.ones(2, 1), "completion_mask": mask,
        "completion_ids": torch.zeros(mask.shape, dtype=torch.long), "advantages": t(0.0, 0.0), "old_per_token_logps": lp,
        "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    got = GRPOTrainer._compute_loss(trainer, None, inputs).item()
    return f"""Always a mean over the micro-batch's tokens, whatever normalises the policy's term: entropies of 1 on three tokens
and 2 on one give {show(got)} with `loss_type="grpo"`; our bonus follows `loss_aggregation`: mean of sequences, -1.5. With
`token_mean` they agree (golden)."""


@entry("TRL", "rloo: a clipped ratio of the whole sequence")
def trl_rloo():
    lp, old, mask = t([-0.5, -0.5]).requires_grad_(), t([-0.7, -0.7]), torch.ones(1, 2, dtype=torch.float64)
    trainer = from_trl.loss_trainer(RLOOTrainer, lp, torch.zeros_like(mask))
    inputs = {
        "prompt_ids": torch.zeros(1, 1, dtype=torch.long), "prompt_mask": torch.ones(1, 1), "completion_mask": mask,
        "completion_ids": torch.zeros(1, 2, dtype=torch.long), "advantages": t(1.0), "old_logps": old.sum(1),
    }  # fmt: skip
    loss = RLOOTrainer._compute_loss(trainer, None, inputs)
    return f"""PPO's clip on exp(Σ_t(lp − old)); the paper (2402.14740) is REINFORCE, with one step per batch. At a ratio of 1.49
and A = 1 the loss is {show(loss.item())} and the derivatives {show(torch.autograd.grad(loss, lp)[0][0])}; ours 1 and [-1, -1].
At the first step of a batch the gradients agree (golden), the values differ by a constant."""


@entry("TRL", "GDPO: whitening over samples")
def trl_gdpo():
    case = {
        "GROUPS": [[1.2, 0.5]],
        "TOKENS": [[1, 3]],
        "OLD": [[[-0.5], [-0.5] * 3]],
        "REFERENCE": [[[-0.5], [-0.5] * 3]],
    }
    knobs = {
        "multi_objective_aggregation": "normalize_then_sum", "reward_funcs": [None, None], "reward_func_names": ["a", "b"],
        "reward_weights": torch.tensor([1.0, 0.5], dtype=torch.float64), "reward_rows": [[1.0, 0.4], [0.0, 1.0]],
    }  # fmt: skip
    with patch.multiple(from_trl, **case):
        made = from_trl.advantage_case("", "gdpo", {}, GRPOTrainer, **knobs)
    got = [made["advantage"][0][0][0], made["advantage"][0][1][0]]
    return f"""The weighted sum is normalised over the batch's *samples*, (A − mean)/(std + 1e-4) with n − 1: the paper's
(2601.05242) batch-wise normalisation is of samples too. verl and ours whiten over tokens, so that long completions count
more: components [1, 0] and [0.4, 1], weights 1 and 0.5, completions of 1 and 3 tokens: TRL {show(got)}, ours
[1.73205, -0.57735]."""


READ = """## Read in the source, not run

### PRIME's own code (verl's `recipe/prime`, before it moved out)

The leave-one-out baseline of process rewards is q_t·K/(K − 1) − Σ_j q̄_j/(K − 1), which is the paper's q_t − mean of the
others' q̄ only where q_t is its episode's mean: q = [[0.2, 0.4], [0.1]] gives [0, 0.4] for the first episode, the paper's
formula [0.1, 0.3]. It then whitens, weights both rewards by 5, and by default normalises process rewards over the batch
(`prime_norm: batch_norm`) in place of β. β = 0.05 and updating the model before its rewards are used are as here.
"""


def main():
    print(INTRODUCTION)
    for library in ["verl", "TRL"]:
        print(f"## {library} {VERSION if library == 'verl' else trl.__version__}\n")
        for of, name, write in ENTRIES:
            if of == library:
                print(f"### {name}\n\n{write()}\n")
    print(READ, end="")


if __name__ == "__main__":
    main()
