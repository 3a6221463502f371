"""Writes `math_pairs.jsonl`: pairs of answers by class, whether they are equal, and the verdict of `math-verify`.

Equality is known from the values that the texts were written from, compared with numbers of fifty digits. Needs
`math-verify[antlr4-13-2]` (0.9.0). Run it in this folder:

    python math_pairs.py > math_pairs.jsonl
    python math_pairs.py --answers FILE.jsonl > pairs.jsonl   # the `answer` column of a data set in the manner of GSM8K
    python math_pairs.py --public FILE.jsonl… > pairs.jsonl   # data sets whose answers are LaTeX: math_public.py

A row: class, reference, candidate or completion, expected verdict ("same", "different", "none": no answer), verdict
of math-verify (bit 1: equal). `tests/reward/pairs.rs` compares the verifier with it; with `RLOOM_MATH_PAIRS=pairs.jsonl` it judges another file.
"""

import json
import logging
import random
import sys

from math_verify import parse, verify

import math_classes as classes
import math_completions as completions
import math_groups as groups
import math_public
from math_values import same

COUNT = 80
SINGLE = {
    "integers": classes.integers,
    "decimals": classes.decimals,
    "fractions": classes.fractions,
    "mixed numbers": classes.mixed_numbers,
    "percent": classes.percent,
    "powers": classes.powers,
    "roots": classes.roots,
    "pi and e": classes.constants,
    "trigonometry and logarithms": classes.trigonometry_and_logarithms,
    "polynomials": classes.polynomials,
    "rational expressions": classes.rational_expressions,
    "equations": classes.equations,
    "inequalities": classes.inequalities,
    "intervals": classes.intervals,
    "unions": classes.unions,
    "matrices": groups.matrices,
    "tuples": groups.tuples,
    "sets": groups.sets,
    "lists": groups.lists,
    "solutions": groups.solutions,
    "assignments": groups.assignments,
    "systems": groups.systems,
    "units": groups.units,
    "degrees": groups.degrees,
    "thousands": groups.thousands,
    "decimal commas": groups.decimal_commas,
    "complex numbers": groups.complex_numbers,
    "words": groups.words,
}
WHOLE = {
    "last box": completions.last_box,
    "several boxes": completions.several_boxes,
    "announced": completions.announced,
    "last formula": completions.last_formula,
    "after reasoning": completions.after_reasoning,
    "no answer": completions.no_answer,
}


def verdict(reference, text, whole):
    """The verdict of math-verify: 1 if equal, plus 2 if equal in the other direction, which it does not recommend.

    Its failures count as different, as in its own reward functions. Texts that bring delimiters of formulas are not
    put into a box, which math-verify does not read.
    """
    delimited = text.strip().startswith("\\(") or (text.startswith("$") and text.endswith("$"))
    try:
        gold = parse("\\boxed{" + reference + "}", parsing_timeout=20)
        found = parse(text if whole or delimited else "\\boxed{" + text + "}", parsing_timeout=20)
        return int(verify(gold, found, timeout_seconds=20)) + 2 * int(verify(found, gold, timeout_seconds=20))
    except Exception:
        return 0


def rows(name, generate, whole):
    rng = random.Random(f"{name} 1")
    seen = set()
    while len(seen) < COUNT:
        reference, text, a, b = generate(rng)
        if (reference, text) in seen:
            continue
        seen.add((reference, text))
        expected = "none" if name == "no answer" else "same" if same(a, b) else "different"
        yield [
            f"completion: {name}" if whole else name,
            reference,
            text,
            expected,
            verdict(reference, text, whole),
        ]


def public(path):
    """Answers of a data set against other notations of the same number and against wrong numbers."""
    rng = random.Random("public answers 1")
    lines = [json.loads(line) for line in open(path, encoding="utf-8")]
    for line in rng.sample(lines, min(1000, len(lines))):
        answer = line["answer"].rsplit("####")[-1].strip()
        value = int(answer.replace(",", ""))
        right = rng.choice(
            [str(value), f"{value}.00", f"\\${value:,}", f"{value:,}".replace(",", "{,}"), f"x = {value}"]
        )
        wrong = str(rng.choice([value + 1, value * 10, -value - 1]))
        yield ["answers", answer, right, "same", verdict(answer, right, False)]
        yield ["answers", answer, wrong, "different", verdict(answer, wrong, False)]
        solution = line["answer"].rsplit("####")[0]
        text = f"{solution}\nThe answer is {right}."
        yield ["completion: solutions", answer, text, "same", verdict(answer, text, True)]


def main():
    logging.disable(logging.CRITICAL)
    if sys.argv[1:2] == ["--answers"]:
        found = public(sys.argv[2])
    elif sys.argv[1:2] == ["--public"]:
        found = (
            [name, answer, text, expected, verdict(answer, text, whole)]
            for path in sys.argv[2:]
            for name, answer, text, expected, whole in math_public.pairs(path)
        )
    else:
        found = (
            row
            for table, whole in ((SINGLE, False), (WHOLE, True))
            for name in table
            for row in rows(name, table[name], whole)
        )
    for row in found:
        print(json.dumps(row, ensure_ascii=False))


if __name__ == "__main__":
    main()
