"""Pairs of answers by class: LaTeX or plain text of both, with the values that they were written from."""

import sympy
from sympy import (
    E,
    Interval,
    Rational,
    Union,
    cos,
    log,
    oo,
    pi,
    sin,
    sqrt,
    symbols,
    tan,
)

from math_values import (
    Equation,
    Inequality,
    Quantity,
    Region,
)

GE, LE = "\\ge", "\\le"
X, Y, A, B, N = symbols("x y a b n")


def fraction(rng, value):
    """A rational number as LaTeX or plain text."""
    value = Rational(value)
    if value.q == 1:
        return str(value)
    sign = "-" if value < 0 else ""
    p, q = abs(value.p), value.q
    forms = [
        f"{sign}\\frac{{{p}}}{{{q}}}",
        f"{sign}\\dfrac{{{p}}}{{{q}}}",
        f"{sign}{p}/{q}",
        f"{sign}\\tfrac{{{p}}}{{{q}}}",
    ]
    if p < 10 and q < 10:
        forms.append(f"{sign}\\frac{p}{q}")
    if sign:
        forms += [f"\\frac{{-{p}}}{{{q}}}"]
    factor = rng.randint(2, 5)
    forms.append(f"{sign}\\frac{{{p * factor}}}{{{q * factor}}}")
    return rng.choice(forms)


def near(rng, value):
    """A wrong number that resembles a right one."""
    value = Rational(value)
    wrong = rng.choice(
        [value + 1, value - 1, -value, value * 10, value / 10, value + Rational(1, 10), value * 2]
    )
    return wrong if wrong != value else value + 1


def dressed(rng, text):
    """An answer with harmless markup."""
    return rng.choice([text, text, text, f"${text}$", f"\\({text}\\)", f" {text} "])


def either(rng, value):
    """The value itself, or a wrong one."""
    return value if rng.random() < 0.5 else near(rng, value)


def plain(value):
    return Quantity(sympy.sympify(value))


def integers(rng):
    a = rng.choice([rng.randint(-50, 50), rng.randint(100, 99999), rng.randint(10**12, 10**15)])
    b = either(rng, a) if rng.random() < 0.8 else a + rng.choice([-1, 1])
    b = Rational(int(b))
    text = rng.choice(
        [f"{b}", f"{b}", f"{b}.0", f"{b}.00", f"+{b}" if b > 0 else f"{b}", f"{{{b}}}", f"={b}"]
    )
    return f"{a}", dressed(rng, text), plain(a), plain(b)


def decimals(rng):
    digits = rng.randint(1, 5)
    a = Rational(rng.randint(-(10**6), 10**6), 10**digits)
    b = either(rng, a)
    if rng.random() < 0.2:
        b = a + Rational(rng.choice([-1, 1]), 10**digits)
    text = decimal(b) + rng.choice(["", "", "0", "00"])
    if rng.random() < 0.2 and abs(b) < 1:
        text = text.replace("0.", ".", 1)
    if rng.random() < 0.3:
        text = fraction(rng, b)
    return decimal(a), dressed(rng, text.replace("..", ".")), plain(a), plain(b)


def decimal(value):
    """The finite decimal of a number, with a point."""
    value = Rational(value)
    for places in range(1, 12):
        scaled = abs(value) * 10**places
        if scaled.q == 1:
            digits = str(scaled.p).rjust(places + 1, "0")
            return ("-" if value < 0 else "") + digits[:-places] + "." + digits[-places:]
    raise ValueError(value)


def fractions(rng):
    a = Rational(rng.randint(-60, 60), rng.randint(2, 40))
    b = rng.choice([a, a, 1 / a if a else a + 1, -a, a + Rational(1, 7), Rational(a.p + 1, a.q)])
    return fraction(rng, a), dressed(rng, fraction(rng, b)), plain(a), plain(b)


def mixed_numbers(rng):
    whole, q = rng.randint(1, 30), rng.randint(2, 12)
    p = rng.randint(1, q - 1)
    a = whole + Rational(p, q)
    b = rng.choice([a, a, a, Rational(whole * p, q), a + 1, Rational(whole * q + p + 1, q)])
    part = b - b.p // b.q
    whole_b = b.p // b.q
    mixed = [
        f"{whole_b}\\frac{{{part.p}}}{{{part.q}}}",
        f"{whole_b} {part.p}/{part.q}",
        f"{whole_b}\\dfrac{{{part.p}}}{{{part.q}}}",
    ]
    text = rng.choice(mixed) if part and whole_b else fraction(rng, b)
    truth = rng.choice([f"{whole}\\frac{{{p}}}{{{q}}}", f"\\frac{{{whole * q + p}}}{{{q}}}"])
    return truth, dressed(rng, text), plain(a), plain(b)


