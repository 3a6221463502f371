"""PyTorch's side of the comparison: one work, one JSON line.

    python peer.py train|decode STEPS

Shape S: 4 layers, width 256, 8 heads, 4 key-value heads, FFN 704, vocabulary 512, tied embeddings (Qwen2 family).
Run by compare.py in its own environment; two threads, SDPA attention, fused AdamW, f32.
"""

import json
import resource
import sys
import time

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

torch.set_num_threads(2)
torch.manual_seed(0)


def shape_s() -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        use_cache=True,
        attn_implementation="sdpa",
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return Qwen2ForCausalLM(config).float()


def train(model: Qwen2ForCausalLM, steps: int) -> list[float]:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, 512, (32, 128))
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        logits = model(input_ids=ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 512), ids[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
    return seconds


@torch.inference_mode()
def decode(model: Qwen2ForCausalLM, steps: int) -> list[float]:
    model.eval()
    ids = torch.randint(1, 512, (64, 16))
    mask = torch.ones_like(ids)
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        out = model.generate(ids, attention_mask=mask, max_new_tokens=64, min_new_tokens=64, do_sample=False)
        seconds.append(time.perf_counter() - start)
        assert out.shape == (64, 80)
    return seconds


work, steps = sys.argv[1], int(sys.argv[2])
imported = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
seconds = {"train": train, "decode": decode}[work](shape_s(), steps)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({
    "seconds": seconds,
    "peak_mib": peak / 1024,
    "import_mib": imported / 1024,
    "versions": f"torch {torch.__version__}",
}))
