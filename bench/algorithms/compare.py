#!/usr/bin/env python3
"""Compares methods on the arithmetic task: same warm start, same number of sampled tokens, several seeds.

    cargo build --release
    python3 bench/algorithms/compare.py [--seeds 3] [--tokens 400000] [--methods grpo,ppo] [--out docs]

Each seed has one warm start from which every method begins; a method is stopped once it has sampled its tokens (those of
replaced groups count). Held-out accuracy is greedy, on 512 sums whose operands occur in no training task, interpolated at
the token budget between the evaluations around it. Prints a Markdown table and writes it with the curves (comparison.md,
comparison.svg). Finished runs in bench/out are reused.
"""

import argparse
import datetime
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RUNS = ROOT / "bench" / "out" / "algorithms"
RECIPE = (HERE / "recipe.toml").read_text()
#: Episodes per batch, for every group size.
EPISODES = 256
GROUP_SIZE = {"rloo": 4, "ppo": 1, "reinforce_pp": 1}
#: Optimiser steps per batch. With one, every ratio is exactly 1 and GRPO equals GSPO; RLOO has no ratio.
MINIBATCHES = 4
NO_RATIO = {"rloo"}
METHODS = ["grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "ppo"]

WARMUP = """
[model.new]
family = "qwen3"
layers = 3
hidden_size = 96
heads = 4
kv_heads = 2
head_dim = 32
intermediate_size = 256
max_positions = 64
initializer_range = 0.08

[[stage]]
name = "warmup"
method = "sft"
steps = 540
groups_per_batch = 32
eval_every = 540

[stage.trainer]
learning_rate = 3e-3
warmup_steps = 20
schedule = "linear"
min_lr_ratio = 0.1
betas = [0.9, 0.99]
"""

METHOD = """
[model]
path = '{start}'

[sampling]
temperature = 1.0
max_new_tokens = 40

[[stage]]
name = "rl"
method = "{method}"
steps = 10000
groups_per_batch = {batch}

[stage.algorithm]
minibatches = {minibatches}

[stage.trainer]
learning_rate = 3e-4
warmup_steps = 10
betas = [0.9, 0.95]
"""


def events(run: Path) -> list:
    path = run / "events.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().splitlines()
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            break  # the last line may be incomplete while the run writes
    return found


def curve(run: Path) -> list:
    """Returns (sampled tokens, held-out accuracy) at each evaluation of the RL stage."""
    points, tokens = [], 0.0
    for line in events(run):
        if line.get("stage") != "rl":
            continue
        if line["event"] == "step":
            tokens = line["metrics"].get("num_tokens", tokens)
        elif line["event"] == "evaluation":
            points.append((tokens, line["metrics"]["eval/accuracy"]))
    return points


def rloom(binary: Path, name: str, text: str, seed: int, tokens: float | None) -> Path:
    """Runs a recipe to its end, or until `tokens` are sampled and an evaluation has followed."""
    run = RUNS / name
    done = run / "done"
    what = json.dumps({"recipe": text, "tokens": tokens})
    if done.exists() and done.read_text() == what:
        return run
    if run.exists():
        subprocess.run(["rm", "-rf", str(run)], check=True)
    RUNS.mkdir(parents=True, exist_ok=True)
    recipe = RUNS / f"{name}.toml"
    recipe.write_text(text)
    command = [binary, "train", recipe, "--run-name", name, "--set", f"run.seed={seed}", "--set", f"run.directory={RUNS}"]
    with (RUNS / f"{name}.log").open("w") as log:
        process = subprocess.Popen([str(c) for c in command], stdout=log, stderr=log)
        interrupted = False
        while process.poll() is None:
            time.sleep(0.5)
            points = curve(run)
            if tokens is not None and not interrupted and points and points[-1][0] >= tokens:
                process.send_signal(signal.SIGINT)
                interrupted = True
    if process.returncode not in ((0, 130) if interrupted else (0,)):
        raise SystemExit(f"{name} failed:\n" + (RUNS / f"{name}.log").read_text()[-2000:])
    done.write_text(what)
    return run


def at(points: list, tokens: float) -> float:
    """Interpolates the accuracy at a number of sampled tokens."""
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if x0 <= tokens <= x1:
            return y0 + (y1 - y0) * (tokens - x0) / max(x1 - x0, 1.0)
    return points[-1][1]


def table(results: dict, tokens: float) -> str:
    seeds = len(next(iter(results.values())))
    shares = [0.25, 0.5, 1.0]
    head = " | ".join(f"{share * tokens / 1000:.0f}k tokens" for share in shares)
    lines = [
        f"| method | {head} | batches |",
        "| --- | " + " | ".join("---" for _ in shares) + " | --- |",
    ]
    for method, runs in results.items():
        cells = []
        for share in shares:
            values = [100 * at(run["curve"], share * tokens) for run in runs]
            spread = f" ({min(values):.1f}–{max(values):.1f})" if seeds > 1 else ""
            cells.append(f"{statistics.mean(values):.1f}{spread}")
        steps = statistics.mean(run["steps"] for run in runs)
        lines.append(f"| `{method}` | {' | '.join(cells)} | {steps:.0f} |")
    start = statistics.mean(100 * runs[0]["curve"][0][1] for runs in [list(r) for r in zip(*results.values())])
    lines.append("")
    lines.append(f"Held-out accuracy in percent, mean of {seeds} seeds (lowest–highest); before training {start:.1f}.")
    return "\n".join(lines)


PAGE = """# Methods compared

![Held-out accuracy against sampled tokens, one curve per method](comparison.svg)

{table}

The task is that of `recipes/arithmetic.toml`: three-digit sums with a three-layer model initialised from scratch. Each seed has one warm
start from which every method begins, and every method samples the same number of tokens (those of replaced groups count). A batch has
256 episodes; methods with an importance ratio take four optimiser steps per batch, the others one. The learning rate is the same for
all, everything else is the method's default. Held-out accuracy is greedy, on 512 sums whose operands occur in no training task.

With {seeds} seeds and one small task this shows that the methods work, not which one is best: none of them was tuned, and the
spread between seeds is as large as that between most methods.

Measured {machine}. To reproduce: `cargo build --release`, then `python3 bench/algorithms/compare.py`.
"""


def machine() -> str:
    """Returns date, number of cores and processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    today = datetime.date.today()
    return f"on {today.day} {today:%B %Y} on {os.cpu_count()} cores of {names[0] if names else platform.machine()}"


#: Colours that colour-blind readers can tell apart, and dashes for prints without colour.
STYLES = [
    ("#0072b2", ""),
    ("#d55e00", "7 3"),
    ("#009e73", "2 3"),
    ("#cc79a7", "9 3 2 3"),
    ("#56b4e9", "5 2"),
    ("#000000", "3 2"),
    ("#e69f00", ""),
]


def picture(results: dict, tokens: float) -> str:
    """Draws mean held-out accuracy against sampled tokens, with a band from the lowest to the highest seed."""
    width, height, left, right, top, bottom = 860, 460, 62, 150, 34, 52
    w, h = width - left - right, height - top - bottom
    lowest = min(point[1] for runs in results.values() for run in runs for point in run["curve"])
    low = 0.2 * int(5 * lowest)
    x = lambda t: left + w * t / tokens
    y = lambda a: top + h * (1 - (a - low) / (1 - low))
    grid = [tokens * i / 60 for i in range(61)]
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{left}" y="20" font-size="15">Held-out accuracy, three-digit sums, {len(next(iter(results.values())))} seeds</text>',
    ]
    for i in range(round(5 * low), 6):
        a = i / 5
        out.append(f'<line x1="{left}" x2="{left + w}" y1="{y(a):.1f}" y2="{y(a):.1f}" stroke="#dddddd"/>')
        out.append(f'<text x="{left - 8}" y="{y(a) + 4:.1f}" text-anchor="end">{100 * a:.0f}%</text>')
    for i in range(5):
        t = tokens * i / 4
        out.append(f'<text x="{x(t):.1f}" y="{top + h + 20}" text-anchor="middle">{t / 1000:.0f}k</text>')
    out.append(f'<text x="{left + w / 2}" y="{height - 12}" text-anchor="middle">tokens sampled</text>')
    ends = []
    for (method, runs), (colour, dash) in zip(results.items(), STYLES):
        values = [[at(run["curve"], t) for run in runs] for t in grid]
        upper = [f"{x(t):.1f},{y(max(v)):.1f}" for t, v in zip(grid, values)]
        lower = [f"{x(t):.1f},{y(min(v)):.1f}" for t, v in zip(grid, values)]
        out.append(f'<polygon points="{" ".join(upper + lower[::-1])}" fill="{colour}" opacity="0.08"/>')
        mean = [f"{x(t):.1f},{y(statistics.mean(v)):.1f}" for t, v in zip(grid, values)]
        out.append(
            f'<polyline points="{" ".join(mean)}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
        ends.append([y(statistics.mean(values[-1])), method, colour, dash])
    ends.sort()
    place = 0.0
    for end in ends:
        place = max(end[0], place + 16)
        line = place
        out.append(
            f'<line x1="{left + w + 8}" x2="{left + w + 34}" y1="{line:.1f}" y2="{line:.1f}" stroke="{end[2]}" '
            f'stroke-width="2" stroke-dasharray="{end[3]}"/><text x="{left + w + 40}" y="{line + 4:.1f}">{end[1]}</text>'
        )
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tokens", type=float, default=400_000, help="budget of sampled tokens per run")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rloom", type=Path, default=ROOT / "target" / "release" / "rloom")
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    args = parser.parse_args()
    results: dict = {method: [] for method in args.methods.split(",")}
    for seed in range(1, args.seeds + 1):
        start = rloom(args.rloom, f"warmup-{seed}", RECIPE + WARMUP, seed, None)
        folder = start / "checkpoints" / "warmup-step-000540"
        for method, runs in results.items():
            batch = EPISODES // GROUP_SIZE.get(method, 8)
            minibatches = 1 if method in NO_RATIO else MINIBATCHES
            text = RECIPE + METHOD.format(start=folder, method=method, batch=batch, minibatches=minibatches)
            run = rloom(args.rloom, f"{method}-{seed}", text, seed, args.tokens)
            points = curve(run)
            steps = [line for line in events(run) if line["event"] == "step"]
            within = [line for line in steps if line["metrics"].get("num_tokens", 0) <= args.tokens]
            runs.append({"seed": seed, "curve": points, "steps": len(within)})
            print(f"{method}, seed {seed}: {100 * at(points, args.tokens):.1f} % after {len(within)} batches", file=sys.stderr)
    text = table(results, args.tokens)
    print(text)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "comparison.svg").write_text(picture(results, args.tokens))
    (RUNS / "comparison.json").write_text(json.dumps({"tokens": args.tokens, "results": results}) + "\n")
    (args.out / "comparison.md").write_text(PAGE.format(table=text, machine=machine(), seeds=args.seeds))


if __name__ == "__main__":
    main()
