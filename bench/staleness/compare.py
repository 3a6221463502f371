#!/usr/bin/env python3
"""Compares bounds on staleness: same task, same warm start, same number of trained tokens, several seeds.

    cargo build --release
    python3 bench/staleness/compare.py [--seeds 3] [--tokens 400000] [--out docs]

Two tasks: sums of three digits, and sums whose length has a long tail. Each seed has one warm start per task from which every
schedule begins; a run is stopped once it has trained on its tokens and has been evaluated after that. Times are those of
the reinforcement-learning stage up to the token budget, evaluations included. Held-out accuracy is greedy, on 512 sums whose
operands occur in no training task, interpolated at the budget between the evaluations around it. A round runs every schedule
once, and each round starts with another one, so that other load on the machine affects all alike. Prints Markdown tables and
writes them with the curves (staleness.md, staleness.svg). Finished runs in bench/out are reused.
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
import textwrap
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RUNS = ROOT / "bench" / "out" / "staleness"
#: Episodes per batch: 32 groups of 8.
EPISODES = 256

#: Recipe files of each task, and the maximum length of a completion.
TASKS = {
    "short": {"title": "Sums of three digits", "files": ["recipe.toml"], "limit": 40},
    "long": {"title": "Sums with a long tail", "files": ["recipe.toml", "heavy_tail.toml"], "limit": 128},
}

#: Threads for training and for rollouts where both overlap.
SPLITS = ["1:1", "2:1", "2:2"]
#: At staleness 0 rollouts and training alternate, each with both cores.
ETAS = [0, 1, 2, 4]
EARLY = {"max_staleness": 0, "cut_order": "completion", "oversample": 8}
STRAGGLERS = [
    ("0, first 32 of 40, the rest dropped", {**EARLY, "stragglers": "drop"}),
    ("0, first 32 of 40, the rest deferred", {**EARLY, "stragglers": "defer"}),
    ("2, in order of arrival", {"max_staleness": 2, "priority": "arrival"}),
    ("2, batches in completion order", {"max_staleness": 2, "cut_order": "completion"}),
]


def other_split(split: str) -> str:
    """Returns the name of a schedule with another split of the threads."""
    return f"1, threads {split}"


def schedules(task: str, split: str) -> list:
    """Returns the schedules of a task by name."""
    found = [(f"{eta}", {"max_staleness": eta}) for eta in ETAS]
    found += [(other_split(other), {"max_staleness": 1, "split": other}) for other in SPLITS if other != split]
    if task == "long":
        found += STRAGGLERS
    return [(name, {"split": split, **settings}) for name, settings in found]


WARMUP = """
[model.new]
family = "qwen3"
layers = 3
hidden_size = 96
heads = 4
kv_heads = 2
head_dim = 32
intermediate_size = 256
max_positions = 160
initializer_range = 0.08

[[stage]]
name = "warmup"
method = "sft"
steps = {steps}
groups_per_batch = 32
eval_every = {steps}

[stage.trainer]
learning_rate = 3e-3
warmup_steps = 20
schedule = "linear"
min_lr_ratio = 0.1
betas = [0.9, 0.99]
"""

LEARN = """
[model]
path = '{start}'

[sampling]
temperature = 1.0
max_new_tokens = {limit}

[[stage]]
name = "rl"
method = "grpo"
steps = 10000
groups_per_batch = 32

[stage.algorithm]
group_size = 8

