"""Losses and advantages as TRL's own trainers compute them: their methods are called on stand-ins for the trainer.

    pip install trl==1.16.0 torch
    python from_trl.py > from_trl.json

`GRPOTrainer._compute_loss` and `RLOOTrainer._compute_loss` get per-token log-probabilities and entropies as leaves,
so autograd gives their gradients. `_generate_and_score_completions` of both gets rewards and gives advantages.
"""

import json
import sys
from collections import defaultdict, deque
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch
import trl
from accelerate import PartialState
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

from groups import GROUP_SETS
from inputs import LIMIT, column, digits, make, nested, sequences

PartialState()  # accelerate's collectives ask for it
SETS = {"base": GROUP_SETS["base"]}
GROUPS, TOKENS, OLD, REFERENCE = (SETS["base"][k] for k in ["rewards", "tokens", "old", "reference"])
INPUTS = {"near": make(21, [3, 5, 1, 4, 2], 0.3), "wide": make(22, [4, 2, 6, 1, 3], 1.2)}


def pad(flat, lengths):
    width = max(lengths)
    rows = [torch.cat([flat[list(r)], torch.zeros(width - len(r), dtype=flat.dtype)]) for r in sequences(lengths)]
    return torch.stack(rows)


def accelerator():
    same = lambda x, **_: x
    return SimpleNamespace(
        gather=same, gather_for_metrics=same, reduce=same, num_processes=1, process_index=0,
        sync_gradients=True, device=torch.device("cpu"),
    )


def loss_trainer(cls, lp, entropy, **knobs):
    t = MagicMock(spec=cls)
    t._get_per_token_logps_and_entropies.return_value = (lp, entropy, None)
    t.model = SimpleNamespace(training=True)
    t.accelerator = accelerator()
    t._metrics = {"train": defaultdict(list)}
    t.args = SimpleNamespace(
        use_bias_correction_kl=knobs.pop("use_bias_correction_kl", False), delta=knobs.pop("delta", None), steps_per_generation=1,
        sapo_temperature_pos=1.0, sapo_temperature_neg=1.05,
    )
    entropy_coef = knobs.pop("entropy_coef", 0.0)
    for key, value in {
        "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "importance_sampling_level": "token",
        "use_vllm": False, "current_gradient_accumulation_steps": 1, "max_completion_length": LIMIT,
        "aux_loss_enabled": False, "use_adaptive_entropy": False, "entropy_coef": entropy_coef,
        "_entropy_bonus_enabled": entropy_coef != 0.0, "beta": 0.0, "epsilon_low": 0.2, "epsilon_high": 0.2, **knobs,
    }.items():
        setattr(t, key, value)
    return t


def loss_case(name, method, settings, on, **knobs):
    x = INPUTS[on]
    lengths = x["lengths"]
    lp, entropy = column(x["logprob"]).requires_grad_(), column(x["entropy"]).requires_grad_()
    mask = pad(torch.ones(sum(lengths), dtype=torch.float64), lengths)
    firsts = [r[0] for r in sequences(lengths)]
    inputs = {
        "prompt_ids": torch.zeros(len(lengths), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(lengths), 1),
        "completion_ids": torch.zeros(mask.shape, dtype=torch.long),
        "completion_mask": mask,
        "advantages": column(x["advantage"])[firsts],
        "old_per_token_logps": pad(column(x["old"]), lengths),
        "ref_per_token_logps": pad(column(x["reference"]), lengths),
        "num_items_in_batch": mask.sum(),
    }
    t = loss_trainer(GRPOTrainer, pad(lp, lengths), pad(entropy, lengths), **knobs)
    loss = GRPOTrainer._compute_loss(t, None, inputs)
    loss.backward()
    m = t._metrics["train"]
    case = {
        "name": name, "method": method, "settings": nested(settings), "inputs": on, "loss": digits([loss])[0],
        "d_logprob": digits(lp.grad),
        "d_entropy": digits(entropy.grad if entropy.grad is not None else torch.zeros_like(entropy)),
        "metrics": {"entropy": m["entropy"][0]},
    }
    if "kl" in m and not t.args.use_bias_correction_kl:
        case["metrics"]["kl"] = m["kl"][0]
    if "clip_ratio/high_mean" in m and t.importance_sampling_level == "token":  # else a share of sequences
        case["metrics"]["clip_ratio/high"] = m["clip_ratio/high_mean"][0]
        if t.args.delta is None:  # with delta, TRL looks at the ratio that delta has clamped
            case["metrics"]["clip_ratio/low"] = m["clip_ratio/low_mean"][0]
    return case