def percent(rng):
    a = Rational(rng.randint(1, 200), rng.choice([1, 1, 2, 4]))
    b = rng.choice([a, a, a, a + 1, a * 10])
    as_text = lambda v: str(v) if v.q == 1 else decimal(v)  # noqa: E731
    form = rng.choice(
        [
            f"{as_text(b)}\\%",
            f"{as_text(b)}%",
            f"{as_text(b)} percent",
            f"{as_text(b)}\\text{{ percent}}",
            "plain",
            "ratio",
        ]
    )
    if form == "plain":
        form = as_text(b)
    if form == "ratio":
        form = fraction(rng, b / 100)
    return f"{as_text(a)}\\%", dressed(rng, form), plain(a), plain(b)


def powers(rng):
    base, exponent = rng.randint(2, 12), rng.randint(2, 12)
    a = Rational(base) ** exponent
    b = rng.choice([a, a, a * base, a + 1, Rational(exponent) ** base, -a])
    texts = {
        a: [f"{base}^{{{exponent}}}", f"{base}**{exponent}", f"{a}", f"\\left({base}\\right)^{{{exponent}}}"],
        a * base: [f"{base}^{{{exponent + 1}}}", f"{base}\\cdot {base}^{{{exponent}}}"],
    }
    if rng.random() < 0.35:
        mantissa, places = Rational(rng.randint(11, 99), 10), rng.randint(3, 9)
        a = mantissa * 10**places
        b = rng.choice([a, a, a * 10])
        shift = places + (b == a * 10)
        form = rng.choice(
            [f"{decimal(mantissa)} \\times 10^{{{shift}}}", f"{decimal(mantissa)} \\cdot 10^{{{shift}}}"]
        )
        return f"{a}", dressed(rng, form), plain(a), plain(b)
    return texts[a][rng.choice([0, 2])], dressed(rng, rng.choice(texts.get(b, [str(b)]))), plain(a), plain(b)


def roots(rng):
    k, r = rng.randint(2, 9), rng.choice([2, 3, 5, 6, 7, 10, 11])
    a = k * sqrt(r)
    forms = [
        (a, f"{k}\\sqrt{{{r}}}"),
        (a, f"\\sqrt{{{k * k * r}}}"),
        (a, f"{k}*sqrt({r})"),
        (a, f"\\frac{{{k * r}}}{{\\sqrt{{{r}}}}}"),
        (a, f"{k} \\cdot {r}^{{1/2}}"),
        (a, f"{k}\\sqrt {r}" if r < 10 else f"{k}\\sqrt {{{r}}}"),
        (-a, f"-{k}\\sqrt{{{r}}}"),
        (k * sqrt(r + 1), f"{k}\\sqrt{{{r + 1}}}"),
        ((k + 1) * sqrt(r), f"{k + 1}\\sqrt{{{r}}}"),
        (sqrt(k * r), f"\\sqrt{{{k * r}}}"),
        (k * Rational(r) ** Rational(1, 3), f"{k}\\sqrt[3]{{{r}}}"),
        (a + 1, f"1+{k}\\sqrt{{{r}}}"),
    ]
    left = rng.choice(forms[:2])
    right = rng.choice(forms)
    if rng.random() < 0.3:
        c = rng.randint(1, 9)
        left = (left[0] + c, f"{c}+{left[1]}")
        right = (right[0] + c, rng.choice([f"{right[1]}+{c}", f"{c} + {right[1]}"]))
    return left[1], dressed(rng, right[1]), plain(left[0]), plain(right[0])


def constants(rng):
    p, q = rng.randint(1, 20), rng.randint(2, 9)
    name, value = rng.choice([("\\pi", pi), ("e", E), ("\\pi^2", pi**2), ("e^2", E**2)])
    a = Rational(p, q) * value
    forms = [
        (a, f"\\frac{{{p}{name}}}{{{q}}}"),
        (a, f"\\frac{{{p}}}{{{q}}}{name}"),
        (a, f"{p}{name}/{q}"),
        (a, f"\\frac{{{2 * p}{name}}}{{{2 * q}}}"),
        (a, f"{p} \\cdot {name} / {q}"),
        (a * 2, f"\\frac{{{2 * p}{name}}}{{{q}}}"),
        (Rational(p, q), f"\\frac{{{p}}}{{{q}}}"),
        (a + value, f"\\frac{{{p + q}{name}}}{{{q}}}"),
        (Rational(p, q) + value, f"\\frac{{{p}}}{{{q}}}+{name}"),
        (Rational(314, 100) * Rational(p, q), fraction(rng, Rational(314 * p, 100 * q))),
    ]
    right = rng.choice(forms[:5] if rng.random() < 0.5 else forms[5:])
    return forms[rng.choice([0, 1])][1], dressed(rng, right[1]), plain(a), plain(right[0])