[stage.trainer]
learning_rate = 3e-4
warmup_steps = 10
betas = [0.9, 0.95]
{threads}
[stage.schedule]
{schedule}
"""


def learn(start: Path, limit: int, settings: dict) -> str:
    """Returns the part of a recipe with the training settings."""
    settings = dict(settings)
    trainer, rollout = settings.pop("split").split(":")
    overlaps = settings["max_staleness"] > 0
    return LEARN.format(
        start=start,
        limit=limit,
        threads=f"threads = {trainer}\n\n[stage.rollout]\nthreads = {rollout}\n" if overlaps else "",
        schedule="\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items()),
    )


def events(run: Path) -> list:
    path = run / "events.jsonl"
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            break  # the last line may be incomplete while the run writes
    return found


def trained(lines: list) -> dict:
    """Returns the cumulative tokens of trained completions by step."""
    tokens, sum_ = {0: 0.0}, 0.0
    for line in lines:
        if line.get("stage") == "rl" and line["event"] == "step":
            sum_ += EPISODES * line["metrics"]["completions/mean_length"]
            tokens[line["step"]] = sum_
    return tokens


def evaluations(lines: list) -> dict:
    """Returns held-out accuracy by step; an evaluation may be reported after later steps than its own."""
    found = [line for line in lines if line.get("stage") == "rl" and line["event"] == "evaluation"]
    return {line["step"]: line["metrics"]["eval/accuracy"] for line in found}


def rloom(binary: Path, name: str, files: list, text: str, seed: int, tokens: float | None) -> Path:
    """Runs a recipe to its end, or until it has trained on `tokens` and was evaluated after that."""
    run = RUNS / name
    done = run / "done"
    what = json.dumps({"files": [(HERE / file).read_text() for file in files], "recipe": text, "tokens": tokens})
    if done.exists() and json.loads(done.read_text())["what"] == what:
        return run
    if run.exists():
        subprocess.run(["rm", "-rf", str(run)], check=True)
    RUNS.mkdir(parents=True, exist_ok=True)
    recipe = RUNS / f"{name}.toml"
    recipe.write_text(text)
    paths = [HERE / file for file in files] + [recipe]
    command = [binary, "train", *paths, "--run-name", name, "--set", f"run.seed={seed}", "--set", f"run.directory={RUNS}"]
    with (RUNS / f"{name}.log").open("w") as log:
        process = subprocess.Popen([str(c) for c in command], stdout=log, stderr=log)
        interrupted = False
        while process.poll() is None:
            # Polls rarely, so that polling does not disturb the measurement.
            time.sleep(1.0)
            lines = events(run)
            sums = trained(lines)
            if tokens is not None and not interrupted and any(sums.get(step, 0.0) >= tokens for step in evaluations(lines)):
                process.send_signal(signal.SIGINT)
                interrupted = True
    if process.returncode not in ((0, 130) if interrupted else (0,)):
        raise SystemExit(f"{name} failed:\n" + (RUNS / f"{name}.log").read_text()[-2000:])
    done.write_text(json.dumps({"what": what}))
    return run


def at(points: list, x: float) -> float:
    """Interpolates the value at `x` between the points around it."""
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if x0 <= x <= x1:
            return y0 + (y1 - y0) * (x - x0) / max(x1 - x0, 1e-9)
    return points[-1][1]


def measured(run: Path, budget: float) -> dict:
    """Returns the figures of a run up to its token budget."""
    lines = [line for line in events(run) if line.get("stage") == "rl"]
    tokens = trained(lines)
    begun = next(line["elapsed"] for line in lines if line["event"] == "stage_started")
    steps = [line for line in lines if line["event"] == "step"]
    clock = [(0.0, 0.0)] + [(tokens[line["step"]], line["elapsed"] - begun) for line in steps]
    accuracy = sorted((tokens[step], value) for step, value in evaluations(lines).items() if step in tokens)
    seconds = at(clock, budget)
    within = [line["metrics"] for line in steps if tokens[line["step"]] <= budget]
    total = lambda name: sum(metrics.get(name, 0.0) for metrics in within)
    rate = lambda name, time: sum(m.get(name, 0.0) * m[time] for m in within) / max(total(time), 1e-9)
    mean = lambda name: statistics.fmean(metrics.get(name, 0.0) for metrics in within)
    ended = [line for line in lines if line["event"] == "group_ended" and line["elapsed"] - begun <= seconds]
    return {
        "clock": clock,
        "accuracy": accuracy,
        "seconds": seconds,
        "final": at(accuracy, budget),
        "steps": len(within),
        "rollout": rate("tokens_per_second/rollout", "time/rollout"),
        "train": rate("tokens_per_second/train", "time/train"),
        "training": total("time/train") / seconds,
        "overlap": mean("overlap"),
        "wait_for_batch": total("time/wait_for_batch") / seconds,
        "wait_for_policy": total("time/wait_for_policy") / seconds,
        "staleness": mean("off_policy/staleness_mean"),
        "staleness_max": max(metrics.get("off_policy/staleness_max", 0.0) for metrics in within),
        "length": mean("completions/mean_length"),
        "longest": max(metrics["completions/max_length"] for metrics in within),
        "ended": {end: sum(line["end"] == end for line in ended) for end in ("surplus", "stale", "deferred")},
    }


def table(results: dict) -> str:
    """Formats one row per schedule: means over the seeds, with the lowest and highest time and accuracy."""
    lines = [
        "| staleness | seconds | held-out accuracy, % | tokens/s, rollout | tokens/s, training | overlap "
        "| trainer idle | rollout idle | age of tokens, mean (max) | mean length | batches | not trained |",
        "| --- " * 12 + "|",
    ]
    for name, runs in results.items():
        mean = lambda key: statistics.fmean(run[key] for run in runs)
        spread = lambda key, scale: (
            f"{scale * mean(key):.1f} ({scale * min(r[key] for r in runs):.1f}–{scale * max(r[key] for r in runs):.1f})"
        )
        lost = {end: statistics.fmean(run["ended"][end] for run in runs) for end in runs[0]["ended"]}
        words = {"surplus": "dropped", "stale": "too old", "deferred": "deferred"}
        ends = ", ".join(f"{count:.0f} {words[end]}" for end, count in lost.items() if count > 0)
        cells = [
            name,
            spread("seconds", 1),
            spread("final", 100),
            f"{mean('rollout'):,.0f}",
            f"{mean('train'):,.0f}",
            f"{100 * mean('overlap'):.0f} %",
            f"{100 * mean('wait_for_batch'):.0f} %",
            f"{100 * mean('wait_for_policy'):.0f} %",
            f"{mean('staleness'):.2f} ({max(run['staleness_max'] for run in runs):.0f})",
            f"{mean('length'):.1f}",
            f"{mean('steps'):.0f}",
            ends or "–",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


PAGE = """# Staleness compared

