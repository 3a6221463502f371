"""A trajectory of torch.optim.AdamW: writes adamw.safetensors next to this file.

    python adamw.py

Trains tiny-qwen2 (f32) for eight steps on one batch: mean negative log-likelihood, weight decay on matrices only,
gradients clipped to norm 2 (some steps are clipped, some not), two steps of warm-up, then half a cosine down to a
tenth. Stores the losses, gradient norms and learning rates of all steps and the final weights.
"""

import math
import pathlib

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE.parent / "fixtures"
STEPS, WARMUP, PEAK, MIN_RATIO, MAX_NORM = 8, 2, 3e-3, 0.1, 2.0


def factor(step):
    if step < WARMUP:
        return (step + 1) / (WARMUP + 1)
    progress = (step - WARMUP) / (STEPS - WARMUP)
    return MIN_RATIO + (1 - MIN_RATIO) * 0.5 * (1 + math.cos(math.pi * progress))


def main():
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_pretrained(FIXTURES / "tiny-qwen2", dtype=torch.float32)
    named = list(model.named_parameters())
    groups = [
        {"params": [p for _, p in named if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for _, p in named if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.95), eps=1e-8)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    tokens = torch.randint(0, 96, (6, 20))
    losses, norms, rates = [], [], []
    for _ in range(STEPS):
        loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)))
        rates.append(optimizer.param_groups[0]["lr"])
        losses.append(float(loss.detach()))
        optimizer.step()
        scheduler.step()
    print(losses, norms, rates)
    assert min(norms) < MAX_NORM < max(norms)
    data = {
        "tokens": tokens.int(),
        "losses": torch.tensor(losses),
        "norms": torch.tensor(norms),
        "rates": torch.tensor(rates),
    }
    data |= {"weight." + name: p.detach().contiguous() for name, p in named}
    save_file(data, HERE / "adamw.safetensors")


if __name__ == "__main__":
    main()
