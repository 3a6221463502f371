"""Optimizer steps of SFT, DPO and KTO against TRL's trainers on the same batch.

    RLOOM_BINARY=target/release/rloom pytest python/tests/offline

RLoom and the trainer start from one model in f32 and take five steps on the same rows with AdamW, without clipping, decay
or schedule. The gradient of the first step is read from the first moment. RLoom divides some of the batches into micro-batches.
"""

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("trl")
from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, SFTConfig, SFTTrainer  # noqa: E402

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
[tokenizer]
# With the letters of the text by which the trainer examines a template.
alphabet = "0123456789+-*= #dumy"
chat_template = '''
{%- for m in messages -%}
{%- if m.role == "user" -%}
{{- "#" + m.content + "=" -}}
{%- else -%}
{%- generation -%}
{{- m.content + "<|eos|>" -}}
{%- endgeneration -%}
{%- endif -%}
{%- endfor -%}'''
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
path = "rows.jsonl"
{data}
[[stage]]
name = "rows"
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
micro_batch_tokens = {tokens}
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


DEMONSTRATIONS = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in PAIRS]
TEXTS = [{"text": row["prompt"] + row["chosen"]} for row in PAIRS]
TALKS = [
    {
        "messages": [
            {"role": "user", "content": f"{a}+{b}"},
            {"role": "assistant", "content": f"{a + b}"},
            {"role": "user", "content": f"{a + b}+{b}"},
            {"role": "assistant", "content": f"{b % 10}+{b % 10}={2 * (b % 10)} #### {a + 2 * b}"},
        ]
    }
    for a, b in SUMS
]


@dataclass(frozen=True)
class Case:
    """A method of RLoom and the trainer of TRL with the same loss."""

    method: str
    rows: list[dict[str, Any]]
    trainer: Any
    config: Any
    #: Options of the trainer.
    options: dict[str, Any] = field(default_factory=dict)
    #: Keys of `[data]`.
    data: str = ""
    #: Tokens of a micro-batch in RLoom; TRL has one micro-batch.
    tokens: int = 4096


CASES = {
    "sft": Case("sft", DEMONSTRATIONS, SFTTrainer, SFTConfig),
    "sft, several micro-batches": Case("sft", DEMONSTRATIONS, SFTTrainer, SFTConfig, tokens=40),
    "sft on prompts, too": Case(
        "sft", DEMONSTRATIONS, SFTTrainer, SFTConfig, {"completion_only_loss": False}, 'loss_on = "all"'
    ),
    "sft on texts": Case("sft", TEXTS, SFTTrainer, SFTConfig, tokens=60),
    "sft on the assistant": Case(
        "sft", TALKS, SFTTrainer, SFTConfig, {"assistant_only_loss": True}, 'loss_on = "assistant"', tokens=60
    ),
    "dft": Case("dft", DEMONSTRATIONS, SFTTrainer, SFTConfig, {"loss_type": "dft"}, tokens=40),
    "dpo": Case("dpo", PAIRS, DPOTrainer, DPOConfig, {"beta": 0.1}),
    "dpo, several micro-batches": Case("dpo", PAIRS, DPOTrainer, DPOConfig, {"beta": 0.1}, tokens=40),
    "wpo": Case("wpo", PAIRS, DPOTrainer, DPOConfig, {"beta": 0.1, "use_weighting": True}, tokens=40),
    "kto": Case("kto", LABELS, KTOTrainer, KTOConfig, {"beta": 0.1}),
}


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


def trainer_of(case: Case, start: Path, folder: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(start)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model, reference = (AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32) for _ in range(2))
    args = case.config(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=len(case.rows),
        use_cpu=True,
        bf16=False,
        report_to="none",
        gradient_checkpointing=False,
        **case.options,
    )
    return case.trainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_list(case.rows),
        processing_class=tokenizer,
        **({} if case.trainer is SFTTrainer else {"ref_model": reference}),
    )


@pytest.mark.parametrize("name", CASES)
def test_steps_agree(name: str, start: Path, tmp_path: Path) -> None:
    case = CASES[name]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in case.rows))
    stage = STAGE.format(
        method=case.method, model=start, rows_per_batch=len(case.rows), data=case.data, tokens=case.tokens
    )
    rloom(tmp_path, stage)
    run = tmp_path / f"runs/{case.method}"
    trainer = trainer_of(case, start, tmp_path)
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
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    own_losses = [event["metrics"]["loss"] for event in events if event["event"] == "step"]
    moments = load_file(run / "checkpoints/rows-step-000001/trainer/optimizer.safetensors")
    first = {name: moments[f"exp_avg.{name}"] for name in gradients}
    by_gradient = {name: relative(first[name].double() / (1 - BETAS[0]), g) for name, g in gradients.items()}
    before, after = weights(start), weights(run / "checkpoints/rows-step-000005")
    own = {name: p.detach().double() for name, p in model.named_parameters()}
    update = sum(((own[n] - before[n]) ** 2).sum() for n in own).sqrt()
    apart = (sum(((own[n] - after[n]) ** 2).sum() for n in own).sqrt() / update).item()
    print(
        f"{name}: gradients {max(by_gradient.values()):.2e}, weights {apart:.2e} of the update, losses {losses}"
    )
    assert own_losses == pytest.approx(losses, rel=1e-5)
    assert max(by_gradient.values()) < 1e-5, by_gradient
    assert apart < 1e-3
