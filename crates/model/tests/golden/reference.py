"""Reference results of transformers and PyTorch for the tiny checkpoints: writes one NAME.safetensors per checkpoint next to this file.

    python reference.py

Each holds a packed batch, the logits of `transformers` in f32 (one sequence at a time, so that no padding is involved)
and, in f64, the scores and the gradient of  Σ d_logprob · logprob + d_entropy · entropy  with respect to every weight,
with a separate temperature for each scored token. RMSNorm is patched to compute in f64: `transformers` computes it in f32.

The files `*-bf16.safetensors` hold more batches of the same lengths, and `autocast_error`, the error of PyTorch's bf16
autocast gradients relative to f64: the relative L2 error of a tensor, as root mean square and as median over the
tensors, both averaged over the batches. RLoom's bf16 is compared with it. A single batch is not enough: these errors vary
by a third between batches.
"""

import pathlib

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE.parent / "fixtures"
LENGTHS = [5, 1, 23, 12, 40]
BATCHES = 40
NAMES = [
    "tiny-llama",
    "tiny-qwen2",
    "tiny-qwen3",
    "tiny-mistral",
    "tiny-mistral-window",
    "tiny-qwen2-window",
]


def norm_in_f64(module, x):
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)
    return module.weight * (x * scale)


def scores(logits, data):
    """Log-probabilities and entropies of the scored tokens."""
    index = data["rows"].long()
    log_p = (logits[index - 1] * data["inv_temperature"].to(logits.dtype)[:, None]).log_softmax(-1)
    target = data["tokens"].long()[index]
    return log_p.gather(1, target[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def gradients(model, sequences, data):
    """Gradients with respect to every parameter."""
    model.zero_grad()
    logits = torch.cat([model(sequence[None]).logits[0] for sequence in sequences])
    logprob, entropy = scores(logits.double(), data)
    (data["d_logprob"] * logprob + data["d_entropy"] * entropy).sum().backward()
    return [parameter.grad.double() for parameter in model.parameters()]


def in_f64(model):
    model = model.double()
    # Otherwise the row of the padding token has no gradient.
    model.get_input_embeddings().padding_idx = None
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = norm_in_f64.__get__(module)
    return model


def autocast_errors(name, data):
    """Batches with the rows and temperatures of `data`, and the error of autocast on them."""
    load = lambda: AutoModelForCausalLM.from_pretrained(FIXTURES / name, dtype=torch.float32).eval()
    single, double = load(), in_f64(load())
    single.get_input_embeddings().padding_idx = None
    generator = torch.Generator().manual_seed(12)
    kept = {"tokens": [], "d_logprob": [], "d_entropy": []}
    errors = []
    for _ in range(BATCHES):
        tokens = torch.randint(0, 96, (sum(LENGTHS),), generator=generator)
        count = len(data["rows"])
        batch = data | {
            "tokens": tokens.int(),
            "d_logprob": torch.randn(count, generator=generator),
            "d_entropy": torch.randn(count, generator=generator) * 0.3,
        }
        sequences = tokens.split(LENGTHS)
        exact = gradients(double, sequences, batch)
        with torch.autocast("cpu", torch.bfloat16):
            close = gradients(single, sequences, batch)
        error = torch.stack([(a - b).norm() / b.norm() for a, b in zip(close, exact)])
        errors.append(torch.stack([error.square().mean().sqrt(), error.median()]))
        for key, values in kept.items():
            values.append(batch[key])
    out = {key: torch.stack(values) for key, values in kept.items()}
    out["autocast_error"] = torch.stack(errors).mean(0).float()
    print(name, "autocast:", out["autocast_error"].tolist())
    return out


def main():
    torch.manual_seed(11)
    for name in NAMES:
        sequences = [torch.randint(0, 96, (length,)) for length in LENGTHS]
        starts = [0]
        for length in LENGTHS:
            starts.append(starts[-1] + length)
        # Every second token of the third sequence, all scorable tokens of the others.
        rows = [
            start + i
            for index, (start, length) in enumerate(zip(starts, LENGTHS))
            for i in range(1, length)
            if index != 2 or i % 2 == 0
        ]
        count = len(rows)
        temperature = torch.rand(count, dtype=torch.float64) * 1.5 + 0.5
        inv_temperature = (1 / temperature).float()
        d_logprob = torch.randn(count)
        d_entropy = torch.randn(count) * 0.3
        d_entropy[::3] = 0

        model = AutoModelForCausalLM.from_pretrained(FIXTURES / name, dtype=torch.float32).eval()
        with torch.no_grad():
            logits = torch.cat([model(sequence[None]).logits[0] for sequence in sequences])

        model = in_f64(model)
        exact = torch.cat([model(sequence[None]).logits[0] for sequence in sequences])
        assert (exact.detach() - logits).abs().max() < 2e-5
        data = {
            "tokens": torch.cat(sequences).int(),
            "seq_starts": torch.tensor(starts).int(),
            "rows": torch.tensor(rows).int(),
            "inv_temperature": inv_temperature,
            "d_logprob": d_logprob,
            "d_entropy": d_entropy,
            "logits": logits,
        }
        logprob, entropy = scores(exact, data)
        loss = (d_logprob.double() * logprob + d_entropy.double() * entropy).sum()
        loss.backward()

        data["logprob"], data["entropy"] = logprob.detach().float(), entropy.detach().float()
        for parameter, value in model.named_parameters():
            data["grad." + parameter] = value.grad.float().contiguous()
        save_file(data, HERE / f"{name}.safetensors")
        save_file(autocast_errors(name, data), HERE / f"{name}-bf16.safetensors")
        print(name, count, float(loss.detach()))


if __name__ == "__main__":
    main()
