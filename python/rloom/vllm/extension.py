"""Worker extension of a vLLM server: weights from folders or GPUs, log-probabilities of the full softmax.

A server is started with `--worker-extension-cls` naming `Extension`, and with
`--weight-transfer-config '{"backend": "rloom_file"}'`. The module needs nothing of RLoom, so that it also
works as a single file in the environment of vLLM.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import vllm
from safetensors import safe_open
from vllm import envs
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.lora.layers import LogitsProcessorWithLoRA
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform
from vllm.v1.sample.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vllm.v1.outputs import SamplerOutput
    from vllm.v1.sample.metadata import SamplingMetadata

BACKEND = "rloom_file"
"""Name of the weight-transfer backend."""

PROTOCOL = 3
"""Changes with every change that the client has to know."""

GREEDY = 1e-5
"""Temperatures below are greedy decoding, whose log-probabilities are those at temperature 1."""


@dataclass
class FileInit(WeightTransferInitInfo):
    """A backend of vLLM with its settings, for weights from the memory of other processes."""

    backend: str | None = None
    info: dict[str, Any] = field(default_factory=dict)


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    """A folder of safetensors files or a chunk for vLLM's backend, by the names of transformers."""

    label: str
    path: str | None = None
    chunk: dict[str, Any] | None = None


def weight_files(folder: Path) -> list[Path]:
    """Files of a model folder: those of its index, or else the only one."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        return [folder / name for name in names]
    return [folder / "model.safetensors"]


def tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of a model folder, one at a time."""
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                yield name, opened.get_tensor(name)


def refresh_heads(model: torch.nn.Module) -> None:
    """Packs output heads again.

    On CPUs, a head that shares the embedding's weights has a packed copy, which a reload of the embedding
    leaves as it was.
    """
    if not current_platform.is_cpu():
        return
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


def rebuilt(shared: dict[str, Any]) -> tuple[Any, ...]:
    """Arguments by which torch opens a buffer of bytes of another process; pickles are not accepted."""
    size, handle = (
        shared["bytes"],
        [base64.b64decode(x) if isinstance(x, str) else x for x in shared["handle"]],
    )
    storage = torch.storage.TypedStorage
    return (torch.Tensor, (size,), (1,), shared["offset"], storage, torch.uint8, 0, *handle)


class FileEngine(WeightTransferEngine[FileInit, FileUpdate]):
    """Loads whole models from folders, or from GPUs through a backend of vLLM."""

    init_info_cls = FileInit
    update_info_cls = FileUpdate

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.loaded = ""
        self._received = ""
        self._missing: set[str] = set()
        self._backend: WeightTransferEngine[Any, Any] | None = None

    def init_transfer_engine(self, init_info: FileInit) -> None:
        self.shutdown()
        if init_info.backend is None:
            return
        if not current_platform.is_cuda_alike():
            device = current_platform.device_type
            raise ValueError(f"weights over {init_info.backend} need a GPU; this server computes on {device}")
        config = WeightTransferConfig(backend=init_info.backend)
        model: Any = SimpleNamespace(load_weights=self._load)  # all that backends call while they receive
        backend = WeightTransferEngineFactory.create_engine(config, self.vllm_config, self.device, model)
        backend.init_transfer_engine(backend.parse_init_info(init_info.info))
        self._backend = backend

    def start_weight_update(self) -> None:
        self.loaded = self._received = ""
        self._missing = {name for name, _ in self.model.named_parameters()}
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: FileUpdate) -> None:
        if update_info.path is None:
            self._receive_chunk(dict(update_info.chunk or {}))
            self._received = update_info.label
            return
        self._load(tensors(Path(update_info.path)))
        if self._incomplete:
            raise ValueError(f"{update_info.path} has {self._incomplete}")
        self._received = update_info.label

    def _load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str] | None:
        """Loads tensors and notes their parameters, if the model tells which."""
        names: set[str] | None = self.model.load_weights(weights)
        self._missing -= self._missing if names is None else names
        return names

    @property
    def _incomplete(self) -> str:
        """Names parameters that an update has left out; quantized models have others than their files."""
        if not self._missing or self.model_config.quantization is not None:
            return ""
        return f"no weights for {len(self._missing)} parameters: {sorted(self._missing)[:3]}"

    def _receive_chunk(self, chunk: dict[str, Any]) -> None:
        if self._backend is None:
            raise ValueError("no connection to the trainer's memory")
        handles = chunk.get("ipc_handles")
        if handles is not None:
            chunk["ipc_handles"] = {gpu: rebuilt(shared) for gpu, shared in handles.items()}
        self._backend.receive_weights(self._backend.parse_update_info(chunk))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        if self._backend is not None and self._backend.config.backend == "ipc":
            self._backend.shutdown()  # the trainer's buffer; the backend opens the next one
        refresh_heads(self.model)
        # Its reader names what is missing. An error would leave the update open, which the next one could not end.
        self.loaded = self._received and (self._incomplete or self._received)

    def shutdown(self) -> None:
        """Leaves the communicator, or closes the buffer, of a backend."""
        if self._backend is not None:
            self._backend.shutdown()
            self._backend = None


