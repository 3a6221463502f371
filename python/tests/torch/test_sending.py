"""Weights on their way to a server, through stand-ins of NCCL and of vLLM's receiver."""

from __future__ import annotations

import ctypes
import inspect
import json
import math
import os
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from gangs import gang
from rloom.torch import files, sending
from rloom.torch.errors import RankError, TransferError
from rloom.torch.rank import Rank
from rloom.torch.sending import Nccl, WeightSender
from rloom.torch.world import World
from safetensors.torch import load_file, save_file
from test_gradients import engine
from torch.multiprocessing.reductions import rebuild_cuda_tensor
from transformers.core_model_loading import WeightRenaming

#: Bytes of a chunk: several tensors in some, one in others.
LIMIT = 30_000
CHANNEL = {"form": "nccl", "unique_id": "aWQ=", "world_size": 3, "chunk_bytes": LIMIT}


class Memory:
    """A communicator whose other processes keep what they get."""

    def __init__(self, _device: torch.device) -> None:
        self.joined: tuple[bytes, int] | None = None
        self.received: list[torch.Tensor] = []

    def join(self, unique_id: bytes, size: int) -> None:
        self.joined = (unique_id, size)

    def broadcast(self, data: torch.Tensor) -> None:
        self.received.append(data.clone())

    def abort(self) -> None:
        self.joined = None


def sent(folder: Path, to: Path, settings: dict[str, Any]) -> list[Any]:
    """Sends all weights as the controller has it done; returns the descriptions and what arrived."""
    own = engine(folder, **settings)
    files.write_model(own, to)
    sender = WeightSender(own, lambda: False, Memory)
    sender.do_join({"receiver": "a", "channel": CHANNEL})
    chunks, asked = [], {"form": "nccl", "bytes": LIMIT, "first": True}
    while (chunk := sender.do_chunk(asked)["chunk"]) is not None:
        sender.do_broadcast({"form": "nccl", "receiver": "a"})
        chunks.append(chunk)
        asked = {**asked, "first": False}
    memory = cast("Memory | None", sender.joined.get("a"))
    assert memory is None or memory.joined == (b"id", 3)
    return [chunks, memory and [x.numpy() for x in memory.received]]


def unpacked(chunks: list[dict[str, Any]], received: list[Any]) -> dict[str, torch.Tensor]:
    """Takes the tensors from the buffers, each of which ends as vLLM's receiver expects it."""
    tensors = {}
    for chunk, data in zip(chunks, received, strict=True):
        dtypes = [getattr(torch, name) for name in chunk["dtype_names"]]
        sizes = [math.prod(s) * d.itemsize for s, d in zip(chunk["shapes"], dtypes, strict=True)]
        assert sizes == chunk["tensor_sizes"]
        assert sum(sizes) == len(data)
        assert sum(sizes[:-1]) <= LIMIT
        assert sum(sizes) > LIMIT or chunk is chunks[-1]
        parts = torch.split(torch.from_numpy(data), sizes)
        for name, shape, dtype, part in zip(chunk["names"], chunk["shapes"], dtypes, parts, strict=True):
            tensors[name] = part.view(dtype).view(shape)
    return tensors


@pytest.mark.parametrize(("ranks", "dtype"), [(1, "f32"), (2, "bf16")])
def test_rank_0_sends_what_a_folder_has(qwen: Path, tmp_path: Path, ranks: int, dtype: str) -> None:
    own, *others = gang(ranks, sent, qwen, tmp_path / "written", {"dtype": dtype})
    tensors, written = unpacked(*own), load_file(tmp_path / "written" / "model.safetensors")
    assert len(own[0]) > 2
    assert sorted(tensors) == sorted(written)
    for name, tensor in tensors.items():
        assert tensor.dtype == (torch.bfloat16 if dtype == "bf16" else torch.float32)
        assert torch.equal(tensor, written[name].to(tensor.dtype)), name
    assert all(other == [own[0], None] for other in others)


