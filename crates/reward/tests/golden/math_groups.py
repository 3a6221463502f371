"""Pairs of answers with several parts, with units, in other notations, and inside whole completions."""

import sympy
from sympy import I, Matrix, Rational, sqrt

from math_classes import decimal, dressed, fraction, near, plain
from math_values import Assignment, Collection, Quantity, Table, Tuple, Words


def entries(rng, count):
    """Different rational numbers."""
    found = []
    while len(found) < count:
        value = Rational(rng.randint(-20, 20), rng.choice([1, 1, 1, 2, 3]))
        if value not in found:
            found.append(value)
    return found


def table(rng, cells, form=None):
    """A matrix as LaTeX."""
    form = form or rng.choice(["pmatrix", "bmatrix", "array", "matrix"])
    body = rng.choice([" \\\\ ", "\\\\", " \\\\\n"]).join(
        " & ".join(fraction(rng, v) for v in cells.row(i)) for i in range(cells.rows)
    )
    if form == "array":
        return f"\\left[\\begin{{array}}{{{'c' * cells.cols}}} {body} \\end{{array}}\\right]"
    if form == "matrix":
        return f"\\left(\\begin{{matrix}} {body} \\end{{matrix}}\\right)"
    return f"\\begin{{{form}}} {body} \\end{{{form}}}"


def matrices(rng):
    rows, cols = rng.choice([(2, 2), (2, 1), (3, 1), (1, 3), (3, 3), (2, 3)])
    a = Matrix(
        rows, cols, [rng.randint(-9, 9) + Rational(rng.choice([0, 0, 1]), 2) for _ in range(rows * cols)]
    )
    b = a.copy()
    if rng.random() < 0.5:
        kind = rng.choice(["cell", "transpose", "sign"])
        i = rng.randrange(rows * cols)
        b[i] += 1 if kind == "cell" or a[i] == 0 else -2 * a[i]
        if kind == "transpose" and a.T != a:
            b = a.T
    text = table(rng, b)
    if rng.random() < 0.15:
        text = f"\\frac{{1}}{{2}} {table(rng, 2 * b, 'pmatrix')}"
    elif rng.random() < 0.1:
        text = f"{table(rng, b.T, 'pmatrix')}^T"
    elif rng.random() < 0.15:
        text = (
            "["
            + ", ".join("[" + ", ".join(fraction(rng, v) for v in b.row(i)) + "]" for i in range(rows))
            + "]"
        )
    elif rng.random() < 0.1:
        text = f"A = {table(rng, b)}"
    return table(rng, a), dressed(rng, text), Table(a), Table(b)


def sequence(rng, values, brackets="()"):
    left, right = rng.choice([brackets, (f"\\left{brackets[0]}", f"\\right{brackets[1]}")])
    return left + rng.choice([", ", ","]).join(fraction(rng, v) for v in values) + right


def tuples(rng):
    values = entries(rng, rng.randint(2, 4))
    other = list(values)
    if rng.random() < 0.5:
        match rng.choice(["swap", "cell", "more", "less"]):
            case "swap":
                other[0], other[1] = other[1], other[0]
            case "cell":
                other[-1] = near(rng, other[-1])
            case "more":
                other.append(Rational(1))
            case "less" if len(other) > 2:
                other.pop()
            case _:
                other.reverse()
    make = lambda items: Tuple(tuple(plain(v) for v in items))  # noqa: E731
    text = sequence(rng, other)
    if rng.random() < 0.1:
        text = "\\langle " + ", ".join(map(str, other)) + " \\rangle"
    return sequence(rng, values), dressed(rng, text), make(values), make(other)


def collection(values):
    return Collection(tuple(plain(v) for v in values))


def changed(rng, values):
    """The same members in another order, or other members."""
    other = list(values)
    rng.shuffle(other)
    if rng.random() < 0.5:
        match rng.choice(["cell", "more", "less"]):
            case "cell":
                other[0] = next(v for v in iter(lambda: near(rng, other[0]), None) if v not in values)
            case "more":
                other.append(
                    next(v for v in iter(lambda: Rational(rng.randint(-99, 99)), None) if v not in values)
                )
            case _:
                other.pop()
    return other


def joined(rng, texts, words=("and", "or")):
    """Items with commas or words between them."""
    texts = list(texts)
    if len(texts) < 2:
        return texts[0]
    word = rng.choice(words)
    form = rng.choice([", ", ",", f" {word} ", f" \\text{{ {word} }} ", "oxford"])
    if form == "oxford":
        return ", ".join(texts[:-1]) + rng.choice([", and ", " and "]) + texts[-1]
    return (
        form.join(texts)
        if len(texts) == 2 or form in (", ", ",")
        else ", ".join(texts[:-1]) + form + texts[-1]
    )