def full_softmax(logits: torch.Tensor, temperature: torch.Tensor | None) -> torch.Tensor:
    """Log-probabilities at the temperature of each row, before any filter; 1 for greedy decoding."""
    scaled = logits.to(torch.float32)
    if temperature is not None:
        scaled = scaled / torch.where(temperature < GREEDY, 1.0, temperature).unsqueeze(1)
    return scaled.log_softmax(dim=-1)


class FullSoftmaxSampler(Sampler):
    """Reports log-probabilities of the full softmax; vLLM's own are of the tokens that filters leave."""

    rloom_full_softmax = True

    def forward(
        self, logits: torch.Tensor, sampling_metadata: SamplingMetadata, *args: object, **kwargs: object
    ) -> SamplerOutput:
        self._full = None
        if sampling_metadata.max_num_logprobs is not None:
            # Before the sampler, which works in place.
            self._full = full_softmax(logits, sampling_metadata.temperature)
        return super().forward(logits, sampling_metadata, *args, **kwargs)

    def sample(
        self, logits: torch.Tensor, sampling_metadata: SamplingMetadata, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        sampled, processed = super().sample(logits, sampling_metadata, *args, **kwargs)
        return sampled, processed if processed is None or self._full is None else self._full


def max_adapter_rank(config: Any) -> int:
    """Largest rank of adapters that the server loads at the request of a client; 0 for none."""
    return config.max_lora_rank if config is not None and envs.VLLM_ALLOW_RUNTIME_LORA_UPDATING else 0


def logits_of_base(
    self: Any,
    hidden_states: torch.Tensor,
    lm_head: Any,
    embedding_bias: torch.Tensor | None = None,
    skip_gather: bool = False,
) -> torch.Tensor | None:
    """Computes a head as without adapters, which clients never give one.

    vLLM 0.32 adapts the rows of prompt log-probabilities as if they were those that are sampled: on CPUs the
    engine dies where their numbers differ.
    """
    head = getattr(lm_head, "base_layer", lm_head)
    logits: torch.Tensor | None = self.base_layer._get_logits(
        hidden_states, head, embedding_bias, skip_gather
    )
    return logits


LogitsProcessorWithLoRA._get_logits = logits_of_base


class Extension:
    """Methods that the controller calls on every worker."""

    def rloom_describe(self) -> dict[str, Any]:
        """Describes the worker; replaces its sampler at the first call."""
        worker: Any = self
        config = worker.vllm_config
        sampler = getattr(worker.model_runner, "sampler", None)
        if type(sampler) is Sampler:
            sampler.__class__ = FullSoftmaxSampler
        engine = worker.weight_transfer_engine
        return {
            "protocol": PROTOCOL,
            "version": vllm.__version__,
            "loaded": getattr(engine, "loaded", ""),
            "full_softmax": getattr(sampler, "rloom_full_softmax", False),
            "logprobs_mode": str(config.model_config.logprobs_mode),
            "max_model_len": config.model_config.max_model_len,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "vocabulary": config.model_config.get_vocab_size(),
            "max_adapter_rank": max_adapter_rank(config.lora_config),
        }


WeightTransferEngineFactory.register_engine(BACKEND, FileEngine)
