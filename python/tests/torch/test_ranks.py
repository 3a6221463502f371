"""Several ranks compute what one computes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from gangs import gang
from models import Weighted, batch
from rloom.torch.batch import Batch
from test_gradients import engine, silent
from test_steps import SETTINGS

if TYPE_CHECKING:
    from pathlib import Path


def prompt_only() -> Batch:
    """Returns a micro-batch without scored tokens."""
    return Batch(torch.arange(7), (3, 4), torch.empty(0, dtype=torch.long), torch.empty(0))


#: Micro-batches of each step: some ranks have two, some have none, some have nothing to score.
STEPS = [
    [batch((3, 9), (1, 14), seed=1), *(batch((2, 4 + i), seed=i) for i in range(2, 6))],
    [batch((2, 7), (6, 2), seed=6)],
    [prompt_only(), batch((1, 1), (4, 11), seed=7), prompt_only(), batch((5, 5), seed=8)],
]
#: Sequences of every micro-batch whose coefficients are zero.
INERT = [(), (0, 1), (0,)]


def trained(folder: Path, layout: str, **settings: Any) -> dict[str, Any]:
    """Trains this rank's part of all steps; returns norms and weights."""
    own = engine(folder, optimizer=SETTINGS, **settings)
    assert own.layout == "packed"
    own.model.set_layout(layout)  # type: ignore[arg-type]
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    norms = []
    for batches, inert in zip(STEPS, INERT, strict=True):
        mine = {i: batches[i] for i in range(rank, len(batches), ranks)}
        scores = own.score(mine, len(batches), progress=silent)
        assert [len(s.logprob) for s in scores] == [len(b.rows) for b in mine.values()]
        skipped = tuple(i for i in inert if all(i < len(b.lengths) for b in batches))
        own.accumulate(mine, len(batches), Weighted(batches, inert=skipped), silent)
        norms.append(own.step(1e-2))
    weights = {name: own.world.whole(w).float().numpy() for name, w in own.model.named_weights().items()}
    return {"norms": norms, "weights": weights}


def each(folder: Path, cases: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [trained(folder, layout, **settings) for layout, settings in cases]


def distance(a: dict[str, Any], b: dict[str, Any]) -> float:
    """Returns the distance of two models."""
    return float(sum(((a[name] - b[name]).astype("f8") ** 2).sum() for name in a) ** 0.5)


def initial(folder: Path) -> dict[str, Any]:
    own = engine(folder)
    return {name: w.detach().clone().numpy() for name, w in own.model.named_weights().items()}


@pytest.mark.long
def test_ranks_agree_with_one_rank(qwen: Path) -> None:
    """Four ranks with two copies of the weights, with one, and with four; uneven and empty micro-batches."""
    one = trained(qwen, "packed")
    assert one["norms"][0] > 0
    moved = distance(initial(qwen), one["weights"])
    cases: list[tuple[str, dict[str, Any]]] = [
        ("packed", {"shard": 2, "activation_checkpointing": "block"}),
        ("packed", {"shard": 4}),
        ("packed", {"shard": 1}),
        ("unpacked", {"shard": 2}),
    ]
    for case, *results in zip(cases, *gang(4, each, qwen, cases), strict=True):
        for result in results:
            assert result["norms"] == results[0]["norms"], "all ranks have the same bits"
            assert distance(result["weights"], results[0]["weights"]) == 0
        assert results[0]["norms"] == pytest.approx(one["norms"], rel=1e-5), case
        assert distance(one["weights"], results[0]["weights"]) < 1e-4 * moved, case
