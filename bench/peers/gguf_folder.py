"""Converts a transformers folder of shape S to llama.cpp's format: python gguf_folder.py FOLDER FILE f32|bf16.

llama.cpp requires a tokenizer in the file; this one has one word per id and is never used, since prompts are ids.
"""

import sys
from pathlib import Path

import gguf
from safetensors.numpy import load_file

from workloads import POSITIONS, SHAPES

folder, file, compute = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
shape = SHAPES["S"]
tensors = load_file(folder / "model.safetensors")
parameters = sum(tensor.size for tensor in tensors.values())
assert parameters == shape.parameters(), f"{parameters} parameters, expected {shape.parameters()}"
writer = gguf.GGUFWriter(file, "qwen2")
writer.add_block_count(shape.layers)
writer.add_context_length(POSITIONS)
writer.add_embedding_length(shape.hidden)
writer.add_feed_forward_length(shape.ffn)
writer.add_head_count(shape.heads)
writer.add_head_count_kv(shape.kv_heads)
writer.add_layer_norm_rms_eps(1e-6)
writer.add_rope_freq_base(10_000.0)
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre("qwen2")
writer.add_token_list([f"w{i}" for i in range(shape.vocabulary)])
writer.add_token_types([gguf.TokenType.NORMAL] * shape.vocabulary)
writer.add_token_merges(["w 0"])
writer.add_eos_token_id(0)
names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, shape.layers)
for name, tensor in tensors.items():
    written = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if compute == "bf16" and tensor.ndim == 2:
        stored = gguf.quantize(tensor, gguf.GGMLQuantizationType.BF16)
        writer.add_tensor(written, stored, raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(written, tensor)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
print(f"{parameters:,} parameters in {file}")
