"""Runs that several tests read."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def recipe() -> Path:
    """A recipe with two very short stages."""
    return Path(__file__).parents[2] / "crates/cli/tests/cli/support/tiny.toml"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, recipe: Path) -> Path:
    """Folder of a finished run. Tests do not change it."""
    # Not at the top: tests of environments run without the wheel.
    from rloom import _binary

    folder = tmp_path_factory.mktemp("trained")
    command = [str(_binary.path()), "train", os.fspath(recipe), "--quiet"]
    subprocess.run(command, cwd=folder, check=True, timeout=300)
    return folder / "runs" / "tiny"


@pytest.fixture
def run_folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(trained, tmp_path / "tiny", symlinks=True))
