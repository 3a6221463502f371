"""What transformers and PyTorch make of the tiny checkpoints: writes one NAME.safetensors beside this file for each.

    python reference.py

Each holds a packed batch, the logits of `transformers` in f32 (one sequence at a time, so that no padding is involved)
and, in f64, the scores and the gradient of  Σ d_logprob · logprob + d_entropy · entropy  by every weight, at a
temperature of its own for each scored token. RMSNorm is patched to compute in f64: `transformers` has it in f32.

`autocast_error` is how far the gradient that PyTorch computes under bf16 autocast is from the f64 one: relative L2 error
of the worst and of the median tensor. It is the yardstick for bf16 here.
"""

import pathlib

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE.parent / "fixtures"
LENGTHS = [5, 1, 23, 12, 40]


def norm_in_f64(module, x):
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)
    return module.weight * (x * scale)


def scores(logits, data):
    """Log-probabilities and entropies of the scored tokens."""
    index = data["rows"].long()
    log_p = (logits[index - 1] * data["inv_temperature"].to(logits.dtype)[:, None]).log_softmax(-1)
    target = data["tokens"].long()[index]
    return log_p.gather(1, target[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def autocast_error(name, sequences, data):
    model = AutoModelForCausalLM.from_pretrained(FIXTURES / name, dtype=torch.float32).eval()
    with torch.autocast("cpu", torch.bfloat16):
        logits = torch.cat([model(sequence[None]).logits[0] for sequence in sequences])
    logprob, entropy = scores(logits.float(), data)
    (data["d_logprob"] * logprob + data["d_entropy"] * entropy).sum().backward()
    errors = []
    for parameter, value in model.named_parameters():
        exact = data["grad." + parameter]
        errors.append((value.grad - exact).norm() / exact.norm())
    errors = torch.stack(errors)
    return torch.stack([errors.max(), errors.median()])


def main():
    torch.manual_seed(11)
    for name in ["tiny-llama", "tiny-qwen2", "tiny-qwen3"]:
        sequences = [torch.randint(0, 96, (length,)) for length in LENGTHS]
        starts = [0]
        for length in LENGTHS:
            starts.append(starts[-1] + length)
        # Every second token of the third sequence, all that can be scored of the others.
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

        model = model.double()
        for module in model.modules():
            if type(module).__name__.endswith("RMSNorm"):
                module.forward = norm_in_f64.__get__(module)
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
        data["autocast_error"] = autocast_error(name, sequences, data)
        save_file(data, HERE / f"{name}.safetensors")
        print(name, count, float(loss.detach()), data["autocast_error"].tolist())


if __name__ == "__main__":
    main()
