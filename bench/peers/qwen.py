"""Transformers models of the shapes with random weights; sets PyTorch's thread count."""

import torch
import transformers
from transformers import Qwen2Config, Qwen2ForCausalLM

from workloads import POSITIONS, SHAPES, peak_mib, threads

torch.set_num_threads(threads())
torch.manual_seed(0)
VERSIONS = f"torch {torch.__version__}, transformers {transformers.__version__}"
#: Resident memory before a model exists: the interpreter and its imports.
START_MIB = peak_mib()


def model(name: str, dtype: torch.dtype = torch.float32) -> Qwen2ForCausalLM:
    """Creates a model of a shape. No token ends a sequence, so that every completion has its full length."""
    shape = SHAPES[name]
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    made = Qwen2ForCausalLM(config).to(dtype)
    assert parameters(made) == shape.parameters(), f"{parameters(made)} parameters, expected {shape.parameters()}"
    return made


def parameters(of: torch.nn.Module) -> int:
    """Returns the number of parameters, tied ones counted once."""
    return sum(p.numel() for p in of.parameters())


def dtype(compute: str) -> torch.dtype:
    return {"f32": torch.float32, "bf16": torch.bfloat16}[compute]