def trigonometry_and_logarithms(rng):
    k, b, c = rng.randint(2, 9), rng.choice([2, 3, 5, 7]), rng.randint(2, 5)
    groups = [
        [
            (log(k) + log(b), f"\\ln {k} + \\ln {b}"),
            (log(k * b), f"\\ln {k * b}"),
            (log(k * b), f"\\ln({k * b})"),
            (log(k + b), f"\\ln {k + b}"),
        ],
        [
            (Rational(c), f"\\log_{{{b}}} {b**c}"),
            (Rational(c), f"{c}"),
            (Rational(c), f"\\log_{{{b}}}({b**c})"),
            (Rational(c + 1), f"{c + 1}"),
        ],
        [
            (c * log(b), f"{c}\\ln {b}"),
            (log(b**c), f"\\ln {b**c}"),
            (log(b**c), f"\\ln({b}^{{{c}}})"),
            (log(b) ** c, f"(\\ln {b})^{{{c}}}"),
        ],
        [
            (sqrt(3) / 2, "\\frac{\\sqrt{3}}{2}"),
            (sin(pi / 3), "\\sin\\frac{\\pi}{3}"),
            (cos(pi / 6), "\\cos(\\pi/6)"),
            (sin(pi / 6), "\\sin\\frac{\\pi}{6}"),
        ],
        [
            (sqrt(2) / 2, "\\frac{\\sqrt{2}}{2}"),
            (1 / sqrt(2), "\\frac{1}{\\sqrt{2}}"),
            (sin(pi / 4), "\\sin(\\pi/4)"),
            (sqrt(2), "\\sqrt{2}"),
        ],
        [
            (sqrt(3), "\\sqrt{3}"),
            (tan(pi / 3), "\\tan\\frac{\\pi}{3}"),
            (3 / sqrt(3), "\\frac{3}{\\sqrt{3}}"),
            (sqrt(3) / 3, "\\tan\\frac{\\pi}{6}"),
        ],
        [
            (pi / 4, "\\frac{\\pi}{4}"),
            (sympy.atan(1), "\\arctan 1"),
            (sympy.atan(1), "\\tan^{-1}(1)"),
            (pi / 2, "\\arcsin(1)"),
        ],
        [
            (sympy.exp(c), f"e^{{{c}}}"),
            (sympy.exp(c), f"\\exp({c})"),
            (E * sympy.exp(c - 1), f"e \\cdot e^{{{c - 1}}}"),
            (E * c, f"{c}e"),
        ],
        [
            (k * sin(c), f"{k}\\sin {c}"),
            (k * sin(c), f"{k}\\sin({c})"),
            (k * sin(c), f"\\sin({c}) \\cdot {k}"),
            (k * cos(c), f"{k}\\cos {c}"),
        ],
    ]
    group = rng.choice(groups)
    left, right = group[0], group[rng.choice([1, 1, 2, 2, 3, 3])]
    if rng.random() < 0.5:
        left, right = (left[0] + k, f"{k} + {left[1]}"), (right[0] + k, f"{k}+{right[1]}")
    return left[1], dressed(rng, right[1]), plain(left[0]), plain(right[0])


def latex(expression):
    return sympy.latex(expression)


def polynomials(rng):
    r, s, k = rng.randint(-6, 6), rng.randint(1, 6), rng.randint(1, 5)
    a = k * (X - r) * (X + s)
    if rng.random() < 0.4:
        a = (k * X + s * Y) ** 2 + r * X
    wrong = rng.choice([a + 1, a + X, a - X**2, -a, a.subs(X, X + 1)])
    b = a if rng.random() < 0.5 else wrong
    form = rng.choice([sympy.expand, sympy.factor, lambda e: e])
    return latex(sympy.expand(a)), dressed(rng, latex(form(b))), plain(a), plain(b)


def rational_expressions(rng):
    r, s, k = rng.randint(1, 6), rng.randint(7, 12), rng.randint(1, 5)
    a = rng.choice(
        [
            k / (X + r) + 1 / (X + s),
            (X + r) / (X - s),
            (A**2 - r) / (A * B),
            N * (N + r) / s,
            k * sqrt(X) / (X + r),
        ]
    )
    b = a if rng.random() < 0.5 else rng.choice([a + 1, 1 / a, a * 2, -a])
    form = rng.choice(
        [sympy.together, sympy.apart if a.has(X) and not a.has(sqrt(X)) else sympy.together, lambda e: e]
    )
    return latex(a), dressed(rng, latex(form(b))), plain(a), plain(b)


