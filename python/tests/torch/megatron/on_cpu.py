"""What Megatron needs a GPU for, on processors: its calls for a device, and the layers of Transformer Engine.

Everything else is the real package: models, process groups, schedules, optimizers, conversion.
"""

from __future__ import annotations

import multiprocessing.dummy
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from rloom.torch.engine import Engine, open_engine
from rloom.torch.settings import Settings
from rloom.torch.world import World
from torch import nn
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")


class _Names(type):
    """A class that has every name, as a class like itself."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Names(name, (nn.Module,), {})


class _Stub(ModuleType):
    """A module of such classes: Megatron-Bridge derives from some and asks whether modules are others."""

    __path__ = []  # noqa: RUF012
    __version__ = "2.9.0"

    def __getattr__(self, name: str) -> type:
        own: type = getattr(_Names("Stub", (), {}), name)
        setattr(self, name, own)
        return own


class _Stream:
    """A stream or an event of one: its work is done."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, _name: str) -> Any:
        return lambda *_: self


def _listed(sizes: Any) -> Any:
    return sizes.tolist() if isinstance(sizes, torch.Tensor) else sizes


class _OnCpu(TorchFunctionMode):
    """Makes tensors on the processor where a GPU is named."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if "cuda" in str(kwargs.get("device", "")):
            kwargs["device"] = CPU
        result = func(*args, **kwargs)
        if func is torch.Tensor.type and len(args) == 1:
            return result.replace("torch.", "torch.cuda.")
        return result


def engine(folder: Path, **settings: Any) -> Engine:
    """Opens an engine of Megatron in this process."""
    start()
    given = Settings(str(folder), backend="megatron", device="cpu", **settings)
    return open_engine(given, World.join(given))


def start() -> None:
    """Prepares this process, before anything of Megatron is imported."""
    if "transformer_engine" in sys.modules:
        return
    # Megatron-Core does without Transformer Engine; Megatron-Bridge imports it.
    import megatron.core.models.gpt.gpt_layer_specs
    import megatron.core.optimizer  # noqa: F401

    stub, of_pytorch = _Stub("transformer_engine"), _Stub("transformer_engine.pytorch")
    stub.pytorch = of_pytorch  # type: ignore[attr-defined]
    sys.modules.update({own.__name__: own for own in (stub, of_pytorch)})
    torch.cuda.current_device = lambda: CPU  # type: ignore[assignment,return-value]
    torch.cuda.Stream = _Stream  # type: ignore[assignment,misc]
    torch.cuda.current_stream = lambda *_: _Stream()  # type: ignore[assignment]
    torch.cuda.stream = lambda *_: nullcontext()  # type: ignore[assignment]
    torch.cuda.synchronize = lambda *_: None
    _OnCpu().__enter__()  # type: ignore[no-untyped-call]
    # Parts of a matrix are copied to a GPU, and made contiguous; gloo sends other bytes of those that are not.
    scatter = dist.scatter
    dist.scatter = lambda own, parts=None, **given: scatter(
        own, parts and [part.contiguous() for part in parts], **given
    )
    # Counts of tokens come back from a GPU as lists.
    exchange = dist.all_to_all_single
    dist.all_to_all_single = lambda *given, **named: exchange(
        *given, **{name: _listed(x) if "sizes" in name else x for name, x in named.items()}
    )
    import layers
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer import transformer_block
    from megatron.core.transformer.moe import moe_utils
    from rloom.torch import megatron_model

    transformer_block.LayerNormImpl = layers.Norm
    moe_utils.te_general_gemm = None
    # Checkpoints are written by threads: ranks of the tests are daemons, which have no children.
    filesystem_async.mp = SimpleNamespace(get_context=lambda *_: multiprocessing.dummy)
    # There is no dropout to draw numbers for.
    random.CudaRNGStatesTracker.fork = lambda *_: nullcontext()
    random._get_all_rng_states = random._set_all_rng_states = lambda *_: ()
    settings_of_a_gpu = megatron_model.provider_settings

    def settings_of_a_processor(*given: Any, **options: Any) -> dict[str, Any]:
        own = {"transformer_layer_spec": layers.spec, **layers.WITHOUT_GPU}
        return settings_of_a_gpu(*given, **options) | own

    megatron_model.provider_settings = settings_of_a_processor
