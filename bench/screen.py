"""Shows a comparison on one screen: a bar for each program, RLoom's speed relative to it, and its share of the machine's limits."""

from statistics import median

from programs import is_own
from table import above_start, failure, in_rounds, layer_rate, limits, rate, rates, rounds_of, versions

WIDTH = 100
NAME, BAR = 27, 24
EIGHTHS = " ▏▎▍▌▋▊▉"
#: Limits of the machine that fit.
SHOWN = ("gemm_f32_gflops", "gemm_bf16_gflops", "read_gb_s")


def cut(text: str, width: int) -> str:
    """Shortens a text that is wider than `width` columns."""
    return text if len(text) <= width else text[: width - 1] + "…"


def bar(fraction: float) -> str:
    eighths = round(fraction * BAR * 8)
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()


def speed(found: dict) -> float | None:
    """Returns the tokens per second of a process, or the GFLOP/s where it measured products."""
    return rate(found) or layer_rate(found)


def speeds(runs: list) -> list:
    return [value for found in runs if (value := speed(found)) is not None]


def fastest(programs: dict, own: bool) -> str | None:
    """Returns the fastest program of RLoom, or the fastest other one, by the median of its rounds."""
    names = [name for name, runs in programs.items() if is_own(name) == own and speeds(runs)]
    return max(names, key=lambda name: median(speeds(programs[name])), default=None)


def ratio(ratios: list) -> str:
    """Formats the median of ratios, with the lowest and the highest where they differ in what is shown."""
    if not ratios:
        return ""
    middle, low, high = (f"{value:.2f}" for value in (median(ratios), min(ratios), max(ratios)))
    return middle if low == high else f"{middle} ({low}–{high})"


def share(runs: list) -> str:
    """Returns how much of the nearest limit of the machine RLoom reaches: its arithmetic, or the bandwidth of reading."""
    shares = []
    for key, what in [("fraction_of_gemm", "arithmetic"), ("fraction_of_read", "reading")]:
        found = [run[key] for run in runs if run.get(key)]
        shares += [(median(found), what)] if found else []
    part, what = max(shares, default=(0, ""))
    return f"{100 * part:.0f} % of {what}" if what else ""


def line(name: str, runs: list, own: list, longest: float) -> str:
    """Returns the row of a program: its bar, speed, RLoom's speed relative to it (RLoom's own: share of a limit), and memory."""
    start = f"  {cut(name, NAME):<{NAME}} "
    found = speeds(runs)
    if not found:
        return cut(f"{start}no figures: {failure(runs) or 'not run'}", WIDTH)
    memory = [value for run in runs if (value := above_start(run)) is not None]
    relative = share(runs) if is_own(name) else ratio(in_rounds(own, runs, speed))
    shown = f"{median(memory):,.0f} MiB" if memory else ""
    return f"{start}{bar(median(found) / longest):<{BAR}} {median(found):>8,.0f} {relative:>19} {shown:>10}".rstrip()


def heading(workload: str, programs: dict) -> str:
    """Returns the workload, and how RLoom compares with the fastest other program."""
    own, peer = fastest(programs, own=True), fastest(programs, own=False)
    unit = "" if any(rates(runs) for runs in programs.values()) else " (GFLOP/s)"
    relative = ratio(in_rounds(programs[own], programs[peer], speed)) if own and peer else ""
    if not relative:
        return f"{workload}{unit}"
    return cut(f"{workload}{unit}: {own} is {relative} × as fast as {peer}, the best other", WIDTH)


def text(measured: dict) -> str:
    results = measured["results"]
    rounds = rounds_of(results)
    taken = f"{measured['threads']} threads, {rounds} round{'s' * (rounds != 1)} in {measured['minutes']} minutes"
    lines = [
        cut(f"machine   {measured['machine']}", WIDTH),
        cut(f"measured  {measured['date']}, {taken}", WIDTH),
        cut(f"versions  {versions(results)}", WIDTH),
        *([cut(f"limits    {shown}", WIDTH)] if (shown := limits(results, SHOWN)) else []),
        f"{'':<{NAME + BAR + 3}} {'tokens/s':>8} {'RLoom ÷ program':>19} {'memory':>10}",
    ]
    for workload, programs in results.items():
        lines.append(heading(workload, programs))
        own = programs.get(fastest(programs, own=True), [])
        longest = max((median(speeds(runs)) for runs in programs.values() if speeds(runs)), default=0.0)
        lines += [line(name, runs, own, longest) for name, runs in programs.items()]
    return "\n".join(lines)
