"""A GRPO step in PyTorch on a model of any shape with random weights: `generate`, random rewards, one AdamW step, no KL term.

    python bench/peers/torch_grpo.py --config FOLDER [--lora RANK] [--batch 1x8x16x64] [--dtype bf16]

FOLDER has the `config.json` of a Qwen2 model. The completions of the whole step go through the model at once; `--micro N` takes
N at a time, `--checkpointing yes` keeps the inputs of the layers alone (`gradient_checkpointing_enable`). In full training bf16
is autocast over f32 weights, comparable to RLoom's f32 master weights; the base of an adapter (PEFT) is in the format itself.
"""

import contextlib
import time

import qwen
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from workloads import arguments, report

given = arguments("--config", "--lora", "--batch", "--micro", "--checkpointing")
tasks, samples, prompt, new = (int(number) for number in (given.batch or "1x8x16x64").split("x"))
completions = tasks * samples
micro = int(given.micro or completions)
config = Qwen2Config.from_pretrained(given.config)
config.eos_token_id = None  # every completion has its full length
config.pad_token_id = 0
compute = qwen.dtype(given.dtype)
torch.set_default_dtype(compute if given.lora else torch.float32)
model = Qwen2ForCausalLM(config).train()
torch.set_default_dtype(torch.float32)
if given.lora:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(
        model, LoraConfig(r=int(given.lora), lora_alpha=int(given.lora), target_modules="all-linear")
    )
if given.checkpointing:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-6, fused=True)
precision = torch.autocast("cpu", torch.bfloat16) if compute == torch.bfloat16 else contextlib.nullcontext()
phases: list[dict[str, float]] = []


def logprobs(ids: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the completions."""
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=new + 1).logits[:, :-1]
    return torch.log_softmax(logits.float(), -1).gather(-1, ids[:, prompt:, None])[..., 0]


def step() -> None:
    start = time.perf_counter()
    prompts = torch.randint(1, config.vocab_size, (tasks, prompt)).repeat_interleave(samples, 0)
    model.eval()
    with torch.no_grad(), precision:
        ids = model.generate(
            input_ids=prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            top_k=0,
            max_new_tokens=new,
            min_new_tokens=new,
        )
    model.train()
    assert ids.shape == (completions, prompt + new), ids.shape
    sampled = time.perf_counter()
    rewards = torch.rand(tasks, samples)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).reshape(
        -1, 1
    )
    for rows in torch.arange(completions).split(micro):
        with precision:
            logprob = logprobs(ids[rows])
            # On the policy that has sampled, the ratio is 1.
            ratio = torch.exp(logprob - logprob.detach())
            loss = -(ratio * advantages[rows]).mean(1).sum() / completions
        loss.backward()
    trained = time.perf_counter()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    done = time.perf_counter()
    phases.append(
        {"rollout": sampled - start, "forward_backward": trained - sampled, "optimizer": done - trained}
    )


for _ in range(given.warm + given.steps):
    step()
kept = phases[given.warm :]
report(
    [sum(phase.values()) for phase in kept],
    completions * new,
    phases=kept,
    start_mib=qwen.START_MIB,
    parameters=qwen.parameters(model),
    versions=qwen.VERSIONS,
)
