"""Greedy decoding of a batch with `transformers.generate`; bf16 means bf16 weights."""

import torch

import qwen
from workloads import SHAPES, arguments, prompts, report, timed

given = arguments()
shape = SHAPES[given.shape]
sequences, prompt, new = shape.decode
model = qwen.model(given.shape, qwen.dtype(given.dtype)).eval()
ids = torch.tensor(prompts(shape, sequences, prompt))
mask = torch.ones_like(ids)


@torch.inference_mode()
def decode() -> None:
    out = model.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False)
    assert out.shape == (sequences, prompt + new), out.shape


seconds = timed(given.steps, given.warm, decode)
report(seconds, sequences * new, start_mib=qwen.START_MIB, parameters=qwen.parameters(model), versions=qwen.VERSIONS)
