"""Generates the tiny checkpoints in ../fixtures that the tests of `model` and of the rollout engine load.

    python make_fixtures.py

Together, the six policies have every feature of the four families: untied and tied embeddings, biases, QK-norm, an
explicit head size, llama3, linear and YaRN rotary scaling, sliding windows in all layers and in some, f32, f16 and bf16
weights, one file and several shards, and both spellings of the rotary settings. The two critics are token classifiers with one label. Generated with torch 2.x and transformers 5.x; the weights are determined by the seed.
"""

import json
import pathlib
import shutil

import torch
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForTokenClassification,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForTokenClassification,
)

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"

SHAPE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def randomise(model, seed):
    """Weights large enough for a peaked next-token distribution and for every term of the gradient to matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                parameter.copy_(1.0 + 0.2 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.2 * noise)
            elif "embed_tokens" in name:
                # Small compared to the layers' output, so that a tied model does not just repeat its input.
                parameter.copy_(0.25 * noise)
            else:
                parameter.copy_(noise * (2.0 / parameter.shape[-1] ** 0.5))


def write(name, model, seed, dtype, extra_eos=None, **options):
    randomise(model, seed)
    folder = FIXTURES / name
    shutil.rmtree(folder, ignore_errors=True)
    model = model.to(dtype)
    if extra_eos is not None:
        model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=[2, extra_eos], pad_token_id=0)
    model.save_pretrained(folder, **options)
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert size < 200_000, (name, size)
    print(name, size, sorted(file.name for file in folder.iterdir()))
    return folder


def main():
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    llama = LlamaForCausalLM(
        LlamaConfig(**SHAPE, rms_norm_eps=1e-5, rope_parameters=rope, tie_word_embeddings=False)
    )
    folder = write("tiny-llama", llama, 1, torch.float32, extra_eos=49)
    llama_critic = LlamaForTokenClassification(
        LlamaConfig(**SHAPE, num_labels=1, rms_norm_eps=1e-5, rope_parameters=rope)
    )
    write("tiny-llama-critic", llama_critic, 4, torch.float32)
    # The spelling of transformers 4, which most existing folders use.
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2) + "\n")

    rope = {"rope_type": "default", "rope_theta": 1000000.0}
    qwen2 = Qwen2ForCausalLM(
        Qwen2Config(**SHAPE, rms_norm_eps=1e-6, rope_parameters=rope, tie_word_embeddings=True)
    )
    write("tiny-qwen2", qwen2, 2, torch.float16, extra_eos=49)

    rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    qwen3 = Qwen3ForCausalLM(
        Qwen3Config(
            **SHAPE,
            head_dim=16,
            attention_bias=True,
            rms_norm_eps=1e-6,
            rope_parameters=rope,
            tie_word_embeddings=True,
        )
    )
    write("tiny-qwen3", qwen3, 3, torch.bfloat16, extra_eos=49, max_shard_size="40KB")
    qwen3_critic = Qwen3ForTokenClassification(
        Qwen3Config(**SHAPE, num_labels=1, head_dim=16, rms_norm_eps=1e-6, rope_parameters=rope)
    )
    write("tiny-qwen3-critic", qwen3_critic, 5, torch.bfloat16)

    rope = {
        "rope_type": "yarn",
        "rope_theta": 1000.0,
        "factor": 4.0,
        "beta_fast": 4.0,
        "original_max_position_embeddings": 64,
    }
    mistral = MistralForCausalLM(
        MistralConfig(**SHAPE, sliding_window=None, rms_norm_eps=1e-5, rope_parameters=rope)
    )
    write("tiny-mistral", mistral, 7, torch.bfloat16, extra_eos=49)

    rope = {"rope_type": "default", "rope_theta": 10000.0}
    window = MistralForCausalLM(
        MistralConfig(**SHAPE, sliding_window=7, rms_norm_eps=1e-5, rope_parameters=rope)
    )
    write("tiny-mistral-window", window, 8, torch.bfloat16, extra_eos=49)
    layers = {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 18, "max_window_layers": 1}
    window = Qwen2ForCausalLM(
        Qwen2Config(**(SHAPE | layers), rms_norm_eps=1e-6, rope_parameters=rope, tie_word_embeddings=True)
    )
    write("tiny-qwen2-window", window, 9, torch.bfloat16, extra_eos=49)


if __name__ == "__main__":
    main()
