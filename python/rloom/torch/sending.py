"""Weights on their way from the ranks' memory to a server: over NCCL, or as handles of CUDA memory."""

from __future__ import annotations

import base64
import ctypes
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.multiprocessing.reductions import reduce_tensor
from transformers.core_model_loading import revert_weight_conversion

from rloom.torch.errors import TransferError
from rloom.torch.settings import VALUE_NAMES
from rloom.torch.world import shape_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rloom.torch.engine import Engine

#: Interval at which a transfer asks whether the controller has cancelled it.
LOOK_SECONDS = 0.02
#: Numbers of NCCL's enumerations.
UINT8, FLOAT32, SUM = 1, 7, 0


@contextmanager
def transfer_errors() -> Iterator[None]:
    """Turns errors of CUDA and of libraries into errors that leave the ranks in step."""
    try:
        yield
    except (OSError, RuntimeError, AttributeError, ValueError, LookupError) as error:
        raise TransferError(f"{type(error).__name__}: {error}") from error


class Communicator(Protocol):
    """Connection of rank 0 with the processes of one server."""

    def join(self, unique_id: bytes, size: int) -> None:
        """Joins as rank 0 and takes part in the first sum, by which vLLM's workers begin."""

    def broadcast(self, data: torch.Tensor) -> None:
        """Sends bytes and waits until they have arrived."""

    def abort(self) -> None:
        """Ends all calls in other threads."""


class _UniqueId(ctypes.Structure):
    _fields_ = (("data", ctypes.c_byte * 128),)