def sets(rng):
    values = entries(rng, rng.randint(2, 5))
    other = changed(rng, values)
    write = lambda items: "\\{" + ", ".join(fraction(rng, v) for v in items) + "\\}"  # noqa: E731
    text = write(other)
    if rng.random() < 0.15:
        text = "\\left" + text[:-2] + "\\right\\}"
    elif rng.random() < 0.15:
        text = joined(rng, [fraction(rng, v) for v in other])
    if rng.random() < 0.2:
        pairs = [(values[i], values[i] + 1) for i in range(len(values))]
        kept = rng.choice([pairs[::-1], [*pairs[:-1], (pairs[-1][1], pairs[-1][0])]])
        show = lambda items: "\\{" + ", ".join(f"({p}, {q})" for p, q in items) + "\\}"  # noqa: E731
        make = lambda items: Collection(tuple(Tuple((plain(p), plain(q))) for p, q in items))  # noqa: E731
        return show(pairs), dressed(rng, show(kept)), make(pairs), make(kept)
    return write(values), dressed(rng, text), collection(values), collection(other)


def lists(rng):
    values = entries(rng, rng.randint(2, 4))
    other = changed(rng, values)
    text = joined(rng, [fraction(rng, v) for v in other])
    if rng.random() < 0.25:
        c, r = rng.randint(1, 9), rng.choice([2, 3, 5, 7])
        a = Collection((plain(c + sqrt(r)), plain(c - sqrt(r))))
        form = rng.choice(["pm", "pm", "list", "one", "sign"])
        texts = {
            "pm": (f"{c} \\pm \\sqrt{{{r}}}", a),
            "list": (f"{c}-\\sqrt{{{r}}}, {c}+\\sqrt{{{r}}}", a),
            "one": (f"{c}+\\sqrt{{{r}}}", plain(c + sqrt(r))),
            "sign": (f"-{c} \\pm \\sqrt{{{r}}}", Collection((plain(-c + sqrt(r)), plain(-c - sqrt(r))))),
        }
        return f"{c}+\\sqrt{{{r}}}, {c}-\\sqrt{{{r}}}", dressed(rng, texts[form][0]), a, texts[form][1]
    return (
        ", ".join(fraction(rng, v) for v in values),
        dressed(rng, text),
        collection(values),
        collection(other),
    )


def solutions(rng):
    values = entries(rng, rng.choice([2, 2, 3]))
    other = changed(rng, values)
    while len(other) < 2:
        other = changed(rng, values)
    name = rng.choice(["x", "x", "y", "t"])
    show = [fraction(rng, v) for v in other]
    form = rng.choice(["index", "repeat", "once", "plain", "set"])
    match form:
        case "index":
            text = joined(rng, [f"{name}_{i + 1} = {v}" for i, v in enumerate(show)])
        case "repeat":
            text = joined(rng, [f"{name} = {v}" for v in show])
        case "once":
            text = f"{name} = " + joined(rng, show)
        case "plain":
            text = joined(rng, show)
        case _:
            text = f"{name} \\in \\{{{', '.join(show)}\\}}"
    truths = [
        "\\{" + ", ".join(fraction(rng, v) for v in values) + "\\}",
        ", ".join(fraction(rng, v) for v in values),
        f"{name} = " + f" \\text{{ or }} {name} = ".join(fraction(rng, v) for v in values),
    ]
    truth = rng.choice(truths)
    if rng.random() < 0.2:
        k = rng.randint(2, 20)
        b = rng.choice([k, k, k + 1])
        return f"{k}, -{k}", dressed(rng, f"{name} = \\pm {b}"), collection([k, -k]), collection([b, -b])
    return truth, dressed(rng, text), collection(values), collection(other)


def assignments(rng):
    names = rng.choice([["p", "q"], ["x", "y"], ["a", "b", "c"], ["x", "y", "z"], ["m", "n"]])
    values = entries(rng, len(names))
    other = list(values)
    if rng.random() < 0.5:
        other = rng.choice([values[::-1], [*values[:-1], near(rng, values[-1])]])
        if other == values:
            other = [values[0] + 1, *values[1:]]
    left, right = (
        "(" + ", ".join(names) + ")",
        lambda items: "(" + ", ".join(fraction(rng, v) for v in items) + ")",
    )
    make = lambda items: Assignment(tuple(zip(names, items, strict=True)))  # noqa: E731
    each = [f"{name} = {fraction(rng, v)}" for name, v in zip(names, other, strict=True)]
    shuffled = list(each)
    rng.shuffle(shuffled)
    forms = [
        (f"{left} = {right(other)}", make(other)),
        (right(other), Tuple(tuple(plain(v) for v in other))),
        (joined(rng, each, ["and"]), make(other)),
        (joined(rng, shuffled, ["and"]), make(other)),
    ]
    truth = rng.choice(
        [
            f"{left} = {right(values)}",
            ", ".join(f"{n} = {fraction(rng, v)}" for n, v in zip(names, values, strict=True)),
        ]
    )
    text, value = rng.choice(forms)
    return truth, dressed(rng, text), make(values), value


