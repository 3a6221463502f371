#!/usr/bin/env python3
"""Compares the speed of RLoom and other programs on the same workloads on this machine.

    cargo build --release
    python3 bench/compare.py [--rounds 5] [--workloads "train S,decode S"] [--quick] [--out docs]

A round runs every program once, each in its own process on the same cores with the same number of threads; the order
rotates between rounds. Warm-up steps are dropped, a process is represented by the median of its steps, and the tables show the
median of the ratios within rounds, with the lowest and the highest. A program that fails is reported in the table and not
run again; the others continue. Missing environments are created first (environments.py).

Writes performance.md and performance.svg to --out (with --isa or --quick that of --work), the comparison with the targets to targets.md in --targets, and all
numbers to compare.json in --work, from which `--redraw bench/out/compare.json` writes all of them again. `rloom bench --compare`
runs this program.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import environments
import picture
import screen
import table
from peers.workloads import SHAPES
from processes import started
from programs import DTYPES, ISA_LIMITS, PROGRAMS, WORKLOADS, Program

HERE = Path(__file__).resolve().parent
#: Exit status after Ctrl-C or SIGTERM.
INTERRUPTED = 130


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


def process_environment(threads: int, pinned: list, work: Path, isa: str | None) -> dict:
    """Returns the environment variables of every program."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONDONTWRITEBYTECODE", "RUST_LOG")}
    return kept | {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(work / "inductor"),
        "VLLM_CACHE_ROOT": str(work / "vllm"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, pinned)),
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        **ISA_LIMITS.get(isa, {}),
    }


def run(command: list, timeout: int, variables: dict) -> str:
    """Runs a process and returns its output."""
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise Failed(f"timed out after {timeout} s") from None
    if process.returncode != 0:
        lines = [line.strip() for line in (errors + out).splitlines() if line.strip()] or ["no output"]
        reason = next((line for line in lines if line.startswith("error")), lines[-1])
        raise Failed(f"exit status {process.returncode}: {reason}"[:200])
    return out


def has_sources() -> bool:
    """Returns whether the Python package can be built: this folder belongs to RLoom's sources, and there is cargo."""
    return (HERE.parent / "Cargo.toml").exists() and shutil.which("cargo") is not None


def write_package(interpreter: Path, site: Path, variables: dict) -> Path:
    """Builds the Python package for an interpreter and returns the folder to import it from."""
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


def selected(arguments: argparse.Namespace) -> list:
    """Returns the programs of a comparison. Workloads without another program are left out."""
    found = [
        p
        for p in PROGRAMS
        if p.workload in arguments.workloads
        and arguments.shape in (None, p.workload[-1])
        and (p.quick or not arguments.quick)
        and (p.environment is None or p.environment in arguments.peers)
        and arguments.dtype in (None, p.dtype)
        and not any(text in p.name for text in arguments.without)
        and not (arguments.threads == 1 and p.name.endswith("one thread"))
        and (not p.name.startswith("torch rank") or has_sources())
        and (arguments.isa is None or p.can_limit_isa)
    ]
    compared = {p.workload for p in found if p.is_peer} & {p.workload for p in found if not p.is_peer}
    return [p for p in found if p.workload in compared]


class Bench:
    """The programs of a comparison and their environments."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.rloom = arguments.rloom.resolve()
        self.folder = arguments.environments.resolve()
        self.work = arguments.work
        self.threads = arguments.threads
        self.quick = arguments.quick
        self.quiet = arguments.quiet
        self.isa = arguments.isa
        self.programs = selected(arguments)
        if not self.programs:
            wanted = f"{', '.join(arguments.workloads)} {arguments.dtype or ''}".strip()
            raise SystemExit(f"error: {', '.join(arguments.peers)}: no program for {wanted}")
        self.variables = process_environment(self.threads, cores(self.threads), self.work, self.isa)
        #: Reasons for not running a program (again), by workload and name.
        self.failed: dict = {}
        self.places = {
            "threads": str(self.threads),
            "rloom": str(self.rloom),
            "vllm": str(environments.python(self.folder, "vllm")),
        }

    def say(self, text: str, end: str = "\n") -> None:
        """Reports progress."""
        if text and not self.quiet:
            print(text, end=end, file=sys.stderr, flush=True)

    def prepare(self) -> None:
        """Creates the environments, and shape S as a folder and as GGUF files for the programs that read them."""
        missing = {}
        names = list(dict.fromkeys(p.environment for p in self.programs if p.environment))
        self.say(environments.announcement(self.folder, names))
        for name in names:
            if failure := environments.make(self.folder, name):
                missing[name] = failure
                self.say(failure)
        for program in self.programs:
            if program.environment in missing:
                self.failed[program.workload, program.name] = missing[program.environment]
        ranks = [p for p in self.programs if p.name.startswith("torch rank")]
        if ranks and "torch" not in missing:
            try:
                interpreter = environments.python(self.folder, "torch")
                self.variables["PYTHONPATH"] = str(write_package(interpreter, self.work / "site", self.variables))
            except (Failed, OSError) as failure:
                self.failed |= {(p.workload, p.name): f"could not build the Python package: {failure}" for p in ranks}
        self.write_models(missing)

    def write_models(self, missing: dict) -> None:
        for place, environment, script, parameters in [
            ("shape_s", None, "model_folder.py", ["{path}"]),
            ("gguf_f32", "llama", "gguf_folder.py", ["{shape_s}", "{path}", "f32"]),
            ("gguf_bf16", "llama", "gguf_folder.py", ["{shape_s}", "{path}", "bf16"]),
        ]:
            self.places[place] = str(self.work / place)
            waiting = [p for p in self.programs if "{" + place + "}" in p.command]
            used = waiting or place == "shape_s" and any(p.environment == "llama" for p in self.programs)
            if not used or environment in missing:
                continue
            path = self.places | {"path": str(self.work / place)}
            interpreter = sys.executable if environment is None else environments.python(self.folder, environment)
            try:
                run([interpreter, HERE / "peers" / script, *(part.format(**path) for part in parameters)], 300, self.variables)
            except (Failed, OSError) as failure:
                for program in waiting:
                    self.failed[program.workload, program.name] = f"could not write its model: {failure}"

    def command(self, program: Program) -> list:
        parts = [str(part).format(**self.places) for part in program.command]
        if program.environment is None:
            start = [self.rloom, "bench", *(["--isa", self.isa] if self.isa else [])]
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
                    self.say(f"{round_ + 1}/{count} {workload}, {program.name}: ", end="")
                    found = self.run_once(program)
                    results[workload][program.name].append(found)
                    self.say(table.brief(found))
            save(results)


def end_on_signals() -> None:
    """Makes Ctrl-C, SIGTERM and SIGHUP end this process and the current program."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(INTERRUPTED)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


