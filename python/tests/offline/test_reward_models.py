"""Reward models of RLoom in transformers, and their optimizer steps against TRL's trainer.

RLOOM_BINARY=target/release/rloom pytest python/tests/offline
"""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_trl_steps import BETAS, BINARY, EPS, PAIRS, RATE, STAGE, START, STEPS, relative, rloom, weights

pytest.importorskip("trl")
from datasets import Dataset  # noqa: E402
from peft import PeftConfig, PeftModel  # noqa: E402
from transformers import (  # noqa: E402
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)
from trl import RewardConfig, RewardTrainer  # noqa: E402

MARGINS = [0.0, 0.5, 0.25, 1.0, 0.0, 0.75]

STEPWISE: list[dict[str, Any]] = [
    {
        "prompt": row["prompt"],
        "completions": [row["chosen"].split("#")[0].strip(), row["rejected"]],
        # Not as many right as wrong steps: the gradient of the bias would be the sign of a rounding error.
        "labels": [True, number % 3 == 0],
    }
    for number, row in enumerate(PAIRS)
]

JUDGED = """
[model]
path = "{policy}"
[data]
path = "rows.jsonl"
[sampling]
max_new_tokens = 8
[[stage]]
name = "rl"
method = "grpo"
steps = 1
groups_per_batch = 1
[stage.reward]
components = [{{ kind = "reward_model", model = "{model}", {options} }}]
"""


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    rloom(folder, START)
    return folder / "runs/start/checkpoints/sft-step-000030"


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def stage(method: str, start: Path, rows: int, data: str = "") -> str:
    return STAGE.format(method=method, model=start, rows_per_batch=rows, data=data, tokens=8192)


def first_moments(folder: Path) -> dict[str, torch.Tensor]:
    tensors = load_file(folder / "trainer/optimizer.safetensors")
    return {n.removeprefix("exp_avg."): t.double() for n, t in tensors.items() if n.startswith("exp_avg.")}