![Held-out accuracy against seconds, one curve per staleness, for both tasks](staleness.svg)

The effect of `schedule.max_staleness` on time and accuracy, measured on one machine. At 0 rollouts and training alternate, each with
both cores. Above 0 they overlap, training with {trainer} and rollouts with {rollout} threads (other splits in the rows
*threads training:rollouts*), with the default corrections for stale tokens. The rows are means of {seeds} seeds (lowest–highest), those of
other splits and of the last rows have seed 1 only. Each run trains on {tokens} tokens in batches of 256 episodes; everything else is
equal.

## Sums of three digits

{short}

Accuracy before training: {short_start:.1f} %.

## Sums with a long tail

Two to twelve digits; the probability of d digits is proportional to 1/d² (`digits = "power_law"`). Worked out, most sums take about 30
tokens and a few over 100. The last rows treat the long ones differently: batches of the first 32 of 40 groups, with the others dropped or
deferred to a separate batch; completions in order of arrival instead of the oldest group first; batches of the groups that are
ready first.

{long}

Accuracy before training: {long_start:.1f} %. *Mean length* is that of the trained completions: a schedule that drops slow groups trains on
shorter ones.

## Effect of the overlap on two cores

{gains}

On one machine, rollouts and training share the cores: two busy cores do no more work when the phases overlap.
Overlapping can only recover idle time: at the end of every batch, when the last and longest sequences are generated (more with a long
tail), and wherever two threads are less than twice as fast as one. It also has costs: with separate cores, the side with less work
idles (*rollout idle*, *trainer idle*) and cannot help the other; with all cores for both, they slow each other down. Above 0 the
default corrections also score every batch once more before it is trained on. With separate hardware for rollouts and training,
these costs do not arise; `rloom plan` computes the gain.

With {seeds} seeds and two small tasks, differences in accuracy within the spread of the seeds are not significant.

