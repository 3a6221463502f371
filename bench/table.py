"""From the figures of a comparison to its tables: ratios, every program, and the distance to the targets."""

import os
import platform
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from peers.workloads import SHAPES
from programs import COMPARISONS, Comparison


def machine() -> str:
    """Returns the number of cores and the processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    if "model name" not in fields:
        return f"{os.cpu_count()} cores of {platform.machine()}"
    # Virtual machines may hide the model behind a general name.
    numbers = f"family {fields['cpu family']}, model {fields['model']}" if "cpu family" in fields else ""
    return f"{os.cpu_count()} cores of {fields['model name']}{f' ({numbers})' if numbers else ''}"


def rate(found: dict) -> float | None:
    """Returns the tokens per second of a process, by the median of its steps."""
    return found["tokens"] / median(found["seconds"]) if found.get("seconds") else None


def rates(runs: list) -> list:
    return [value for found in runs if (value := rate(found)) is not None]


def above_start(found: dict) -> float | None:
    """Returns the peak memory of a process less its memory at the start (MiB), where it reports both."""
    peak, start = found.get("peak_mib"), found.get("start_mib")
    return None if peak is None or start is None else peak - start


def overall(kernels: list) -> float:
    """Returns the GFLOP/s of several products: the sum of their operations over the sum of their times."""
    operations = [k["m"] * k["n"] * k["k"] for k in kernels]
    return sum(operations) / sum(o / k["gflops"] for o, k in zip(operations, kernels))


def linear_kernels(runs: list, like: list) -> list:
    """Returns RLoom's kernels that compute the same products as `like`, for each round."""
    known = {(k["name"], k["m"], k["n"], k["k"]) for k in like}
    return [
        [k for k in found.get("kernels", []) if (k["name"].rsplit(" ")[-1], k["m"], k["n"], k["k"]) in known] for found in runs
    ]


def layer_rate(found: dict) -> float | None:
    """Returns the GFLOP/s of a process that measured the products of linear layers."""
    kernels = [k for k in found.get("kernels", []) if "attention" not in k["name"] and "head" not in k["name"]]
    return overall(kernels) if kernels else None


def failure(runs: list) -> str | None:
    """Returns the reason why a program has no figures."""
    return next((found["failure"] for found in runs if "failure" in found), None)


def best(programs: dict, prefixes: tuple, without: str = "one thread") -> str | None:
    """Returns the fastest program whose name has one of the prefixes, by the median of its rounds."""
    named = [name for name in programs if name.startswith(prefixes) and without not in name and rates(programs[name])]
    return max(named, key=lambda name: median(rates(programs[name])), default=None)


def in_rounds(left: list, right: list, number) -> list:
    """Returns the ratios of a number within rounds, for the rounds in which both have it."""
    pairs = [(number(a), number(b)) for a, b in zip(left, right)]
    return [a / b for a, b in pairs if a is not None and b]


@dataclass
class Result:
    """The measured ratios of a comparison, one per round, and the programs that were compared."""

    comparison: Comparison
    ratios: list
    own: str = ""
    peer: str = ""

    def format(self, ratio: float) -> str:
        return f"{100 * ratio:.0f} %" if self.comparison.kind in ("bandwidth", "products") else f"{ratio:.2f}"

    def ratio(self) -> str:
        if not self.ratios:
            return "not measured"
        return f"**{self.format(median(self.ratios))}** ({self.format(min(self.ratios))}–{self.format(max(self.ratios))})"

    def target(self) -> str:
        bound, memory = self.comparison.target, self.comparison.kind == "memory"
        shown = self.format(bound) if self.comparison.kind in ("bandwidth", "products") else f"{bound:g}"
        return f"{'≤' if memory else '≥'} {shown}"

    def is_met(self) -> str:
        if not self.ratios:
            return ""
        middle = median(self.ratios)
        met = middle <= self.comparison.target if self.comparison.kind == "memory" else middle >= self.comparison.target
        return "yes" if met else "no"


def result_of(comparison: Comparison, results: dict) -> Result:
    programs = results.get(comparison.workload, {})
    own = best(programs, (comparison.own,))
    peer = best(programs, comparison.peers) if comparison.peers else None
    if comparison.kind == "products":
        return products(comparison, programs)
    if own is None:
        return Result(comparison, [])
    if comparison.kind == "bandwidth":
        runs = programs.get("RLoom bf16", [])
        return Result(comparison, [weights_read(found, comparison.workload) for found in runs], "RLoom bf16")
    if comparison.kind == "threads":
        one = f"{own}, one thread"
        return Result(comparison, in_rounds(programs[own], programs.get(one, []), rate), own, one)
    if peer is None:
        return Result(comparison, [], own)
    number = above_start if comparison.kind == "memory" else rate
    return Result(comparison, in_rounds(programs[own], programs[peer], number), own, peer)


