"""Pairs of answers from data sets: JSON lines with `answer`, `final_answer` or a boxed answer in `solution`.

Classes: an answer against itself in other markup, against an expression of the same value that sympy has rewritten (checked
with numbers of fifty digits), against answers of other rows, and the solutions of the data set as whole completions.
"""

import json
import random
import re
from pathlib import Path

import sympy
from math_verify import parse

from math_values import close

ROWS = 1000


def answers(path):
    """Answers and solutions of a data set."""
    rows = [json.loads(line) for line in open(path, encoding="utf-8")]
    rows = random.Random("public answers 1").sample(rows, min(ROWS, len(rows)))
    for row in rows:
        answer, solution = row.get("answer"), row.get("solution")
        if "final_answer" in row and len(row["final_answer"]) == 1:
            answer, solution = row["final_answer"][0], None
        solution = solution if isinstance(solution, str) and solution.count("\\boxed") == 1 else None
        if answer is None and solution is not None:
            answer = boxed(solution)
        if answer is None:
            continue
        answer = str(int(answer) if isinstance(answer, float) and answer.is_integer() else answer).strip()
        if answer.startswith("$") and answer.endswith("$") and answer.count("$") == 2:
            answer = answer[1:-1]
        # Several formulas with words between them are no answer of a benchmark that is judged by a program.
        if answer and answer.count("$") == 0:
            yield answer, solution


def boxed(text):
    """The argument of the box in a text."""
    start = text.index("{", text.index("\\boxed"))
    depth = 0
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start + 1 : at]
    return None


def value(answer):
    """The expression that the library reads, if it is a number or has one value at every point."""
    try:
        found = parse("\\boxed{" + answer + "}", parsing_timeout=10)
    except Exception:
        return None
    return found[0] if found and isinstance(found[0], sympy.Expr) else None


def rewritten(rng, answer, expression):
    """Another LaTeX text of the same value; `None` if it cannot be checked."""
    # The library reads letters without case, words as products, and the exponents of 1e5 as numbers.
    letters = {str(symbol)[0] for symbol in expression.free_symbols}
    if re.search(r"[0-9]e[-+]?[0-9]|text|operatorname|mathrm|log|[=;:<>]", answer) or not letters <= set(answer):
        return None
    if re.search(r"(?<!\\)(?<![a-z])[A-Za-z]{4}", answer):
        return None
    if any(letter.upper() in answer for letter in letters if letter.islower()):
        return None
    latex = lambda e: sympy.latex(e, mul_symbol="dot", ln_notation=True)  # noqa: E731
    forms = [
        lambda e: (latex(sympy.expand(e)), sympy.expand(e)),
        lambda e: (latex(sympy.factor(e)), sympy.factor(e)),
        lambda e: (latex(sympy.together(e)), sympy.together(e)),
        lambda e: (f"{latex(e + 3)} - 3", e),
        lambda e: (f"\\frac{{{latex(sympy.expand(2 * e))}}}{{2}}", sympy.expand(2 * e) / 2),
    ]
    try:
        text, same = rng.choice(forms)(expression)
        return text if close(same, expression) else None
    except Exception:
        return None


def pairs(path):
    """Class, reference, candidate, expected verdict, and whether the candidate is a whole completion."""
    rng = random.Random("public pairs 1")
    name = Path(path).stem
    rows = list(answers(path))
    for answer, solution in rows:
        text = rng.choice([answer, f"${answer}$", f"\\({answer}\\)", f" {answer} "])
        yield f"{name}: itself", answer, text, "same", False
        expression = value(answer)
        if expression is not None and (text := rewritten(rng, answer, expression)) is not None:
            yield f"{name}: rewritten", answer, text, "same", False
        other, _ = rng.choice(rows)
        theirs = value(other)
        if other != answer and expression is not None and theirs is not None and not equal(expression, theirs):
            yield f"{name}: others", answer, other, "different", False
        if solution is not None:
            yield f"completion: {name}: solutions", answer, solution, "same", True


def equal(a, b):
    try:
        return close(a, b)
    except Exception:
        return True
