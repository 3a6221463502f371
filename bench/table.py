"""From the figures of a run to its tables: what must be reached, and every program."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from peers.works import SHAPES
from programs import DEMANDS, Demand


def machine() -> str:
    """Processor, cores and interpreter's system."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} cores of {names[0] if names else platform.machine()}"


def rate(found: dict) -> float | None:
    """Tokens per second of a process: of the median of its steps."""
    return found["tokens"] / median(found["seconds"]) if found.get("seconds") else None


def rates(runs: list) -> list:
    return [value for found in runs if (value := rate(found)) is not None]


def above_start(found: dict) -> float | None:
    """Memory that a process took after its start (MiB), where it tells."""
    peak, start = found.get("peak_mib"), found.get("start_mib")
    return None if peak is None or start is None else peak - start


def overall(kernels: list) -> float:
    """GFLOP/s of all products together: their operations over the sum of their times."""
    operations = [k["m"] * k["n"] * k["k"] for k in kernels]
    return sum(operations) / sum(o / k["gflops"] for o, k in zip(operations, kernels))


def linear_kernels(runs: list, like: list) -> list:
    """RLoom's kernels that are the same products as a peer's, in each round."""
    known = {(k["name"], k["m"], k["n"], k["k"]) for k in like}
    return [
        [k for k in found.get("kernels", []) if (k["name"].rsplit(" ")[-1], k["m"], k["n"], k["k"]) in known] for found in runs
    ]


def failure(runs: list) -> str | None:
    """Why a program has no figures."""
    return next((found["failure"] for found in runs if "failure" in found), None)


def best(programs: dict, prefixes: tuple, without: str = "one thread") -> str | None:
    """The fastest program whose name begins so, by the median of its rounds."""
    named = [name for name in programs if name.startswith(prefixes) and without not in name and rates(programs[name])]
    return max(named, key=lambda name: median(rates(programs[name])), default=None)


def in_rounds(left: list, right: list, number) -> list:
    """Quotients of a number within rounds, of those in which both have it."""
    pairs = [(number(a), number(b)) for a, b in zip(left, right)]
    return [a / b for a, b in pairs if a is not None and b]


@dataclass
class Reached:
    """A line of the table of what must be reached: quotients by round, and which programs they are of."""

    demand: Demand
    ratios: list
    own: str = ""
    peer: str = ""

    def text(self) -> list:
        kind, bound = self.demand.kind, self.demand.bound
        percent = kind in ("bandwidth", "products")
        show = (lambda x: f"{100 * x:.0f} %") if percent else (lambda x: f"{x:.2f}")
        asked = f"{'≤' if kind == 'memory' else '≥'} {show(bound) if percent else f'{bound:g}'}"
        if not self.ratios:
            return [asked, "not measured", ""]
        middle = median(self.ratios)
        met = middle <= bound if kind == "memory" else middle >= bound
        return [asked, f"**{show(middle)}** ({show(min(self.ratios))}–{show(max(self.ratios))})", "yes" if met else "no"]


def reached(demand: Demand, results: dict) -> Reached:
    programs = results.get(demand.work, {})
    own = best(programs, ("RLoom",))
    peer = best(programs, demand.peers) if demand.peers else None
    if demand.kind == "products":
        return products(demand, programs)
    if own is None:
        return Reached(demand, [])
    if demand.kind == "bandwidth":
        runs = programs.get("RLoom bf16", [])
        return Reached(demand, [weights_read(found, demand.work) for found in runs], "RLoom bf16")
    if demand.kind == "threads":
        one = f"{own}, one thread"
        return Reached(demand, in_rounds(programs[own], programs.get(one, []), rate), own, one)
    if peer is None:
        return Reached(demand, [], own)
    return Reached(demand, in_rounds(programs[own], programs[peer], above_start if demand.kind == "memory" else rate), own, peer)


def weights_read(found: dict, work: str) -> float:
    """The rate at which decoding goes through the bf16 weights, once a step, as a part of what the memory can be read at."""
    shape = SHAPES[work[-1]]
    seconds = next(phase["seconds"] for phase in found["phases"] if phase["name"] == "decode")
    batch, _, new = shape.decode
    # The first new token of a sequence comes out of its prompt.
    return (new - 1) * 2 * shape.parameters() / seconds / (found["ceilings"]["read_gb_s"] * 1e9)


def products(demand: Demand, programs: dict) -> Reached:
    """The rate of a training step's products against the faster of arithmetic out of registers and the peer."""
    own, peer = "RLoom bf16", "PyTorch bf16"
    runs, others = programs.get(own, []), programs.get(peer, [])
    like = next((found["kernels"] for found in others if found.get("kernels")), None)
    if like is None:
        return Reached(demand, [], own)
    ratios, faster = [], set()
    for found, kernels, other in zip(runs, linear_kernels(runs, like), others):
        if kernels and other.get("kernels"):
            ceiling, theirs = found["ceilings"]["gemm_bf16_gflops"], overall(other["kernels"])
            faster.add("arithmetic out of registers" if ceiling > theirs else peer)
            ratios.append(overall(kernels) / max(ceiling, theirs))
    return Reached(demand, ratios, own, " or ".join(sorted(faster)))