def weights_read(found: dict, workload: str) -> float:
    """Returns the rate at which decoding reads the bf16 weights, once per step, as a share of the read bandwidth."""
    shape = SHAPES[workload[-1]]
    seconds = next(phase["seconds"] for phase in found["phases"] if phase["name"] == "decode")
    batch, _, new = shape.decode
    # The first new token of a sequence comes from its prefill.
    return (new - 1) * 2 * shape.parameters() / seconds / (found["ceilings"]["read_gb_s"] * 1e9)


def products(comparison: Comparison, programs: dict) -> Result:
    """Compares the rate of a training step's products with the faster of the GEMM ceiling and the other program."""
    own, peer = "RLoom bf16", "PyTorch bf16"
    runs, others = programs.get(own, []), programs.get(peer, [])
    like = next((found["kernels"] for found in others if found.get("kernels")), None)
    if like is None:
        return Result(comparison, [], own)
    ratios, faster = [], set()
    for found, kernels, other in zip(runs, linear_kernels(runs, like), others):
        if kernels and other.get("kernels"):
            ceiling, theirs = found["ceilings"]["gemm_bf16_gflops"], overall(other["kernels"])
            faster.add("GEMM ceiling" if ceiling > theirs else peer)
            ratios.append(overall(kernels) / max(ceiling, theirs))
    return Result(comparison, ratios, own, " or ".join(sorted(faster)))