def equations(rng):
    m, c = rng.choice([-3, -2, 2, 3, 5]), rng.choice([-7, -2, 1, 4, 9])
    sign = lambda v: f"+ {v}" if v > 0 else f"- {-v}"  # noqa: E731
    zero = Y - m * X - c
    forms = [
        (zero, f"y = {m}x {sign(c)}"),
        (zero, f"{m}x - y {sign(c)} = 0"),
        (zero, f"2y = {2 * m}x {sign(2 * c)}"),
        (zero, f"y - {m}x = {c}" if m > 0 else f"y + {-m}x = {c}"),
        (zero + 2 * c, f"y = {m}x {sign(-c)}"),
        (zero + 2 * m * X, f"y = {-m}x {sign(c)}"),
        (X - m * Y - c, f"x = {m}y {sign(c)}"),
    ]
    if rng.random() < 0.4:
        r = rng.randint(2, 9)
        zero = X**2 + Y**2 - r**2
        forms = [
            (zero, f"x^2+y^2={r * r}"),
            (zero, f"x^2 + y^2 - {r * r} = 0"),
            (zero, f"y^2 = {r * r} - x^2"),
            (zero, f"\\frac{{x^2}}{{{r * r}}} + \\frac{{y^2}}{{{r * r}}} = 1"),
            (X**2 + Y**2 - r, f"x^2+y^2={r}"),
            (X**2 - Y**2 - r**2, f"x^2-y^2={r * r}"),
            ((X - 1) ** 2 + Y**2 - r**2, f"(x-1)^2+y^2={r * r}"),
        ]
    left, right = forms[0], rng.choice(forms[1:4] if rng.random() < 0.5 else forms[4:])
    return left[1], dressed(rng, right[1]), Equation(left[0]), Equation(right[0])


def inequalities(rng):
    v, w = rng.randint(-9, 9), rng.randint(10, 20)
    above = [(">", "<"), ("\\geq", "\\leq"), ("\\ge", "\\le"), ("≥", "≤")]
    up, down = rng.choice(above)
    strict = up == ">"
    ray, below = Interval(v, oo, strict, True), Interval(-oo, v, True, strict)
    span = Interval(v, w, strict, strict)
    forms = [
        [
            (ray, f"x {up} {v}"),
            (ray, f"{v} {down} x"),
            (ray, f"2x {up} {2 * v}"),
            (below, f"x {down} {v}"),
            (Interval(v, oo, not strict, True), f"x {'>' if up != '>' else GE} {v}"),
            (Interval(v + 1, oo, strict, True), f"x {up} {v + 1}"),
        ],
        [
            (span, f"{v} {down} x {down} {w}"),
            (span, f"{w} {up} x {up} {v}"),
            (span, f"x {up} {v} \\text{{ and }} x {down} {w}"),
            (Interval(v, w, not strict, strict), f"{v} {'<' if down != '<' else LE} x {down} {w}"),
            (Interval(v, w + 1, strict, strict), f"{v} {down} x {down} {w + 1}"),
            (span.complement(sympy.S.Reals), f"x {down if strict else '<'} {v}"),
        ],
        [
            (ray, f"x {up} {v}"),
            (ray, f"{'(' if strict else '['}{v}, \\infty)"),
            (ray, f"x \\in {'(' if strict else '['}{v}, \\infty)"),
            (Interval(v, oo, not strict, True), f"{'[' if strict else '('}{v}, \\infty)"),
            (below, f"(-\\infty, {v}{')' if strict else ']'}"),
            (ray.intersect(Interval(-oo, w)), f"{'(' if strict else '['}{v}, {w}]"),
        ],
    ]
    group = rng.choice(forms)
    if rng.random() < 0.15:
        right = rng.choice([group[1], group[3]])
        name = rng.choice(["x \\mid", "x :", "x \\in \\mathbb{R} :", "x \\in \\mathbb{R} \\mid"])
        if "in" not in right[1] and "x" in right[1]:
            return group[0][1], f"\\{{{name} {right[1]}\\}}", Region(group[0][0]), Region(right[0])
    left, right = group[0], rng.choice(group[1:3] if rng.random() < 0.5 else group[3:])
    if rng.random() < 0.15:
        other = X + Y - v
        pick = rng.choice(
            [
                (other, f"y > {v} - x"),
                (other, f"2x + 2y > {2 * v}"),
                (-other, f"x + y < {v}"),
                (other - 1, f"x + y > {v + 1}"),
            ]
        )
        return f"x + y > {v}", dressed(rng, pick[1]), Inequality(other), Inequality(pick[0])
    return left[1], dressed(rng, right[1]), Region(left[0]), Region(right[0])