def test_the_value_head_stays(qwen: Path) -> None:
    own = engine(qwen, heads="policy_and_value")
    chunk = WeightSender(own, lambda: False, Memory).do_chunk(
        {"form": "nccl", "bytes": 1 << 30, "first": True}
    )
    assert not [name for name in chunk["chunk"]["names"] if name.startswith("score")]


class Stuck(Memory):
    """A communicator whose other processes never come."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.aborted = threading.Event()

    def join(self, unique_id: bytes, size: int) -> None:
        self.aborted.wait()

    def abort(self) -> None:
        self.aborted.set()


class Broken(Memory):
    """A communicator that fails."""

    def join(self, unique_id: bytes, size: int) -> None:
        raise TransferError("ncclCommInitRank: unhandled system error")


def test_a_cancelled_transfer_aborts_the_communicator(qwen: Path) -> None:
    looks = iter([False, False, True])
    sender = WeightSender(engine(qwen), lambda: next(looks), Stuck)
    with pytest.raises(TransferError, match="the server has failed"):
        sender.do_join({"receiver": "a", "channel": CHANNEL})
    assert cast("Stuck", sender.joined["a"]).aborted.is_set()
    sender.do_leave({"receiver": "a"})
    assert not sender.joined
    sender = WeightSender(engine(qwen), lambda: False, Broken)
    with pytest.raises(TransferError, match="unhandled system error"):
        sender.do_join({"receiver": "a", "channel": CHANNEL})


def gathered(folder: Path, settings: dict[str, Any], broken: str) -> str:
    """Gathers all weights on a rank whose memory does not suffice; returns the kind of the error."""

    def fails(*_: object) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    own, module = engine(folder, **settings), cast("Any", sending)
    world: Any = own.world
    if world.rank == 0 and broken == "cat":
        module.torch = SimpleNamespace(**{**vars(torch), "cat": fails})
    elif world.rank == 0:
        world.whole = lambda weight: SimpleNamespace(
            numel=weight.numel, shape=weight.shape, to=fails, gathered=World.whole(world, weight)
        )
    sender = WeightSender(own, lambda: False, Memory)
    try:
        sender.do_chunk({"form": "nccl", "bytes": LIMIT, "first": True})
    except RankError as error:
        # The ranks are in step: what follows ends on all of them.
        world.largest(torch.tensor([1]))
        return error.kind
    return "none"


@pytest.mark.parametrize("broken", ["cat", "to"])
def test_a_rank_without_memory_leaves_the_others_in_step(qwen: Path, broken: str) -> None:
    assert gang(2, gathered, qwen, {"dtype": "bf16"}, broken) == ["transfer", "peer_failed"]


def test_errors_of_libraries_leave_the_ranks_in_step(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: object) -> Any:
        raise OSError("libnccl.so.2: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    sender = WeightSender(engine(qwen), lambda: False)
    with pytest.raises(TransferError, match=r"libnccl\.so\.2: cannot open"):
        sender.do_channel({})
    with pytest.raises(TransferError, match=r"libnccl\.so\.2: cannot open"):
        sender.do_join({"receiver": "a", "channel": CHANNEL})

    def invalid(_: object) -> Any:
        raise RuntimeError("CUDA error: invalid argument")

    monkeypatch.setattr(sending, "handles", invalid)
    with pytest.raises(TransferError, match="invalid argument"):
        sender.do_chunk({"form": "ipc", "bytes": LIMIT, "first": True})


def test_models_with_other_names_in_files_are_refused(qwen: Path) -> None:
    own = engine(qwen)
    hf: Any = own.model.hf
    hf._weight_conversions = [WeightRenaming("decoder", "model")]
    with pytest.raises(TransferError, match=r"other names in files, such as decoder"):
        WeightSender(own, lambda: False, Memory).do_join({"receiver": "a", "channel": CHANNEL})


def test_a_parked_rank_stays_parked(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    freed, moved = list[str](), list[str]()
    monkeypatch.setattr(torch.cuda, "ipc_collect", lambda: freed.append("ipc"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append("cache"))
    own = engine(qwen)
    own.world.device = torch.device("cuda", 0)
    monkeypatch.setattr(own.optimizer, "move", lambda device: moved.append(device.type))
    rank = Rank(cast("Any", Frames()), 0, 1)
    rank.opened, rank.world = own, own.world
    rank.do_trim({}, {})
    assert (freed, moved) == (["ipc", "cache"], [])
    for _ in range(2):
        rank.do_park({}, {})
        assert (freed, moved) == (["ipc", "cache"] * 2, ["cpu"])
    own.resume()
    assert moved == ["cpu", "cuda"]


class Frames:
    """A connection with frames that have arrived."""

    def __init__(self, *jobs: str) -> None:
        self.jobs = list(jobs)
        self.sent: list[Any] = []

    def set_progress(self, *_: object) -> None:
        """No beats."""

    def receive(self, seconds: float) -> tuple[int, int, str, list[Any]]:
        assert seconds in (0.0, 1e8)
        return 1, 1, json.dumps({"job": self.jobs.pop(0)}), []

    def send(self, *arguments: Any) -> None:
        self.sent.append(arguments)


def test_a_job_is_cancelled_while_it_runs_and_not_later() -> None:
    assert Rank(cast("Any", Frames("cancel")), 0, 1)._is_cancelled()
    late = Frames("cancel", "shutdown")
    Rank(cast("Any", late), 0, 1).serve()
    assert not late.jobs
    assert not late.sent


def test_identifiers_are_those_of_nccl() -> None:
    try:
        ctypes.CDLL("libnccl.so.2")
    except OSError:
        pytest.skip("this PyTorch has no NCCL")
    own = Nccl(torch.device("cuda", 0))
    first, second = own.unique_id(), own.unique_id()
    assert (len(first), len(second), first != second) == (128, 128, True)


def test_handles_are_the_arguments_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes as base64; the order is that of `rebuild_cuda_tensor`, whose first seven arguments the server knows."""
    given = (torch.Tensor, (8,), (1,), 0, "storage", torch.uint8, 0, b"h", 8, 16, False, b"c", 2, b"e", True)
    assert list(inspect.signature(rebuild_cuda_tensor).parameters)[7:9] == [
        "storage_handle",
        "storage_size_bytes",
    ]
    assert len(inspect.signature(rebuild_cuda_tensor).parameters) == len(given)
    monkeypatch.setattr(sending, "reduce_tensor", lambda _: (rebuild_cuda_tensor, given))
    monkeypatch.setattr(torch.cuda, "ipc_collect", lambda: None)
    properties = type("Properties", (), {"uuid": "4711"})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    described = sending.handles(torch.zeros(8, dtype=torch.uint8))
    assert described == {
        "4711": {"bytes": 8, "offset": 0, "handle": ["aA==", 8, 16, False, "Yw==", 2, "ZQ==", True]}
    }


@pytest.mark.long
def test_the_receiver_of_vllm_takes_it(qwen: Path, tmp_path: Path) -> None:
    """vLLM's own code unpacks the buffers; its CUDA streams are replaced, its communicator reads files."""
    python = os.environ.get("RLOOM_TEST_VLLM")
    if python is None:
        pytest.skip("RLOOM_TEST_VLLM names no interpreter with vLLM")
    [[chunks, received]] = gang(1, sent, qwen, tmp_path / "written", {"dtype": "f32"})
    save_file({str(i): torch.from_numpy(x) for i, x in enumerate(received)}, tmp_path / "sent.safetensors")
    (tmp_path / "chunks.json").write_text(json.dumps({"chunks": chunks, "bytes": LIMIT}))
    script = Path(__file__).parent / "vllm_receiver.py"
    extension = Path(sending.__file__).parents[1] / "vllm" / "extension.py"
    subprocess.run([python, script, tmp_path, extension], check=True, timeout=600)
    taken = load_file(tmp_path / "taken.safetensors")
    written = load_file(tmp_path / "written" / "model.safetensors")
    assert sorted(taken) == sorted(written)
    assert all(torch.equal(taken[name], written[name]) for name in written)
