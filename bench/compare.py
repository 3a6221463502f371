#!/usr/bin/env python3
"""RLoom and PyTorch on the same work, on this machine, in turns; prints the ratios.

    python3 bench/compare.py [--rounds 5]

Makes bench/.venv with PyTorch and transformers from PyPI on the first call, builds RLoom's examples, then alternates
the two programs: every round runs one process of each. The first steps of a process are dropped. Quote the median
ratio: on a shared machine single times mean little.
"""

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
WORKS = {
    # name: (example's crate, example, steps, dropped, tokens in a step)
    "train": ("rloom-train", "train_rate", 8, 3, 32 * 128),
    "decode": ("rloom-rollout", "decode_rate", 5, 2, 64 * 64),
}


def environment() -> Path:
    folder = HERE / ".venv"
    python = folder / "bin" / "python"
    if not python.exists():
        print("making bench/.venv (PyTorch and transformers, a few minutes)", file=sys.stderr)
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "torch", "transformers", "numpy"], check=True)
    return python


def build(crate: str, example: str) -> Path:
    command = ["cargo", "build", "--release", "-q", "-p", crate, "--example", example, "--message-format=json"]
    out = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for line in out.splitlines():
        message = json.loads(line)
        if message.get("executable"):
            return Path(message["executable"])
    raise SystemExit(f"cargo named no executable for {example}")


def run(command: list) -> dict:
    done = subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=5, help="processes of each program (default 5)")
    arguments.add_argument("--python", type=Path, help="a Python with torch and transformers, instead of bench/.venv")
    arguments = arguments.parse_args()
    python = arguments.python or environment()
    binaries = {name: build(crate, example) for name, (crate, example, *_) in WORKS.items()}
    rows, versions = [], ""
    for name, (_, _, steps, dropped, tokens) in WORKS.items():
        ours, peers, ratios, memory = [], [], [], []
        for round_ in range(arguments.rounds):
            peer = run([python, HERE / "peer.py", name, steps])
            own = run([binaries[name], steps])
            versions = peer["versions"]
            own_rate = tokens / statistics.median(own["seconds"][dropped:])
            peer_rate = tokens / statistics.median(peer["seconds"][dropped:])
            ours.append(own_rate)
            peers.append(peer_rate)
            ratios.append(own_rate / peer_rate)
            memory.append((own["peak_mib"], peer["peak_mib"]))
            print(f"{name} {round_ + 1}/{arguments.rounds}: {own_rate:,.0f} / {peer_rate:,.0f} tokens/s = {ratios[-1]:.2f}", file=sys.stderr)
        rows.append((name, ours, peers, ratios, memory))
    transformers = run([python, "-c", "import json, transformers; print(json.dumps(transformers.__version__))"])
    print(f"{datetime.date.today()} · {processor()} · {versions}, transformers {transformers} · {platform.system()} {platform.machine()}")
    print()
    print("| work | RLoom tokens/s | PyTorch tokens/s | ratio, median (min–max) | RLoom peak MiB | PyTorch peak MiB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, ours, peers, ratios, memory in rows:
        median = statistics.median
        print(
            f"| {name} | {median(ours):,.0f} | {median(peers):,.0f} | **{median(ratios):.2f}** ({min(ratios):.2f}–{max(ratios):.2f})"
            f" | {median(m[0] for m in memory):.0f} | {median(m[1] for m in memory):.0f} |"
        )


if __name__ == "__main__":
    main()
