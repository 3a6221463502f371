"""Makes small models and scores tokens with transformers: one JSON object per line in and out."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

VOCABULARY = 512
opened = {}


def make(folder: str, seed: int, layers: int, width: int) -> None:
    """Writes a random model with a byte tokenizer; large weights, so that the tokens differ from one another."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: at for at, text in enumerate(alphabet)}
    vocabulary |= {f"<unused{at}>": at for at in range(len(alphabet), VOCABULARY - 2)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>").save_pretrained(folder)
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=11 * width // 4,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 128,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=VOCABULARY - 2,
        pad_token_id=VOCABULARY - 1,
    )
    Qwen2ForCausalLM(config).to(torch.float32).save_pretrained(folder)


def adapt(base: str, folder: str, seed: int, rank: int) -> None:
    """Writes a random LoRA adapter of all linear layers in PEFT's format, and next to it the model with the adapter added."""
    torch.manual_seed(seed)
    model, alpha, tensors, targets = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), 2.0 * rank, {}, {}
    for name, layer in model.model.named_modules(prefix="model"):
        if isinstance(layer, torch.nn.Linear):
            a = torch.randn(rank, layer.in_features) / layer.in_features**0.5
            b = 0.05 * torch.randn(layer.out_features, rank)
            tensors |= {f"base_model.model.{name}.lora_A.weight": a, f"base_model.model.{name}.lora_B.weight": b}
            targets[name.rpartition(".")[2]] = None
            layer.weight.data += alpha / rank * b @ a
    Path(folder).mkdir(parents=True)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "r": rank, "lora_alpha": alpha}
    Path(folder, "adapter_config.json").write_text(json.dumps(config | {"target_modules": list(targets), "bias": "none"}))
    save_file(tensors, Path(folder, "adapter_model.safetensors"))
    model.save_pretrained(f"{folder}-merged")


def model_of(folder: str) -> torch.nn.Module:
    if folder not in opened:
        opened[folder] = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return opened[folder]


def logits_of(folder: str, tokens: list[int]) -> torch.Tensor:
    """Logits of all positions."""
    return model_of(folder)(torch.tensor([tokens])).logits[0]


@torch.inference_mode()
def answer(request: dict) -> object:
    if request["op"] == "make":
        Path(request["folder"]).mkdir(parents=True)
        return make(*(request[key] for key in ("folder", "seed", "layers", "width")))
    if request["op"] == "adapt":
        return adapt(*(request[key] for key in ("base", "folder", "seed", "rank")))
    tokens = request["tokens"]
    if request["op"] == "greedy":
        for _ in range(request["count"]):
            tokens = [*tokens, int(logits_of(request["folder"], tokens)[-1].argmax())]
        return tokens[len(request["tokens"]) :]
    logprobs = (logits_of(request["folder"], tokens)[:-1] / request["temperature"]).log_softmax(dim=-1)
    return logprobs.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()


torch.set_num_threads(1)
for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
