"""Frozen weights in 4 bits: NF4 with quantized scales (QLoRA, Dettmers et al., 2023, arXiv:2305.14314), by bitsandbytes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from rloom.torch.errors import MissingPackageError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Computation(NamedTuple):
    """Number format and device of matrix products."""

    dtype: torch.dtype
    device: torch.device


def _bitsandbytes() -> Any:
    try:
        return importlib.import_module("bitsandbytes")
    except ImportError as error:
        hint = "`pip install bitsandbytes` in the environment of the ranks, or `rloom engines install torch --force`"
        raise MissingPackageError("bitsandbytes", "`lora.quantize`", hint) from error


def output_layers(hf: PreTrainedModel) -> list[nn.Module]:
    """Returns the language head, or the head of values."""
    heads = [hf.get_output_embeddings(), getattr(hf, "score", None)]  # type: ignore[no-untyped-call]
    return [head for head in heads if head is not None]


def quantize(hf: PreTrainedModel, computation: Computation) -> None:
    """Replaces the linear layers of a model but its head by layers with weights in 4 bits on the device of the computation."""
    dtype, device = computation
    if dtype not in (torch.float32, torch.bfloat16):
        raise ModelError(f"`lora.quantize` computes in f32 or bf16, not in {dtype}")
    bnb, heads = _bitsandbytes(), output_layers(hf)
    names = [
        name
        for name, layer in hf.named_modules()
        if type(layer) is nn.Linear and not any(layer is head for head in heads)
    ]
    for name in names:
        whole: Any = hf.get_submodule(name)
        kind = {"compress_statistics": True, "quant_type": "nf4"}
        with torch.device("meta"):
            own = bnb.nn.Linear4bit(whole.in_features, whole.out_features, compute_dtype=dtype, **kind)
        weight = bnb.nn.Params4bit(whole.weight.detach().to(dtype), module=own, **kind)
        own.weight, own.bias = weight.to(device), whole.bias
        # On some processors it would change the order of the weights, and with it the rounding, in passes without a gradient.
        own.support_avx512bf16_for_cpu = False
        hf.set_submodule(name, own)
    # By this name PEFT recognizes such models.
    model: Any = hf
    model.is_loaded_in_4bit = True


def numbers(weight: Tensor) -> Tensor:
    """Returns the numbers that a weight stands for in products."""
    state = getattr(weight, "quant_state", None)
    if state is None:
        return weight
    found: Tensor = _bitsandbytes().functional.dequantize_4bit(weight.detach(), state)
    return found
