"""Samples as requests contain them, and the values that functions return."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import ResultError

ANSWER_NAMES = frozenset({"answer", "solution", "ground_truth", "label", "target", "reference"})
"""Names under which functions expect the reference answer, unless the row has a column of that name."""


@dataclass
class Sample:
    """A completion with its context."""

    prompt: str | list[dict[str, Any]]
    answer: str
    row: dict[str, Any]
    completion: str = ""
    prompt_text: str = ""
    tokens: list[int] = field(default_factory=list)
    stop: str = ""
    truncated: bool = False
    version: int = 0
    task: int = 0
    sample: str = ""
    seed: int = 0

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Sample:
        """Reads the sample of a request."""
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__ if name in fields})

    def column(self, name: str) -> Any:
        """The value of a parameter or column called `name`. Raises KeyError if there is none."""
        if name not in self.row and name in ANSWER_NAMES:
            return self.answer
        return self.row[name]


def number(value: Any, what: str = "") -> float:
    """A finite number, also from a scalar of numpy or PyTorch. `what` names it, unless it is a reward."""
    name = f" as {what}" if what else ""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        result = float(value)
    except (TypeError, ValueError):
        raise ResultError(f"it returned {value!r:.100}{name}, which is not a number") from None
    if not math.isfinite(result):
        hint = "; return None where the reward does not apply" if math.isnan(result) else ""
        raise ResultError(f"it returned {result}" + (name or f": a reward must be finite{hint}"))
    return result


def reward(value: Any) -> float | None:
    """A reward; None if it does not apply."""
    return None if value is None else number(value)


def rewards(values: Any, expected: int) -> list[float | None]:
    """The rewards of a batch."""
    found = [reward(value) for value in items(values, f"a list of {expected} rewards")]
    if len(found) != expected:
        raise ResultError(f"it returned {len(found)} rewards for {expected} completions")
    return found


def items(values: Any, expected: str) -> list[Any]:
    """A list, also from an array of numpy or PyTorch."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__"):
        raise ResultError(f"it returned {values!r:.100} instead of {expected}")
    return list(values)


class Metrics:
    """Numbers that a function reports, averaged over one call. Other values are ignored."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, name: str, value: Any) -> None:
        """Adds a number."""
        try:
            result = float(value)
        except (TypeError, ValueError):
            return
        if math.isfinite(result):
            self._values.setdefault(str(name), []).append(result)

    def add_column(self, name: str, values: Any) -> None:
        """Adds a number for each completion."""
        for value in values:
            self.add(name, value)

    def take(self) -> dict[str, float]:
        """The averages, which are removed."""
        values, self._values = self._values, {}
        return {name: sum(found) / len(found) for name, found in values.items()}
