"""Writes shape S as a folder of transformers with random weights: python model_folder.py FOLDER.

Needs only the standard library, so that no program needs another one's environment.
"""

import json
import random
import sys
from array import array
from pathlib import Path

from workloads import POSITIONS, SHAPES

folder = Path(sys.argv[1])
shape = SHAPES["S"]
#: Standard deviation of the weights, the initial one of Qwen2.
SCALE = 0.02


def tensors() -> dict[str, tuple]:
    """Returns the sizes of all tensors by their name; norms end in `norm.weight`."""
    hidden, kv = shape.hidden, shape.hidden * shape.kv_heads // shape.heads
    found = {"model.embed_tokens.weight": (shape.vocabulary, hidden), "model.norm.weight": (hidden,)}
    for layer in range(shape.layers):
        sizes = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (hidden, hidden),
            "self_attn.q_proj.bias": (hidden,),
            "self_attn.k_proj.weight": (kv, hidden),
            "self_attn.k_proj.bias": (kv,),
            "self_attn.v_proj.weight": (kv, hidden),
            "self_attn.v_proj.bias": (kv,),
            "self_attn.o_proj.weight": (hidden, hidden),
            "mlp.gate_proj.weight": (shape.ffn, hidden),
            "mlp.up_proj.weight": (shape.ffn, hidden),
            "mlp.down_proj.weight": (hidden, shape.ffn),
        }
        found |= {f"model.layers.{layer}.{name}": size for name, size in sizes.items()}
    return found


def values(name: str, size: tuple) -> array:
    """Returns a tensor's values: ones in norms, zeros in biases, normal numbers in matrices."""
    if len(size) == 1:
        return array("f", [1.0 if name.endswith("norm.weight") else 0.0]) * size[0]
    return array("f", (numbers.gauss(0.0, SCALE) for _ in range(size[0] * size[1])))


CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": shape.vocabulary,
    "hidden_size": shape.hidden,
    "intermediate_size": shape.ffn,
    "num_hidden_layers": shape.layers,
    "num_attention_heads": shape.heads,
    "num_key_value_heads": shape.kv_heads,
    "max_position_embeddings": POSITIONS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
    "torch_dtype": "float32",
}

numbers = random.Random(0)
header, data = {"__metadata__": {"format": "pt"}}, b""
for name, size in tensors().items():
    stored = values(name, size)
    if sys.byteorder == "big":
        stored.byteswap()
    header[name] = {"dtype": "F32", "shape": size, "data_offsets": [len(data), len(data) + 4 * len(stored)]}
    data += stored.tobytes()
parameters = len(data) // 4
assert parameters == shape.parameters(), f"{parameters} parameters, expected {shape.parameters()}"
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
folder.mkdir(parents=True, exist_ok=True)
(folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
(folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
print(f"{parameters:,} parameters in {folder.resolve()}")
