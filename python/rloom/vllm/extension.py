"""Worker extension of a vLLM server: weights from a folder, and log-probabilities of the full softmax.

A server is started with `--worker-extension-cls` naming `Extension` and `--weight-transfer-config '{"backend": "rloom_file"}'`.
The module needs nothing of RLoom, so that it also works as a single file in the environment of vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import vllm
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.v1.sample.sampler import Sampler

BACKEND = "rloom_file"
"""Name of the weight-transfer backend."""

PROTOCOL = 1
"""Changes with every change that the client has to know."""

GREEDY = 1e-5
"""Temperatures below are greedy decoding, whose log-probabilities are those at temperature 1."""


@dataclass
class FileInit(WeightTransferInitInfo):
    """Nothing is exchanged in advance."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    """A folder with safetensors files by the names of transformers, and the label of its weights."""

    path: str
    label: str


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


class FileEngine(WeightTransferEngine[FileInit, FileUpdate]):
    """Loads whole models from folders."""

    init_info_cls = FileInit
    update_info_cls = FileUpdate

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loaded = ""
        self._received = ""
        self._expected: set[str] = set()

    def init_transfer_engine(self, init_info: FileInit) -> None:
        """Nothing to prepare."""

    def start_weight_update(self) -> None:
        self.loaded = self._received = ""
        self._expected = {name for name, _ in self.model.named_parameters()}
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: FileUpdate) -> None:
        names = self.model.load_weights(tensors(Path(update_info.path)))
        missing = sorted(self._expected - names) if names is not None else []
        if missing and self.model_config.quantization is None:
            raise ValueError(
                f"{update_info.path} has no weights for {len(missing)} parameters: {missing[:3]}"
            )
        self._received = update_info.label

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        self.loaded = self._received

    def shutdown(self) -> None:
        """Nothing to release."""


def full_softmax(logits: torch.Tensor, temperature: torch.Tensor | None) -> torch.Tensor:
    """Log-probabilities at the temperature of each row, before any filter; row-wise temperature 1 for greedy decoding."""
    scaled = logits.to(torch.float32)
    if temperature is not None:
        scaled = scaled / torch.where(temperature < GREEDY, 1.0, temperature).unsqueeze(1)
    return scaled.log_softmax(dim=-1)


class FullSoftmaxSampler(Sampler):
    """Reports log-probabilities of the full softmax; vLLM's own are those of the tokens that filters leave."""

    rloom_full_softmax = True

    def forward(self, logits: torch.Tensor, sampling_metadata: Any, *args: Any, **kwargs: Any) -> Any:
        self._full = None
        if sampling_metadata.max_num_logprobs is not None:
            # Before the sampler, which works in place.
            self._full = full_softmax(logits, sampling_metadata.temperature)
        return super().forward(logits, sampling_metadata, *args, **kwargs)

    def sample(
        self, logits: torch.Tensor, sampling_metadata: Any, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        sampled, processed = super().sample(logits, sampling_metadata, *args, **kwargs)
        return sampled, processed if processed is None or self._full is None else self._full


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
        }


WeightTransferEngineFactory.register_engine(BACKEND, FileEngine)