def floors(results: dict) -> str:
    """Where a time was asked for: how much of it the step's products alone take at the ceiling, and of RLoom's time."""
    lines = [
        "| work | against | asked: ms a step | RLoom: ms | products at the ceiling: ms | of the asked time | of RLoom's |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    measured = found_in(results, "ceilings")
    for demand in (demand for demand in DEMANDS if demand.kind == "speed"):
        programs = results.get(demand.work, {})
        own, peer = best(programs, ("RLoom",)), best(programs, demand.peers)
        if own is None or peer is None:
            continue
        ceiling = max(c[f"gemm_{own.split()[1]}_gflops"] or c["gemm_f32_gflops"] for c in measured)
        runs = [found for found in programs[own] if found.get("seconds")]
        least = median([found["gflops"] * median(found["seconds"]) / ceiling for found in runs])
        ours = median([median(found["seconds"]) for found in runs])
        asked = runs[0]["tokens"] / (demand.bound * median(rates(programs[peer])))
        times = [f"{1000 * seconds:,.0f}" for seconds in (asked, ours, least)]
        cells = [demand.work, demand.against, *times, f"{100 * least / asked:.0f} %", f"{100 * least / ours:.0f} %"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def demands(results: dict) -> str:
    lines = ["| work | against | RLoom | peer | asked | median (lowest–highest) | reached |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for demand in DEMANDS:
        if demand.work in results:
            line = reached(demand, results)
            what = "peak memory, " if demand.kind == "memory" else ""
            cells = [what + demand.work, demand.against, line.own, line.peer, *line.text()]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: list, digits: int = 0) -> str:
    return f"{median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})" if values else ""


def every_program(results: dict) -> str:
    lines = [
        "| work | program | tokens/s, median (lowest–highest) | ms a step | MiB above start | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for work, programs in results.items():
        for name, runs in programs.items():
            milliseconds = [1000 * median(found["seconds"]) for found in runs if found.get("seconds")]
            memory = [value for found in runs if (value := above_start(found)) is not None]
            gemm = [overall([k for k in found["kernels"] if "attention" not in k["name"] and "head" not in k["name"]])
                    for found in runs if found.get("kernels")]
            cells = [
                work,
                name,
                f"{spread(gemm)} GFLOP/s" if gemm and not milliseconds else spread(rates(runs)),
                f"{median(milliseconds):,.0f}" if milliseconds else "",
                f"{median(memory):,.0f}" if memory else "",
                (failure(runs) or "").replace("|", "\\|"),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def found_in(results: dict, key: str) -> list:
    """Every value of a key among the figures."""
    return [found[key] for programs in results.values() for runs in programs.values() for found in runs if found.get(key)]


def ceilings(results: dict) -> str:
    """What RLoom's processes measured of the machine in the same run."""
    all_ = found_in(results, "ceilings")
    if not all_:
        return ""
    names = {"gemm_f32_gflops": "f32 {} GFLOP/s", "gemm_bf16_gflops": "bf16 {} GFLOP/s", "read_gb_s": "reading {} GB/s", "triad_gb_s": "triad {} GB/s"}
    own = found_in(results, "machine")[0]
    shown = ", ".join(text.format(spread([c[name] for c in all_], 0)) for name, text in names.items())
    return f"Ceilings measured in the same processes: {shown}. RLoom {own['version']} on {own['isa']}, bf16 products: {own['products']}."


def versions(results: dict) -> str:
    parts = [part for text in found_in(results, "versions") for part in text.split(", ")]
    return ", ".join(dict.fromkeys(parts))


PAGE = """# Speed beside the peers

![Tokens per second of every program on every work](performance.svg)

{demands}

A quotient is of one round, in which every program runs once as a process of its own; the fastest format of RLoom counts, and the
fastest of the peer. Of memory, less is better.

What arithmetic leaves of the time that was asked for: the products that a step cannot do without, at the highest rate that was
measured in the run out of registers. Everything else, such as softmax, norms, activations, sampling, the optimiser and what
memory takes, comes on top.

{floors}

{every_program}

{date}, {machine}, {threads} threads, {rounds} rounds in {minutes} minutes; {versions}. {ceilings}
To repeat: `cargo build --release`, then `python3 bench/compare.py` on a machine that does nothing else. What each work is stands in
[bench/README.md](../bench/README.md).
"""


def page(measured: dict) -> str:
    results = measured["results"]
    rounds = max((len(runs) for programs in results.values() for runs in programs.values()), default=0)
    return PAGE.format(
        demands=demands(results),
        floors=floors(results),
        every_program=every_program(results),
        rounds=rounds,
        versions=versions(results),
        ceilings=ceilings(results),
        **{key: measured[key] for key in ("date", "machine", "threads", "minutes")},
    )


def brief(found: dict) -> str:
    """A process in a few words."""
    if "failure" in found:
        return "no figures"
    if (value := rate(found)) is not None:
        return f"{value:,.0f} tokens/s"
    return f"{len(found.get('kernels', []))} products"