def rloo_case(on):
    """At the first step of a batch, where TRL's ratio is 1: its value differs by a constant, its gradient does not."""
    x = INPUTS[on]
    lengths = x["lengths"]
    lp = column(x["logprob"]).requires_grad_()
    padded = pad(lp, lengths)
    mask = pad(torch.ones(sum(lengths), dtype=torch.float64), lengths)
    inputs = {
        "prompt_ids": torch.zeros(len(lengths), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(lengths), 1),
        "completion_ids": torch.zeros(mask.shape, dtype=torch.long),
        "completion_mask": mask,
        "advantages": column(x["advantage"])[[r[0] for r in sequences(lengths)]],
        "old_logps": (padded.detach() * mask).sum(1),
    }
    t = loss_trainer(RLOOTrainer, padded, torch.zeros_like(mask))
    RLOOTrainer._compute_loss(t, None, inputs).backward()
    return {
        "name": f"rloo {on}", "method": "rloo", "settings": {}, "inputs": on, "loss": None,
        "d_logprob": digits(lp.grad), "d_entropy": digits(torch.zeros_like(lp)), "metrics": {},
    }


def losses():
    cases = []
    for on in ["near", "wide"]:
        token_mean = {"loss_aggregation": "token_mean"}
        cases += [
            loss_case(f"grpo {on}", "grpo", {}, on, loss_type="grpo"),
            loss_case(f"dr_grpo {on}", "dr_grpo", {}, on, loss_type="dr_grpo"),
            loss_case(f"dapo loss {on}", "grpo", {"clip_high": 0.28, **token_mean}, on, loss_type="dapo", epsilon_high=0.28),
            loss_case(f"grpo, KL {on}", "grpo", {"kl": {"coef": 0.04}}, on, loss_type="grpo", beta=0.04),
            loss_case(f"grpo, delta {on}", "grpo", {"dual_clip": 2.0}, on, loss_type="grpo", delta=2.0),
            loss_case(
                f"dapo loss, entropy {on}", "grpo", {"clip_high": 0.28, "entropy_coef": 0.01, **token_mean}, on,
                loss_type="dapo", epsilon_high=0.28, entropy_coef=0.01,
            ),
            rloo_case(on),
            loss_case(
                f"gspo {on}", "grpo", {"loss": "gspo", "clip_low": 3e-4, "clip_high": 4e-4}, on,
                loss_type="grpo", importance_sampling_level="sequence", epsilon_low=3e-4, epsilon_high=4e-4,
            ),
            loss_case(
                f"gspo, wide {on}", "grpo", {"loss": "gspo", "clip_low": 0.1, "clip_high": 0.15}, on,
                loss_type="grpo", importance_sampling_level="sequence", epsilon_low=0.1, epsilon_high=0.15,
            ),
            loss_case(  # its epsilon_high is the cap itself
                f"cispo {on}", "grpo", {"loss": "cispo", "weight_cap": 1.28, "weight_floor": 0.0, **token_mean}, on,
                loss_type="cispo", epsilon_high=1.28,
            ),
            loss_case(
                f"sapo {on}", "grpo",
                {"loss": "sapo", "tau_positive": 1.0, "tau_negative": 1.05, "loss_aggregation": "sequence_mean"}, on,
                loss_type="sapo",
            ),
            loss_case(
                f"grpo, KL times the ratio {on}", "grpo", {"kl": {"coef": 0.04, "estimator": "k3", "ratio": True}}, on,
                loss_type="grpo", beta=0.04, use_bias_correction_kl=True,
            ),
            loss_case(
                f"cispo, KL, entropy {on}", "grpo",
                {
                    "loss": "cispo", "weight_cap": 5.0, "weight_floor": 0.0, "entropy_coef": 0.02,
                    "kl": {"coef": 0.1, "estimator": "k3"}, **token_mean,
                },
                on, loss_type="cispo", epsilon_high=5.0, beta=0.1, entropy_coef=0.02,
            ),
        ]
    return cases


