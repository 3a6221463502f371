"""Tiny models in Hugging Face folders."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from models import SHAPES, make

if TYPE_CHECKING:
    from pathlib import Path

torch.set_num_threads(1)


@pytest.fixture(scope="session", params=SHAPES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model of each family."""
    return make(str(request.param), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a Qwen2 model with tied embeddings."""
    return make("qwen2", tmp_path_factory.mktemp("model"))
