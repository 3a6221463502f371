"""Writes the data of recipes/debate.toml: sums for the warm-up, for the debates and held out.

    python recipes/debate_data.py

Half of the warm-up's prompts are sums; the others are second turns of a debate, with the agent's own answer and those of two
others, of which each is right half of the time. A wrong answer has one wrong digit. No sum of a file occurs in another one.
"""

import json
import random
from pathlib import Path

AGENTS, DIGITS, RIGHT = 3, 3, 0.5
SIZES = {"warmup": 20000, "tasks": 8000, "held-out": 512}


def wrong(random_: random.Random, answer: str) -> str:
    """The answer with another digit in one place."""
    place = random_.randrange(len(answer))
    digit = random_.choice([digit for digit in "0123456789" if digit != answer[place]])
    return answer[:place] + digit + answer[place + 1 :]


def second_turn(random_: random.Random, task: str, answer: str) -> str:
    """The prompt of a second turn, as in `revise` of the recipe."""
    own, *others = (answer if random_.random() < RIGHT else wrong(random_, answer) for _ in range(AGENTS))
    return f"{task}{own}<{','.join(others)}:"


def main() -> None:
    random_ = random.Random(1)
    low, high = 10 ** (DIGITS - 1), 10**DIGITS
    sums: set[tuple[int, int]] = set()
    while len(sums) < sum(SIZES.values()):
        sums.add((random_.randrange(low, high), random_.randrange(low, high)))
    pairs = iter(sorted(sums, key=lambda _: random_.random()))
    for name, size in SIZES.items():
        rows = []
        for place in range(size):
            a, b = next(pairs)
            prompt, answer = f"{a}+{b}=", str(a + b)
            if name == "warmup" and place % 2:
                prompt = second_turn(random_, prompt, answer)
            rows.append(json.dumps({"prompt": prompt, "answer": answer}))
        Path(f"debate-{name}.jsonl").write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
