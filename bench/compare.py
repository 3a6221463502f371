#!/usr/bin/env python3
"""Compares the speed of RLoom and other programs on the same workloads on this machine.

    cargo build --release
    python3 bench/compare.py [--rounds 5] [--workloads "train S,decode S"] [--quick] [--out docs]

A round runs every program once, each in its own process on the same cores with the same number of threads; the order
rotates between rounds. Warm-up steps are dropped, a process is represented by the median of its steps, and the tables show the
median of the ratios within rounds, with the lowest and the highest. A program that fails is reported in the table and not
run again; the others continue. Missing environments are created first (environments.py).

Writes performance.md and performance.svg to --out, the comparison with the targets to targets.md in --targets, and all
numbers to bench/out/compare.json, from which `--redraw bench/out/compare.json` writes all of them again.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import environments
import picture
import table
from peers.workloads import SHAPES
from programs import PROGRAMS, WORKLOADS, Program

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"


class Failed(Exception):
    """A program that produced no figures, with the reason."""


def cores(threads: int) -> list:
    """Pins this process, and so every program, to one core per thread."""
    if not hasattr(os, "sched_setaffinity"):
        return list(range(threads))
    free = sorted(os.sched_getaffinity(0))
    if threads > len(free):
        raise SystemExit(f"{threads} threads on {len(free)} cores would not give meaningful results\nhint: use --threads {len(free)} or fewer")
    os.sched_setaffinity(0, free[:threads])
    return free[:threads]


def process_environment(threads: int, pinned: list) -> dict:
    """Returns the environment variables of every program."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONDONTWRITEBYTECODE", "RUST_LOG")}
    return kept | {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(OUT / "inductor"),
        "VLLM_CACHE_ROOT": str(OUT / "vllm"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, pinned)),
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }


def run(command: list, timeout: int, variables: dict) -> str:
    """Runs a process and returns its output. The process and its children are always ended."""
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise Failed(f"timed out after {timeout} s") from None
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    if process.returncode != 0:
        lines = [line.strip() for line in (errors + out).splitlines() if line.strip()] or ["no output"]
        reason = next((line for line in lines if line.startswith("error")), lines[-1])
        raise Failed(f"exit status {process.returncode}: {reason}"[:200])
    return out


def write_package(interpreter: Path, variables: dict) -> Path:
    """Builds the Python package for an interpreter and returns the folder to import it from."""
    site = OUT / "site"
    run(["cargo", "build", "--release", "--quiet", "--package", "rloom-python"], 1200, variables | {"PYO3_PYTHON": str(interpreter)})
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(HERE.parent / "python" / "rloom", site / "rloom", ignore=shutil.ignore_patterns("_native.abi3.so"))
    shutil.copy(HERE.parent / "target" / "release" / "lib_native.so", site / "rloom" / "_native.abi3.so")
    return site


def figures(program: Program, out: str) -> dict:
    """Reads a program's figures: RLoom prints a report with several workloads, the others one JSON line at the end."""
    try:
        if program.environment is not None:
            return json.loads([line for line in out.splitlines() if line.startswith("{")][-1])
        report = json.loads(out)
        workload = report["works"][0] if report["works"] else {}
        return workload | {key: report[key] for key in ("machine", "ceilings", "kernels")}
    except (ValueError, LookupError) as error:
        raise Failed(f"printed no figures ({type(error).__name__}: {error})") from None


def checked(program: Program, found: dict) -> dict:
    """Rejects the figures of a model with another number of parameters."""
    expected = SHAPES[program.workload[-1]].parameters()
    if found.get("parameters", expected) != expected:
        raise Failed(f"model has {found['parameters']:,} parameters, expected {expected:,}")
    return found


