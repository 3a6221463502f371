"""The reward of `math-verify.toml`: equality by the library `math-verify` (`pip install math-verify[antlr4-13-2]`)."""

import logging
from functools import cache

from math_verify import parse, verify

# It warns that it has no timeouts: RLoom ends a call that takes longer than `reward.timeout_seconds`.
logging.getLogger("math_verify").setLevel(logging.ERROR)


@cache
def reference(answer: str):
    """A reference answer. One that cannot be read is a mistake in the data, and not a wrong completion."""
    parsed = parse(f"\\boxed{{{answer}}}", parsing_timeout=None, raise_on_error=True)
    if not parsed:
        raise ValueError(f"the reference answer {answer!r} cannot be read")
    return parsed


def score(completion: str, answer: str) -> float:
    """1 if the answer after the reasoning equals the reference, else 0; errors of the library are failures."""
    # As RLoom's own verifier: reasoning that does not end has no answer.
    final = completion.rsplit("</think>", 1)[-1]
    if "<think>" in final:
        return 0.0
    found = parse(final, parsing_timeout=None, raise_on_error=True)
    return float(verify(reference(answer), found, timeout_seconds=None, raise_on_error=True))
