"""Coefficients of a loss, evaluated in Rust."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from rloom._native import LossGrad, LossStep, NativeError
from rloom.torch.comparison import Divergence
from rloom.torch.errors import LossError, NotFiniteError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rloom.torch.batch import Batch
    from rloom.torch.model import Scores


@dataclass(frozen=True)
class Coefficients:
    """Derivatives of the loss by each score of a micro-batch, and the sums behind its metrics."""

    d_logprob: Tensor
    d_entropy: Tensor
    d_value: Tensor
    terms: bytes = b""
    #: By the value after each sequence's last token; of reward models alone.
    d_last_value: Tensor = field(default_factory=lambda: torch.empty(0))
    #: By the divergences from a teacher, `[S]`, or by the log-probabilities of its most probable tokens, `[S, k]`.
    d_divergence: Tensor = field(default_factory=lambda: torch.empty(0))
    d_candidate_logprob: Tensor = field(default_factory=lambda: torch.empty(0))

    def of(self, batch: Batch, sequences: Sequence[int], scores: Scores) -> Tensor:
        """Returns the scalar whose derivative by each score of these sequences is its coefficient."""
        total = torch.zeros((), dtype=torch.float64)
        for score, d in zip(scores, self._of_sequences(batch, sequences), strict=True):
            if len(d):
                total = total.to(score.device) + (score * d.to(score.device, score.dtype)).sum()
        return total

    def is_zero(self, batch: Batch, sequences: Sequence[int]) -> bool:
        """Returns true if no score of these sequences has a coefficient."""
        return not any(bool(d.any()) for d in self._of_sequences(batch, sequences))

    def _of_sequences(self, batch: Batch, sequences: Sequence[int]) -> list[Tensor]:
        """Returns the coefficients of some sequences, in the order of `Scores`."""
        rows, places = batch.scored_of(sequences), torch.tensor(sequences, dtype=torch.long)
        all_tokens = (
            self.d_logprob,
            self.d_entropy,
            self.d_value,
            self.d_divergence,
            self.d_candidate_logprob,
        )
        of_tokens = [d[rows] if len(d) else d for d in all_tokens]
        of_sequences = self.d_last_value[places] if len(self.d_last_value) else self.d_last_value
        return [*of_tokens[:3], of_sequences, *of_tokens[3:]]


class Loss(Protocol):
    """The loss of an optimizer step; micro-batches are numbered over all ranks."""

    def inert(self, micro_batch: int) -> Sequence[bool]:
        """Marks the sequences whose coefficients are 0 for any scores."""

    def noisy(self, batch: Batch, width: int) -> Batch:
        """Returns the micro-batch with the noise that its embeddings of this width get in training."""

    @property
    def divergence(self) -> Divergence | None:
        """The divergence from a teacher over the whole vocabulary, if the loss is one."""

    def evaluate(self, micro_batch: int, scores: Scores) -> Coefficients:
        """Returns the coefficients of a micro-batch."""


class NativeLoss:
    """A loss that `rloom-algo` evaluates."""

    def __init__(self, message: bytes) -> None:
        try:
            self.step = LossStep.from_bytes(message)
        except NativeError as error:
            raise LossError(str(error)) from error

    def inert(self, micro_batch: int) -> Sequence[bool]:
        return self.step.inert(micro_batch)

    def noisy(self, batch: Batch, width: int) -> Batch:
        sequences = list(zip(batch.keys, batch.lengths, strict=False))  # without noise, there are no keys
        noise = self.step.noise(sequences, width) if sequences else None
        return batch if noise is None else replace(batch, noise=_tensor(noise).view(-1, width))

    @property
    def divergence(self) -> Divergence | None:
        given = self.step.divergence()
        return None if given is None else Divergence(*given)

    def evaluate(self, micro_batch: int, scores: Scores) -> Coefficients:
        try:
            given = {name: _bytes(x) for name, x in scores._asdict().items()}
            grad = self.step.evaluate(micro_batch, given)
        except (NativeError, ValueError) as error:
            raise LossError(str(error), micro_batch=micro_batch, scores=scores) from error
        if not math.isfinite(grad.terms.loss):
            raise NotFiniteError("loss", micro_batch)
        return _coefficients(grad, len(scores.logprob))


class KnownLoss:
    """Coefficients that were evaluated for the whole step, for a loss that has to see all scores at once."""

    def __init__(self, by_micro_batch: dict[int, Coefficients], batches: dict[int, Batch]) -> None:
        self.by_micro_batch = by_micro_batch
        self.batches = batches

    def inert(self, micro_batch: int) -> Sequence[bool]:
        own, batch = self.by_micro_batch[micro_batch], self.batches[micro_batch]
        return [own.is_zero(batch, [sequence]) for sequence in range(len(batch.lengths))]

    def noisy(self, batch: Batch, width: int) -> Batch:  # noqa: ARG002
        return batch

    @property
    def divergence(self) -> Divergence | None:
        return None

    def evaluate(self, micro_batch: int, scores: Scores) -> Coefficients:
        return self.by_micro_batch[micro_batch]


def _bytes(scores: Tensor) -> bytes:
    return scores.float().contiguous().numpy().tobytes()


def _coefficients(grad: LossGrad, tokens: int) -> Coefficients:
    of_candidates = _tensor(grad.d_candidate_logprob)
    return Coefficients(
        _tensor(grad.d_logprob),
        _tensor(grad.d_entropy),
        _tensor(grad.d_value),
        grad.terms.to_bytes(),
        _tensor(grad.d_last_value),
        _tensor(grad.d_divergence),
        of_candidates.view(tokens, -1) if len(of_candidates) else of_candidates,
    )


def _tensor(values: bytearray) -> Tensor:
    return torch.frombuffer(values, dtype=torch.float32) if values else torch.empty(0)
