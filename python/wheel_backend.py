"""Build backend of the wheel: maturin, with the `rloom` binary in the package.

maturin builds either an extension module or a binary, and the wheel has both.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import maturin

build_sdist = maturin.build_sdist
get_requires_for_build_editable = maturin.get_requires_for_build_editable
get_requires_for_build_sdist = maturin.get_requires_for_build_sdist
get_requires_for_build_wheel = maturin.get_requires_for_build_wheel
prepare_metadata_for_build_editable = maturin.prepare_metadata_for_build_editable
prepare_metadata_for_build_wheel = maturin.prepare_metadata_for_build_wheel

BINARY = Path(__file__).parent / "rloom" / "bin" / "rloom"


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    _add_binary()
    return str(maturin.build_wheel(wheel_directory, config_settings, metadata_directory))


def build_editable(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    _add_binary()
    return str(maturin.build_editable(wheel_directory, config_settings, metadata_directory))


def _add_binary() -> None:
    """Builds the binary and copies it, stripped, into the package."""
    command = ["cargo", "build", "--release", "--locked", "--package", "rloom"]
    command.append("--message-format=json-render-diagnostics")
    built = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
    messages = (json.loads(line) for line in built.stdout.splitlines())
    executable = next(message["executable"] for message in messages if message.get("executable"))
    BINARY.parent.mkdir(exist_ok=True)
    partial = BINARY.with_suffix(".partial")
    shutil.copy(executable, partial)
    if strip := shutil.which("strip"):
        subprocess.run([strip, partial], check=True)
    partial.replace(BINARY)
