"""Judges differences between the verifier and `math-verify` on public answer sets, by numbers alone.

Each row of `math_differences.jsonl` has a data set, a reference and a candidate from `math_public.py`, the verdict of math-verify
("same" or "different"), and what the two texts mean, transcribed by hand with the question that they answer in view: an
expression of Python, a condition on `x`, or a list of them. No parser of either program takes part. The rows are those on
which the verifier and math-verify differed, or both differed from what math-verify had been given to write.

Expressions are equal if their values are, with fifty digits at random points, complex ones included; a unit or a constant of
physics is a variable. Conditions are equal if they hold for the same numbers, among them all that they name. The last
column of a row is the verdict that follows; this program computes it again and fails if it differs, and
`tests/reward/pairs.rs` requires it of the verifier. Needs mpmath:

    python math_differences.py
"""

import ast
import json
import random
import sys
from pathlib import Path

import mpmath

DIGITS = 50
POINTS = 12
FUNCTIONS = {
    name: getattr(mpmath, name) for name in ("sin", "cos", "tan", "sec", "asin", "atan", "sqrt", "pi", "inf")
}


def names(text):
    """The variables of an expression."""
    found = {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}
    return sorted(found - FUNCTIONS.keys())


def exact(text):
    """An expression whose decimal numbers are exact: 0.1 is a tenth."""
    tree = ast.parse(text, mode="eval")

    class Exact(ast.NodeTransformer):
        def visit_Constant(self, node):
            return ast.Call(ast.Name("mpf", ast.Load()), [ast.Constant(ast.get_source_segment(text, node))], [])

    return compile(ast.fix_missing_locations(Exact().visit(tree)), text, "eval")


def value(text, at):
    return eval(exact(text), {"__builtins__": {}, "mpf": mpmath.mpf, **FUNCTIONS, **at})


def is_condition(text):
    return any(isinstance(node, ast.Compare) for node in ast.walk(ast.parse(text, mode="eval")))


def points(variables):
    """Random values of variables: positive, then complex."""
    rng = random.Random(str(variables))
    for index in range(POINTS):
        draw = lambda: mpmath.mpf(rng.randrange(1, 10**12)) / rng.randrange(10**11, 10**12)  # noqa: E731
        imaginary = mpmath.mpc(0, 1) if index >= POINTS // 2 else 0
        yield {name: draw() + imaginary * draw() for name in variables}


def numbers(*conditions):
    """Numbers at which conditions are compared: those that they name, their neighbours, and random ones."""
    named = {0}
    for text in conditions:
        for node in ast.walk(ast.parse(text, mode="eval")):
            if isinstance(node, ast.Constant):
                named |= {node.value, -node.value}
    rng = random.Random(str(conditions))
    near = {number + step for number in named for step in (-1, -1e-9, 0, 1e-9, 1)}
    return near | {rng.uniform(-100, 100) for _ in range(200)}


def same(a, b):
    """True if two meanings are equal."""
    if isinstance(a, list) or isinstance(b, list):
        if not (isinstance(a, list) and isinstance(b, list) and len(a) == len(b)):
            return False
        return all(map(same, a, b))
    if is_condition(a) != is_condition(b):
        return False
    if is_condition(a):
        return all(bool(value(a, {"x": x})) == bool(value(b, {"x": x})) for x in numbers(a, b))
    for at in points(sorted({*names(a), *names(b)})):
        x, y = value(a, at), value(b, at)
        if x != y and not abs(x - y) <= mpmath.mpf(10) ** (10 - DIGITS) * max(1, abs(x)):
            return False
    return True


def main():
    mpmath.mp.dps = DIGITS
    rows = [json.loads(line) for line in Path(__file__).with_suffix(".jsonl").open(encoding="utf-8")]
    wrong = right = 0
    for source, reference, candidate, library, left, other, verdict in rows:
        found = "same" if same(left, other) else "different"
        right += library == found
        print(f"{source}: {reference!r} and {candidate!r}: {found}, math-verify {library}")
        if found != verdict:
            wrong += 1
            print(f"  the row says {verdict}", file=sys.stderr)
    print(f"{len(rows)} pairs judged, math-verify right in {right}, {wrong} rows with another verdict")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