def advantage_case(name, method, settings, cls, **knobs):
    size = len(GROUPS[0])
    n = len(GROUPS) * size
    flat = [r for g in GROUPS for r in g]
    lengths = [t for g in TOKENS for t in g]
    width = max(lengths)
    t = MagicMock(spec=cls)
    t.accelerator = accelerator()
    t.model = SimpleNamespace(training=True)
    t._metrics = {"train": defaultdict(list)}
    t._logs = {"prompt": deque(), "completion": deque(), "rewards": defaultdict(deque), "advantages": deque(), "extra": defaultdict(deque), "images": deque()}
    t._pending_extra_logs, t._pending_metrics = {}, {}
    t._generate.return_value = generated(cls, [[1] * k for k in lengths])
    t._tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=1)
    old = torch.stack([torch.cat([column(o), torch.zeros(width - len(o), dtype=torch.float64)]) for g in OLD for o in g])
    ref = torch.stack([torch.cat([column(o), torch.zeros(width - len(o), dtype=torch.float64)]) for g in REFERENCE for o in g])
    t.ref_model = SimpleNamespace(training=False)
    t._get_per_token_logps_and_entropies.side_effect = lambda model, *a, **k: (ref if model is t.ref_model else old, None, None)
    columns = knobs.pop("reward_rows", [[float("nan") if r is None else r] for r in flat])  # one per reward function
    t._calculate_rewards.return_value = torch.tensor(columns, dtype=torch.float64)
    t.args = SimpleNamespace(
        per_device_train_batch_size=n, gradient_checkpointing_kwargs=None, gradient_checkpointing=False,
        steps_per_generation=1, gradient_accumulation_steps=1, report_to=[],
    )
    for key, value in {
        "model_wrapped": t.model, "num_generations": size, "reward_weights": torch.ones(1, dtype=torch.float64),
        "reward_funcs": [None], "reward_func_names": ["reward"], "beta": 0.0, "mask_truncated_completions": False,
        "pad_to_multiple_of": None, "use_vllm": False, "num_iterations": 1, "tools": [], "environment_factories": None,
        "environments": None, "rollout_func": None, "eos_token_ids": [1], "reward_clip_range": None,
        "normalize_advantages": False, "multi_objective_aggregation": "sum_then_normalize", "scale_rewards": "group",
        "log_multimodal": False, "_is_vlm": False, "chat_template_kwargs": {}, **knobs,
    }.items():
        setattr(t, key, value)
    t.model.is_gradient_checkpointing = False
    out = cls._generate_and_score_completions(t, [{"prompt": "x"} for _ in range(n)])
    got = out["advantages"].tolist()
    expected = [[[got[g * size + e]] * TOKENS[g][e] for e in range(size)] for g in range(len(GROUPS))]
    return {
        "name": name, "method": method, "settings": nested(settings), "groups": "base",
        "advantage": [[digits(e) for e in g] for g in expected],
    }


def generated(cls, ids):
    """What `_generate` returns: token ids of prompts and completions, and the completions' text."""
    ids_and_text = [[1]] * len(ids), ids, ["x"] * len(ids)
    if cls is RLOOTrainer:
        return ids_and_text
    prompt_ids, completion_ids, text = ids_and_text
    no_tools = no_logprobs = no_images = None
    return prompt_ids, completion_ids, no_tools, text, no_logprobs, {}, no_images, []


def advantages():
    return [
        advantage_case("grpo", "grpo", {}, GRPOTrainer),
        advantage_case("dr_grpo (scale_rewards none)", "dr_grpo", {}, GRPOTrainer, scale_rewards="none"),
        advantage_case(
            "group mean, batch deviation (scale_rewards batch)", "grpo",
            {"advantage": "normalized", "mean_from": "group", "std_from": "batch"}, GRPOTrainer, scale_rewards="batch",
        ),
        advantage_case("rloo without KL", "rloo", {"kl": {"coef": 0.0}}, RLOOTrainer),
        advantage_case("rloo", "rloo", {}, RLOOTrainer, beta=0.05),
    ]


if __name__ == "__main__":
    json.dump(
        {
            "made_with": f"trl {trl.__version__}, torch {torch.__version__}",
            "inputs": INPUTS,
            "losses": losses(),
            "groups": SETS,
            "advantages": advantages(),
        },
        sys.stdout,
        separators=(",", ":"),
    )
    print()
