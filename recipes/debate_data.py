"""Writes the data of recipes/debate.toml: sums of three-digit numbers, to answer and to answer again after a debate.

    python recipes/debate_data.py

`debate-warmup.jsonl` has demonstrations for both: half of the prompts are sums, the others also have the answers of three
debaters, some of them wrong. `debate-train.jsonl` has other sums, and `debate-eval.jsonl` sums of numbers that occur in neither.
"""

import itertools
import json
import random
from pathlib import Path

DIGITS = 3
ROWS, EVALUATED = 20_000, 512


def wrong(right: int, rng: random.Random) -> int:
    """A wrong answer: mostly a carry too many or too few, otherwise another digit."""
    while True:
        if rng.random() < 0.7:
            result = right + rng.choice([-1, 1]) * 10 ** rng.randrange(DIGITS + 1)
        else:
            place = 10 ** rng.randrange(DIGITS)
            result = right + (rng.randrange(10) - right // place % 10) * place
        if result != right and result > 0:
            return result


def demonstration(a: int, b: int, rng: random.Random) -> dict[str, str]:
    """A sum, or a sum with answers of which each is right with the same probability, and the right answer."""
    right, prompt = a + b, f"{a}+{b}="
    if rng.random() < 0.5:
        own, *others = [right if rng.random() < 0.5 else wrong(right, rng) for _ in range(3)]
        prompt += f"{own}<{','.join(map(str, others))}?"
    return {"prompt": prompt, "answer": str(right), "demonstration": str(right)}


def task(a: int, b: int) -> dict[str, str]:
    return {"prompt": f"{a}+{b}=", "answer": str(a + b)}


def main() -> None:
    rng = random.Random(0)
    numbers = list(range(10 ** (DIGITS - 1), 10**DIGITS))
    rng.shuffle(numbers)
    held_out, others = numbers[: len(numbers) // 4], numbers[len(numbers) // 4 :]
    pairs = rng.sample(list(itertools.combinations(others, 2)), 2 * ROWS)
    evaluated = rng.sample(list(itertools.combinations(held_out, 2)), EVALUATED)
    files = {
        "warmup": [demonstration(a, b, rng) for a, b in pairs[:ROWS]],
        "train": [task(a, b) for a, b in pairs[ROWS:]],
        "eval": [task(a, b) for a, b in evaluated],
    }
    for name, rows in files.items():
        Path(f"debate-{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
