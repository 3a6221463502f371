"""Parts of an algorithm: advantages, filters and losses, as functions over numbers."""

from __future__ import annotations

import array
import base64
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from .adapters import Signature, callable_of
from .errors import RefusedError, ResultError

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
        self._array = list_of if role != "loss" else array_type()

    def compute(self, numbers: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request."""
        return self._answer(numbers)

    def _call(self, numbers: dict[str, Any]) -> Any:
        return self._function(**self._signature.select(numbers))

    def _advantage(self, numbers: dict[str, Any]) -> dict[str, Any]:
        lengths = numbers["lengths"]
        found = flat(self._call(numbers), f"a list of {len(lengths)} advantages")
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
            advantages.append([0.0 if value is None else finite(value, "advantage") for value in values])
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
            name: encoded(flat(values, f"{tokens} coefficients"), name, tokens)
            for name, values in zip(names, result[1:], strict=True)
        }
        return {"loss": {"value": finite(result[0], "loss"), **coefficients}}


def spread(numbers: list[float], lengths: list[int]) -> array.array[float]:
    """The number of each sequence for each of its tokens."""
    of_tokens = ([number] * length for number, length in zip(numbers, lengths, strict=True))
    return array.array("d", itertools.chain.from_iterable(of_tokens))


def list_of(values: array.array[float]) -> Any:
    """The numbers as a list."""
    return values.tolist()


def array_type() -> Callable[[array.array[float]], Any]:
    """Converts numbers to an array of numpy, or to a list where numpy is not installed."""
    try:
        import numpy as np
    except ImportError:
        return list_of
    return lambda values: np.array(values, dtype=float)


def flat(values: Any, expected: str) -> list[Any]:
    """A list, also from an array of numpy or PyTorch."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes)):
        raise ResultError(f"it returned {values!r:.100} instead of {expected}")
    return list(values)


def finite(value: Any, what: str) -> float:
    """A number. Accepts the scalars of numpy and PyTorch."""
    try:
        result = float(value)
    except (TypeError, ValueError) as error:
        raise ResultError(f"it returned {value!r:.100} as {what}, which is not a number") from error
    if not math.isfinite(result):
        raise ResultError(f"it returned {result} as {what}")
    return result


def decoded(text: str) -> array.array[float]:
    """An array of 32-bit numbers."""
    values = array.array("f")
    values.frombytes(base64.b64decode(text))
    return values


def encoded(values: list[Any], what: str, tokens: int) -> str:
    """An array of 64-bit numbers."""
    if len(values) != tokens:
        raise ResultError(f"it returned {len(values)} numbers as {what} for {tokens} tokens")
    numbers = array.array("d", [finite(value, what) for value in values])
    return base64.b64encode(numbers.tobytes()).decode()
