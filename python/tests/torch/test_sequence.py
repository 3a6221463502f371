"""Ranks that divide the tokens of a micro-batch compute what one rank computes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from gangs import gang
from models import Weighted, batch, make, relative
from rloom.torch.errors import ModelError
from test_gradients import engine, silent
from test_ranks import INERT, STEPS, distance, initial, prompt_only
from test_steps import SETTINGS

if TYPE_CHECKING:
    from pathlib import Path

    from rloom.torch.batch import Batch
    from rloom.torch.engine import Engine

#: 35, 9 and 7 tokens, which two ranks cannot divide, sequences that end on both ranks, and one without scores.
BATCHES = [
    batch((3, 9), (1, 14), (6, 2)),
    batch((2, 7), seed=3),
    prompt_only(),
    batch((1, 1), (4, 11), seed=4),
]


def mine(own: Engine, batches: list[Batch]) -> dict[int, Batch]:
    """Returns the micro-batches of this rank's group."""
    return {i: batches[i] for i in range(own.world.group, len(batches), own.world.groups)}


def opened(folder: Path, **settings: Any) -> Engine:  # noqa: ANN401
    parallel = min(settings.pop("parallel", 1), int(os.environ.get("WORLD_SIZE", "1")))
    sizes = {settings.pop("by", "sequence_parallel"): parallel}
    own = engine(folder, optimizer=SETTINGS, **sizes, **settings)
    assert own.layout == "packed"
    return own


def computed(folder: Path, **settings: Any) -> dict[str, Any]:  # noqa: ANN401
    """Scores and gradients of a step, then norms and weights of five."""
    own = opened(folder, **settings)
    given = mine(own, BATCHES)
    scores = dict(zip(given, own.score(given, len(BATCHES), progress=silent), strict=True))
    own.accumulate(given, len(BATCHES), Weighted(BATCHES), silent)
    gradients = {name: g.numpy() for name, g in own.optimizer.gradients().items()}
    norms = [own.step(1e-2)]
    for batches, inert in [*zip(STEPS, INERT, strict=True), (BATCHES, ())]:
        skipped = tuple(i for i in inert if all(i < len(b.lengths) for b in batches))
        own.accumulate(mine(own, batches), len(batches), Weighted(batches, inert=skipped), silent)
        norms.append(own.step(1e-2))
    weights = {name: own.world.whole(w).float().numpy() for name, w in own.model.named_weights().items()}
    return {
        "scores": {i: [x.numpy() for x in own] for i, own in scores.items()},
        "gradients": gradients,
        "norms": norms,
        "weights": weights,
    }


def compare(folder: Path, ranks: int, parallel: int, **settings: Any) -> None:  # noqa: ANN401
    one, start = computed(folder, **{**settings, "backend": "torch"}), initial(folder)
    moved = distance(start, one["weights"])
    results = gang(ranks, divided, folder, {"parallel": parallel, **settings})
    scored: dict[int, Any] = {}
    for rank, result in enumerate(results):
        for i, own in result["scores"].items():
            assert i % (ranks // parallel) == rank // parallel
            scored[i] = own
            for a, b in zip(own, one["scores"][i], strict=True):
                assert relative(torch.tensor(a), torch.tensor(b)) < 1e-5
        for name, gradient in result["gradients"].items():
            off = relative(torch.tensor(gradient), torch.tensor(one["gradients"][name]))
            assert off < 1e-5, (name, off)
        assert result["norms"] == results[0]["norms"], "all ranks have the same bits"
        assert distance(result["weights"], results[0]["weights"]) == 0
    assert len(scored) == len(BATCHES)
    assert results[0]["norms"] == pytest.approx(one["norms"], rel=1e-5)
    assert distance(one["weights"], results[0]["weights"]) < 1e-3 * moved


def divided(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    return computed(folder, **settings)


def test_two_ranks_that_divide_the_tokens_agree_with_one(qwen: Path) -> None:
    compare(qwen, 2, 2, heads="policy_and_value", activation_checkpointing="block")


@pytest.mark.long
@pytest.mark.parametrize("family", ["qwen2", "mistral", "gemma3_text"])
def test_four_ranks_that_divide_the_tokens_agree_with_one(family: str, tmp_path: Path) -> None:
    """Four ranks repeat the two key heads; a window is one of positions, not of a rank's tokens."""
    folder = make(family, tmp_path, window=6)
    compare(folder, 4, 2)
    compare(folder, 4, 4)


def saved_bytes(folder: Path, parallel: int) -> int:
    """Bytes of the tensors that the graph of a long micro-batch keeps for the backward pass."""
    own = opened(folder, parallel=parallel)
    kept: dict[int, int] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        scores = own.model(batch((8, 500), (20, 400)))
    scores.logprob.sum().backward()
    return sum(kept.values())


def test_activations_are_divided(qwen: Path) -> None:
    whole, *parts = saved_bytes(qwen, 1), *gang(2, saved_bytes, qwen, 2)
    assert all(part < 0.6 * whole for part in parts), (whole, parts)


def refused(folder: Path, parallel: int) -> str:
    with pytest.raises(ModelError) as error:
        engine(folder, sequence_parallel=parallel)
    return str(error.value)


def test_models_that_cannot_be_divided_are_named(tmp_path: Path) -> None:
    folder = make("qwen2", tmp_path / "qwen2")
    expected = "sequence_parallel = 3 does not divide the 4 attention heads of Qwen2ForCausalLM"
    assert gang(3, refused, folder, 3) == [expected] * 3