def floors(results: dict) -> str:
    """Compares the time of each speed target with the time that the products of a step take at the GEMM ceiling."""
    lines = [
        "| workload | against | target: ms a step | RLoom: ms | products at the ceiling: ms | of the target | of RLoom's time |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    measured = found_in(results, "ceilings")
    for comparison in (c for c in with_targets(results) if c.kind == "speed" and c.own == "RLoom"):
        programs = results.get(comparison.workload, {})
        own, peer = best(programs, ("RLoom",)), best(programs, comparison.peers)
        if own is None or peer is None:
            continue
        ceiling = max(c[f"gemm_{own.split()[1]}_gflops"] or c["gemm_f32_gflops"] for c in measured)
        # Runs of rows do not count their operations.
        runs = [found for found in programs[own] if found.get("seconds") and "gflops" in found]
        if not runs:
            continue
        least = median([found["gflops"] * median(found["seconds"]) / ceiling for found in runs])
        ours = median([median(found["seconds"]) for found in runs])
        target = runs[0]["tokens"] / (comparison.target * median(rates(programs[peer])))
        times = [f"{1000 * seconds:,.0f}" for seconds in (target, ours, least)]
        cells = [comparison.workload, comparison.against, *times, f"{100 * least / target:.0f} %", f"{100 * least / ours:.0f} %"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def with_targets(results: dict) -> list:
    """Returns the comparisons whose programs were selected, with the targets of the instruction set that was measured."""
    path = next(iter(found_in(results, "machine")), {}).get("isa", "")
    selected = [c for c in COMPARISONS if any(name.startswith(c.own) for name in results.get(c.workload, {}))]
    return [replace(c, target=c.target_on(path)) for c in selected]


def results_of(results: dict) -> list:
    return [result_of(comparison, results) for comparison in with_targets(results)]


def label(comparison: Comparison) -> str:
    return f"peak memory, {comparison.workload}" if comparison.kind == "memory" else comparison.workload


def comparisons(results: dict) -> str:
    lines = ["| workload | compared with | RLoom | other | ratio, median (lowest–highest) |", "| --- | --- | --- | --- | --- |"]
    for line in results_of(results):
        cells = [label(line.comparison), line.comparison.against, line.own, line.peer, line.ratio()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def targets(results: dict) -> str:
    lines = ["| workload | compared with | target | measured | met |", "| --- | --- | --- | --- | --- |"]
    for line in results_of(results):
        cells = [label(line.comparison), line.comparison.against, line.target(), line.ratio(), line.is_met()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: list, digits: int = 0) -> str:
    return f"{median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})" if values else ""


def every_program(results: dict) -> str:
    lines = [
        "| workload | program | tokens/s, median (lowest–highest) | ms a step | MiB above start | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for workload, programs in results.items():
        for name, runs in programs.items():
            milliseconds = [1000 * median(found["seconds"]) for found in runs if found.get("seconds")]
            memory = [value for found in runs if (value := above_start(found)) is not None]
            gemm = [value for found in runs if (value := layer_rate(found)) is not None]
            cells = [
                workload,
                name,
                f"{spread(gemm)} GFLOP/s" if gemm and not milliseconds else spread(rates(runs)),
                f"{median(milliseconds):,.0f}" if milliseconds else "",
                f"{median(memory):,.0f}" if memory else "",
                (failure(runs) or "").replace("|", "\\|"),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def found_in(results: dict, key: str) -> list:
    """Returns every value of a key among the figures."""
    return [found[key] for programs in results.values() for runs in programs.values() for found in runs if found.get(key)]


#: Limits of the machine, by their names in RLoom's reports.
LIMITS = {"gemm_f32_gflops": "f32 {} GFLOP/s", "gemm_bf16_gflops": "bf16 {} GFLOP/s", "read_gb_s": "reading {} GB/s", "triad_gb_s": "triad {} GB/s"}


def limits(results: dict, names: tuple = tuple(LIMITS)) -> str:
    """Returns limits of the machine that RLoom's processes measured during the comparison."""
    all_ = found_in(results, "ceilings")
    return ", ".join(LIMITS[name].format(spread([c[name] for c in all_], 0)) for name in names) if all_ else ""


def ceilings(results: dict) -> str:
    """Describes the limits of the machine and the kernels that RLoom took."""
    shown = limits(results)
    if not shown:
        return ""
    own = found_in(results, "machine")[0]
    return f"Limits of the machine, measured in the same processes: {shown}. RLoom {own['version']} on {own['isa']}, bf16 products: {own['products']}."


def versions(results: dict) -> str:
    parts = [part for text in found_in(results, "versions") for part in text.split(", ")]
    return ", ".join(dict.fromkeys(parts))


PAGE = """# Performance

Speed and memory of RLoom on a CPU, compared with other programs on the same workloads, the same cores and the same number of
threads. All models are small; nothing was measured on a GPU.

![Tokens per second of every program on every workload](performance.svg)

{comparisons}

A ratio is RLoom's result divided by the other's within one round, in which every program runs once in its own process; the table
shows the median over rounds. Each side counts with its faster dtype. For memory, less is better. *GEMM ceiling* is the rate of a matrix
product loop on registers, measured in the same process.

## Every program

{every_program}

MiB above start is the largest resident set minus that before the model was created (for Python, after the imports).

## Method

{date}, {machine}, {threads} threads, {rounds} rounds in {minutes} minutes; {versions}. {ceilings}

To reproduce: `cargo build --release`, then `python3 bench/compare.py` on an otherwise idle machine.
[bench/README.md](../bench/README.md) describes the workloads.
"""

TARGETS = """# Performance targets

Written by `bench/compare.py`: the target ratios of development on the measured instruction set, and the last measurement
([results](../docs/performance.md)).

{targets}

The second table compares the time of each target with the time that its matrix products alone take at the highest GEMM rate
measured on the machine. They exclude softmax, norms, activations, sampling, the optimiser and memory traffic.

{floors}

{date}, {machine}, {threads} threads, {rounds} rounds.
"""


def rounds_of(results: dict) -> int:
    return max((len(runs) for programs in results.values() for runs in programs.values()), default=0)


def page(measured: dict) -> str:
    results = measured["results"]
    return PAGE.format(
        comparisons=comparisons(results),
        every_program=every_program(results),
        rounds=rounds_of(results),
        versions=versions(results),
        ceilings=ceilings(results),
        **{key: measured[key] for key in ("date", "machine", "threads", "minutes")},
    )


def targets_page(measured: dict) -> str:
    results = measured["results"]
    return TARGETS.format(
        targets=targets(results),
        floors=floors(results),
        rounds=rounds_of(results),
        **{key: measured[key] for key in ("date", "machine", "threads")},
    )


def brief(found: dict) -> str:
    """Returns the result of a process in a few words."""
    if "failure" in found:
        return f"no figures: {found['failure']}"
    if (value := rate(found)) is not None:
        return f"{value:,.0f} tokens/s"
    return f"{len(found.get('kernels', []))} products"