def systems(rng):
    """Solutions of systems of equations: several points."""
    points = [tuple(entries(rng, 2)) for _ in range(rng.choice([1, 2, 2, 3]))]
    other = list(points)
    rng.shuffle(other)
    if rng.random() < 0.5:
        x, y = other[0]
        changed = rng.choice(
            [[(y, x), *other[1:]], [(x, near(rng, y)), *other[1:]], [*other, (x + 1, y + 50)]]
        )
        other = changed
    point = lambda p: f"({fraction(rng, p[0])}, {fraction(rng, p[1])})"  # noqa: E731
    make = lambda items: Collection(tuple(Tuple((plain(x), plain(y))) for x, y in items))  # noqa: E731
    show = [point(p) for p in other]
    named = [f"(x, y) = {p}" for p in show]
    forms = [
        joined(rng, named, ["or"]),
        "(x, y) = " + joined(rng, show, ["or", "and"]),
        "\\{" + ", ".join(show) + "\\}",
        joined(rng, show),
    ]
    if len(other) == 1 == len(points):
        forms = forms[:1] + [f"x = {fraction(rng, other[0][0])}, y = {fraction(rng, other[0][1])}"]
    a, b = make(points), make(other)
    return ", ".join(map(point, points)), dressed(rng, rng.choice(forms)), a, b


UNITS = {
    "cm": ["cm", "\\text{ cm}", "\\mathrm{cm}", "centimeters", "\\text{ centimeters}"],
    "cm^2": [
        "cm^2",
        "\\text{ cm}^2",
        "\\text{ cm}^{2}",
        "\\mathrm{cm}^2",
        "square centimeters",
        "\\text{ square centimeters}",
    ],
    "m^3": ["m^3", "\\text{ m}^3", "cubic meters", "\\mathrm{m}^3"],
    "kg": ["kg", "\\text{ kg}", "kilograms"],
    "km/h": ["km/h", "\\text{ km/h}", "kilometers per hour"],
    "m/s^2": ["m/s^2", "\\text{ m/s}^2", "\\mathrm{m/s^2}"],
    "hours": ["hours", "\\text{ hours}", "h", "\\text{ hr}"],
    "minutes": ["minutes", "\\text{ min}", "min"],
    "dollars": ["dollars", "\\text{ dollars}", "$", "\\$"],
    "liters": ["liters", "\\text{ L}", "L"],
    "newtons": ["\\text{ N}", "N", "newtons"],
    "kilojoules": ["kJ", "\\text{ kJ}"],
    "feet": ["feet", "\\text{ ft}", "ft"],
    "units^2": ["square units", "\\text{ units}^2", "\\text{ square units}"],
}
OTHERS = {
    "cm": "kg",
    "kg": "hours",
    "cm^2": "cm",
    "m^3": "minutes",
    "hours": "minutes",
    "minutes": "hours",
    "dollars": "cm",
    "feet": "cm",
}


def measured(rng, value, unit):
    written = rng.choice(UNITS[unit])
    number = decimal(value) if value.q != 1 else str(value)
    if written in ("$", "\\$"):
        return f"{written}{number}"
    return f"{number}{written}" if written.startswith("\\") else f"{number} {written}"


def units(rng):
    unit = rng.choice(list(UNITS))
    a = Rational(rng.randint(1, 400), rng.choice([1, 1, 2, 10]))
    b = rng.choice([a, a, a, abs(near(rng, a)) + Rational(1, 100)])
    other = unit
    if b == a and unit in OTHERS and rng.random() < 0.2:
        other = OTHERS[unit]
    bare = str(a) if a.q == 1 else decimal(a)
    truth, known = (measured(rng, a, unit), unit) if rng.random() < 0.6 else (bare, None)
    text = measured(rng, b, other) if b.q in (1, 2, 5, 10) or rng.random() < 0.5 else decimal(b)
    return truth, dressed(rng, text), Quantity(a, known), Quantity(b, other)


def degrees(rng):
    a = Rational(rng.randint(1, 360), rng.choice([1, 1, 1, 2]))
    b = rng.choice([a, a, a + 1, 180 - a, a * 10])
    write = lambda v: str(v) if v.q == 1 else decimal(v)  # noqa: E731
    forms = ["^\\circ", "^{\\circ}", "°", " degrees", "\\text{ degrees}", "", " ^\\circ", "\\degree"]
    return write(a) + rng.choice(forms[:5]), dressed(rng, write(b) + rng.choice(forms)), plain(a), plain(b)