def test_steps_agree_with_the_trainer(start: Path, tmp_path: Path) -> None:
    rows = [{**row, "margin": margin} for row, margin in zip(PAIRS, MARGINS, strict=True)]
    more = "[stage.algorithm]\nreward_model = { center_rewards_coefficient = 0.05 }\n"
    text = stage("reward_model", start, len(rows), 'margin_field = "margin"')
    (tmp_path / "rows.jsonl").write_text(lines(rows))
    rloom(tmp_path, text + more)
    checkpoints = tmp_path / "runs/reward_model/checkpoints"

    tokenizer = AutoTokenizer.from_pretrained(start)
    model = AutoModelForSequenceClassification.from_pretrained(start, num_labels=1, dtype=torch.float32)
    torch.nn.init.zeros_(model.score.weight)
    args = RewardConfig(
        output_dir=str(tmp_path / "trl"),
        per_device_train_batch_size=len(rows),
        use_cpu=True,
        bf16=False,
        report_to="none",
        gradient_checkpointing=False,
        center_rewards_coefficient=0.05,
    )
    trainer = RewardTrainer(
        model=model, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    batch = next(iter(trainer.get_train_dataloader()))
    own_model = trainer.model.train()
    optimizer = torch.optim.AdamW(own_model.parameters(), lr=RATE, betas=BETAS, eps=EPS, weight_decay=0.0)
    gradients, losses = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = trainer.compute_loss(own_model, dict(batch))
        loss.backward()
        losses.append(loss.item())
        gradients.append({name: p.grad.double().clone() for name, p in own_model.named_parameters()})
        optimizer.step()

    # The head starts at 0, so that only it has a gradient in the first step.
    moments = [first_moments(checkpoints / f"rows-step-{n:06d}") for n in (1, 2)]
    one = {name: moment / (1 - BETAS[0]) for name, moment in moments[0].items()}
    two = {name: (moments[1][name] - BETAS[0] * moments[0][name]) / (1 - BETAS[0]) for name in one}
    assert one.keys() == gradients[0].keys()
    for name, gradient in gradients[0].items():
        if name == "score.weight":
            assert relative(one[name], gradient) < 1e-5
        else:
            assert not one[name].any(), name
            assert not gradient.any(), name
    by_gradient = {name: relative(two[name], gradient) for name, gradient in gradients[1].items()}
    before = {**weights(start), "score.weight": torch.zeros_like(model.score.weight).double()}
    after = weights(checkpoints / "rows-step-000005")
    own = {name: p.detach().double() for name, p in own_model.named_parameters()}
    assert own.keys() == after.keys()
    update = sum(((own[n] - before[n]) ** 2).sum() for n in own).sqrt()
    apart = (sum(((own[n] - after[n]) ** 2).sum() for n in own).sqrt() / update).item()
    worst = max(by_gradient.values())
    print(f"reward_model: gradients {worst:.2e}, weights {apart:.2e} of the update, losses {losses}")
    assert worst < 1e-5, by_gradient
    assert apart < 1e-3


EMBEDDED = 'backend = "embedded"'
TORCH = f'python = "{sys.executable}"'


def judged(
    folder: Path, start: Path, model: Path, completions: list[str], options: str = EMBEDDED
) -> list[float]:
    """Rewards of a component with these options."""
    (folder / "judged.toml").write_text(JUDGED.format(policy=start, model=model, options=options))
    (folder / "rows.jsonl").write_text(lines([{"prompt": row["prompt"], "answer": "1"} for row in PAIRS]))
    command = [str(BINARY), "reward", "test", "judged.toml", "--rows", "0"]
    command += ["--completions", "completions.jsonl"]
    rewards = []
    for task, text in enumerate(completions):
        (folder / "completions.jsonl").write_text(lines([{"task": task, "completion": text}]))
        run = subprocess.run([*command, "--json"], cwd=folder, capture_output=True, text=True, timeout=300)
        assert run.stdout, run.stderr
        [component] = json.loads(run.stdout)["completions"]["components"]
        rewards.append(component["mean"])
    return rewards


def test_transformers_gives_the_same_rewards(start: Path, tmp_path: Path) -> None:
    text = stage("reward_model", start, len(PAIRS)).replace("learning_rate = 1e-3", "learning_rate = 1e-2")
    (tmp_path / "rows.jsonl").write_text(lines(PAIRS))
    rloom(tmp_path, text)
    folder = tmp_path / "runs/reward_model/checkpoints/rows-step-000005"
    completions = [row["chosen"] for row in PAIRS]
    ours = judged(tmp_path, start, folder, completions)
    kind = AutoModelForSequenceClassification
    model, loading = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), loading
    assert model.config.num_labels == 1
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [row["prompt"] + text + tokenizer.eos_token for row, text in zip(PAIRS, completions, strict=True)]
    # One batch, with padding.
    inputs = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        theirs = model.eval()(**inputs).logits[:, 0].tolist()
    assert max(theirs) - min(theirs) > 1e-3
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 1e-4, (ours, theirs)
    # Each starts a process.
    in_torch = judged(tmp_path, start, folder, completions[:2], TORCH)
    assert max(abs(a - b) for a, b in zip(in_torch, theirs[:2], strict=True)) < 1e-5, (in_torch, theirs)


