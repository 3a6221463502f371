"""Receives what ranks send by vLLM's own code: vllm_receiver.py FOLDER EXTENSION, in an environment with vLLM."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.multiprocessing.reductions import rebuild_cuda_tensor
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer import packed_tensor
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

folder, path = map(Path, sys.argv[1:])
given = json.loads((folder / "chunks.json").read_text())
sent = load_file(folder / "sent.safetensors")


class Group:
    """A communicator that reads what was sent, in order."""

    received = 0

    def broadcast(self, data: torch.Tensor, src: int) -> None:
        assert src == 0
        data.copy_(sent[str(self.received)])
        self.received += 1


class Model:
    """Keeps what it is given."""

    taken: dict[str, torch.Tensor] = {}  # noqa: RUF012

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        self.taken.update({name: tensor.clone() for name, tensor in weights})


stream: Any = SimpleNamespace(synchronize=lambda: None)
packed_tensor._get_streams = lambda _index, count: [stream] * count
torch.accelerator.current_device_index = lambda: 0
streams: Any = torch.cuda
streams.stream = lambda _: contextlib.nullcontext()
engine: Any = object.__new__(NCCLWeightTransferEngine)
engine.model, engine.device, engine.model_update_group = Model(), torch.device("cpu"), Group()
info = engine.init_info_cls(
    nccl_unique_id_b64="A" * 170 + "8=",
    rank_offset=1,
    world_size=2,
    packed=True,
    packed_buffer_size_bytes=given["bytes"],
)
engine.packed, engine.packed_buffer_size_bytes = info.packed, info.packed_buffer_size_bytes
engine.packed_num_buffers = info.packed_num_buffers
for chunk in given["chunks"]:
    update = {name: value for name, value in chunk.items() if name != "tensor_sizes"}
    engine.receive_weights(engine.parse_update_info(update))
assert engine.model_update_group.received == len(sent)
save_file(engine.model.taken, folder / "taken.safetensors")

# The worker extension: handles become the arguments of torch, and without a GPU there is a clear error.
sys.path.insert(0, str(path.parent))
extension = importlib.import_module(path.stem)
arguments = extension.rebuilt(
    {"bytes": 8, "offset": 0, "handle": ["aA==", 8, 16, False, "Yw==", 2, "ZQ==", True]}
)
assert len(arguments) == len(inspect.signature(rebuild_cuda_tensor).parameters)
assert arguments[7:] == (b"h", 8, 16, False, b"c", 2, b"e", True)
config: Any = SimpleNamespace(parallel_config=None, model_config=None)
own = extension.FileEngine(
    WeightTransferConfig(backend="rloom_file"), config, torch.device("cpu"), engine.model
)
own.init_transfer_engine(own.parse_init_info({}))
refused = ""
try:
    own.init_transfer_engine(own.parse_init_info({"backend": "nccl", "info": {}}))
except ValueError as error:
    refused = str(error)
assert refused == "weights over nccl need a GPU; this server computes on cpu", refused

# An update by chunks that leaves a parameter out does not get its label.
for name in ("initialize_layerwise_reload", "finalize_layerwise_reload", "refresh_heads"):
    setattr(extension, name, lambda *_: None)
own.model = SimpleNamespace(
    named_parameters=lambda: [("a", None), ("b", None), ("c", None)],
    load_weights=lambda weights: {name for name, _ in weights},
)
own.model_config = SimpleNamespace(quantization=None)
own._backend = SimpleNamespace(
    config=SimpleNamespace(backend="nccl"),
    parse_update_info=lambda chunk: chunk,
    receive_weights=lambda chunk: own._load([(name, None) for name in chunk["names"]]),
)
for sent_names, loaded in (
    (["a", "c"], "no weights for 1 parameters: ['b']"),
    (["a", "b", "c"], "version 2"),
    ([], ""),
):
    own.start_weight_update()
    for name in sent_names:
        own.receive_weights(extension.FileUpdate(label="version 2", chunk={"names": [name]}))
    own.finish_weight_update()
    assert own.loaded == loaded, own.loaded
