"""Loops written with the unmodified `tinker` SDK against the training API of all weights, compared with PyTorch.

Run by the test `agents_tinker` of crate `train_api`, which sets TINKER_BASE_URL, TINKER_API_KEY, RLOOM_TEST_BASE (the folder of
the base model) and RLOOM_TEST_CHECKPOINTS (the server's folder of checkpoints).
"""

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import tinker
import torch
from safetensors.torch import load_file
from tinker import types
from transformers import AutoModelForCausalLM

warnings.simplefilter("ignore")
BASE = Path(os.environ["RLOOM_TEST_BASE"])
CHECKPOINTS = Path(os.environ["RLOOM_TEST_CHECKPOINTS"])
MODEL = "tiny"
ADAM = types.AdamParams(learning_rate=5e-3)
BOUND = 1e-5


def done(created: object) -> object:
    """A client; versions before 0.38 do not return futures of clients."""
    return created.result() if hasattr(created, "result") else created


def folder(path: str) -> Path:
    """Folder of a checkpoint."""
    return CHECKPOINTS / path.removeprefix("tinker://").replace(":", "-")


class Reference:
    """The same model and optimizer in PyTorch, in double precision."""

    def __init__(self) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float64, attn_implementation="eager")
        # PyTorch would leave out the gradient of the padding token as an input.
        self.model.get_input_embeddings().padding_idx = None
        self.initial = {name: value.detach().clone() for name, value in self.model.named_parameters()}
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=ADAM.learning_rate, betas=(0.9, 0.95), eps=ADAM.eps, weight_decay=0.0
        )

    def logprobs(self, tokens: list[int]) -> torch.Tensor:
        """Log-probability of each token but the first."""
        logits = self.model(torch.tensor([tokens])).logits[0, :-1]
        return logits.log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]

    def step(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def deviation(self, path: str) -> float:
        """Norm of the difference between a checkpoint's update and this one, relative to it."""
        stored = load_file(folder(path) / "model.safetensors")
        difference = update = 0.0
        for name, value in self.model.named_parameters():
            difference += float(((stored[name].double() - value.detach()) ** 2).sum())
            update += float(((value.detach() - self.initial[name]) ** 2).sum())
        assert update > 0
        return (difference / update) ** 0.5


def sequences(step: int, count: int = 6) -> list[list[int]]:
    rng = np.random.default_rng(step)
    return [rng.integers(0, 20, size=int(rng.integers(5, 14))).tolist() for _ in range(count)]


def supervised(tokens: list[int], prompt: int = 2) -> types.Datum:
    weights = [float(index + 1 >= prompt) for index in range(len(tokens) - 1)]
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": weights},
    )


def check_supervised(service: tinker.ServiceClient) -> None:
    training = service.create_lora_training_client(base_model=MODEL, rank=8)
    reference = Reference()
    for step in range(5):
        batch = sequences(step)
        output = training.forward_backward([supervised(tokens) for tokens in batch], "cross_entropy")
        optimizer = training.optim_step(ADAM)
        loss = sum(-reference.logprobs(tokens)[1:].sum() for tokens in batch)
        result = output.result()
        assert abs(result.metrics["loss:sum"] / float(loss) - 1) < 1e-5, result.metrics
        for tokens, out in zip(batch, result.loss_fn_outputs, strict=True):
            expected = reference.logprobs(tokens).detach().numpy()
            assert np.abs(np.array(out["logprobs"].data) - expected).max() < 1e-5
        optimizer.result()
        reference.step(loss)
    deviation = reference.deviation(training.save_state("supervised").result().path)
    print(f"supervised, 5 steps: deviation of the update from PyTorch {deviation:.1e}")
    assert deviation < BOUND


def reinforcement_loss(name: str, lp: torch.Tensor, q: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    ratio = (lp - q).exp()
    if name == "importance_sampling":
        return -(ratio * advantage).sum()
    if name == "ppo":
        return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).sum()
    if name == "cispo":
        return -(ratio.clamp(0.0, 4.0).detach() * advantage * lp).sum()
    return -(advantage * lp).sum() + 0.05 * ((lp - q) ** 2).sum()


