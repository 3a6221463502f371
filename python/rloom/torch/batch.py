"""Micro-batches: whole sequences, concatenated without padding."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rloom.torch.comparison import Comparison


@dataclass(frozen=True)
class Batch:
    """A micro-batch. Scored tokens are ordered by sequence; every one has a predecessor in its sequence."""

    #: Token ids of all sequences, `[T]`.
    tokens: Tensor
    #: Number of tokens of each sequence.
    lengths: tuple[int, ...]
    #: Index of each scored token in `tokens`, `[S]`.
    rows: Tensor
    #: Inverse temperature of each scored token, `[S]`.
    inv_temperature: Tensor
    #: Ticket, sample and segment of each sequence, if its embeddings get noise.
    keys: tuple[tuple[int, int, int], ...] = ()
    #: Noise on the embeddings, `[T, width]`.
    noise: Tensor | None = None
    #: What the distributions at the scored tokens are compared with.
    comparison: Comparison | None = None
    #: Position of each token in its sequence, `[T]`.
    positions: Tensor = field(init=False)

    def __post_init__(self) -> None:
        positions = torch.cat([torch.arange(length) for length in self.lengths])
        object.__setattr__(self, "positions", positions)

    @staticmethod
    def dummy() -> Batch:
        """Returns a batch that scores nothing: it takes part in collective operations."""
        none = torch.empty(0, dtype=torch.long)
        return Batch(torch.zeros(1, dtype=torch.long), (1,), none, torch.empty(0))

    @property
    def starts(self) -> list[int]:
        """First token of each sequence, and the number of tokens at the end."""
        return list(accumulate(self.lengths, initial=0))

    @property
    def rows_by_sequence(self) -> list[range]:
        """Scored tokens of each sequence, as ranges of `rows`."""
        bounds = torch.searchsorted(self.rows, torch.tensor(self.starts)).tolist()
        return [range(start, end) for start, end in pairwise(bounds)]

    def only(self, sequences: Sequence[int]) -> Batch:
        """Returns a batch of some sequences, in ascending order."""
        starts, scored = self.starts, self.rows_by_sequence
        tokens, rows, temperature, end = [], [], [], 0
        for i in sequences:
            own = slice(scored[i].start, scored[i].stop)
            tokens.append(self.tokens[starts[i] : starts[i + 1]])
            rows.append(self.rows[own] - starts[i] + end)
            temperature.append(self.inv_temperature[own])
            end += self.lengths[i]
        lengths = tuple(self.lengths[i] for i in sequences)
        noise = self.noise
        if noise is not None:
            noise = torch.cat([noise[starts[i] : starts[i + 1]] for i in sequences])
        keys = tuple(self.keys[i] for i in sequences) if self.keys else ()
        comparison = None if self.comparison is None else self.comparison.only(self.scored_of(sequences))
        return Batch(
            torch.cat(tokens), lengths, torch.cat(rows), torch.cat(temperature), keys, noise, comparison
        )

    def only_or_dummy(self, sequences: Sequence[int]) -> Batch:
        """Returns a batch of some sequences, or one that scores nothing if there are none."""
        return self.only(sequences) if sequences else Batch.dummy()

    def scored_of(self, sequences: Sequence[int]) -> Tensor:
        """Returns the indices of some sequences' scored tokens in the lists over all scored tokens."""
        scored = self.rows_by_sequence
        return torch.tensor([row for i in sequences for row in scored[i]], dtype=torch.long)
