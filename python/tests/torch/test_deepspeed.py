"""Ranks that divide a model by ZeRO-3 compute what one rank of PyTorch computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from gangs import gang
from models import Weighted, make, relative
from rloom.torch import files
from rloom.torch.errors import ModelError, RankError
from test_gradients import BATCHES, engine, silent
from test_sequence import compare, mine
from test_steps import SETTINGS
from transformers import Phi3Config, Phi3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

if TYPE_CHECKING:
    from pathlib import Path

    from rloom.torch.engine import Engine

pytest.importorskip("deepspeed")

#: Settings of ranks that divide matrices.
MATRICES: dict[str, Any] = {"backend": "deepspeed", "by": "tensor_parallel"}


def test_two_ranks_agree_with_one_of_pytorch(qwen: Path) -> None:
    compare(qwen, 2, 1, heads="policy_and_value", backend="deepspeed")


@pytest.mark.long
def test_ranks_that_divide_the_tokens_agree_with_one_of_pytorch(qwen: Path) -> None:
    compare(qwen, 2, 2, backend="deepspeed", activation_checkpointing="block")


def test_ranks_that_divide_matrices_agree_with_one_of_pytorch(qwen: Path) -> None:
    compare(qwen, 2, 2, **MATRICES, heads="policy_and_value", activation_checkpointing="block")


@pytest.mark.long
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_two_groups_that_divide_matrices_agree_with_one_rank_of_pytorch(family: str, tmp_path: Path) -> None:
    """Qwen3 has norms of single heads, whose gradient is a sum over the ranks that divide the heads."""
    compare(make(family, tmp_path), 4, 2, **MATRICES)


def train(own: Engine, steps: int) -> None:
    for _ in range(steps):
        own.accumulate(mine(own, BATCHES), len(BATCHES), Weighted(BATCHES), silent)
        own.step(1e-2)


def restored(folder: Path, model: Path) -> list[int]:
    """Digests of a run, at its checkpoint and at its end, and those of a run that continues from the checkpoint."""
    own = engine(model, backend="deepspeed", optimizer=SETTINGS)
    train(own, 2)
    files.save(own, folder)
    digests = [own.digest()]
    train(own, 2)
    other = engine(model, backend="deepspeed", optimizer=SETTINGS)
    files.restore(other, folder)
    digests += [own.digest(), other.digest()]
    train(other, 2)
    return [*digests, other.digest()]


def test_a_restored_run_continues_with_the_same_bits(qwen: Path, tmp_path: Path) -> None:
    (at, end, at_again, end_again), _ = gang(2, restored, tmp_path, qwen)
    assert (at, end) == (at_again, end_again)
    assert at != end


def saved(folder: Path, model: Path, sizes: dict[str, Any]) -> dict[str, Any]:
    """Saves a run and continues it."""
    own = engine(model, backend="deepspeed", optimizer=SETTINGS, **sizes)
    train(own, 2)
    files.save(own, folder)
    at = own.digest()
    train(own, 1)
    return {"at": at, "weights": {name: w.numpy() for name, w in own.whole_weights()}}


def continued(folder: Path, model: Path, sizes: dict[str, Any]) -> dict[str, Any]:
    own = engine(model, backend="deepspeed", optimizer=SETTINGS, **sizes)
    files.restore(own, folder)
    at = own.digest()
    train(own, 1)
    return {"at": at, "weights": {name: w.numpy() for name, w in own.whole_weights()}}


@pytest.mark.long
def test_a_checkpoint_opens_with_other_numbers_of_ranks(qwen: Path, tmp_path: Path) -> None:
    by_matrices = {"tensor_parallel": 2}
    for given, others in (
        ({}, ((1, {}), (3, {}), (2, by_matrices))),
        (by_matrices, ((1, {}), (4, by_matrices))),
    ):
        check_continued(tmp_path, qwen, given, others)


def check_continued(
    tmp_path: Path, qwen: Path, given: dict[str, Any], others: tuple[tuple[int, dict[str, Any]], ...]
) -> None:
    expected, *_ = gang(2, saved, tmp_path, qwen, given)
    for ranks, sizes in others:
        own, *_ = gang(ranks, continued, tmp_path, qwen, sizes)
        assert own["at"] == expected["at"]
        for name, weight in expected["weights"].items():
            off = relative(torch.tensor(own["weights"][name]), torch.tensor(weight))
            assert off < 1e-5, (given, ranks, sizes, name)


def in_bf16(model: Path, parallel: int) -> dict[str, Any]:
    """Largest difference of log-probabilities, distances of gradients, and number formats after a step."""
    exact = engine(model)
    own = engine(model, backend="deepspeed", dtype="bf16", optimizer=SETTINGS, tensor_parallel=parallel)
    scores = [e.score(mine(e, BATCHES), 3, progress=silent)[0].logprob for e in (exact, own)]
    for e in (exact, own):
        e.accumulate(mine(e, BATCHES), len(BATCHES), Weighted(BATCHES), silent)
    expected = exact.optimizer.gradients()
    before = [own.world.whole(w) for w in own.model.named_weights().values()]
    off = {name: relative(g, expected[name]) for name, g in own.optimizer.gradients().items()}
    own.step(1e-6)
    return {
        "score": float((scores[0] - scores[1]).abs().max()) if own.world.rank == 0 else 0.0,
        "gradient": max(off.values()),
        "moved": any(
            not torch.equal(own.world.whole(w), old)
            for w, old in zip(own.model.named_weights().values(), before, strict=True)
        ),
        "formats": {str(x.dtype) for x in own.optimizer.state().values()},
        "frequencies": {str(x.dtype) for name, x in own.model.named_buffers() if "inv_freq" in name},
    }


@pytest.mark.parametrize("parallel", [1, 2])
def test_bf16_computes_close_to_f32_on_f32_masters(qwen: Path, parallel: int) -> None:
    results = gang(2, in_bf16, qwen, parallel)
    # Rank 0 has the first micro-batch of each engine.
    assert 1e-4 < results[0]["score"] < 0.1
    for result in results:
        assert result["gradient"] < 0.1
        assert result["moved"], "an update below the resolution of bf16 is kept"
        assert result["formats"] == result["frequencies"] == {"torch.float32"}


def refusals(model: Path, experts: Path, packed: Path) -> list[str]:
    messages = []
    for folder, settings in (
        (model, {"shard": 1}),
        (model, {"offload": True}),
        (model, {"dtype": "f64"}),
        (model, {"tensor_parallel": 2, "sequence_parallel": 2}),
        (experts, {}),
        (model, {"tensor_parallel": 4}),
        (packed, {"tensor_parallel": 2}),
    ):
        with pytest.raises(RankError) as error:
            engine(folder, backend="deepspeed", **settings)
        messages.append(f"{type(error.value).__name__}: {error.value}")
    return messages


def test_what_the_backend_does_not_have_is_named(tmp_path: Path) -> None:
    shape: dict[str, Any] = {
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "pad_token_id": None,
    }
    experts = Qwen3MoeConfig(**shape, moe_intermediate_size=8, num_experts=4, num_experts_per_tok=2)
    Qwen3MoeForCausalLM(experts).save_pretrained(tmp_path / "experts")
    Phi3ForCausalLM(Phi3Config(**shape)).save_pretrained(tmp_path / "packed")
    folders = (make("qwen2", tmp_path / "model"), tmp_path / "experts", tmp_path / "packed")
    messages, *_ = gang(4, refusals, *folders)
    parts = (
        "`shard`",
        "`offload`",
        "`dtype`",
        "not both",
        "mixtures of experts",
        "the 2 key heads",
        "plan has",
    )
    for message, named in zip(messages, parts, strict=True):
        assert named in message
    assert messages[-1].startswith(ModelError.__name__)
