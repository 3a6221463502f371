"""Ranks that divide a model by Megatron compute what one rank of PyTorch computes."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import models
import pytest
import torch
from gangs import gang
from models import Weighted, relative
from rloom.torch import files
from rloom.torch.errors import RankError
from rloom.torch.settings import Settings
from test_gradients import silent
from test_ranks import INERT, STEPS, distance, initial
from test_sequence import BATCHES, mine
from test_steps import SETTINGS

if TYPE_CHECKING:
    from pathlib import Path

    from rloom.torch.engine import Engine

pytest.importorskip("megatron.core")
pytestmark = pytest.mark.megatron


def opened(folder: Path, **settings: Any) -> Engine:
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        import test_gradients

        return test_gradients.engine(folder, optimizer=SETTINGS)
    import on_cpu

    return on_cpu.engine(folder, optimizer=SETTINGS, **settings)


def computed(folder: Path, **settings: Any) -> dict[str, Any]:
    """Scores and gradients of a step, then norms and weights of several."""
    own = opened(folder, **settings)
    given = mine(own, BATCHES)
    scores = dict(zip(given, own.score(given, len(BATCHES), progress=silent), strict=False))
    trained = own.accumulate(given, len(BATCHES), Weighted(BATCHES), silent)
    gradients = {name: g.numpy() for name, g in own.optimizer.gradients().items()}
    norms = [own.step(1e-2)]
    for batches, inert in zip(STEPS, INERT, strict=True):
        skipped = tuple(i for i in inert if all(i < len(b.lengths) for b in batches))
        own.accumulate(mine(own, batches), len(batches), Weighted(batches, inert=skipped), silent)
        norms.append(own.step(1e-2))
    return {
        "scores": {i: [x.numpy() for x in own] for i, own in scores.items()},
        "trained": {t.micro_batch: t.tokens for t in trained},
        "gradients": gradients,
        "norms": norms,
        "weights": weights_of(own),
    }


def distances(own: dict[str, Any], expected: dict[str, Any]) -> float:
    """Returns the largest relative distance of any tensor."""
    return max(relative(torch.tensor(own[name]), torch.tensor(x)) for name, x in expected.items())


#: Tensors, layers, both with recomputation, and copies whose optimizer state is divided.
DIVISIONS: list[tuple[int, dict[str, Any]]] = [
    (2, {"tensor_parallel": 2}),
    (2, {"pipeline_parallel": 2}),
    (2, {}),
    (4, {"tensor_parallel": 2, "pipeline_parallel": 2, "activation_checkpointing": "block"}),
]


@pytest.mark.parametrize(("ranks", "settings"), DIVISIONS)
def test_ranks_agree_with_one_of_pytorch(qwen: Path, ranks: int, settings: dict[str, Any]) -> None:
    compare(qwen, ranks, settings)


def compare(folder: Path, ranks: int, settings: dict[str, Any]) -> None:
    one = computed(folder)
    moved = distance(initial(folder), one["weights"])
    results = gang(ranks, partial(computed, folder, **settings))
    assert distances(results[0]["gradients"], one["gradients"]) < 1e-5
    assert distance(results[0]["weights"], one["weights"]) < 1e-4 * moved
    for result in results:
        assert result["norms"] == results[0]["norms"], "all ranks have the same bits"
    assert results[0]["norms"] == pytest.approx(one["norms"], rel=1e-5)
    of_stages = len(results) // settings.get("pipeline_parallel", 1)
    for result in results[:-of_stages]:
        assert (result["scores"], result["trained"]) == ({}, {}), "only the last stage has scores"
    seen: dict[int, int] = {}
    for result in results[-of_stages:]:
        seen |= result["trained"]
        for i, scores in result["scores"].items():
            for x, expected in zip(scores, one["scores"][i], strict=True):
                assert x == pytest.approx(expected, abs=1e-5)
    assert seen == one["trained"]


def mapped() -> dict[str, Any]:
    """Settings of the real classes of Megatron-Core, made from those of a rank."""
    import on_cpu

    on_cpu.start()
    from megatron.core.transformer import TransformerConfig
    from rloom.torch.megatron_model import optimizer_config, provider_settings

    given = Settings(
        "model",
        backend="megatron",
        tensor_parallel=2,
        context_parallel=2,
        activation_checkpointing="block",
        dtype="bf16",
        optimizer=SETTINGS,
    )
    known = {field.name for field in dataclasses.fields(TransformerConfig)}
    own = {name: x for name, x in provider_settings(given, is_trained=True).items() if name in known}
    config = TransformerConfig(num_layers=2, hidden_size=8, num_attention_heads=2, **own)
    optimizer = optimizer_config(given, is_divided=True)
    return {
        "unknown": sorted(provider_settings(given, is_trained=True).keys() - known),
        "sequence_parallel": config.sequence_parallel,
        "recompute": config.recompute_granularity,
        "dtypes": (str(config.params_dtype), str(config.pipeline_dtype), str(optimizer.params_dtype)),
        "adam": (optimizer.adam_beta1, optimizer.adam_beta2, optimizer.adam_eps, optimizer.weight_decay),
        "clip_grad": optimizer.clip_grad,
        "is_adamw": optimizer.decoupled_weight_decay,
    }


def test_settings_are_those_of_megatron_core() -> None:
    ((own),) = gang(1, mapped)
    # These are settings of Megatron-Bridge's model; on processors a test adds its layers.
    assert set(own.pop("unknown")) <= {"parallel_output", "should_pad_vocab", "transformer_layer_spec"}
    assert own == {
        "sequence_parallel": True,
        "recompute": "full",
        "dtypes": ("torch.bfloat16",) * 3,
        "adam": (0.9, 0.95, 1e-6, 0.1),
        "clip_grad": 0.5,
        "is_adamw": True,
    }


def refusals(model: Path, rotary: Path) -> list[str]:
    import on_cpu

    messages = []
    for folder, settings in (
        (model, {"heads": "policy_and_value"}),
        (model, {"shard": 1}),
        (model, {"offload": True}),
        (model, {"dtype": "f64"}),
        (rotary, {}),
    ):
        with pytest.raises(RankError) as error:
            on_cpu.engine(folder, **settings)
        messages.append(str(error.value))
    return messages


def test_what_megatron_does_not_have_is_named(qwen: Path, tmp_path: Path) -> None:
    rotary = tmp_path / "rotary"
    shutil.copytree(qwen, rotary)
    config = json.loads((rotary / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 5e5
    (rotary / "config.json").write_text(json.dumps(config))
    (messages,) = gang(1, refusals, qwen, rotary)
    named = ("`heads`", "`shard`", "`offload`", "`dtype`", "rotary base of 10000, and the model has 500000")
    for message, name in zip(messages, named, strict=True):
        assert name in message


def train(own: Engine, steps: int) -> None:
    for _ in range(steps):
        own.accumulate(mine(own, BATCHES), len(BATCHES), Weighted(BATCHES), silent)
        own.step(1e-2)


def saved(folder: Path, model: Path, **settings: Any) -> dict[str, Any]:
    """Saves a run and continues it; then a second engine continues from the checkpoint."""
    own = opened(model, **settings)
    train(own, 2)
    listed = files.save(own, folder)
    digests = [own.digest()]
    train(own, 1)
    other = opened(model, **settings)
    files.restore(other, folder)
    digests += [other.digest()]
    steps = other.optimizer.steps
    train(other, 1)
    digests += [own.digest(), other.digest()]
    return {"digests": digests, "steps": steps, "listed": listed, "weights": weights_of(own)}


def weights_of(own: Engine) -> dict[str, Any]:
    return {name: w.float().numpy().copy() for name, w in own.whole_weights()}


def continued(folder: Path, model: Path, **settings: Any) -> dict[str, Any]:
    own = opened(model, **settings)
    files.restore(own, folder)
    train(own, 1)
    return weights_of(own)


def test_a_checkpoint_opens_on_ranks_that_divide_the_model_otherwise(qwen: Path, tmp_path: Path) -> None:
    results = gang(2, partial(saved, tmp_path, qwen, tensor_parallel=2))
    at, at_again, end, end_again = results[0]["digests"]
    assert (at, end) == (at_again, end_again)
    assert at != end
    assert results[0]["steps"] == 2
    for name, size in results[0]["listed"] + results[1]["listed"]:
        assert (tmp_path / name).stat().st_size == size
    written = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert written == {name for name, _ in results[0]["listed"] + results[1]["listed"]}
    whole = models.opened(tmp_path, torch.float32)
    assert sum(float(w.abs().sum()) for w in whole.parameters()) > 0
    own, *_ = gang(2, partial(continued, tmp_path, qwen, pipeline_parallel=2))
    assert distances(own, results[0]["weights"]) < 1e-5
