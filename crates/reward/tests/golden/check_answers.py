"""Checks the mathematical verdicts of `answers.txt` with sympy and prints disagreements, which are errors."""

import sys
from pathlib import Path

import sympy
from sympy import *  # noqa: F403: the table uses its names

x, y, a, b = symbols("x y a b", real=True)
n = symbols("n", integer=True, positive=True)
checked = disagreements = 0
for line in (Path(__file__).parent / "answers.txt").read_text(encoding="utf-8").split("\n"):
    if not line.strip() or line.startswith("#"):
        continue
    fields = [f.strip() for f in line.split(" | ")]
    if len(fields) != 5:
        continue
    left, right = sympify(eval(fields[3])), sympify(eval(fields[4]))
    difference = simplify(left - right)
    same = difference == 0 or (left == right)
    checked += 1
    if same != (fields[2] == "same"):
        disagreements += 1
        print("sympy disagrees:", line.strip(), "->", difference)
print(f"{checked} verdicts checked with sympy {sympy.__version__}, {disagreements} disagreements")
sys.exit(disagreements > 0)