class Nccl:
    """NCCL by its C interface.

    Groups of `torch.distributed` have one world, and servers are not in it; `torch.cuda.nccl` cannot abort.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._library = ctypes.CDLL("libnccl.so.2")  # the one that torch has loaded
        self._comm = ctypes.c_void_p()

    def unique_id(self) -> bytes:
        """Returns the identifier of a new communicator."""
        own = _UniqueId()
        self._call("ncclGetUniqueId", ctypes.byref(own))
        return bytes(own)

    def join(self, unique_id: bytes, size: int) -> None:
        torch.cuda.set_device(self.device)
        own = _UniqueId.from_buffer_copy(unique_id)
        self._call("ncclCommInitRank", ctypes.byref(self._comm), ctypes.c_int(size), own, ctypes.c_int(0))
        zero = torch.zeros(1, device=self.device)
        self._collective("ncclAllReduce", zero, FLOAT32, SUM)

    def broadcast(self, data: torch.Tensor) -> None:
        torch.cuda.set_device(self.device)
        self._collective("ncclBroadcast", data, UINT8, 0)

    def abort(self) -> None:
        comm, self._comm = self._comm, ctypes.c_void_p()
        if comm:
            self._library.ncclCommAbort(comm)

    def _collective(self, name: str, data: torch.Tensor, dtype: int, argument: int) -> None:
        stream = torch.cuda.current_stream(self.device)
        place = ctypes.c_void_p(data.data_ptr())
        count, queue = ctypes.c_size_t(data.numel()), ctypes.c_void_p(stream.cuda_stream)
        self._call(name, place, place, count, ctypes.c_int(dtype), ctypes.c_int(argument), self._comm, queue)
        stream.synchronize()

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            self._library.ncclGetErrorString.restype = ctypes.c_char_p
            raise TransferError(f"{name}: {self._library.ncclGetErrorString(code).decode()}")


class WeightSender:
    """One rank's part of transfers: all ranks gather the weights, rank 0 sends them."""

    def __init__(
        self,
        engine: Engine,
        is_cancelled: Callable[[], bool],
        communicator: Callable[[torch.device], Communicator] = Nccl,
    ) -> None:
        self.engine = engine
        self.is_cancelled = is_cancelled
        self.communicator = communicator
        self.joined: dict[str, Communicator] = {}
        self._chunks: Iterator[dict[str, Any]] = iter(())
        self._packed: torch.Tensor | None = None

    @property
    def _sends(self) -> bool:
        return self.engine.world.rank == 0

    def do_channel(self, _asked: dict[str, Any]) -> dict[str, Any]:
        """Returns the identifier of a new communicator."""
        with self.engine.world.agreement(), transfer_errors():
            own = Nccl(self.engine.world.device).unique_id() if self._sends else b""
        return {"unique_id": base64.b64encode(own).decode()}

    def do_join(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Connects rank 0 with a server, whose workers join at the same time."""
        self.do_leave(asked)
        channel, name = asked["channel"], asked["receiver"]
        with self.engine.world.agreement(), transfer_errors():
            check_names(self.engine)
            if self._sends and channel["form"] == "nccl":
                own = self.joined[name] = self.communicator(self.engine.world.device)
                identifier = base64.b64decode(channel["unique_id"])
                self._run(own, lambda: own.join(identifier, channel["world_size"]))
        return {}

    def do_chunk(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Gathers the next tensors and describes them; nothing after the last ones."""
        if asked["first"]:
            self._chunks = self._gathered(asked["bytes"])
        self._packed = None
        chunk = next(self._chunks, None)
        with self.engine.world.agreement(), transfer_errors():
            if chunk and self._packed is not None and asked["form"] == "ipc":
                chunk["ipc_handles"] = handles(self._packed)
        return {"chunk": chunk}

    def do_broadcast(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Sends what was gathered; a server on the same GPU reads it by itself."""
        with self.engine.world.agreement(), transfer_errors():
            packed = self._packed
            if self._sends and packed is not None and asked["form"] == "nccl":
                own = self.joined[asked["receiver"]]
                self._run(own, lambda: own.broadcast(packed))
        return {}

    def do_leave(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Forgets a server that has failed."""
        self._chunks, self._packed = iter(()), None
        left = self.joined.pop(asked["receiver"], None)
        if left is not None:
            left.abort()
        return {}

    def _gathered(self, limit: int) -> Iterator[dict[str, Any]]:
        """Yields descriptions of tensors whose bytes are in `_packed`, cut as vLLM's receiver expects it."""
        engine = self.engine
        dtype = torch.bfloat16 if engine.settings.dtype == "bf16" else torch.float32
        named = {n: w for n, w in engine.model.named_weights().items() if n not in VALUE_NAMES}
        last, parts, total = next(reversed(named)), list[torch.Tensor](), 0
        chunk: dict[str, Any] = {"names": [], "dtype_names": [], "shapes": [], "tensor_sizes": []}
        failure: TransferError | None = None
        for name, weight in named.items():
            whole = engine.world.whole(weight)
            size = whole.numel() * dtype.itemsize
            # After an error it still takes part in what other ranks gather.
            if self._sends and failure is None:
                try:
                    with transfer_errors():
                        on_device = whole.to(engine.world.device, dtype)
                        parts.append(on_device.contiguous().view(-1).view(torch.uint8))
                except TransferError as error:
                    failure = error
            about = (name, str(dtype).removeprefix("torch."), list(whole.shape), size)
            for field, value in zip(chunk, about, strict=True):
                chunk[field].append(value)
            total += size
            if total > limit or name == last:
                with engine.world.agreement(), transfer_errors():
                    if failure is not None:
                        raise failure
                    self._packed = torch.cat(parts) if parts else None
                    if self._packed is not None and self._packed.is_cuda:
                        torch.cuda.synchronize()
                parts.clear()
                yield chunk
                chunk, total = {field: [] for field in chunk}, 0

    def _run(self, communicator: Communicator, call: Callable[[], None]) -> None:
        """Runs a call that ends when the server does its part, or when the controller cancels it."""
        failures: list[BaseException] = []

        def work() -> None:
            try:
                call()
            except BaseException as error:
                failures.append(error)

        # A call that ignores its abortion ends with the process.
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(LOOK_SECONDS)
            if thread.is_alive() and self.is_cancelled():
                communicator.abort()
                raise TransferError("the server has failed")
        if failures:
            raise TransferError(str(failures[0])) from failures[0]


def check_names(engine: Engine) -> None:
    """Refuses a model whose tensors have other names or shapes in its files, by which servers know them."""
    shapes = {n: tuple(shape_of(w)) for n, w in engine.model.named_weights().items() if n not in VALUE_NAMES}
    metas = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    written = revert_weight_conversion(engine.model.hf, metas)
    other = sorted(shapes.items() ^ {name: tuple(x.shape) for name, x in written.items()}.items())
    if other:
        raise TransferError(
            f"tensors have other names in files, such as {other[0][0]}; servers need a folder"
        )


def handles(packed: torch.Tensor) -> dict[str, Any]:
    """Describes a buffer for processes on the same GPU: what `reduce_tensor` returns, as JSON."""
    torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
    _, arguments = reduce_tensor(packed)  # type: ignore[no-untyped-call]
    handle = [base64.b64encode(x).decode() if isinstance(x, bytes) else x for x in arguments[7:]]
    uuid = str(torch.cuda.get_device_properties(packed.device).uuid)
    return {uuid: {"bytes": packed.numel(), "offset": arguments[3], "handle": handle}}