Measured {machine}. To reproduce: `cargo build --release`, then `python3 bench/staleness/compare.py` on an otherwise idle machine.
"""


def gains(results: dict, split: str) -> str:
    """Describes the effect of overlapping in words, from the numbers alone."""
    lines = []
    for task, rows in results.items():
        seconds = {name: statistics.fmean(run["seconds"] for run in runs) for name, runs in rows.items()}
        final = {name: [100 * run["final"] for run in runs] for name, runs in rows.items()}
        best = min((f"{eta}" for eta in ETAS if eta > 0), key=seconds.get)
        change = statistics.fmean(final["1"]) - statistics.fmean(final["0"])
        share = statistics.fmean(run["training"] for run in rows["0"])
        others = [f"{other} {seconds[other_split(other)]:.1f} s" for other in SPLITS if other != split]
        summary = (
            f"- {TASKS[task]['title']}: {seconds['0']:.1f} s at staleness 0, {100 * share:.0f} % of it training; {seconds['1']:.1f} s at "
            f"staleness 1, {seconds['0'] / seconds['1']:.2f} times as fast (with threads {', '.join(others)}); {seconds[best]:.1f} s at "
            f"staleness {best}, the fastest above 0. Accuracy at staleness 1 minus that at 0: {change:+.1f} points; seeds differ by "
            f"{max(final['0']) - min(final['0']):.1f} points at 0 and {max(final['1']) - min(final['1']):.1f} at 1."
        )
        lines.append(textwrap.fill(summary, 130, subsequent_indent="  ", break_on_hyphens=False))
    return "\n".join(lines)


def machine() -> str:
    """Returns date, number of cores and processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    today = datetime.date.today()
    return f"on {today.day} {today:%B %Y} on {os.cpu_count()} cores of {names[0] if names else platform.machine()}"


#: Colours that colour-blind readers can tell apart, and dashes for prints without colour.
STYLES = {"0": ("#000000", ""), "1": ("#0072b2", "7 3"), "2": ("#d55e00", "2 3"), "4": ("#009e73", "9 3 2 3")}


def panel(task: str, rows: dict, budget: float, left: float, width: float, top: float, height: float) -> list:
    """Draws mean held-out accuracy against mean seconds, with a band from the lowest to the highest seed."""
    rows = {name: runs for name, runs in rows.items() if name in STYLES}
    latest = max(statistics.fmean(run["seconds"] for run in runs) for runs in rows.values())
    lowest = min(value for runs in rows.values() for run in runs for _, value in run["accuracy"])
    low = 0.2 * int(5 * lowest)
    x = lambda seconds: left + width * seconds / latest
    y = lambda accuracy: top + height * (1 - (accuracy - low) / (1 - low))
    out = [f'<text x="{left}" y="{top - 12}" font-size="15">{TASKS[task]["title"]}</text>']
    for i in range(round(5 * low), 6):
        a = i / 5
        out.append(f'<line x1="{left}" x2="{left + width}" y1="{y(a):.1f}" y2="{y(a):.1f}" stroke="#dddddd"/>')
        out.append(f'<text x="{left - 8}" y="{y(a) + 4:.1f}" text-anchor="end">{100 * a:.0f}%</text>')
    tick = next((t for t in (1, 2, 5, 10, 20, 50, 100) if latest / t <= 6), 200)
    for i in range(int(latest / tick) + 1):
        out.append(f'<text x="{x(i * tick):.1f}" y="{top + height + 20}" text-anchor="middle">{i * tick}</text>')
    out.append(f'<text x="{left + width / 2}" y="{top + height + 40}" text-anchor="middle">seconds</text>')
    bands, curves = [], []
    for name, runs in rows.items():
        colour, dash = STYLES[name]
        upper, lower, mean = [], [], []
        for share in (i / 60 for i in range(61)):
            seconds = statistics.fmean(at(run["clock"], share * budget) for run in runs)
            values = [at(run["accuracy"], share * budget) for run in runs]
            upper.append(f"{x(seconds):.1f},{y(max(values)):.1f}")
            lower.append(f"{x(seconds):.1f},{y(min(values)):.1f}")
            mean.append(f"{x(seconds):.1f},{y(statistics.fmean(values)):.1f}")
        end = mean[-1].split(",")
        bands.append(f'<polygon points="{" ".join(upper + lower[::-1])}" fill="{colour}" opacity="0.07"/>')
        curves.append(
            f'<polyline points="{" ".join(mean)}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
            f'<circle cx="{end[0]}" cy="{end[1]}" r="4" fill="{colour}"/>'
        )
    return out + bands + curves


