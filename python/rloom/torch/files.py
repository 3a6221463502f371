"""Model folders by Hugging Face names, and moments as a distributed checkpoint of PyTorch."""

from __future__ import annotations

import copy
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import GenerationConfig

from rloom.torch import adapter
from rloom.torch.errors import CheckpointError
from rloom.torch.model import VALUE_HEAD, set_pad_token
from rloom.torch.settings import VALUE_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rloom.torch.engine import Engine
    from rloom.torch.model import ScoringModel

Listed = list[tuple[str, int]]

MOMENTS = "trainer/optimizer"
#: Model folder of a reference that has moved.
REFERENCE = "trainer/reference"
#: What rank 0 alone writes of them; the last two are Megatron's.
INDEX = (".metadata", "common.pt", "metadata.json")
#: Moments as the embedded engine writes them.
EMBEDDED_MOMENTS = "trainer/optimizer.safetensors"
GENERATION = "generation_config.json"
#: Longest wait until rank 0 sees the files that ranks on other hosts have written: network file systems cache attributes.
VISIBLE_SECONDS = 60.0
LOOK_SECONDS = 0.05


def write_model(engine: Engine, folder: Path, is_exact: bool = True, *, merges: bool = False) -> Listed:
    """Writes the Hugging Face folder of the weights and returns its files; every rank has to call it.

    Those of a computation in bf16 are rounded to it unless they have to be exact or are an adapter's. `merges` writes the
    model with the adapter added instead of the adapter.
    """
    is_adapter = engine.settings.lora is not None and not merges
    is_rounded = engine.settings.dtype == "bf16" and not is_exact and not is_adapter
    weights = {}
    for name, whole in engine.merged_weights() if merges else engine.whole_weights():
        is_value = name.removeprefix(adapter.PREFIX) in VALUE_NAMES
        if engine.world.rank == 0 and (engine.model.is_classifier or not is_value):
            weights[name] = whole.to("cpu", torch.bfloat16 if is_rounded else whole.dtype, copy=True)
    with engine.world.access(f"write {folder}"):
        if engine.world.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            if is_adapter:
                _write_adapter(engine, folder, weights)
            else:
                _write_hf(engine, engine.model, folder, weights)
    return _listed(engine, folder, "*.json", "model*.safetensors", adapter.TENSORS)


def _write_adapter(engine: Engine, folder: Path, weights: dict[str, Tensor]) -> None:
    """Writes an adapter with the configuration of its base, which stays where it is, or with that of a reward model."""
    base, model = Path(engine.settings.model), engine.model
    adapter.write(folder, weights, model.adapter, str(base), engine.settings.heads)
    if model.rewards:
        set_pad_token(model.hf.config, engine.settings.pad_token)
        config = copy.deepcopy(model.hf.config)
        config.architectures = [type(model.hf).__name__]
        config.save_pretrained(folder)
        return
    for name in ("config.json", GENERATION):
        if (base / name).is_file():
            shutil.copyfile(base / name, folder / name)


def _write_reference(engine: Engine, folder: Path) -> Listed:
    """Writes the Hugging Face folder of a reference that has moved; every rank has to call it."""
    reference = engine.reference
    if reference is None or not engine.has_reference_moved:
        return []
    weights = {}
    for name, weight in reference.named_weights().items():
        whole = engine.world.whole(weight)
        if engine.world.rank == 0:
            weights[name] = whole.to("cpu", copy=True)
    with engine.world.access(f"write {REFERENCE}"):
        if engine.world.rank == 0:
            _write_hf(engine, reference, folder / REFERENCE, weights)
    return _listed(engine, folder, f"{REFERENCE}/*.json", f"{REFERENCE}/model*.safetensors")


def save(engine: Engine, folder: Path) -> Listed:
    """Writes model, value head and moments, and returns the files; every rank has to call it."""
    written = write_model(engine, folder)
    trainer = folder / "trainer"
    with engine.world.access(f"write {trainer}"):
        if engine.world.rank == 0:
            shutil.rmtree(trainer, ignore_errors=True)
            (folder / MOMENTS).mkdir(parents=True)
    if engine.model.score is not None:
        prefix = "" if engine.settings.lora is None else adapter.PREFIX
        own = engine.model.named_weights()
        head = {name: engine.world.whole(own[prefix + name]).cpu() for name in VALUE_NAMES}
        with engine.world.access(f"write {VALUE_HEAD}"):
            if engine.world.rank == 0:
                save_file(head, folder / VALUE_HEAD, metadata={"format": "pt"})
    engine.optimizer.write(folder / MOMENTS)
    written += _write_reference(engine, folder)
    # Every rank knows the files that it has written; rank 0 also wrote the index and the value head.
    return (
        written
        + _listed(engine, folder, "trainer/*.safetensors", *(f"{MOMENTS}/{name}" for name in INDEX))
        + _listed(engine, folder, f"{MOMENTS}/__{engine.world.rank}_*", of_all=True)
    )


