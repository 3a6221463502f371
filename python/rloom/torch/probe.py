"""Choice of a layout: two sequences, scored packed, alone, and by the model's own head, have to agree."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rloom.torch.batch import Batch
from rloom.torch.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rloom.torch.model import Layout, Scores, ScoringModel
    from rloom.torch.world import World

#: Largest difference of two log-probabilities that counts as rounding, by number format of the computation.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.15}
LENGTHS = (37, 21)


def choose_layout(model: ScoringModel, dtype: torch.dtype) -> Layout:
    """Sets the first layout whose scores are those of the model's own head on each sequence alone."""
    check_heads(model)
    tolerance = TOLERANCE[dtype]
    whole = _batch(model.vocabulary)
    alone = [whole.only([i]) for i in range(len(LENGTHS))]
    with torch.no_grad():
        model.set_layout("unpacked")
        expected = None if model.is_classifier else torch.cat([_of_own_head(model, batch) for batch in alone])
        single = [_vector(model(batch)) for batch in alone]
        if expected is not None:
            off = _difference(
                torch.cat([own[: len(b.rows)] for own, b in zip(single, alone, strict=True)]), expected
            )
            if off > tolerance:
                raise ModelError(
                    f"{type(model.hf).__name__}: scores differ from those of its own head by {off:.2g}; "
                    "the model changes logits after the language head, such as by a soft cap or a scale"
                )
        for layout in ("packed", "masked"):
            if _agrees(model, layout, whole, single, tolerance):
                return layout
            if model.group is not None:
                raise ModelError(
                    f"{type(model.hf).__name__}: sequence_parallel needs a model whose tokens meet in plain attention alone"
                )
    model.set_layout("unpacked")
    return "unpacked"


def check_packing(
    scores: Callable[[Batch], Tensor | None], model: ScoringModel, dtype: torch.dtype, world: World
) -> None:
    """Refuses a model whose scores of packed sequences are not those of each alone; ranks without scores agree."""
    whole = _batch(model.vocabulary)
    packed, alone = scores(whole), [scores(whole.only([i])) for i in range(len(LENGTHS))]
    with world.agreement():
        if packed is None:
            return
        off = _difference(packed, torch.cat([own for own in alone if own is not None]))
        if off > TOLERANCE[dtype]:
            raise ModelError(f"{type(model.hf).__name__}: scores of packed sequences differ by {off:.2g}")


@contextmanager
def check_division(model: ScoringModel, dtype: str) -> Iterator[None]:
    """Refuses a model whose scores change while ranks divide its matrices."""
    whole = _batch(model.vocabulary)
    with torch.no_grad():
        before = _vector(model(whole))
        yield
        off = _difference(_vector(model(whole)), before)
    if off > TOLERANCE[torch.bfloat16 if dtype == "bf16" else torch.float32]:
        raise ModelError(
            f"{type(model.hf).__name__}: scores differ by {off:.2g} once DeepSpeed has divided its matrices"
        )


def check_heads(model: ScoringModel) -> None:
    """Refuses a group of ranks that cannot divide the attention heads."""
    if model.group is None:
        return
    heads, parallel = model.hf.config.get_text_config().num_attention_heads, model.group.size()
    if heads % parallel:
        name = type(model.hf).__name__
        raise ModelError(
            f"sequence_parallel = {parallel} does not divide the {heads} attention heads of {name}"
        )


def _agrees(
    model: ScoringModel, layout: Layout, whole: Batch, single: list[Tensor], tolerance: float
) -> bool:
    try:
        model.set_layout(layout)
        packed = model(whole)
    except (ValueError, TypeError, RuntimeError):
        # Transformers and models refuse an attention that they do not support by different errors.
        return False
    lists = []
    for i in range(len(LENGTHS)):
        own = whole.scored_of([i])
        lists.append(torch.cat([x[own] if len(x) else x for x in (packed.logprob, packed.value)]).cpu())
    return all(_difference(a, b) <= tolerance for a, b in zip(lists, single, strict=True))


def _vector(scores: Scores) -> Tensor:
    return torch.cat([scores.logprob, scores.value]).cpu()


def _of_own_head(model: ScoringModel, batch: Batch) -> Tensor:
    logits = model(batch, own_head=True).double().cpu()
    logprobs = torch.log_softmax(logits[batch.rows - 1] * batch.inv_temperature.double()[:, None], dim=-1)
    return logprobs.gather(1, batch.tokens[batch.rows, None])[:, 0]


def _difference(a: Tensor, b: Tensor) -> float:
    off = float((a.double() - b.double()).abs().max())
    return off if off == off else float("inf")


def _batch(vocabulary: int) -> Batch:
    tokens = torch.tensor([(7 * i * i + 3 * i + 1) % vocabulary for i in range(sum(LENGTHS))])
    rows = torch.cat([torch.arange(1, LENGTHS[0]), torch.arange(LENGTHS[0] + 1, sum(LENGTHS))])
    return Batch(tokens, LENGTHS, rows, torch.full((len(rows),), 1.25))