def picture(results: dict, budget: float) -> str:
    """Draws both tasks next to each other."""
    width, height, top, h, w = 980, 430, 44, 310, 400
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for place, (task, rows) in enumerate(results.items()):
        out += panel(task, rows, budget, 58 + place * (w + 84), w, top, h)
    for place, (name, (colour, dash)) in enumerate(STYLES.items()):
        left, line = 250 + 150 * place, height - 18
        out.append(
            f'<line x1="{left}" x2="{left + 34}" y1="{line}" y2="{line}" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{dash}"/><text x="{left + 42}" y="{line + 4}">staleness {name}</text>'
        )
    out.append("</svg>")
    return "\n".join(out) + "\n"


def slug(task: str, schedule: str, seed: int) -> str:
    words = "".join(c if c.isalnum() else " " for c in schedule).split()
    return f"{task}-{'-'.join(words)}-seed{seed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tokens", type=float, default=400_000, help="budget of trained tokens per run")
    parser.add_argument("--warmup", type=int, default=540, help="steps of the warm starts")
    parser.add_argument("--split", choices=SPLITS, default="2:2", help="threads for training : threads for rollouts")
    parser.add_argument("--rloom", type=Path, default=ROOT / "target" / "release" / "rloom")
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    args = parser.parse_args()
    if os.getloadavg()[0] > 0.5:
        print(f"the machine is busy (load {os.getloadavg()[0]:.1f}): times will be unreliable", file=sys.stderr)
    starts = {}
    for seed in range(1, args.seeds + 1):
        for task, what in TASKS.items():
            warmup = rloom(args.rloom, f"{task}-warmup-seed{seed}", what["files"], WARMUP.format(steps=args.warmup), seed, None)
            starts[task, seed] = warmup / "checkpoints" / f"warmup-step-{args.warmup:06}"
    everything = [(task, name, settings) for task in TASKS for name, settings in schedules(task, args.split)]
    results: dict = {task: {} for task in TASKS}
    for task, name, _ in everything:
        results[task][name] = []
    for seed in range(1, args.seeds + 1):
        # Each round starts with another schedule, so none is always first or last.
        turn = (seed - 1) * len(everything) // args.seeds
        for task, name, settings in everything[turn:] + everything[:turn]:
            # Only the bounds on staleness run with every seed; the other schedules run with one.
            if seed > 1 and name not in map(str, ETAS):
                continue
            what = TASKS[task]
            text = learn(starts[task, seed], what["limit"], settings)
            run = rloom(args.rloom, slug(task, name, seed), what["files"], text, seed, args.tokens)
            found = measured(run, args.tokens)
            results[task][name].append(found)
            result = f"{found['seconds']:.1f} s, {100 * found['final']:.1f} % after {found['steps']} batches"
            print(f"{task}, staleness {name}, seed {seed}: {result}", file=sys.stderr)
    texts = {task: table(rows) for task, rows in results.items()}
    for task, text in texts.items():
        print(f"{TASKS[task]['title']}\n\n{text}\n")
    first = lambda task: statistics.fmean(100 * run["accuracy"][0][1] for run in results[task]["0"])
    page = PAGE.format(
        **texts,
        short_start=first("short"),
        long_start=first("long"),
        gains=gains(results, args.split),
        trainer=args.split[0],
        rollout=args.split[2],
        seeds=args.seeds,
        tokens=f"{args.tokens:,.0f}",
        machine=machine(),
    )
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "staleness.md").write_text(page)
    (args.out / "staleness.svg").write_text(picture(results, args.tokens))
    (RUNS / "staleness.json").write_text(json.dumps({"tokens": args.tokens, "results": results}) + "\n")


if __name__ == "__main__":
    main()
