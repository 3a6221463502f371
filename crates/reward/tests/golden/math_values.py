"""Values of generated answers, and their equality by numbers of fifty digits, independent of any parser."""

import itertools
import random
from dataclasses import dataclass

import sympy
from sympy import Expr, Matrix, Set

DIGITS = 50
CLOSE = sympy.Float("1e-30", DIGITS)


@dataclass(frozen=True)
class Quantity:
    """A number or expression; a unit that only one of two answers has is not compared."""

    value: Expr
    unit: str | None = None


@dataclass(frozen=True)
class Tuple:
    """Items in order; brackets are compared."""

    items: tuple
    brackets: str = "()"


@dataclass(frozen=True)
class Collection:
    """Items without order: a set or a list."""

    items: tuple


@dataclass(frozen=True)
class Region:
    """Real numbers: intervals, unions, inequalities in one variable."""

    numbers: Set


@dataclass(frozen=True)
class Table:
    """A matrix."""

    cells: Matrix


@dataclass(frozen=True)
class Equation:
    """`zero = 0`, up to a constant factor."""

    zero: Expr


@dataclass(frozen=True)
class Inequality:
    """`above > 0`, up to a positive factor; in several variables."""

    above: Expr
    strict: bool = True


@dataclass(frozen=True)
class Assignment:
    """Values of names, in the order of writing."""

    values: tuple[tuple[str, Expr], ...]


@dataclass(frozen=True)
class Words:
    """A choice or a word."""

    text: str


def points(*expressions):
    """Values of all variables at a few random points, positive so that roots and logarithms exist."""
    rng = random.Random(17)
    names = sorted(set().union(*(e.free_symbols for e in expressions)), key=str)
    for _ in range(5 if names else 1):
        yield {name: sympy.Rational(rng.randint(1, 900), rng.randint(100, 400)) for name in names}


def number(expression, at):
    return sympy.N(expression.subs(at), DIGITS, maxn=400)


def close(a, b):
    a, b = sympy.sympify(a), sympy.sympify(b)
    if a.is_infinite or b.is_infinite:
        return a == b
    for at in points(a, b):
        x, y = number(a, at), number(b, at)
        if abs(x - y) > CLOSE * max(1, abs(x)):
            return False
    return True


def proportional(a, b, positive):
    ratios = []
    for at in points(a, b):
        x, y = number(a, at), number(b, at)
        if abs(y) < CLOSE:
            return False
        ratios.append(x / y)
    if positive and not all(r.is_real and r > 0 for r in ratios):
        return False
    return all(abs(r) > CLOSE and abs(r - ratios[0]) < CLOSE * max(1, abs(r)) for r in ratios)


def same(a, b):
    """True if two values are equal."""
    match a, b:
        case Quantity(), Quantity():
            return close(a.value, b.value) and (None in (a.unit, b.unit) or a.unit == b.unit)
        case Tuple(), Tuple():
            return (
                a.brackets == b.brackets and len(a.items) == len(b.items) and all(map(same, a.items, b.items))
            )
        case Collection(), Collection():
            within = lambda some, others: all(any(same(x, y) for y in others) for x in some)  # noqa: E731
            return within(a.items, b.items) and within(b.items, a.items)
        case Region(), Region():
            return a.numbers == b.numbers
        case Table(), Table():
            return a.cells.shape == b.cells.shape and all(map(close, a.cells, b.cells))
        case Equation(), Equation():
            return proportional(a.zero, b.zero, positive=False)
        case Inequality(), Inequality():
            return a.strict == b.strict and proportional(a.above, b.above, positive=True)
        case Assignment(), Assignment():
            left, right = dict(a.values), dict(b.values)
            return left.keys() == right.keys() and all(close(left[name], right[name]) for name in left)
        case (Assignment(), Tuple()) | (Tuple(), Assignment()):
            named, plain = (a, b) if isinstance(a, Assignment) else (b, a)
            return len(named.values) == len(plain.items) and all(
                close(value, item.value) for (_, value), item in zip(named.values, plain.items, strict=True)
            )
        case Words(), Words():
            return a.text == b.text
        case _:
            return False


def distinct(items):
    """True if no two items are equal."""
    return not any(same(a, b) for a, b in itertools.combinations(items, 2))
