"""Parts of an algorithm: advantages, filters and losses, as functions over numbers."""

from __future__ import annotations

import array
import base64
import itertools
from collections.abc import Callable
from typing import Any

from .adapters import Signature, callable_of
from .errors import RefusedError, ResultError
from .samples import items, number

ARRAYS = ("logprob", "held", "old", "behavior", "reference", "entropy", "advantage")
COMPLETIONS = ("step", "rewards", "groups", "lengths", "truncated", "components", "rows")
NAMES = {
    "advantage": COMPLETIONS,
    "filter": COMPLETIONS,
    "loss": (
        *ARRAYS, "mask", "divisor", "lengths", "step", "tokens", "sequences", "completion_limit",
    ),
}  # fmt: skip
"""What functions of each role may have as parameters."""


class Method:
    """A function of a role behind one interface: named numbers in, an answer out."""

    def __init__(self, function: Any, role: str) -> None:
        self._function = callable_of(function)
        self._signature = Signature(self._function)
        unknown = ", ".join(f"`{name}`" for name in self._signature.unknown(NAMES[role]))
        if unknown:
            raise RefusedError(f"its parameters {unknown} are not among {', '.join(NAMES[role])}")
        answers = {"advantage": self._advantage, "filter": self._filter, "loss": self._loss}
        self._answer = answers[role]
        self._array = array_type() if role == "loss" else list
        self.form, self.operations = role, {"compute": self.compute}

    def compute(self, request: dict[str, Any]) -> dict[str, Any]:
        """Calls the function."""
        return self._answer(request["numbers"])

    def _call(self, numbers: dict[str, Any]) -> Any:
        return self._function(**self._signature.select(numbers))

    def _advantage(self, numbers: dict[str, Any]) -> dict[str, Any]:
        lengths = numbers["lengths"]
        found = items(self._call(numbers), f"a list of {len(lengths)} advantages")
        if len(found) == sum(lengths) != len(lengths):
            tokens = iter(found)
            found = [list(itertools.islice(tokens, length)) for length in lengths]
        if len(found) != len(lengths):
            raise ResultError(f"it returned {len(found)} advantages for {len(lengths)} completions")
        advantages = []
        for place, (item, length) in enumerate(zip(found, lengths, strict=True)):
            values = [item] if item is None or not hasattr(item, "__len__") else list(item)
            if len(values) not in (1, length):
                raise ResultError(
                    f"it returned {len(values)} advantages for the {length} tokens of completion {place}"
                )
            advantages.append([0.0 if value is None else number(value, "advantage") for value in values])
        return {"advantages": advantages}

    def _filter(self, numbers: dict[str, Any]) -> dict[str, Any]:
        keep = self._call(numbers)
        if hasattr(keep, "item"):
            keep = keep.item()
        if not isinstance(keep, bool):
            raise ResultError(f"it returned {keep!r:.100} instead of True or False")
        return {"keep": keep}

    def _loss(self, numbers: dict[str, Any]) -> dict[str, Any]:
        lengths = numbers["lengths"]
        for name in ARRAYS:
            numbers[name] = self._array(decoded(numbers[name]))
        trained = [0.0 if masked else 1.0 for masked in numbers.pop("masked")]
        numbers["mask"] = self._array(spread(trained, lengths))
        numbers["divisor"] = self._array(spread(numbers.pop("divisors"), lengths))
        result = self._call(numbers)
        if not isinstance(result, tuple) or len(result) not in (2, 3):
            raise ResultError("it must return (loss, d_logprob) or (loss, d_logprob, d_entropy)")
        names = ("d_logprob", "d_entropy")[: len(result) - 1]
        tokens = sum(lengths)
        coefficients = {
            name: encoded(items(values, f"{tokens} coefficients"), name, tokens)
            for name, values in zip(names, result[1:], strict=True)
        }
        return {"loss": {"value": number(result[0], "loss"), **coefficients}}


def spread(numbers: list[float], lengths: list[int]) -> array.array[float]:
    """The number of each sequence for each of its tokens."""
    of_tokens = ([number] * length for number, length in zip(numbers, lengths, strict=True))
    return array.array("d", itertools.chain.from_iterable(of_tokens))


def array_type() -> Callable[[array.array[float]], Any]:
    """Converts numbers to an array of numpy, or to a list where numpy is not installed."""
    try:
        import numpy as np
    except ImportError:
        return list
    return lambda values: np.array(values, dtype=float)


def decoded(text: str) -> array.array[float]:
    """An array of 32-bit numbers."""
    values = array.array("f")
    values.frombytes(base64.b64decode(text))
    return values


def encoded(values: list[Any], what: str, tokens: int) -> str:
    """An array of 64-bit numbers."""
    if len(values) != tokens:
        raise ResultError(f"it returned {len(values)} numbers as {what} for {tokens} tokens")
    numbers = array.array("d", [number(value, what) for value in values])
    return base64.b64encode(numbers.tobytes()).decode()
