"""LoRA adapters over a frozen base, with a value head that is trained as a whole: layers of PEFT, its names and its files."""

from __future__ import annotations

import hashlib
import importlib
import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rloom.torch.errors import MissingPackageError, ModelError
from rloom.torch.quantized import output_layers
from rloom.torch.settings import REWARDS, VALUE_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from transformers import PreTrainedModel

    from rloom.torch.settings import Heads, LoraSettings

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
#: Name of the adapter in PEFT's modules, which its files leave out.
NAME = "policy"
PREFIX = "base_model.model."
MAGNITUDE = "lora_magnitude_vector"
#: Settings of an adapter that decide what it computes: in PEFT's files, and in a recipe.
SHAPE = {"r": "rank", "lora_alpha": "alpha", "use_rslora": "rslora", "use_dora": "dora"}


def _peft() -> Any:
    try:
        return importlib.import_module("peft")
    except ImportError as error:
        hint = "`pip install peft` in the environment of the ranks, or `rloom engines install torch --force`"
        raise MissingPackageError("peft", "`trainer.lora`", hint) from error


def add_adapter(hf: PreTrainedModel, settings: LoraSettings) -> Any:
    """Adds an adapter that changes nothing yet to linear layers, and returns its configuration."""
    names = _targets(hf, settings.targets)
    shape = {of_file: getattr(settings, own) for of_file, own in SHAPE.items()}
    peft = _peft()
    config = peft.LoraConfig(**shape, lora_dropout=settings.dropout, target_modules=names)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        peft.inject_adapter_in_model(config, hf, adapter_name=NAME)
    if settings.quantize:
        # The norms of DoRA have the number format of the base.
        for weight in adapter_weights(dict(hf.named_parameters())).values():
            weight.data = weight.data.float()
    # A list keeps its order in files; a set does not.
    config.target_modules = names
    return config


def _targets(hf: PreTrainedModel, wanted: list[str]) -> list[str]:
    """Returns the names of the adapted layers within their modules, in the order of the model."""
    # The language head is not one of all linear layers. A value head is trained as a whole.
    heads = output_layers(hf)
    linear = [
        name.rpartition(".")[2]
        for name, x in hf.named_modules()
        if isinstance(x, nn.Linear) and not any(x is head for head in heads)
    ]
    if missing := set(wanted) - set(linear) - {"all-linear"}:
        known = ", ".join(dict.fromkeys(linear))
        raise ModelError(
            f"{type(hf).__name__} has no linear layer {min(missing)}; `lora.targets` may name {known}"
        )
    return list(dict.fromkeys(name for name in linear if name in wanted or "all-linear" in wanted))


def merged_model(hf: PreTrainedModel, folder: str) -> Any:
    """Returns a model with an adapter added to its weights."""
    peft = _peft()
    try:
        config = peft.PeftConfig.from_pretrained(folder)
        # Of any head: PEFT's models of a task want all methods of its own.
        config.task_type = None
        return peft.PeftModel.from_pretrained(hf, folder, config=config).merge_and_unload()
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"{folder}: {error}") from error


def adapter_weights(named: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Selects the tensors of the adapter and of a value head, by the names of PEFT's files."""
    own = {}
    for name, weight in named.items():
        module, _, rest = name.partition(f".{NAME}.")
        if name in VALUE_NAMES:
            own[PREFIX + name] = weight
        elif rest:
            own[PREFIX + module + ("" if module.endswith(MAGNITUDE) else f".{rest}")] = weight
    return own


def base_weights(named: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Selects the tensors of the base, by the names that they have without an adapter."""
    of_base = {name: w for name, w in named.items() if f".{NAME}." not in name and name not in VALUE_NAMES}
    return {name.replace(".base_layer.", "."): w for name, w in of_base.items()}


def merged(name: str, weight: Tensor, adapter: Mapping[str, Tensor], settings: LoraSettings) -> Tensor:
    """Returns a tensor of the base with what the adapter adds, `W + s·B·A`; DoRA then scales its rows."""
    module = PREFIX + name.removesuffix(".weight")
    if not name.endswith(".weight") or f"{module}.lora_A.weight" not in adapter:
        return weight
    a, b = (adapter[f"{module}.lora_{factor}.weight"].float() for factor in "AB")
    scale = settings.alpha / (settings.rank**0.5 if settings.rslora else settings.rank)
    total = weight.float() + scale * (b @ a)
    magnitude = adapter.get(f"{module}.{MAGNITUDE}")
    return total if magnitude is None else (magnitude.float() / total.norm(dim=1))[:, None] * total


def read(folder: Path) -> dict[str, Tensor]:
    """Reads the tensors of an adapter."""
    return load_file(folder / TENSORS)


def load(folder: Path, weights: Mapping[str, nn.Parameter], settings: LoraSettings, names: list[str]) -> None:
    """Replaces an adapter by the one in a folder, which has to have the settings of the recipe and is that of a policy.

    A value head stays as it is.
    """
    weights = {name: w for name, w in weights.items() if name.removeprefix(PREFIX) not in VALUE_NAMES}
    try:
        config, given = json.loads((folder / CONFIG).read_text()), read(folder)
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(f"{folder}: {error}") from error
    found = {own: config.get(of_file) or False for of_file, own in SHAPE.items()}
    expected = {own: getattr(settings, own) for own in found}
    targets = config.get("target_modules")
    if targets != "all-linear":
        found["targets"], expected["targets"] = sorted(targets or []), sorted(names)
    if found != expected:
        raise ModelError(f"{folder}: the adapter was made with {found}; `lora` has {expected}")
    if {name: x.shape for name, x in given.items()} != {name: x.shape for name, x in weights.items()}:
        raise ModelError(f"{folder}: the adapter has other tensors than `lora` describes")
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(given[name])


def write(folder: Path, weights: dict[str, Tensor], config: Any, base: str, heads: Heads) -> None:
    """Writes the files of an adapter."""
    config.base_model_name_or_path, config.inference_mode = base, True
    config.task_type = {"reward": "SEQ_CLS", "process_reward": "TOKEN_CLS"}.get(heads, "CAUSAL_LM")
    config.modules_to_save = ["score"] if heads in REWARDS else None
    config.save_pretrained(folder)
    save_file(weights, folder / TENSORS, metadata={"format": "pt"})


def dropout_layers(model: nn.Module) -> list[nn.Module]:
    """Returns the modules that drop inputs of the adapter in training."""
    return [x for name, x in model.named_modules() if name.endswith(f".lora_dropout.{NAME}")]


def seed_dropout(*key: int) -> None:
    """Seeds PyTorch's generators by numbers that name the masks, so that a resumed run repeats them."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "little"))
