"""What transformers and PyTorch make of the tiny checkpoints: writes one NAME.safetensors beside this file for each.

    python reference.py

Each holds a packed batch, the logits of `transformers` in f32 (one sequence at a time, so that no padding is involved)
and, in f64, the scores and the gradient of  Σ d_logprob · logprob + d_entropy · entropy  by every weight, at a
temperature of its own for each scored token. RMSNorm is patched to compute in f64: `transformers` has it in f32.
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
        index = torch.tensor(rows)
        tokens = torch.cat(sequences)
        log_p = (exact[index - 1] * inv_temperature.double()[:, None]).log_softmax(-1)
        logprob = log_p.gather(1, tokens[index][:, None])[:, 0]
        entropy = -(log_p.exp() * log_p).sum(-1)
        loss = (d_logprob.double() * logprob + d_entropy.double() * entropy).sum()
        loss.backward()

        data = {
            "tokens": tokens.int(),
            "seq_starts": torch.tensor(starts).int(),
            "rows": index.int(),
            "inv_temperature": inv_temperature,
            "d_logprob": d_logprob,
            "d_entropy": d_entropy,
            "logits": logits,
            "logprob": logprob.detach().float(),
            "entropy": entropy.detach().float(),
        }
        for parameter, value in model.named_parameters():
            data["grad." + parameter] = value.grad.float().contiguous()
        save_file(data, HERE / f"{name}.safetensors")
        print(name, count, float(loss.detach()))


if __name__ == "__main__":
    main()
