"""Writes a model folder in the shape of Qwen2.5-0.5B with random weights and a byte-level tokenizer.

    bench/.venvs/torch/bin/python bench/make_qwen_shape.py bench/out/qwen-shape

24 layers, width 896, 14 heads, 2 key-value heads, FFN 4864, vocabulary 151,936, tied embeddings: 494 M parameters, written in
bf16. The tokenizer has the 256 bytes and the chat markers; higher ids decode to nothing.
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

out = Path(sys.argv[1])
torch.manual_seed(0)
torch.set_default_dtype(torch.bfloat16)
config = Qwen2Config(
    vocab_size=151_936,
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    max_position_embeddings=32_768,
    rope_theta=1_000_000.0,
    tie_word_embeddings=True,
    bos_token_id=256,
    eos_token_id=257,
)
model = Qwen2ForCausalLM(config)
model.save_pretrained(out)

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
fast.chat_template = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
fast.save_pretrained(out)
eos = fast.convert_tokens_to_ids("<|im_end|>")
path = out / "config.json"
described = json.loads(path.read_text())
described["eos_token_id"] = described["bos_token_id"] = eos
path.write_text(json.dumps(described, indent=2))
print(f"{sum(p.numel() for p in model.parameters()):,} parameters in {out}")