class Bench:
    """The programs of a comparison and their environments."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.rloom = arguments.rloom.resolve()
        self.folder = arguments.environments.resolve()
        self.threads = arguments.threads
        self.quick = arguments.quick
        self.variables = process_environment(self.threads, cores(self.threads))
        self.programs = [p for p in PROGRAMS if p.workload in arguments.workloads and (p.quick or not self.quick)]
        if arguments.without:
            self.programs = [p for p in self.programs if p.environment is None or arguments.without not in p.name]
        if self.threads == 1:
            self.programs = [p for p in self.programs if not p.name.endswith("one thread")]
        #: Reasons for not running a program (again), by workload and name.
        self.failed: dict = {}
        self.places = {
            "threads": str(self.threads),
            "rloom": str(self.rloom),
            "vllm": str(environments.python(self.folder, "vllm")),
        }

    def prepare(self) -> None:
        """Creates the environments, and shape S as a folder and as GGUF files for the programs that read them."""
        missing = {}
        for name in dict.fromkeys(p.environment for p in self.programs if p.environment):
            if failure := environments.make(self.folder, name):
                missing[name] = failure
        for program in self.programs:
            if program.environment in missing:
                self.failed[program.workload, program.name] = missing[program.environment]
        ranks = [p for p in self.programs if p.name.startswith("torch rank")]
        if ranks and "torch" not in missing:
            try:
                self.variables["PYTHONPATH"] = str(write_package(environments.python(self.folder, "torch"), self.variables))
            except (Failed, OSError) as failure:
                self.failed |= {(p.workload, p.name): f"could not build the Python package: {failure}" for p in ranks}
        for place, environment, script, parameters in [
            ("shape_s", "torch", "qwen.py", ["{path}"]),
            ("gguf_f32", "llama", "gguf_folder.py", ["{shape_s}", "{path}", "f32"]),
            ("gguf_bf16", "llama", "gguf_folder.py", ["{shape_s}", "{path}", "bf16"]),
        ]:
            self.places[place] = str(OUT / place)
            waiting = [p for p in self.programs if "{" + place + "}" in p.command]
            used = waiting or place == "shape_s" and any(p.environment == "llama" for p in self.programs)
            if not used or environment in missing:
                continue
            path = self.places | {"path": str(OUT / place)}
            command = [environments.python(self.folder, environment), HERE / "peers" / script]
            try:
                run(command + [part.format(**path) for part in parameters], 300, self.variables)
            except Failed as failure:
                for program in waiting:
                    self.failed[program.workload, program.name] = f"could not write its model: {failure}"

    def command(self, program: Program) -> list:
        parts = [str(part).format(**self.places) for part in program.command]
        if program.environment is None:
            start = [self.rloom, "bench"]
            few = {"--rounds": "2"}
        else:
            start = [environments.python(self.folder, program.environment)]
            few = {"--steps": "1", "--warm": "1"}
        if self.quick:
            parts = [few.get(before, part) for before, part in zip([""] + parts, parts)]
        return start + parts

    def run_once(self, program: Program) -> dict:
        """Runs one process of a program; returns its figures, or the reason why there are none."""
        key = program.workload, program.name
        if key not in self.failed:
            begun = time.monotonic()
            try:
                found = checked(program, figures(program, run(self.command(program), program.timeout, self.variables)))
                return found | {"process_seconds": time.monotonic() - begun}
            except (Failed, OSError) as failure:
                self.failed[key] = str(failure)
                print(f"  {program.workload}, {program.name}: {failure}", file=sys.stderr)
        return {"failure": self.failed[key]}

    def rounds(self, count: int, save) -> None:
        """Runs the rounds. `save` receives the figures by workload, program and round after each."""
        results = {p.workload: {q.name: [] for q in self.programs if q.workload == p.workload} for p in self.programs}
        workloads = list(results)
        for round_ in range(count):
            shift = round_ % len(workloads)
            for workload in workloads[shift:] + workloads[:shift]:
                programs = [p for p in self.programs if p.workload == workload]
                first = round_ % len(programs)
                for program in programs[first:] + programs[:first]:
                    found = self.run_once(program)
                    results[workload][program.name].append(found)
                    print(f"{round_ + 1}/{count} {workload}, {program.name}: {table.brief(found)}", file=sys.stderr)
            save(results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each program (default 5)")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help=f"comma-separated, of: {', '.join(WORKLOADS)} (default: all)")
    parser.add_argument("--without", metavar="TEXT", help="skip the other programs whose name contains this, such as compiled")
    parser.add_argument("--threads", type=int, default=2, help="threads and cores of every program (default 2)")
    parser.add_argument("--quick", action="store_true", help="one round of few steps, without programs that compile first")
    parser.add_argument("--rloom", type=Path, default=HERE.parent / "target" / "release" / "rloom")
    parser.add_argument("--environments", type=Path, default=environments.FOLDER, help="folder of the other programs' environments")
    parser.add_argument("--out", type=Path, help="folder for performance.md and .svg (default docs; with --quick bench/out)")
    parser.add_argument("--targets", type=Path, help="folder for targets.md (default bench; with --quick bench/out)")
    parser.add_argument("--redraw", type=Path, metavar="JSON", help="write tables and chart of an earlier comparison again")
    arguments = parser.parse_args()
    arguments.workloads = [name.strip() for name in arguments.workloads.split(",")]
    if unknown := set(arguments.workloads) - set(WORKLOADS):
        parser.error(f"unknown workload {', '.join(sorted(unknown))}; available: {', '.join(WORKLOADS)}")
    OUT.mkdir(exist_ok=True)
    if arguments.redraw:
        measured = json.loads(arguments.redraw.read_text())
    else:
        if not arguments.rloom.exists():
            parser.error(f"{arguments.rloom} does not exist\nhint: run cargo build --release, or set --rloom")
        bench = Bench(arguments)
        bench.prepare()
        measured = {"date": time.strftime("%Y-%m-%d"), "machine": table.machine(), "threads": arguments.threads}
        start = time.monotonic()

        def save(results: dict) -> None:
            measured.update(minutes=round((time.monotonic() - start) / 60, 1), results=results)
            (OUT / "compare.json").write_text(json.dumps(measured) + "\n")

        bench.rounds(1 if arguments.quick else arguments.rounds, save)
    out = arguments.out or (OUT if arguments.quick else HERE.parent / "docs")
    out.mkdir(parents=True, exist_ok=True)
    text = table.page(measured)
    print(text)
    (out / "performance.md").write_text(text)
    targets = arguments.targets or (OUT if arguments.quick else HERE)
    targets.mkdir(parents=True, exist_ok=True)
    (targets / "targets.md").write_text(table.targets_page(measured))
    (out / "performance.svg").write_text(picture.svg(measured))


if __name__ == "__main__":
    main()