def end_with_stdin() -> None:
    """Ends this process and the current program once standard input is closed."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def names(known: object) -> object:
    """Returns the parser of a comma-separated list of known names."""

    def parse(text: str) -> list:
        found = [name.strip() for name in text.split(",")]
        if unknown := set(found) - set(known):
            raise argparse.ArgumentTypeError(f"unknown {', '.join(sorted(unknown))}; available: {', '.join(known)}")
        return found

    return parse


def parsed() -> argparse.Namespace:
    peers = list(environments.PACKAGES)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each program (default 5)")
    parser.add_argument("--workloads", type=names(WORKLOADS), default=WORKLOADS, help=f"comma-separated, of: {', '.join(WORKLOADS)} (default: all)")
    parser.add_argument("--shape", choices=SHAPES, help="only workloads of this shape")
    parser.add_argument("--peers", type=names(peers), default=peers, help=f"environments of the other programs, of: {', '.join(peers)} (default: all)")
    parser.add_argument("--dtype", choices=DTYPES, help="format of all programs (default: both)")
    parser.add_argument("--without", metavar="TEXT", action="append", default=[], help="skip programs whose name contains this, such as compiled")
    parser.add_argument("--threads", type=int, default=2, help="threads and cores of every program (default 2)")
    parser.add_argument("--isa", choices=ISA_LIMITS, help="limit every program to an instruction set; those that cannot be limited are left out")
    parser.add_argument("--quick", action="store_true", help="one round of few steps, without programs that compile first")
    parser.add_argument("--rloom", type=Path, default=HERE.parent / "target" / "release" / "rloom")
    parser.add_argument("--environments", type=Path, default=environments.FOLDER, help="folder of the other programs' environments")
    parser.add_argument("--work", type=Path, default=HERE / "out", help="folder for compare.json and intermediate results (default bench/out)")
    parser.add_argument("--out", type=Path, help="folder for performance.md and .svg (default docs; with --isa or --quick that of --work)")
    parser.add_argument("--targets", type=Path, help="folder for targets.md (default bench, none with --out; with --isa or --quick that of --work)")
    parser.add_argument("--show", choices=["page", "screen", "json"], default="page", help="result on standard output (default page)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--end-with-stdin", action="store_true", help="end when standard input is closed")
    parser.add_argument("--redraw", type=Path, metavar="JSON", help="write tables and chart of an earlier comparison again")
    arguments = parser.parse_args()
    if not arguments.redraw and not arguments.rloom.exists():
        parser.error(f"{arguments.rloom} does not exist\nhint: run cargo build --release, or set --rloom")
    return arguments


def measure(arguments: argparse.Namespace) -> dict:
    """Runs the programs; their figures are also written to compare.json after each round."""
    # A comparison that was interrupted while PyTorch compiled leaves an empty library there, which fails to load ever after.
    shutil.rmtree(arguments.work / "inductor", ignore_errors=True)
    bench = Bench(arguments)
    bench.prepare()
    measured = {"date": time.strftime("%Y-%m-%d"), "machine": table.machine(), "threads": arguments.threads}
    start = time.monotonic()

    def save(results: dict) -> None:
        measured.update(minutes=round((time.monotonic() - start) / 60, 1), results=results)
        (arguments.work / "compare.json").write_text(json.dumps(measured) + "\n")

    bench.rounds(1 if arguments.quick else arguments.rounds, save)
    return measured


def main() -> None:
    arguments = parsed()
    end_on_signals()
    if arguments.end_with_stdin:
        end_with_stdin()
    arguments.work = arguments.work.resolve()
    arguments.work.mkdir(parents=True, exist_ok=True)
    measured = json.loads(arguments.redraw.read_text()) if arguments.redraw else measure(arguments)
    apart = arguments.quick or arguments.isa
    out = arguments.out or (arguments.work if apart else HERE.parent / "docs")
    out.mkdir(parents=True, exist_ok=True)
    page = table.page(measured)
    (out / "performance.md").write_text(page)
    (out / "performance.svg").write_text(picture.svg(measured))
    targets = arguments.targets or (None if arguments.out else out if apart else HERE)
    if targets:
        targets.mkdir(parents=True, exist_ok=True)
        (targets / "targets.md").write_text(table.targets_page(measured))
    print({"page": page, "screen": screen.text(measured), "json": json.dumps(measured)}[arguments.show])


if __name__ == "__main__":
    main()
