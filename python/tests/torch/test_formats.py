"""Number formats, offload and determinism."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from gangs import alone
from models import Weighted, relative
from rloom.torch import files
from rloom.torch.world import local_part
from safetensors.torch import load_file
from test_gradients import BATCHES, accumulate, engine, silent
from test_steps import SETTINGS, train

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rloom.torch.engine import Engine


@pytest.fixture
def one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of this process: models are sharded, over one rank."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    alone(tmp_path)
    yield
    dist.destroy_process_group()


def weights(own: Engine) -> dict[str, torch.Tensor]:
    return {name: own.world.whole(w).clone() for name, w in own.model.named_weights().items()}


@pytest.mark.usefixtures("one_rank")
def test_bf16_computes_close_to_f32_on_f32_masters(qwen: Path, tmp_path: Path) -> None:
    exact, own = engine(qwen), engine(qwen, dtype="bf16", optimizer=SETTINGS)
    assert own.layout == "packed"
    given = dict(enumerate(BATCHES))
    scores = [e.score(given, 3, progress=silent)[0] for e in (exact, own)]
    # bf16 has 8 bits: log-probabilities near 6 are rounded by up to 0.02 in each of the model's products.
    off = float((scores[0].logprob - scores[1].logprob).abs().max())
    assert 1e-4 < off < 0.1
    for e in (exact, own):
        accumulate(e, BATCHES, Weighted(BATCHES))
    gradients = own.optimizer.gradients()
    for name, gradient in exact.optimizer.gradients().items():
        assert gradients[name].dtype == torch.float32
        assert relative(gradients[name], gradient) < 0.1, name
    own.step(1e-2)
    moments = own.optimizer.state().values()
    assert {w.dtype for w in [*own.model.named_weights().values(), *moments]} == {torch.float32}
    files.save(own, tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert all(torch.equal(saved[name], w) for name, w in weights(own).items())


@pytest.mark.usefixtures("one_rank")
def test_updates_below_the_resolution_of_bf16_are_kept(qwen: Path) -> None:
    """A hundredth of a rounding step of bf16 at most, four times: in bf16 no weight would change."""
    own = engine(qwen, dtype="bf16")
    name = "model.layers.1.mlp.up_proj.weight"
    before = weights(own)[name]
    rate = float(before.abs().median()) / 256 / 400
    for _ in range(4):
        accumulate(own, BATCHES, Weighted(BATCHES))
        own.step(rate)
    moved = (weights(own)[name] - before).abs()
    # AdamW moves every weight by the rate, as long as its gradient keeps its sign.
    assert float(moved.median()) == pytest.approx(4 * rate, rel=0.05)
    assert own.digest() != engine(qwen).digest()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_offload_changes_no_bits(qwen: Path, tmp_path: Path, dtype: str) -> None:
    settings: dict[str, Any] = {"dtype": dtype, "optimizer": SETTINGS, "reference": str(qwen)}
    kept, offloaded = engine(qwen, **settings), engine(qwen, offload=True, **settings)
    for own in (kept, offloaded):
        train(own, range(2))
    files.save(offloaded, tmp_path / "saved")
    files.restore(kept, tmp_path / "saved")
    for own in (kept, offloaded):
        train(own, range(2, 3))
    assert kept.digest() == offloaded.digest()
    for weight in offloaded.model.named_weights().values():
        own_state = offloaded.optimizer.adamw.state[weight]
        assert {local_part(x).device.type for x in (weight, *own_state.values())} == {"cpu"}


def test_deterministic_repeats_bits(qwen: Path) -> None:
    digests = []
    try:
        for _ in range(2):
            own = engine(qwen, deterministic=True, optimizer=SETTINGS)
            assert torch.are_deterministic_algorithms_enabled()
            train(own, range(3))
            digests.append(own.digest())
    finally:
        torch.use_deterministic_algorithms(False)
    assert digests[0] == digests[1]
    assert digests[0] != engine(qwen).digest()


@pytest.mark.usefixtures("one_rank")
def test_weights_that_were_only_scored_with_are_not_stale_after_a_step(qwen: Path) -> None:
    """A step of inert sequences has no backward pass, which would drop the gathered weights."""
    whole, sharded = engine(qwen, optimizer=SETTINGS), engine(qwen, offload=True, optimizer=SETTINGS)
    losses = [Weighted(BATCHES), Weighted(BATCHES[1:2], inert=(0,))]
    scores = []
    for own in (whole, sharded):
        for loss in losses:
            accumulate(own, loss.batches, loss)
            own.step(1e-2)
        scores.append(own.score({0: BATCHES[0]}, 1, progress=silent)[0].logprob)
    assert relative(scores[1], scores[0]) < 1e-5
