"""Whole completions: an answer that is marked in one of the usual ways, several marks, or none."""

from sympy import Rational

from math_classes import either, fraction, integers, intervals, near, plain, roots
from math_groups import collection, entries, tuples, units
from math_values import Words

OPENINGS = [
    "First we add 3 and 4, which gives $3+4=7$. ",
    "Let $x$ be the number. Then $2x = 14$ and so on.\n\n",
    "<think>\nPerhaps it is \\boxed{77}? No.\n</think>\n\n",
    "Okay, the answer is not 12 as one might think.\n",
    "",
]
CLOSINGS = ["", "", " This completes the solution.", "\n\nI hope this helps!", "\n"]


def answered(rng):
    """Two answers of some class, without markup around the second."""
    truth, text, a, b = rng.choice([integers, roots, intervals, tuples, units, integers])(rng)
    text = text.strip().rstrip(".")
    for left, right in (("$", "$"), ("\\(", "\\)")):
        if text.startswith(left) and text.endswith(right) and len(text) > 3 and text.count("$") in (0, 2):
            text = text[len(left) : -len(right)]
    return truth, text.replace("$", "\\$").replace("\\\\$", "\\$"), a, b


def last_box(rng):
    truth, text, a, b = answered(rng)
    form = rng.choice(
        [
            "\\boxed{{{}}}",
            "$\\boxed{{{}}}$",
            "$$\n\\boxed{{{}}}\n$$",
            "\\[ \\boxed{{{}}} \\]",
            "**Answer:** $\\boxed{{{}}}$",
            "\\fbox{{{}}}",
            "so we have $\\boxed{{{}}}$.",
        ]
    )
    earlier = rng.choice(
        [
            "",
            "",
            "We might guess \\boxed{99}, but this is wrong, since it is too large for the equation to hold.\n\nInstead ",
        ]
    )
    return truth, rng.choice(OPENINGS) + earlier + form.format(text) + rng.choice(CLOSINGS), a, b


def several_boxes(rng):
    values = entries(rng, rng.choice([2, 2, 3]))
    other = list(values)
    match rng.choice(["same", "same", "swap", "wrong", "one"]):
        case "swap":
            other.reverse()
        case "wrong":
            other[-1] = next(v for v in iter(lambda: near(rng, other[-1]), None) if v not in values)
        case "one":
            other = other[:-1]
    boxes = [f"\\boxed{{{fraction(rng, v)}}}" for v in other]
    if rng.random() < 0.5:
        boxes = [f"${b}$" for b in boxes]
    last = rng.choice([" and ", " or ", ", and ", ", "])
    text = ", ".join(boxes[:-1]) + (last if len(boxes) > 1 else "") + boxes[-1]
    truth = rng.choice(["\\{{{}\\}}", "{}"]).format(", ".join(fraction(rng, v) for v in values))
    a = collection(values)
    b = collection(other)
    if rng.random() < 0.25:
        truth, a = fraction(rng, values[-1]), plain(values[-1])
        b = plain(other[0]) if len(other) == 1 else b
    return truth, rng.choice(OPENINGS) + "The values are " + text + "." + rng.choice(CLOSINGS), a, b


def announced(rng):
    truth, text, a, b = answered(rng)
    form = rng.choice(
        [
            "The answer is ${}$.",
            "Therefore, the final answer is ${}$.",
            "Final answer: ${}$",
            "**Final Answer:** ${}$",
            "The answer is: \\({}\\).",
            "Hence the final answer is ${}$. I hope it is correct.",
            "### Final Answer\n\n$${}$$",
            "ANSWER: ${}$",
        ]
    )
    if rng.random() < 0.4:
        value = Rational(rng.randint(-99, 999))
        other = either(rng, value)
        text, truth, a, b = fraction(rng, other), str(value), plain(value), plain(other)
        form = rng.choice(
            [
                "The answer is {}.",
                "So the answer is {}",
                "Final answer: {}",
                "**Answer:** {}",
                "The final answer is **{}**.",
                "the answer is {}!",
            ]
        )
    return truth, rng.choice(OPENINGS) + form.format(text), a, b


def last_formula(rng):
    truth, text, a, b = answered(rng)
    form = rng.choice(
        [
            "Hence we get ${}$.",
            "so that it equals $${}$$",
            "It follows that \\({}\\).",
            "Thus\n\\[{}\\]",
            "Therefore ${}$ follows.",
        ]
    )
    return truth, rng.choice(["First, $2+2=4$. ", "", "We have $x^2=9$ here. "]) + form.format(text), a, b


def after_reasoning(rng):
    value = Rational(rng.randint(10, 999))
    other, thought = either(rng, value), rng.randint(1000, 9999)
    inside = rng.choice(
        [f"Maybe \\boxed{{{thought}}}.", f"the answer is {thought}", f"\\boxed{{{value}}}? Or not."]
    )
    form = rng.choice([f"\\boxed{{{fraction(rng, other)}}}", f"The answer is {other}.", f"We get ${other}$."])
    return str(value), f"<think>{inside}</think>\n{form}", plain(value), plain(other)


def no_answer(rng):
    value = rng.randint(10, 99)
    text = rng.choice(
        [
            f"<think>Maybe \\boxed{{{value}}} or something else",
            f"<think>It could be \\boxed{{{value}}}.</think>\nI am not sure about it.",
            "Put the answer into \\boxed{}.",
            "I cannot solve this problem.",
            "",
            "Let us think step by step about what the problem wants.",
            "The answer is",
            "\\boxed{",
            f"\\boxed{{{value}",
        ]
    )
    return str(value), text + " " * rng.randint(0, 40), plain(value), Words("")