def check_reinforcement(service: tinker.ServiceClient, name: str) -> None:
    training = service.create_lora_training_client(base_model=MODEL, rank=8)
    reference = Reference()
    prompt = [1, 5, 9]
    for step in range(3):
        sampler = training.save_weights_and_get_sampling_client()
        sampled = sampler.sample(
            types.ModelInput.from_ints(prompt),
            num_samples=8,
            sampling_params=types.SamplingParams(max_tokens=6, temperature=1.0, seed=step),
        ).result()
        rewards = np.array([sum(token % 2 == 0 for token in s.tokens) for s in sampled.sequences], dtype=np.float32)
        advantages = rewards - rewards.mean()
        data = []
        for sequence, advantage in zip(sampled.sequences, advantages, strict=True):
            tokens = prompt + list(sequence.tokens)
            zeros = [0.0] * (len(prompt) - 1)
            data.append(
                types.Datum(
                    model_input=types.ModelInput.from_ints(tokens[:-1]),
                    loss_fn_inputs={
                        "target_tokens": tokens[1:],
                        "logprobs": zeros + list(sequence.logprobs),
                        "advantages": zeros + [float(advantage)] * len(sequence.tokens),
                    },
                )
            )
        # Two steps on the samples: the second one is off-policy.
        for repeat in range(2):
            output = training.forward_backward(data, name)
            training.optim_step(ADAM).result()
            result = output.result()
            if repeat == 0:
                for sequence, out in zip(sampled.sequences, result.loss_fn_outputs, strict=True):
                    trained = np.array(out["logprobs"].data, dtype=np.float32)[len(prompt) - 1 :]
                    assert np.array_equal(trained, np.array(sequence.logprobs, dtype=np.float32))
            losses = []
            for sequence, datum in zip(sampled.sequences, data, strict=True):
                lp = reference.logprobs(prompt + list(sequence.tokens))
                inputs = datum.loss_fn_inputs
                q, a = (torch.tensor(inputs[key].data, dtype=torch.float64) for key in ("logprobs", "advantages"))
                losses.append(reinforcement_loss(name, lp, q, a))
            loss = sum(losses)
            assert abs(result.metrics["loss:sum"] - float(loss)) < 1e-4 * (1 + abs(float(loss)))
            reference.step(loss)
    deviation = reference.deviation(training.save_state(name).result().path)
    print(f"{name}, 6 steps: deviation of the update from PyTorch {deviation:.1e}")
    assert deviation < BOUND


