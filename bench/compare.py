#!/usr/bin/env python3
"""RLoom and its peers on the same works, on this machine, in turns; prints the table and draws it.

    cargo build --release
    python3 bench/compare.py [--rounds 5] [--works "train S,decode S"] [--quick] [--out docs]

A round runs every program once, each as a process of its own on the same cores with the same number of threads; the order
changes from round to round. First steps are dropped, a process counts as the median of its steps, and what is quoted is
the median of the ratios within rounds, with the lowest and the highest. A program that fails says so in the table and is
not run again; the others go on. Environments that are missing are made first (environments.py).

Writes performance.md and performance.svg to --out, and every single number to bench/out/compare.json, from which
`--redraw bench/out/compare.json` makes both again.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import environments
import picture
import table
from peers.works import SHAPES
from programs import PROGRAMS, WORKS, Program

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"


class Failed(Exception):
    """A program that gave no figures, and why."""


def cores(threads: int) -> list:
    """Pins this process, and so every program, to as many cores as there are threads."""
    if not hasattr(os, "sched_setaffinity"):
        return list(range(threads))
    free = sorted(os.sched_getaffinity(0))
    if threads > len(free):
        raise SystemExit(f"{threads} threads on {len(free)} cores measure the scheduler\nhint: --threads {len(free)} or fewer")
    os.sched_setaffinity(0, free[:threads])
    return free[:threads]


def surroundings(threads: int, pinned: list) -> dict:
    """Environment variables of every program."""
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


def run(command: list, deadline: int, variables: dict) -> str:
    """What a process printed. It and what it started are gone afterwards, whatever happened."""
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {deadline} s") from None
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    if process.returncode != 0:
        lines = [line.strip() for line in (errors + out).splitlines() if line.strip()] or ["nothing was said"]
        reason = next((line for line in lines if line.startswith("error")), lines[-1])
        raise Failed(f"exit status {process.returncode}: {reason}"[:200])
    return out


def figures(program: Program, out: str) -> dict:
    """A program's figures in one form: RLoom's report has those of several works, a peer prints a line at the end."""
    try:
        if program.environment is not None:
            return json.loads([line for line in out.splitlines() if line.startswith("{")][-1])
        report = json.loads(out)
        work = report["works"][0] if report["works"] else {}
        return work | {key: report[key] for key in ("machine", "ceilings", "kernels")}
    except (ValueError, LookupError) as error:
        raise Failed(f"printed no figures ({type(error).__name__}: {error})") from None


def checked(program: Program, found: dict) -> dict:
    """Refuses figures of another model than the one that was asked for."""
    expected = SHAPES[program.work[-1]].parameters()
    if found.get("parameters", expected) != expected:
        raise Failed(f"has {found['parameters']:,} parameters instead of {expected:,}")
    return found


class Bench:
    """The programs of a run and what they need."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.rloom = arguments.rloom.resolve()
        self.folder = arguments.environments.resolve()
        self.threads = arguments.threads
        self.quick = arguments.quick
        self.variables = surroundings(self.threads, cores(self.threads))
        self.programs = [p for p in PROGRAMS if p.work in arguments.works and (p.quick or not self.quick)]
        if arguments.without:
            self.programs = [p for p in self.programs if p.environment is None or arguments.without not in p.name]
        if self.threads == 1:
            self.programs = [p for p in self.programs if not p.name.endswith("one thread")]
        #: Why a program is not run (again), by work and name.
        self.failed: dict = {}
        self.places = {"threads": str(self.threads)}

    def prepare(self) -> None:
        """Environments, and shape S as a folder and as files for the programs that read them."""
        missing = {}
        for name in dict.fromkeys(p.environment for p in self.programs if p.environment):
            if failure := environments.make(self.folder, name):
                missing[name] = failure
        for program in self.programs:
            if program.environment in missing:
                self.failed[program.work, program.name] = missing[program.environment]
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
                    self.failed[program.work, program.name] = f"its model could not be written: {failure}"

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

    def turn(self, program: Program) -> dict:
        """One process of a program: its figures, or why there are none."""
        key = program.work, program.name
        if key not in self.failed:
            begun = time.monotonic()
            try:
                found = checked(program, figures(program, run(self.command(program), program.deadline, self.variables)))
                return found | {"process_seconds": time.monotonic() - begun}
            except (Failed, OSError) as failure:
                self.failed[key] = str(failure)
                print(f"  {program.work}, {program.name}: {failure}", file=sys.stderr)
        return {"failure": self.failed[key]}

    def rounds(self, count: int, keep) -> None:
        """Runs the rounds; `keep` is given the figures by work, program and round after each."""
        results = {p.work: {q.name: [] for q in self.programs if q.work == p.work} for p in self.programs}
        works = list(results)
        for round_ in range(count):
            shift = round_ % len(works)
            for work in works[shift:] + works[:shift]:
                programs = [p for p in self.programs if p.work == work]
                turned = round_ % len(programs)
                for program in programs[turned:] + programs[:turned]:
                    found = self.turn(program)
                    results[work][program.name].append(found)
                    print(f"{round_ + 1}/{count} {work}, {program.name}: {table.brief(found)}", file=sys.stderr)
            keep(results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each program (default 5)")
    parser.add_argument("--works", default=",".join(WORKS), help=f"which, of: {', '.join(WORKS)} (default: all)")
    parser.add_argument("--without", metavar="TEXT", help="leave out the peers with this in their name, such as compiled")
    parser.add_argument("--threads", type=int, default=2, help="of every program, and as many cores (default 2)")
    parser.add_argument("--quick", action="store_true", help="one round of few steps, without what must be compiled first")
    parser.add_argument("--rloom", type=Path, default=HERE.parent / "target" / "release" / "rloom")
    parser.add_argument("--environments", type=Path, default=environments.FOLDER, help="where the peers' environments are")
    parser.add_argument("--out", type=Path, help="where table and picture go (default docs; with --quick bench/out)")
    parser.add_argument("--redraw", type=Path, metavar="JSON", help="make table and picture of an earlier run")
    arguments = parser.parse_args()
    arguments.works = [work.strip() for work in arguments.works.split(",")]
    if unknown := set(arguments.works) - set(WORKS):
        parser.error(f"no work {', '.join(sorted(unknown))}; there are {', '.join(WORKS)}")
    OUT.mkdir(exist_ok=True)
    if arguments.redraw:
        measured = json.loads(arguments.redraw.read_text())
    else:
        if not arguments.rloom.exists():
            parser.error(f"{arguments.rloom} is not there\nhint: cargo build --release, or name the binary with --rloom")
        bench = Bench(arguments)
        bench.prepare()
        measured = {"date": time.strftime("%Y-%m-%d"), "machine": table.machine(), "threads": arguments.threads}
        begun = time.monotonic()

        def keep(results: dict) -> None:
            measured.update(minutes=round((time.monotonic() - begun) / 60, 1), results=results)
            (OUT / "compare.json").write_text(json.dumps(measured) + "\n")

        bench.rounds(1 if arguments.quick else arguments.rounds, keep)
    out = arguments.out or (OUT if arguments.quick else HERE.parent / "docs")
    out.mkdir(parents=True, exist_ok=True)
    text = table.page(measured)
    print(text)
    (out / "performance.md").write_text(text)
    (out / "performance.svg").write_text(picture.svg(measured))


if __name__ == "__main__":
    main()
