"""Writes the data of recipes/coding-agent.toml: tiny repositories with a failing test, and demonstrations.

    python recipes/coding_data.py

A repository has three modules of one function each. One function computes another operation than its name says; the issue names it.
`coding-demonstrations.jsonl` has sessions in which it is repaired. Most are guesses: they replace an operator in a module
without a look at it, and so are seldom right. In some the function is searched for first, and the tests are run. Sessions are written turn by turn: the
prompt is the session so far and the completion the next command. `coding-tasks.jsonl` and `coding-held-out.jsonl` have tasks alone;
the names of variables of the held-out tasks are together in no other.
"""

import json
import random
from pathlib import Path
from typing import Any

OPERATIONS = {"add": "+", "sub": "-", "mul": "*", "mod": "%"}
MODULES = "abc"
LETTERS = "mnpqrstuvwxyz"
# All characters of tasks, commands and observations.
ALPHABET = "\n $'()*+,-./0123456789:<=>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_abcdefghijklmnopqrstuvwxyz%|\""
# Part of the sessions that look before they write.
CAREFUL = 0.2


class Repository:
    """Three functions, one of which is wrong."""

    def __init__(self, rng: random.Random, variables: tuple[str, str]) -> None:
        self.variables = variables
        self.modules = dict(zip(MODULES, rng.sample(sorted(OPERATIONS), len(MODULES))))
        self.bad = rng.choice(MODULES)
        self.name = self.modules[self.bad]
        self.right = OPERATIONS[self.name]
        self.wrong = rng.choice([o for o in OPERATIONS.values() if o != self.right])

    def line(self, module: str) -> str:
        name = self.modules[module]
        operator = self.wrong if module == self.bad else OPERATIONS[name]
        left, right = self.variables
        return f"def {name}({left},{right}): return {left}{operator}{right}"

    def cases(self, arguments: list[tuple[int, int]]) -> list[tuple[str, str, str]]:
        """Modules, calls of their functions and the right results."""
        compute = {"add": int.__add__, "sub": int.__sub__, "mul": int.__mul__, "mod": int.__mod__}
        return [
            (module, f"{name}({x},{y})", str(compute[name](x, y)))
            for module, name in self.modules.items()
            for x, y in arguments
        ]

    def task(self) -> dict[str, Any]:
        files = {f"{module}.py": self.line(module) + "\n" for module in MODULES}
        lines = [
            f"import {module}\nassert {module}.{call}=={result}"
            for module, call, result in self.cases([(9, 4)])
        ]
        files["test.py"] = "\n".join([*lines, "print('ok')", ""])
        hidden = self.cases([(9, 2), (5, 3), (12, 7)])
        return {"prompt": self.prompt(), "answer": "", "files": files, "hidden": hidden, "alphabet": ALPHABET}

    def prompt(self) -> str:
        return f"{self.name} is wrong\n$ "

    def session(self, rng: random.Random) -> list[tuple[str, str]]:
        """Commands and what they write."""
        if rng.random() < CAREFUL:
            found = f"{self.bad}.py:{self.line(self.bad)}"
            return [
                (f"grep 'def {self.name}' *", found),
                (f"sed -i 's/{self.wrong}/{self.right}/' {self.bad}.py", "done"),
                ("python3 test.py", "ok"),
                ("submit", ""),
            ]
        module, operator = (
            rng.choice(MODULES),
            rng.choice([o for o in OPERATIONS.values() if o != self.right]),
        )
        return [(f"sed -i 's/{operator}/{self.right}/' {module}.py", "done"), ("submit", "")]


def main() -> None:
    rng = random.Random(0)
    pairs = [(a, b) for a in LETTERS for b in LETTERS if a != b]
    rng.shuffle(pairs)
    held_out, training = pairs[:24], pairs[24:]
    with Path("coding-demonstrations.jsonl").open("w") as file:
        for _ in range(6_000):
            repository = Repository(rng, rng.choice(training))
            prompt = repository.prompt()
            for command, output in repository.session(rng):
                file.write(json.dumps({"prompt": prompt, "answer": "", "demonstration": command}) + "\n")
                prompt += f"{command}<|eos|>\n{output}\n$ "
    for path, variables, count in [
        ("coding-tasks.jsonl", training, 4_000),
        ("coding-held-out.jsonl", held_out, 128),
    ]:
        with Path(path).open("w") as file:
            for _ in range(count):
                file.write(json.dumps(Repository(rng, rng.choice(variables)).task()) + "\n")


if __name__ == "__main__":
    main()