def check_custom(service: tinker.ServiceClient) -> None:
    training = service.create_lora_training_client(base_model=MODEL, rank=8)
    reference = Reference()

    def loss_of(logprobs: list[torch.Tensor]) -> torch.Tensor:
        return sum((lp**2).sum() + lp.sum().exp() for lp in logprobs)

    def custom(data: list[types.Datum], logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
        loss = loss_of(logprobs)
        return loss, {"custom": float(loss)}

    for step in range(3):
        batch = sequences(step)
        output = training.forward_backward_custom([supervised(tokens) for tokens in batch], custom)
        optimizer = training.optim_step(ADAM)
        loss = loss_of([reference.logprobs(tokens) for tokens in batch])
        assert abs(output.result().metrics["loss:sum"] / float(loss) - 1) < 1e-5
        optimizer.result()
        reference.step(loss)
    deviation = reference.deviation(training.save_state("custom").result().path)
    print(f"custom loss, 3 steps: deviation of the update from PyTorch {deviation:.1e}")
    assert deviation < BOUND


def train(training: tinker.TrainingClient, step: int) -> None:
    output = training.forward_backward([supervised(tokens) for tokens in sequences(step)], "cross_entropy")
    training.optim_step(ADAM).result()
    output.result()


def weights(path: str) -> dict[str, torch.Tensor]:
    return load_file(folder(path) / "model.safetensors")


def check_checkpoints(service: tinker.ServiceClient) -> None:
    training = service.create_lora_training_client(base_model=MODEL, rank=8)
    train(training, 0)
    saved = training.save_state("one").result().path
    train(training, 1)
    expected = weights(training.save_state("two").result().path)
    loaded = service.create_training_client_from_state_with_optimizer(saved)
    train(loaded, 1)
    continued = weights(loaded.save_state("two").result().path)
    assert all(torch.equal(continued[name], value) for name, value in expected.items())
    fresh = service.create_training_client_from_state(saved)
    train(fresh, 1)
    other = weights(fresh.save_state("two").result().path)
    assert not all(torch.equal(other[name], value) for name, value in expected.items())
    # The checkpoint is a folder of transformers.
    AutoModelForCausalLM.from_pretrained(folder(saved))
    # Weights for sampling, by name and by path.
    path = training.save_weights_for_sampler("named").result().path
    prompt = types.ModelInput.from_ints([1, 2, 3, 4])
    by_path = service.create_sampling_client(model_path=path).compute_logprobs(prompt).result()
    direct = training.save_weights_and_get_sampling_client("direct").compute_logprobs(prompt).result()
    base = service.create_sampling_client(base_model=MODEL).compute_logprobs(prompt).result()
    assert by_path[0] is None and by_path == direct and by_path != base
    forward = training.forward([supervised([1, 2, 3, 4])], "cross_entropy").result()
    assert np.array_equal(np.array(forward.loss_fn_outputs[0]["logprobs"].data), np.array(by_path[1:]))
    try:
        training.save_state("one").result()
    except tinker.RequestFailedError as error:
        assert "exists" in str(error) and error.category == types.RequestErrorCategory.User
    else:
        raise AssertionError("an existing checkpoint was replaced")
    # Lists, and what is deleted.
    rest = service.create_rest_client()
    own = rest.list_checkpoints(saved.removeprefix("tinker://").split("/")[0]).result().checkpoints
    assert [(one.checkpoint_type, one.tinker_path) for one in own if one.tinker_path == saved] == [("training", saved)]
    assert path in [one.tinker_path for one in own if one.checkpoint_type == "sampler"]
    assert all(one.size_bytes > 0 and one.time.year > 2000 for one in own)
    everything = rest.list_user_checkpoints(limit=2).result()
    assert len(everything.checkpoints) == 2 < everything.cursor.total_count
    rest.delete_checkpoint_from_tinker_path(path).result()
    left = rest.list_checkpoints(saved.removeprefix("tinker://").split("/")[0]).result().checkpoints
    assert path not in [one.tinker_path for one in left] and len(left) == len(own) - 1
    assert not folder(path).exists()
    training.save_state("one", overwrite=True).result()
    print("checkpoints: continuing gives the same bits")


def check_concurrency(service: tinker.ServiceClient) -> None:
    clients = [service.create_lora_training_client(base_model=MODEL, rank=8) for _ in range(2)]
    # Many requests before the first result is read; 1,500 data are two requests.
    many = [supervised([1, 2, 3, index % 20]) for index in range(1500)]
    futures = []
    for step in range(3):
        for training in clients:
            futures.append(training.forward_backward(many, "cross_entropy"))
            futures.append(training.optim_step(ADAM))
    results = [future.result() for future in futures]
    assert len(results[0].loss_fn_outputs) == 1500
    paths = [training.save_state("last").result().path for training in clients]
    first, second = (weights(path) for path in paths)
    assert all(torch.equal(first[name], second[name]) for name in first)
    samplers = [training.save_weights_and_get_sampling_client() for training in clients]
    samplers.append(service.create_sampling_client(base_model=MODEL))
    params = types.SamplingParams(max_tokens=12, temperature=1.0, seed=3)
    pending = [
        sampler.sample(types.ModelInput.from_ints([1, 2, index % 20]), num_samples=2, sampling_params=params)
        for index in range(40)
        for sampler in samplers
    ]
    sampled = [future.result() for future in pending]
    # Both models have the same weights.
    for a, b, base in zip(sampled[0::3], sampled[1::3], sampled[2::3], strict=True):
        assert [s.tokens for s in a.sequences] == [s.tokens for s in b.sequences]
        assert len(base.sequences) == 2
    ids = {s.sequence_id for response in sampled for s in response.sequences}
    assert len(ids) == 240
    print("concurrency: 12 training and 120 sampling requests at the same time")


def check_errors(service: tinker.ServiceClient) -> None:
    training = service.create_lora_training_client(base_model=MODEL, rank=8)
    wrong = types.Datum(
        model_input=types.ModelInput.from_ints([1, 2]),
        loss_fn_inputs={"target_tokens": [2, 3], "weights": [1.0]},
    )
    try:
        training.forward_backward([wrong], "cross_entropy").result()
    except tinker.RequestFailedError as error:
        assert "datum 0" in str(error), error
    else:
        raise AssertionError("a wrong datum was accepted")
    for create in (
        lambda: done(service.create_lora_training_client(base_model="org/other", rank=8)),
        lambda: done(service.create_sampling_client(model_path="tinker://../weights/x")),
    ):
        try:
            create()
        except Exception as error:
            assert "this server trains" in str(error) or "no path of this server" in str(error), error
        else:
            raise AssertionError("a wrong name was accepted")
    holder = sys.modules["tinker.lib.internal_client_holder"]
    version = holder.tinker_sdk_version
    holder.tinker_sdk_version = "0.18.0"
    try:
        tinker.ServiceClient().get_server_capabilities()
        tinker.ServiceClient().create_lora_training_client(base_model=MODEL, rank=8)
    except Exception as error:
        assert "install `tinker`" in str(error), error
    else:
        raise AssertionError("another version was accepted")
    finally:
        holder.tinker_sdk_version = version
    print("errors: reported as what they are")


def check_killed_client() -> None:
    program = (
        "import tinker, time; t = tinker.ServiceClient().create_lora_training_client(base_model='tiny', rank=8);"
        "t = t.result() if hasattr(t, 'result') else t;"
        "t.get_info(); print('ready', flush=True); time.sleep(1000)"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline().strip() == "ready"
    child.send_signal(signal.SIGKILL)
    child.wait()
    print("killed: a client with a model")


def main() -> None:
    torch.manual_seed(0)
    service = tinker.ServiceClient()
    names = [model.model_name for model in service.get_server_capabilities().supported_models]
    assert MODEL in names, names
    check_supervised(service)
    for name in ("importance_sampling", "ppo", "cispo", "dro"):
        check_reinforcement(service, name)
    check_custom(service)
    check_checkpoints(service)
    check_concurrency(service)
    check_errors(service)
    service.close("success").result()
    check_killed_client()


if __name__ == "__main__":
    main()