@pytest.mark.parametrize("method", ["reward_model", "prm"])
def test_peft_opens_the_adapter_of_a_reward_model(start: Path, tmp_path: Path, method: str) -> None:
    rows, steps = (PAIRS, "") if method == "reward_model" else (STEPWISE, 'step_separator = " "')
    (tmp_path / "rows.jsonl").write_text(lines(rows))
    text = stage(method, start, len(rows), steps).replace("learning_rate = 1e-3", "learning_rate = 3e-2")
    rloom(tmp_path, text + "lora = { rank = 4 }\n")
    folder = tmp_path / f"runs/{method}/checkpoints/rows-step-000005"
    kinds: dict[str, Any] = {
        "reward_model": AutoModelForSequenceClassification,
        "prm": AutoModelForTokenClassification,
    }
    kind, labels = kinds[method], 2 if method == "prm" else 1
    config = PeftConfig.from_pretrained(str(folder))
    assert (config.task_type, config.modules_to_save) == ({1: "SEQ_CLS", 2: "TOKEN_CLS"}[labels], ["score"])
    base = kind.from_pretrained(config.base_model_name_or_path, num_labels=labels, dtype=torch.float32)
    base.config.pad_token_id = AutoConfig.from_pretrained(folder).pad_token_id
    model = PeftModel.from_pretrained(base, folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    # The export with the adapter added is a whole model.
    export = [str(BINARY), "export", str(folder), "model", "--merge", "--out", "merged"]
    subprocess.run(export, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    merged, loading = kind.from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert not any(loading.values()), loading
    text = PAIRS[0]["prompt"] + PAIRS[0]["chosen"] + tokenizer.eos_token
    tokens = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        logits = [each.eval()(**tokens).logits for each in (model, merged)]
        with model.disable_adapter():
            plain = model(**tokens).logits
    assert (logits[0] - plain).abs().max() > 0.05
    assert (logits[0] - logits[1]).abs().max() < 1e-4

    if method == "prm":
        return
    completions = [row["chosen"] for row in PAIRS]
    theirs = []
    for row in PAIRS:
        text = row["prompt"] + row["chosen"] + tokenizer.eos_token
        tokens = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        with torch.no_grad():
            theirs.append(model(**tokens).logits.item())
    assert max(theirs) - min(theirs) > 1e-3
    ours = judged(tmp_path, start, folder, completions)
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 1e-4, (ours, theirs)
    in_torch = judged(tmp_path, start, folder, completions[:2], TORCH)
    assert max(abs(a - b) for a, b in zip(in_torch, theirs[:2], strict=True)) < 1e-5, (in_torch, theirs)


def test_transformers_opens_a_process_reward_model(start: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(lines(STEPWISE))
    rloom(tmp_path, stage("prm", start, len(STEPWISE), 'step_separator = " "'))
    folder = tmp_path / "runs/prm/checkpoints/rows-step-000005"
    model, loading = AutoModelForTokenClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), loading
    assert model.config.id2label == {0: "wrong", 1: "right"}

    # Five steps of the token classifier that transformers makes of the same start.
    tokenizer = AutoTokenizer.from_pretrained(start)
    own = AutoModelForTokenClassification.from_pretrained(start, num_labels=2, dtype=torch.float32).train()
    own.dropout.p = 0.0
    torch.nn.init.zeros_(own.score.weight)
    torch.nn.init.zeros_(own.score.bias)
    optimizer = torch.optim.AdamW(own.parameters(), lr=RATE, betas=BETAS, eps=EPS, weight_decay=0.0)
    steps = sum(len(row["labels"]) for row in STEPWISE)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.zeros(())
        for row in STEPWISE:
            parts = [row["prompt"], *(text + " " for text in row["completions"])]
            tokens = [tokenizer.encode(part, add_special_tokens=False) for part in parts]
            ends = torch.tensor([len(part) for part in tokens]).cumsum(0)[1:] - 1
            logits = own(torch.tensor([[token for part in tokens for token in part]])).logits[0, ends]
            labels = torch.tensor([int(label) for label in row["labels"]])
            loss = loss + torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / steps
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        optimizer.step()
    after = weights(folder)
    theirs = {name: p.detach().double() for name, p in own.named_parameters()}
    assert theirs.keys() == after.keys()
    zero = {name: torch.zeros_like(t) for name, t in theirs.items() if name.startswith("score.")}
    before = {**weights(start), **zero}
    update = sum(((theirs[n] - before[n]) ** 2).sum() for n in theirs).sqrt()
    apart = (sum(((theirs[n] - after[n]) ** 2).sum() for n in theirs).sqrt() / update).item()
    print(f"prm: weights {apart:.2e} of the update, losses {losses}")
    assert apart < 1e-3


def test_process_reward_models_reward(start: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(lines(STEPWISE))
    text = stage("prm", start, len(STEPWISE), 'step_separator = " "')
    rloom(tmp_path, text.replace("learning_rate = 1e-3", "learning_rate = 1e-2"))
    folder = tmp_path / "runs/prm/checkpoints/rows-step-000005"
    model = AutoModelForTokenClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    completions = [" ".join(row["completions"]) for row in STEPWISE]
    right = []
    for row in STEPWISE:
        texts = [row["prompt"], *(text + " " for text in row["completions"])]
        parts = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        ends = torch.tensor([len(part) for part in parts]).cumsum(0)[1:] - 1
        with torch.no_grad():
            logits = model(torch.tensor([[token for part in parts for token in part]])).logits[0, ends]
        right.append(logits.softmax(-1)[:, 1].tolist())
    assert max(map(max, right)) - min(map(min, right)) > 0.05, right
    reductions: dict[str, Callable[[list[float]], float]] = {
        "min": min,
        "product": math.prod,
        "last": lambda steps: steps[-1],
    }
    for reduce, of in reductions.items():
        options = f', steps = {{ reduce = "{reduce}", separator = " " }}'
        wanted = [of(steps) for steps in right]
        # PyTorch starts a process for each.
        for backend, count in ((EMBEDDED, len(completions)), (TORCH, 1)):
            rewards = judged(tmp_path, start, folder, completions[:count], backend + options)
            apart = max(abs(a - b) for a, b in zip(rewards, wanted[:count], strict=True))
            assert apart < 1e-5, (reduce, backend, rewards, wanted)