def bracket(interval, rng):
    """An interval as text."""
    end = lambda v: "\\infty" if v == oo else "-\\infty" if v == -oo else fraction(rng, v)  # noqa: E731
    opened = "(" if interval.left_open else "["
    closed = ")" if interval.right_open else "]"
    left, right = rng.choice([("", ""), ("", ""), ("\\left", "\\right")])
    return f"{left}{opened}{end(interval.start)}, {end(interval.end)}{right}{closed}"


def interval(rng):
    low, high = (
        Rational(rng.randint(-20, 5), rng.choice([1, 1, 2, 3])),
        Rational(rng.randint(30, 60), rng.choice([1, 1, 2, 5])),
    )
    kind = rng.random()
    if kind < 0.15:
        return Interval(low, oo, rng.random() < 0.5, True)
    if kind < 0.3:
        return Interval(-oo, high, True, rng.random() < 0.5)
    return Interval(low, high, rng.random() < 0.5, rng.random() < 0.5)


def moved(rng, i):
    """A wrong interval that resembles a right one."""
    flip = Interval(
        i.start, i.end, not i.left_open if i.start != -oo else True, not i.right_open if i.end != oo else True
    )
    shifted = Interval(i.start - 1, i.end + 1, i.left_open, i.right_open)
    return rng.choice([flip, shifted])


def intervals(rng):
    a = interval(rng)
    b = a if rng.random() < 0.5 else moved(rng, a)
    text = bracket(b, rng)
    if rng.random() < 0.2:
        text = f"x \\in {text}"
    return bracket(a, rng), dressed(rng, text), Region(a), Region(b)


def unions(rng):
    cut, gap = rng.randint(-9, 9), rng.randint(1, 9)
    left = Interval(-oo, cut, True, rng.random() < 0.5)
    right = Interval(cut + gap, oo, rng.random() < 0.5, True)
    if rng.random() < 0.4:
        left = Interval(cut - rng.randint(1, 9), cut, rng.random() < 0.5, rng.random() < 0.5)
    a = Union(left, right)
    parts = [left, right]
    wrong = rng.random() >= 0.5
    if wrong:
        parts = rng.choice(
            [[moved(rng, left), right], [left], [left, Interval(right.start + 1, oo, right.left_open, True)]]
        )
    rng.shuffle(parts)
    text = " \\cup ".join(bracket(p, rng) for p in parts)
    if not wrong and rng.random() < 0.2:
        text = rng.choice([" or ", " \\text{ or } "]).join(relation(p) for p in parts)
    if rng.random() < 0.15:
        a = Union(Interval.open(-oo, cut), Interval.open(cut, oo))
        b = rng.choice([a, a, Union(Interval.open(-oo, cut + 1), Interval.open(cut + 1, oo))])
        hole = cut if b == a else cut + 1
        truth = f"(-\\infty, {cut}) \\cup ({cut}, \\infty)"
        text = rng.choice(
            [
                f"\\mathbb{{R}} \\setminus \\{{{hole}\\}}",
                f"x \\neq {hole}",
                f"({hole}, \\infty) \\cup (-\\infty, {hole})",
            ]
        )
        return truth, dressed(rng, text), Region(a), Region(b)
    if rng.random() < 0.1:
        low = cut - 5
        pieces = [Interval(low, cut), Interval(cut - 2, cut + gap)]
        b = rng.choice([Union(*pieces), Interval(low, cut + gap + 1)])
        return (
            f"[{low}, {cut}] \\cup [{cut - 2}, {cut + gap}]",
            dressed(rng, bracket(b, rng)),
            Region(Union(*pieces)),
            Region(b),
        )
    return (
        " \\cup ".join(bracket(p, rng) for p in (left, right)),
        dressed(rng, text),
        Region(a),
        Region(Union(*parts)),
    )


def relation(i):
    """An interval as an inequality."""
    low = "<" if i.left_open else "\\le"
    high = "<" if i.right_open else "\\le"
    if i.start == -oo:
        return f"x {high} {i.end}"
    if i.end == oo:
        return f"x {'>' if i.left_open else GE} {i.start}"
    return f"{i.start} {low} x {high} {i.end}"
