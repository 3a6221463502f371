"""Samples as requests contain them, and the verdicts of functions on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import ResultError

Message = dict[str, Any]


@dataclass
class Sample:
    """A completion with its context."""

    prompt: str | list[Message]
    completion: str
    answer: str
    row: dict[str, Any]
    prompt_text: str = ""
    tokens: list[int] = field(default_factory=list)
    stop: str = ""
    truncated: bool = False
    version: int = 0
    task: int = 0
    sample: str = ""
    domain: str = ""
    seed: int = 0

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Sample:
        """Reads the sample of a request."""
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__ if name in fields})

    @property
    def is_conversation(self) -> bool:
        """True if the prompt is a list of messages."""
        return not isinstance(self.prompt, str)

    def column(self, name: str) -> Any:
        """The value of a parameter or column called `name`. Raises KeyError if there is none."""
        if name in self.row:
            return self.row[name]
        if name in ANSWER_NAMES:
            return self.answer
        raise KeyError(name)


# Names under which functions expect the reference answer, unless the row has a column of that name.
ANSWER_NAMES = frozenset({"answer", "solution", "ground_truth", "label", "target", "reference"})


def number(value: Any) -> float | None:
    """A reward as a number; None if it does not apply. Accepts the scalars of numpy and PyTorch."""
    if value is None:
        return None
    if isinstance(value, str | bytes | Mapping):
        raise ResultError(f"it returned {value!r:.100}, which is not a number")
    try:
        result = float(value)
    except (TypeError, ValueError) as error:
        raise ResultError(f"it returned {value!r:.100}, which is not a number") from error
    if not math.isfinite(result):
        hint = "; return None where the reward does not apply" if math.isnan(result) else ""
        raise ResultError(f"it returned {result}: a reward must be finite{hint}")
    return result


def numbers(values: Any, expected: int) -> list[float | None]:
    """The rewards of a batch."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__"):
        raise ResultError(f"it returned {values!r:.100} instead of a list of {expected} rewards")
    found = [number(value) for value in values]
    if len(found) != expected:
        raise ResultError(f"it returned {len(found)} rewards for {expected} completions")
    return found


class Metrics:
    """Numbers that a function reports, averaged over one call."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, name: str, value: Any) -> None:
        """Adds a number. Other values are ignored."""
        try:
            result = float(value)
        except (TypeError, ValueError):
            return
        if math.isfinite(result):
            self._values.setdefault(str(name), []).append(result)

    def add_column(self, name: str, values: Any) -> None:
        """Adds a number for each completion. Other values are ignored."""
        for value in values:
            self.add(name, value)

    def take(self) -> dict[str, float]:
        """The averages, which are removed."""
        values, self._values = self._values, {}
        return {name: sum(all_values) / len(all_values) for name, all_values in values.items()}
