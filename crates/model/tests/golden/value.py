"""Reference results of transformers and PyTorch for value heads: writes one file per model next to this one.

    python value.py

For a critic (a token classifier with one label): its values and the gradient of  Σ ½(value − target)²  with respect to
every weight. For a policy: a random value head over its final-normed hidden states and the gradient of
Σ d_logprob · logprob + d_entropy · entropy + d_value · value.  For a reward model of completions (a sequence classifier with one
label and a random head, on a policy's backbone): the gradient of  Σ d_value · value + d_last_value · last_value.  For one of steps (a
token classifier with two labels): that of the cross-entropy of random labels at the scored tokens and the last ones, whose value is the
difference of the two logits. All in f64, with RMSNorm patched as in reference.py;
a critic's values agree with those of the unpatched f32 model to 2e-5. The value of a scored token is computed at the
previous row, a sequence's last value at its last token.
"""

import pathlib

import torch
from reference import FIXTURES, LENGTHS, norm_in_f64
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

HERE = pathlib.Path(__file__).resolve().parent


def batch():
    """Concatenated sequences; of the third only every second token is scored."""
    sequences = [torch.randint(0, 96, (length,)) for length in LENGTHS]
    starts = [0]
    for length in LENGTHS:
        starts.append(starts[-1] + length)
    rows = [
        start + i
        for index, (start, length) in enumerate(zip(starts, LENGTHS))
        for i in range(1, length)
        if index != 2 or i % 2 == 0
    ]
    return sequences, torch.tensor(starts), torch.tensor(rows)


def in_f64(model):
    model = model.double()
    # `transformers` gives the padding token's embedding no gradient; without padding it is an ordinary token.
    model.get_input_embeddings().padding_idx = None
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = norm_in_f64.__get__(module)
    return model


def critic(name):
    sequences, starts, rows = batch()
    model = AutoModelForTokenClassification.from_pretrained(FIXTURES / name, dtype=torch.float32).eval()
    with torch.no_grad():
        rounded = torch.cat([model(sequence[None]).logits[0, :, 0] for sequence in sequences])
    model = in_f64(model)
    values = torch.cat([model(sequence[None]).logits[0, :, 0] for sequence in sequences])
    assert (values.detach() - rounded).abs().max() < 2e-5
    value = values[rows - 1]
    target = torch.randn(len(rows))
    (0.5 * (value - target.double()) ** 2).sum().backward()
    more = {"target": target, "inv_temperature": torch.ones(len(rows))}
    return model, sequences, starts, rows, values, more


def policy_with_value_head(name):
    sequences, starts, rows = batch()
    temperature = torch.rand(len(rows), dtype=torch.float64) * 1.5 + 0.5
    inv_temperature = (1 / temperature).float()
    d_logprob, d_entropy, d_value = torch.randn(3, len(rows)) * torch.tensor([[1.0], [0.3], [1.0]])
    model = in_f64(AutoModelForCausalLM.from_pretrained(FIXTURES / name, dtype=torch.float32).eval())
    head = torch.nn.Linear(model.config.hidden_size, 1)
    torch.nn.init.normal_(head.weight, std=0.3)
    torch.nn.init.constant_(head.bias, 0.4)
    stored = {"score." + part: parameter.detach().clone() for part, parameter in head.named_parameters()}
    model.score = head.double()
    stream = torch.cat([model.model(sequence[None]).last_hidden_state[0] for sequence in sequences])
    values = model.score(stream)[:, 0]
    log_p = (model.lm_head(stream)[rows - 1] * inv_temperature.double()[:, None]).log_softmax(-1)
    logprob = log_p.gather(1, torch.cat(sequences)[rows][:, None])[:, 0]
    entropy = -(log_p.exp() * log_p).sum(-1)
    loss = d_logprob.double() * logprob + d_entropy.double() * entropy + d_value.double() * values[rows - 1]
    loss.sum().backward()
    more = {
        "inv_temperature": inv_temperature,
        "d_logprob": d_logprob.clone(),
        "d_entropy": d_entropy.clone(),
        "d_value": d_value.clone(),
        "logprob": logprob.detach().float(),
        "entropy": entropy.detach().float(),
    }
    return model, sequences, starts, rows, values, more | stored


def with_random_head(kind, name, labels):
    model = kind.from_pretrained(FIXTURES / name, num_labels=labels, dtype=torch.float32).eval()
    torch.nn.init.normal_(model.score.weight, std=0.3)
    if model.score.bias is not None:
        torch.nn.init.normal_(model.score.bias, std=0.3)
    stored = {"score." + part: parameter.detach().clone() for part, parameter in model.score.named_parameters()}
    return in_f64(model), stored


def reward(name):
    sequences, starts, rows = batch()
    model, stored = with_random_head(AutoModelForSequenceClassification, name, 1)
    stream = torch.cat([model.model(sequence[None]).last_hidden_state[0] for sequence in sequences])
    values = model.score(stream)[:, 0]
    last = torch.cat([model(sequence[None]).logits[0] for sequence in sequences])
    assert (last - values[starts[1:] - 1]).abs().max() < 1e-12
    d_value, d_last_value = torch.randn(len(rows)), torch.randn(len(sequences))
    ((d_value.double() * values[rows - 1]).sum() + (d_last_value.double() * last).sum()).backward()
    more = {"d_value": d_value, "d_last_value": d_last_value, "inv_temperature": torch.ones(len(rows))}
    return model, sequences, starts, rows, values, more | stored


def process_reward(name):
    sequences, starts, rows = batch()
    model, stored = with_random_head(AutoModelForTokenClassification, name, 2)
    logits = torch.cat([model(sequence[None]).logits[0] for sequence in sequences])
    judged = torch.cat([rows - 1, starts[1:] - 1])
    labels = (torch.rand(len(judged)) < 0.5).long()
    torch.nn.functional.cross_entropy(logits[judged], labels, reduction="sum").backward()
    values = logits[:, 1] - logits[:, 0]
    d = (values[judged].sigmoid() - labels).detach().float()
    more = {"d_value": d[: len(rows)], "d_last_value": d[len(rows) :], "inv_temperature": torch.ones(len(rows))}
    more = {key: value.contiguous() for key, value in more.items()}
    return model, sequences, starts, rows, values, more | stored


def main():
    torch.manual_seed(17)
    for make, name, file in [
        (critic, "tiny-llama-critic", "tiny-llama-critic-value"),
        (critic, "tiny-qwen3-critic", "tiny-qwen3-critic-value"),
        (policy_with_value_head, "tiny-llama", "tiny-llama-value"),
        (policy_with_value_head, "tiny-qwen3", "tiny-qwen3-value"),
        (reward, "tiny-qwen2", "tiny-qwen2-reward"),
        (process_reward, "tiny-llama", "tiny-llama-process-reward"),
    ]:
        model, sequences, starts, rows, values, data = make(name)
        data |= {
            "tokens": torch.cat(sequences).int(),
            "seq_starts": starts.int(),
            "rows": rows.int(),
            "value": values[rows - 1].detach().float(),
            "last_value": values[starts[1:] - 1].detach().float(),
        }
        for parameter, value in model.named_parameters():
            data["grad." + parameter] = value.grad.float().contiguous()
        save_file(data, HERE / f"{file}.safetensors")
        print(file, len(rows), float(values.detach().abs().max()))


if __name__ == "__main__":
    main()