def thousands(rng):
    a = rng.choice([rng.randint(1000, 999999), rng.randint(10**6, 10**10)])
    b = rng.choice([a, a, a + 1000, a * 10, a // 10])
    mark = rng.choice([",", "{,}", "\\,", ",\\!", " ", "\u00a0", "\\ "])
    grouped = lambda v, m: f"{v:,}".replace(",", m)  # noqa: E731
    truth = rng.choice([str(a), grouped(a, ","), grouped(a, "{,}")])
    text = grouped(b, mark)
    if rng.random() < 0.2:
        text, b = f"{grouped(b, ',')}.50", Rational(2 * b + 1, 2)
        truth, a = f"{a}.5", Rational(2 * a + 1, 2)
    return truth, dressed(rng, text), plain(a), plain(b)


def decimal_commas(rng):
    digits = rng.choice([1, 2, 4])
    a = Rational(rng.randint(1, 10**6), 10**digits)
    b = rng.choice([a, a, a * 10, a + 1, a + Rational(1, 10**digits)])
    text = decimal(b)
    whole, part = text.split(".")
    part = part.ljust(rng.choice([0, 2, 4]), "0") if len(part) != 3 else part + "0"
    part = part if len(part) != 3 else part + "0"
    forms = [f"{whole},{part}", f"{whole}{{,}}{part}"]
    if int(whole) > 999:
        forms += [
            f"{int(whole):,}".replace(",", ".") + f",{part}",
            f"{int(whole):,}".replace(",", " ") + f",{part}",
        ]
    return decimal(a), dressed(rng, rng.choice(forms)), plain(a), plain(b)


def complex_numbers(rng):
    p, q = rng.randint(-9, 9), rng.choice([-5, -3, -2, 2, 4, 7])
    a = p + q * I
    sign = lambda v: f"+ {v}" if v >= 0 else f"- {-v}"  # noqa: E731
    square = sympy.expand(a**2)
    u, v = sympy.re(square), sympy.im(square)
    inverse = 1 / a
    x, y = sympy.re(inverse), sympy.im(inverse)
    pairs = [
        (
            a,
            f"{p} {sign(q)}i",
            [
                (a, f"{q}i {sign(p)}"),
                (a, f"{sign(p)[0]}{abs(p)}{sign(q)}i".lstrip("+")),
                (p - q * I, f"{p} {sign(-q)}i"),
                (q + p * I, f"{q} {sign(p)}i"),
            ],
        ),
        (
            square,
            f"{u} {sign(v)}i",
            [
                (square, f"({p} {sign(q)}i)^2"),
                (square, f"({p} {sign(q)}i)({p} {sign(q)}i)"),
                (a * (p - q * I), f"({p} {sign(q)}i)({p} {sign(-q)}i)"),
                (-square, f"-({p} {sign(q)}i)^2"),
            ],
        ),
        (
            inverse,
            f"{fraction(rng, x)} {'+' if y > 0 else '-'} {fraction(rng, abs(y))}i",
            [
                (inverse, f"\\frac{{1}}{{{p} {sign(q)}i}}"),
                (inverse, f"\\frac{{{p} {sign(-q)}i}}{{{p * p + q * q}}}"),
                (1 / (p - q * I), f"\\frac{{1}}{{{p} {sign(-q)}i}}"),
                (a, f"{p} {sign(q)}i"),
            ],
        ),
        (
            Rational(p * p + q * q),
            f"{p * p + q * q}",
            [
                (Rational(p * p + q * q), f"({p} {sign(q)}i)({p} {sign(-q)}i)"),
                (Rational(p * p + q * q), f"|{p} {sign(q)}i|^2"),
                (square, f"({p} {sign(q)}i)^2"),
                (Rational(p * p - q * q - 1), f"{p * p - q * q - 1}"),
            ],
        ),
    ]
    value, truth, others = rng.choice(pairs)
    other, text = others[rng.choice([0, 1, 0, 1, 2, 3])]
    return truth, dressed(rng, text), plain(value), plain(other)


CHOICES = ["A", "B", "C", "D", "E", "even", "odd", "yes", "no", "Monday", "Tuesday", "red", "blue"]


def words(rng):
    a = rng.choice(CHOICES)
    b = a if rng.random() < 0.5 else rng.choice([c for c in CHOICES if c != a])
    write = lambda t: rng.choice(
        [
            t,
            f"\\text{{{t}}}",
            f"\\textbf{{{t}}}",
            f"\\mathrm{{{t}}}",
            f"\\textbf{{({t})}}" if len(t) == 1 else t,
            f"({t})" if len(t) == 1 else t,
        ]
    )  # noqa: E731
    return rng.choice([a, f"\\text{{{a}}}"]), dressed(rng, write(b)), Words(a), Words(b)
