"""Draws the tokens per second of every program as bars, one block per workload."""

from html import escape
from statistics import median

from table import rates

OWN, PEER = "#0072b2", "#e69f00"
WIDTH, LEFT, RIGHT, ROW, GAP, TOP = 860, 210, 130, 22, 40, 36


def blocks(results: dict) -> list:
    """Returns the workloads with the programs that have a rate."""
    found = [(workload, [(name, rates(runs)) for name, runs in programs.items() if rates(runs)]) for workload, programs in results.items()]
    return [(workload, programs) for workload, programs in found if programs]


def bar(y: float, name: str, values: list, longest: float) -> list:
    """Draws a bar to the median and a line from the lowest to the highest round."""
    x = lambda value: LEFT + (WIDTH - LEFT - RIGHT) * value / longest
    middle, own = median(values), name.startswith("RLoom")
    center, weight = y + ROW / 2, "bold" if own else "normal"
    return [
        f'<text x="{LEFT - 8}" y="{center + 4:.1f}" text-anchor="end" font-weight="{weight}">{escape(name)}</text>',
        f'<rect x="{LEFT}" y="{y + 3:.1f}" width="{x(middle) - LEFT:.1f}" height="{ROW - 6}" fill="{OWN if own else PEER}"/>',
        f'<line x1="{x(min(values)):.1f}" x2="{x(max(values)):.1f}" y1="{center:.1f}" y2="{center:.1f}" stroke="#000000" stroke-width="1.5"/>',
        f'<text x="{x(max(values)) + 6:.1f}" y="{center + 4:.1f}">{middle:,.0f}</text>',
    ]


def svg(measured: dict) -> str:
    out, y = [], TOP
    for workload, programs in blocks(measured["results"]):
        longest = max(max(values) for _, values in programs)
        out.append(f'<text x="{LEFT}" y="{y + 14}" font-size="14">{escape(workload)}</text>')
        y += ROW
        for name, values in programs:
            out += bar(y, name, values, longest)
            y += ROW
        y += GAP - ROW
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{y}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="15">Tokens per second, {measured["threads"]} threads; lines: lowest to highest round</text>',
    ]
    return "\n".join(head + out + ["</svg>"]) + "\n"
