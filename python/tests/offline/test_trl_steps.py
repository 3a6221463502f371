"""Optimizer steps of DPO and KTO against TRL's trainers on the same batch.

    RLOOM_BINARY=target/release/rloom pytest python/tests/offline

RLoom and the trainer start from one model in f32 and take five steps on the same rows with AdamW, without clipping, decay
or schedule. The gradient of the first step is read from the first moment.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("trl")
from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer  # noqa: E402

BINARY = Path(os.environ.get("RLOOM_BINARY", "target/release/rloom")).resolve()
STEPS, RATE, BETAS, EPS = 5, 1e-3, (0.9, 0.99), 1e-8

START = """
[run]
name = "start"
[model.new]
layers = 2
hidden_size = 32
heads = 2
kv_heads = 1
intermediate_size = 64
max_positions = 64
[data]
generator = "arithmetic"
max_digits = 3
style = "worked"
[[stage]]
name = "sft"
method = "sft"
steps = 30
groups_per_batch = 16
[stage.trainer]
learning_rate = 3e-3
"""

STAGE = """
[run]
name = "{method}"
checkpoint_every = 1
keep_last = 10
[model]
path = "{model}"
[data]
path = "{rows}"
[[stage]]
name = "preferences"
method = "{method}"
steps = 5
groups_per_batch = {rows_per_batch}
order = "sequential"
[stage.trainer]
learning_rate = 1e-3
betas = [0.9, 0.99]
eps = 1e-8
weight_decay = 0.0
max_grad_norm = 0.0
warmup_steps = 0
schedule = "constant"
"""

SUMS = [(12, 345), (7, 88), (123, 456), (909, 91), (5, 5), (640, 77)]
PAIRS = [
    {
        "prompt": f"{a}+{b}=",
        "chosen": f"{a % 10}+{b % 10}={a % 10 + b % 10} #### {a + b}",
        "rejected": f"{a + b + 3}",
    }
    for a, b in SUMS
]
LABELS = [
    {"prompt": row["prompt"], "completion": row["chosen" if i % 2 == 0 else "rejected"], "label": i % 2 == 0}
    for i, row in enumerate(PAIRS)
]


def rloom(folder: Path, text: str) -> None:
    (folder / "recipe.toml").write_text(text)
    run = subprocess.run(
        [BINARY, "train", "recipe.toml"], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    rloom(folder, START)
    return folder / "runs/start/checkpoints/sft-step-000030"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.double() for name, tensor in load_file(folder / "model.safetensors").items()}


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).norm() / wanted.norm())


def trainer_of(method: str, start: Path, folder: Path, rows: list[dict[str, Any]]) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(start)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model, reference = (AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32) for _ in range(2))
    trainer, config = (DPOTrainer, DPOConfig) if method == "dpo" else (KTOTrainer, KTOConfig)
    args = config(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=len(rows),
        use_cpu=True,
        bf16=False,
        report_to="none",
        gradient_checkpointing=False,
        beta=0.1,
    )
    return trainer(
        model=model,
        ref_model=reference,
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )


@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_steps_agree(method: str, start: Path, tmp_path: Path) -> None:
    rows = PAIRS if method == "dpo" else LABELS
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rloom(tmp_path, STAGE.format(method=method, model=start, rows="rows.jsonl", rows_per_batch=len(rows)))
    checkpoints = tmp_path / f"runs/{method}/checkpoints"
    trainer = trainer_of(method, start, tmp_path, rows)
    batch = next(iter(trainer.get_train_dataloader()))
    model = trainer.model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, eps=EPS, weight_decay=0.0)
    gradients, losses = {}, []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = trainer.compute_loss(model, dict(batch))
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            gradients = {name: p.grad.double().clone() for name, p in model.named_parameters()}
        optimizer.step()
    moments = load_file(checkpoints / "preferences-step-000001/trainer/optimizer.safetensors")
    first = {name: moments[f"exp_avg.{name}"] for name in gradients}
    by_gradient = {name: relative(first[name].double() / (1 - BETAS[0]), g) for name, g in gradients.items()}
    before, after = weights(start), weights(checkpoints / "preferences-step-000005")
    own = {name: p.detach().double() for name, p in model.named_parameters()}
    update = sum(((own[n] - before[n]) ** 2).sum() for n in own).sqrt()
    apart = (sum(((own[n] - after[n]) ** 2).sum() for n in own).sqrt() / update).item()
    print(
        f"{method}: gradients {max(by_gradient.values()):.2e}, weights {apart:.2e} of the update, losses {losses}"
    )
    assert max(by_gradient.values()) < 1e-5, by_gradient
    assert apart < 1e-3
