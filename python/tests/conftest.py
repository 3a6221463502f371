"""Runs that several tests read."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from rloom import _binary

RECIPE = Path(__file__).parents[2] / "crates/cli/tests/cli/support/tiny.toml"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a finished run. Tests do not change it."""
    folder = tmp_path_factory.mktemp("trained")
    command = [str(_binary.path()), "train", os.fspath(RECIPE), "--quiet"]
    subprocess.run(command, cwd=folder, check=True, timeout=300)
    return folder / "runs" / "tiny"


@pytest.fixture
def run_folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(trained, tmp_path / "tiny", symlinks=True))