def restore(engine: Engine, folder: Path) -> None:
    """Continues from a folder of `save`, of any number of ranks, or from one of the embedded engine."""
    engine.load(folder)
    engine.optimizer.zero()
    _restore_moments(engine, folder)
    _restore_reference(engine, folder / REFERENCE)


def _restore_reference(engine: Engine, folder: Path) -> None:
    if engine.reference is None:
        return
    has_moved = engine.world.rank == 0 and (folder / "config.json").is_file()
    if engine.world.largest(torch.tensor([has_moved], dtype=torch.long)).item():
        engine.load_reference(folder)
    elif engine.has_reference_moved:
        raise CheckpointError(f"{folder}: there is no reference, and the present one has moved since")


def _restore_moments(engine: Engine, folder: Path) -> None:
    # Rank 0 decides: what other hosts see may be older.
    is_embedded = engine.world.rank == 0 and (folder / EMBEDDED_MOMENTS).is_file()
    if engine.world.largest(torch.tensor([is_embedded], dtype=torch.long)).item():
        _read_embedded(engine, folder / EMBEDDED_MOMENTS)
    else:
        engine.optimizer.read(folder / MOMENTS)


def _read_embedded(engine: Engine, path: Path) -> None:
    state = engine.optimizer.state()
    with engine.world.access(f"read {path}"), safe_open(path, framework="pt") as file:
        for name, own in state.items():
            engine.world.keep_part(own, file.get_tensor(name))
        steps = (file.metadata() or {}).get("step", "")
        if not steps.isdigit():
            raise CheckpointError(f"{path}: the header has no step count")
    engine.optimizer.restored(int(steps), state)


def _write_hf(engine: Engine, model: ScoringModel, folder: Path, weights: dict[str, Tensor]) -> None:
    hf = model.hf
    if model.rewards:
        set_pad_token(hf.config, engine.settings.pad_token)
    # The settings that the folder came with are kept as they were; transformers would check and change them.
    source = Path(engine.settings.model) / GENERATION
    if hf.can_generate():
        hf.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
    hf.save_pretrained(folder, state_dict=weights, max_shard_size="5GB")
    (folder / GENERATION).unlink(missing_ok=True)
    if source.is_file() and not model.is_classifier:
        shutil.copyfile(source, folder / GENERATION)


def _listed(engine: Engine, folder: Path, *patterns: str, of_all: bool = False) -> Listed:
    """Lists files that rank 0 has written, or all ranks have, once rank 0 sees them; every rank has to call it."""
    own: Listed = []
    with engine.world.access(f"list {folder}"):
        if of_all or engine.world.rank == 0:
            paths = sorted(path for pattern in patterns for path in folder.glob(pattern))
            for parent in {path.parent for path in paths}:
                _sync(parent)
            own = [(str(path.relative_to(folder)), path.stat().st_size) for path in paths]
    listed = sorted(name for names in engine.world.gathered(own) for name in names)
    with engine.world.access(f"list {folder}"):
        if engine.world.rank == 0:
            _await_visible(folder, listed)
    return listed


def _sync(folder: Path) -> None:
    """Writes the names in a folder to its disk or server."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _await_visible(folder: Path, files: Iterable[tuple[str, int]]) -> None:
    until = time.monotonic() + VISIBLE_SECONDS
    for name, size in files:
        while (seen := _size(folder / name)) != size:
            if time.monotonic() > until:
                what = "is missing" if seen is None else f"has {seen} of {size} bytes"
                raise OSError(f"{name} {what} after {VISIBLE_SECONDS:g} s: not all ranks see the same folder")
            time.sleep(LOOK_SECONDS)


def _size(path: Path) -> int | None:
    try:
        # Opening a file asks the server for its attributes; `stat` alone may not.
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return None
