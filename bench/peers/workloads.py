"""Workloads that every program runs, and the report of a program: shapes, batches, prompts, one JSON line.

Imported by the other programs and by compare.py; needs only the standard library.
"""

import argparse
import json
import os
import random
import resource
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A decoder of the Qwen2 family with tied embeddings and biases on query, key and value."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    #: Sequences and tokens of each in a training step.
    train: tuple[int, int]
    #: Sequences, prompt tokens and new tokens of each in a decode.
    decode: tuple[int, int, int]

    def parameters(self) -> int:
        """Returns the number of parameters, which must be the same in every program."""
        kv = self.hidden * self.kv_heads // self.heads
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * kv + self.hidden + 2 * kv
        layer = attention + 3 * self.hidden * self.ffn + 2 * self.hidden
        return self.vocabulary * self.hidden + self.layers * layer + self.hidden


SHAPES = {
    "S": Shape(4, 256, 8, 4, 704, 512, train=(32, 128), decode=(64, 16, 64)),
    "M": Shape(24, 896, 14, 2, 4864, 32_000, train=(2, 128), decode=(8, 16, 16)),
}
#: Prompts, samples of each, prompt tokens and new tokens in a GRPO step of shape S.
GRPO = (16, 8, 16, 64)
#: Maximum number of positions of a model.
POSITIONS = 512


def arguments(*flags: str) -> argparse.Namespace:
    """Parses a program's command line: shape, number format, number of steps, and its own options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="S")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--steps", type=int, default=5, help="steps that are reported")
    parser.add_argument("--warm", type=int, default=2, help="warm-up steps, not reported")
    for flag in flags:
        parser.add_argument(flag)
    return parser.parse_args()


def threads() -> int:
    """Returns the number of compute threads; compare.py sets the variable for every program."""
    return int(os.environ.get("OMP_NUM_THREADS", "0")) or os.cpu_count() or 1


def prompts(shape: Shape, rows: int, length: int) -> list[list[int]]:
    """Returns the same token ids for every program, without id 0, which some use for padding."""
    numbers = random.Random(0)
    return [[numbers.randrange(1, shape.vocabulary) for _ in range(length)] for _ in range(rows)]


def timed(steps: int, warm: int, call) -> list[float]:
    """Returns the seconds of each call of `call` after the first `warm` ones."""
    seconds = []
    for _ in range(warm + steps):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds[warm:]


def peak_mib() -> float:
    """Returns the largest resident set of this process so far (MiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report(seconds: list[float], tokens: int, **more: object) -> None:
    """Prints what compare.py reads: seconds of each step, tokens per step, and further figures."""
    print(json.dumps({"seconds": seconds, "tokens": tokens, "peak_mib": peak_mib(), **more}), flush=True)
