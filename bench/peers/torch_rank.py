"""The training step of torch_train.py by a rank of RLoom: the same model, sequences and optimizer, packed."""

import tempfile

import qwen
import torch
from workloads import SHAPES, arguments, report, timed

from rloom.torch.batch import Batch
from rloom.torch.engine import Engine
from rloom.torch.loss import Coefficients
from rloom.torch.model import Scores
from rloom.torch.settings import OptimizerSettings, Settings
from rloom.torch.world import World

given = arguments()
shape = SHAPES[given.shape]
sequences, length = shape.train
losses = []


class CrossEntropy:
    """Mean negative log-probability."""

    divergence = None

    def inert(self, micro_batch: int) -> list[bool]:
        return []

    def noisy(self, batch: Batch, width: int) -> Batch:
        return batch

    def evaluate(self, micro_batch: int, scores: Scores) -> Coefficients:
        losses.append(-scores.logprob.mean().item())
        each = torch.full_like(scores.logprob, -1 / len(scores.logprob))
        return Coefficients(each, torch.zeros_like(each), torch.empty(0))


with tempfile.TemporaryDirectory() as folder:
    model = qwen.model(given.shape)
    parameters = qwen.parameters(model)
    model.save_pretrained(folder)
    del model
    settings = Settings(
        folder,
        optimizer=OptimizerSettings(weight_decay=0.01, max_grad_norm=0.0),
        dtype=given.dtype,
        device="cpu",
    )
    engine = Engine(settings, World.join(settings))

ids = torch.randint(0, shape.vocabulary, (sequences * length,))
rows = torch.arange(sequences * length).view(sequences, length)[:, 1:].reshape(-1)
batch = Batch(ids, (length,) * sequences, rows, torch.ones(len(rows)))


def step() -> None:
    engine.accumulate({0: batch}, 1, CrossEntropy(), lambda done: None)
    engine.step(1e-4)


seconds = timed(given.steps, given.warm, step)
assert losses[-1] < losses[0], f"the loss does not decrease on a repeated batch: {losses}"
report(seconds, sequences * length, start_mib=qwen.START_MIB, parameters=parameters, versions=qwen.VERSIONS)
