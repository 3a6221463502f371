"""Loops written with the unmodified `tinker` SDK that train adapters, compared with PyTorch.

Run by the test `agents_tinker_adapters` of crate `train_api`, with the variables of `loops.py`.
"""

import numpy as np
import tinker
import torch
from loops import ADAM, BASE, BOUND, MODEL, folder, reinforcement_loss, sequences, supervised
from safetensors.torch import load_file
from tinker import types
from transformers import AutoModelForCausalLM

RANK = 4
# The scale of the server's adapters is ALPHA / rank.
ALPHA = 32.0
PREFIX = "base_model.model."


def factors(path: str) -> dict[str, torch.Tensor]:
    return load_file(folder(path) / "adapter_model.safetensors")


class Adapted(torch.nn.Module):
    """A linear layer with a low-rank addition."""

    def __init__(self, base: torch.nn.Linear, a: torch.Tensor, b: torch.Tensor) -> None:
        super().__init__()
        self.base = base
        self.a, self.b = (torch.nn.Parameter(factor.double()) for factor in (a, b))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + ALPHA / self.a.shape[0] * (x @ self.a.T) @ self.b.T


class Reference:
    """The same model, adapter and optimizer in PyTorch, in double precision, from a checkpoint before the first step."""

    def __init__(self, start: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float64, attn_implementation="eager")
        self.model.requires_grad_(False)
        self.initial = factors(start)
        self.adapted = {}
        for name in self.initial:
            module, factor = name.removeprefix(PREFIX).rsplit(".lora_", 1)
            if factor == "A.weight":
                own = Adapted(
                    self.model.get_submodule(module),
                    self.initial[name],
                    self.initial[name.replace("lora_A", "lora_B")],
                )
                self.model.set_submodule(module, own)
                self.adapted[module] = own
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        assert len(parameters) == len(self.initial)
        self.optimizer = torch.optim.AdamW(
            parameters, lr=ADAM.learning_rate, betas=(0.9, 0.95), eps=ADAM.eps, weight_decay=0.0
        )

    def logprobs(self, tokens: list[int]) -> torch.Tensor:
        logits = self.model(torch.tensor([tokens])).logits[0, :-1]
        return logits.log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]

    def step(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def deviation(self, path: str) -> float:
        """Norm of the difference between a checkpoint's update and this one, relative to it."""
        stored = factors(path)
        assert stored.keys() == self.initial.keys()
        difference = update = 0.0
        for module, own in self.adapted.items():
            for factor, value in (("A", own.a), ("B", own.b)):
                name = f"{PREFIX}{module}.lora_{factor}.weight"
                difference += float(((stored[name].double() - value.detach()) ** 2).sum())
                update += float(((value.detach() - self.initial[name]) ** 2).sum())
        assert update > 0
        return (difference / update) ** 0.5


def create(service: tinker.ServiceClient, **settings: object) -> tuple[tinker.TrainingClient, Reference]:
    training = service.create_lora_training_client(base_model=MODEL, rank=RANK, seed=11, **settings)
    return training, Reference(training.save_state("start").result().path)


def check_supervised(service: tinker.ServiceClient, **settings: object) -> None:
    training, reference = create(service, **settings)
    for step in range(5):
        batch = sequences(step)
        output = training.forward_backward([supervised(tokens) for tokens in batch], "cross_entropy")
        optimizer = training.optim_step(ADAM)
        loss = sum(-reference.logprobs(tokens)[1:].sum() for tokens in batch)
        result = output.result()
        assert abs(result.metrics["loss:sum"] / float(loss) - 1) < 1e-5, result.metrics
        optimizer.result()
        reference.step(loss)
    deviation = reference.deviation(training.save_state("end").result().path)
    print(f"adapter {settings}, 5 supervised steps: deviation of the update from PyTorch {deviation:.1e}")
    assert deviation < BOUND


def check_reinforcement(service: tinker.ServiceClient) -> None:
    training, reference = create(service)
    prompt = [1, 5, 9]
    for step in range(3):
        sampler = training.save_weights_and_get_sampling_client()
        sampled = sampler.sample(
            types.ModelInput.from_ints(prompt),
            num_samples=8,
            sampling_params=types.SamplingParams(max_tokens=6, temperature=1.0, seed=step),
        ).result()
        rewards = np.array([sum(token % 2 == 0 for token in s.tokens) for s in sampled.sequences], dtype=np.float32)
        data = []
        for sequence, advantage in zip(sampled.sequences, rewards - rewards.mean(), strict=True):
            tokens = prompt + list(sequence.tokens)
            zeros = [0.0] * (len(prompt) - 1)
            inputs = {
                "target_tokens": tokens[1:],
                "logprobs": zeros + list(sequence.logprobs),
                "advantages": zeros + [float(advantage)] * len(sequence.tokens),
            }
            data.append(types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs))
        output = training.forward_backward(data, "ppo")
        training.optim_step(ADAM).result()
        result = output.result()
        losses = []
        for sequence, datum, out in zip(sampled.sequences, data, result.loss_fn_outputs, strict=True):
            trained = np.array(out["logprobs"].data, dtype=np.float32)[len(prompt) - 1 :]
            assert np.array_equal(trained, np.array(sequence.logprobs, dtype=np.float32))
            lp = reference.logprobs(prompt + list(sequence.tokens))
            q, a = (
                torch.tensor(datum.loss_fn_inputs[key].data, dtype=torch.float64) for key in ("logprobs", "advantages")
            )
            losses.append(reinforcement_loss("ppo", lp, q, a))
        reference.step(sum(losses))
    deviation = reference.deviation(training.save_state("end").result().path)
    print(f"adapter, 3 steps of ppo: deviation of the update from PyTorch {deviation:.1e}")
    assert deviation < BOUND


def train(training: tinker.TrainingClient, step: int) -> None:
    output = training.forward_backward([supervised(tokens) for tokens in sequences(step)], "cross_entropy")
    training.optim_step(ADAM).result()
    output.result()


def check_checkpoints(service: tinker.ServiceClient) -> None:
    training = service.create_lora_training_client(base_model=MODEL, rank=RANK, train_mlp=False)
    other = service.create_lora_training_client(base_model=MODEL, rank=2)
    info = training.get_info()
    assert info.is_lora and info.lora_rank == RANK, info
    train(training, 0)
    train(other, 5)
    saved = training.save_state("one").result().path
    train(training, 1)
    expected = factors(training.save_state("two").result().path)
    loaded = service.create_training_client_from_state_with_optimizer(saved)
    train(loaded, 1)
    continued = factors(loaded.save_state("two").result().path)
    assert continued.keys() == expected.keys()
    assert all(torch.equal(continued[name], value) for name, value in expected.items())
    path = training.save_weights_for_sampler("named").result().path
    prompt = types.ModelInput.from_ints([1, 2, 3, 4])
    by_path = service.create_sampling_client(model_path=path).compute_logprobs(prompt).result()
    direct = training.save_weights_and_get_sampling_client("direct").compute_logprobs(prompt).result()
    base = service.create_sampling_client(base_model=MODEL).compute_logprobs(prompt).result()
    assert by_path == direct and by_path != base
    print("adapter checkpoints: continuing gives the same bits, and several adapters share the base")


def main() -> None:
    service = tinker.ServiceClient()
    check_supervised(service)
    check_supervised(service, train_unembed=False)
    check_supervised(service, train_mlp=False, train_attn=False)
    check_reinforcement(service)
    check_checkpoints(service)
    service.close("success").result()


if __name__ == "__main__":
    main()
