"""Checks that PEFT opens an adapter that RLoom has saved and gives the same logits as RLoom's merged export.

    python open_in_peft.py ADAPTER MERGED
"""

import json
import pathlib
import sys

import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM

adapter, merged = map(pathlib.Path, sys.argv[1:])
model = AutoPeftModelForCausalLM.from_pretrained(adapter, dtype=torch.float32).eval()
export = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32).eval()
tokens = torch.randint(0, export.config.vocab_size, (3, 24), generator=torch.Generator().manual_seed(1))
with torch.no_grad():
    logits, alone = model(tokens).logits, export(tokens).logits
    base = model.get_base_model()
    with model.disable_adapter():
        without = base(tokens).logits
print(json.dumps({
    "difference": float((logits - alone).abs().max()),
    "effect": float((logits - without).abs().max()),
    "trainable": sum(p.numel() for n, p in model.named_parameters() if "lora_" in n),
}))
