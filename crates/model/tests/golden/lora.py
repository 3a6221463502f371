"""Reference results of PEFT for LoRA adapters over the tiny checkpoints: writes `lora/NAME/`, an adapter as PEFT saves it, and
`lora/NAME.safetensors`, next to this file.

    python lora.py

The tensors hold a packed batch, the logits of `transformers` with the adapter in f32 (one sequence at a time) and, in f64, the
scores and the gradient of  Σ d_logprob · logprob + d_entropy · entropy  with respect to every matrix of the adapter. Of DoRA,
they hold the batch and the logits.
"""

import pathlib

import torch
from peft import LoraConfig, get_peft_model
from reference import FIXTURES, HERE, LENGTHS, in_f64, scores
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {
    "tiny-llama": LoraConfig(r=4, lora_alpha=8, target_modules=ALL, task_type="CAUSAL_LM"),
    "tiny-qwen2": LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    "tiny-qwen3": LoraConfig(
        r=8, lora_alpha=16, use_rslora=True, target_modules=["k_proj", "o_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM"
    ),
    "tiny-mistral": LoraConfig(r=4, lora_alpha=4, target_modules=["q_proj", "gate_proj"], task_type="CAUSAL_LM"),
}
# Adapters of the language head, which is tied to the embedding in one of the checkpoints.
HEADS = {
    "tiny-llama": LoraConfig(r=4, lora_alpha=8, target_modules=["lm_head"], task_type="CAUSAL_LM"),
    "tiny-qwen2": LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj", "lm_head"], task_type="CAUSAL_LM"),
}
# Merged when they are read: without scores and gradients.
DORA = {
    "tiny-llama": LoraConfig(r=4, lora_alpha=8, use_dora=True, target_modules=ALL, task_type="CAUSAL_LM"),
    "tiny-qwen2": LoraConfig(
        r=3, lora_alpha=5, use_dora=True, use_rslora=True, target_modules=["v_proj", "q_proj", "down_proj"], task_type="CAUSAL_LM"
    ),
    "tiny-qwen3": LoraConfig(r=4, lora_alpha=4, use_dora=True, target_modules=["k_proj", "lm_head"], task_type="CAUSAL_LM"),
}


def write_dora():
    torch.manual_seed(22)
    for name, config in DORA.items():
        base = AutoModelForCausalLM.from_pretrained(FIXTURES / name, dtype=torch.float32)
        model = get_peft_model(base, config).eval()
        for key, parameter in model.named_parameters():
            if "lora_B" in key:
                torch.nn.init.normal_(parameter, std=0.05)
            if "lora_magnitude_vector" in key:
                parameter.data *= 0.5 + torch.rand_like(parameter)
        folder = HERE / "lora" / f"{name}-dora"
        model.peft_config["default"].base_model_name_or_path = f"../../../fixtures/{name}"
        model.save_pretrained(folder, save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)
        sequences = [torch.randint(0, 96, (length,)) for length in LENGTHS]
        with torch.no_grad():
            logits = torch.cat([model(sequence[None]).logits[0] for sequence in sequences])
        data = {
            "tokens": torch.cat(sequences).int(),
            "seq_starts": torch.tensor([0, *LENGTHS]).cumsum(0).int(),
            "rows": torch.arange(1, sum(LENGTHS)).int(),
            "inv_temperature": torch.ones(sum(LENGTHS) - 1),
            "logits": logits,
        }
        save_file(data, HERE / "lora" / f"{name}-dora.safetensors")
        print(f"{name}-dora", float(logits.abs().max()))


def main():
    torch.manual_seed(21)
    every = [(name, name, config) for name, config in CASES.items()]
    for case, name, config in [*every, *((f"{name}-head", name, config) for name, config in HEADS.items())]:
        base = AutoModelForCausalLM.from_pretrained(FIXTURES / name, dtype=torch.float32)
        model = get_peft_model(base, config).eval()
        for key, parameter in model.named_parameters():
            if "lora_B" in key:
                torch.nn.init.normal_(parameter, std=0.05)
        folder = HERE / "lora" / case
        model.peft_config["default"].base_model_name_or_path = f"../../../fixtures/{name}"
        # PEFT would add the tables of the base to an adapter of the head.
        model.save_pretrained(folder, save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)

        sequences = [torch.randint(0, 96, (length,)) for length in LENGTHS]
        starts = torch.tensor([0, *LENGTHS]).cumsum(0)
        rows = [int(start) + i for start, length in zip(starts, LENGTHS) for i in range(1, length)]
        count = len(rows)
        with torch.no_grad():
            logits = torch.cat([model(sequence[None]).logits[0] for sequence in sequences])
        data = {
            "tokens": torch.cat(sequences).int(),
            "seq_starts": starts.int(),
            "rows": torch.tensor(rows).int(),
            "inv_temperature": (1 / (torch.rand(count, dtype=torch.float64) * 1.5 + 0.5)).float(),
            "d_logprob": torch.randn(count),
            "d_entropy": torch.randn(count) * 0.3,
            "logits": logits,
        }
        model = in_f64(model)
        exact = torch.cat([model(sequence[None]).logits[0] for sequence in sequences])
        logprob, entropy = scores(exact, data)
        (data["d_logprob"].double() * logprob + data["d_entropy"].double() * entropy).sum().backward()
        data["logprob"], data["entropy"] = logprob.detach().float(), entropy.detach().float()
        for key, parameter in model.named_parameters():
            if parameter.grad is not None:
                data["grad." + key.replace(".default", "")] = parameter.grad.float().contiguous()
        save_file(data, HERE / "lora" / f"{case}.safetensors")
        merged = model.float().merge_and_unload()
        with torch.no_grad():
            alone = torch.cat([merged(sequence[None]).logits[0] for sequence in sequences])
        print(case, count, float((alone - logits).abs().max()))


if __name__ == "__main__":
    main()
    write_dora()
