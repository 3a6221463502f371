"""A training step in PyTorch: forward, cross-entropy, backward and fused AdamW; `--compile yes` compiles the model.

bf16 is autocast over f32 weights, comparable to RLoom's f32 master weights; attention is SDPA.
"""

import contextlib

import torch

import qwen
from workloads import SHAPES, arguments, report, timed

given = arguments("--compile")
shape = SHAPES[given.shape]
sequences, length = shape.train
model = qwen.model(given.shape).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
ids = torch.randint(0, shape.vocabulary, (sequences, length))


def loss_of(ids: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=ids, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, shape.vocabulary).float(), ids[:, 1:].reshape(-1))


compiled = torch.compile(loss_of) if given.compile else loss_of
precision = torch.autocast("cpu", torch.bfloat16) if given.dtype == "bf16" else contextlib.nullcontext()
losses = []


def step() -> None:
    with precision:
        loss = compiled(ids)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    losses.append(loss.item())


seconds = timed(given.steps, given.warm, step)
assert losses[-1] < losses[0], f"the loss does not decrease on a repeated batch: {losses}"
report(seconds, sequences * length, start_mib=qwen.START_MIB, parameters=qwen.parameters(model), versions=qwen.VERSIONS)
