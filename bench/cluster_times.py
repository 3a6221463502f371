"""Seconds from `rloom train` to the first sampled token, and from the loss of a process to work again.

    PYTHONPATH=python python3 bench/cluster_times.py --trainer PYTHON [--vllm PYTHON] [--rounds 3]

PYTHON are interpreters of environments with PyTorch and with vLLM. A run has two PyTorch ranks on two node daemons, all on
this machine, and samples with the embedded engine, or with a vLLM server if `--vllm` is given. `cold`: the files of the
environments are not in memory. Times are those of the run's events; the median over the rounds is printed with the lowest
and the highest.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BINARY = ROOT / "target/release/rloom"
#: Limit of every wait.
SECONDS = 600.0
RECIPE = """
[run]
seed = 3
checkpoint_every = 1
[model.new]
family = "qwen3"
layers = 2
hidden_size = 64
heads = 2
head_dim = 64
intermediate_size = 128
max_positions = 48
[data]
generator = "arithmetic"
[reward]
components = [{ kind = "random" }]
[sampling]
max_new_tokens = 1
[trainer]
backend = "torch"
ranks = 2
[[stage]]
name = "rl"
method = "grpo"
steps = 100000
groups_per_batch = 2
algorithm = { group_size = 4 }
"""


class Run:
    """A run with its daemons."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder = folder
        (folder / "run.toml").write_text(RECIPE)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.environment = {**os.environ, "RLOOM_TOKEN": secrets.token_hex(16)}
        settings = [
            "cluster.launcher=wait",
            "cluster.nodes=2",
            f"cluster.bind={self.address}",
            f"trainer.python={options.trainer}",
        ]
        if options.vllm:
            settings += [
                "rollout.engine=vllm",
                "rollout.memory=0.1",
                "rollout.args=['--dtype','float32','--enforce-eager']",
                f"rollout.python={options.vllm}",
            ]
        self.daemons = [self.daemon(0), self.daemon(1)]
        arguments = [argument for setting in settings for argument in ("--set", setting)]
        self.began = time.time()
        self.process = self.start("train", "run.toml", "--quiet", *arguments)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts the binary in the folder."""
        return subprocess.Popen([BINARY, *arguments], cwd=self.folder, env=self.environment)

    def daemon(self, index: int) -> subprocess.Popen[bytes]:
        """Starts a daemon."""
        return self.start("node", "--controller", self.address, "--index", str(index))

    def wait(self, what: str, found: Callable[[dict[str, Any]], bool]) -> float:
        """Waits for an event; returns the time at which it was written."""
        events = self.folder / "runs/run/events.jsonl"
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the run ended before {what}"
            for line in events.read_text().splitlines() if events.exists() else []:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue  # It is being written.
                if found(event):
                    return float(event["time"])
            time.sleep(0.05)
        raise TimeoutError(what)

    def first_token(self) -> float:
        """Seconds from the command to the first group, whose completions have one token each."""
        return self.wait("a group", lambda event: event.get("activity") == "group") - self.began

    def after_kill(self, role: str) -> float:
        """Seconds from the kill of a process to the end of a step that began after it."""
        self.wait("a checkpoint", lambda event: event["event"] == "checkpoint")
        listed = subprocess.run(
            [BINARY, "cluster", "ps", "runs/run", "--json"], cwd=self.folder, capture_output=True, check=True
        )
        processes = json.loads(listed.stdout)["processes"]
        pids = [process["pid"] for process in processes if process["role"] == role]
        killed = time.time()
        os.kill(self.daemons[1].pid if role == "node" else pids[0], signal.SIGKILL)
        if role == "node":
            self.daemons[1].wait()
            self.daemons[1] = self.daemon(1)

        def works(event: dict[str, Any]) -> bool:
            if event.get("activity") != "group":
                return False
            return event["time"] - (event["end"] - event["start"]) > killed

        if role == "replica":
            return self.wait("a group", works) - killed
        attempts = self.wait("a loss", lambda event: event["event"] == "warning" and event["time"] > killed)
        return (
            self.wait("a step", lambda event: event["event"] == "step" and event["time"] > attempts) - killed
        )

    def end(self) -> None:
        """Ends the run; its daemons end with it."""
        self.process.kill()
        for process in (self.process, *self.daemons):
            process.wait()


def evict(python: str) -> None:
    """Has the files of an environment read from the disk again."""
    for path in Path(python).parent.parent.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainer", required=True)
    parser.add_argument("--vllm")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for start in ("cold", "warm"):
            if start == "cold":
                for python in filter(None, [options.trainer, options.vllm]):
                    evict(python)
            role = "replica" if options.vllm else {"cold": "rank", "warm": "node"}[start]
            with tempfile.TemporaryDirectory() as folder:
                run = Run(Path(folder), options)
                try:
                    found.setdefault(f"first token, {start}", []).append(run.first_token())
                    found.setdefault(f"killed {role}", []).append(run.after_kill(role))
                finally:
                    run.end()
        for what, seconds in found.items():
            low, high = min(seconds), max(seconds)
            print(
                f"{what}: {statistics.median(seconds):.1f} s ({low:.1f} to {high:.1f}, {len(seconds)})",
                flush=True,
            )


if __name__ == "__main__":
    main()
