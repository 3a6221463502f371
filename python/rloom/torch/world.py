"""The ranks of a gang: placement of weights, and small agreements over the CPU."""

from __future__ import annotations

import math
import os
import socket
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor, nn
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from rloom.torch.division import Part, copy_part
from rloom.torch.errors import CheckpointError, PeerFailedError, RankError
from rloom.torch.model import ScoringModel, open_model
from rloom.torch.quantized import Computation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rloom.torch.settings import Heads, Settings

T = TypeVar("T")

#: Longest wait of a rank for another one; the controller has shorter ones.
RENDEZVOUS = timedelta(minutes=30)
#: Attribute of weights that another library divides.
WHOLE_SHAPE = "whole_shape"


def rendezvous(port: int | None = None) -> TCPStore:
    """Opens the store of the ranks at `MASTER_ADDR`, or connects to it if there is a `port`.

    A new one listens on that address alone, at a port that the system chooses: a port that was chosen before the store
    opens could be another program's by then.
    """
    address, size = os.environ["MASTER_ADDR"], int(os.environ["WORLD_SIZE"])
    if port is not None:
        return TCPStore(address, port, size, is_master=False, timeout=RENDEZVOUS)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family)
    port = listener.getsockname()[1]
    # PyTorch closes the descriptor.
    descriptor = listener.detach()
    return TCPStore(
        address,
        port,
        size,
        is_master=True,
        timeout=RENDEZVOUS,
        wait_for_workers=False,
        master_listen_fd=descriptor,
    )


@dataclass
class World:
    """This process among the ranks."""

    rank: int
    size: int
    device: torch.device
    #: Mesh that weights are divided over; `None` for one rank with whole weights.
    mesh: DeviceMesh | None
    #: Number of consecutive ranks that compute the same micro-batches.
    side_by_side: int = 1
    #: Number of pipeline stages, each of which has consecutive ranks.
    stages: int = 1
    #: Ranks that divide the tokens of a micro-batch.
    sequence_group: dist.ProcessGroup | None = None
    #: Parts of weights that another library has divided.
    parts: dict[Tensor, Part] = field(default_factory=dict)
    #: Number of tensors moved and of forward passes, which shows that a job of unknown length makes progress.
    advanced: int = 0

    @staticmethod
    def join(settings: Settings, store: Store | None = None) -> World:
        """Joins the other ranks, by default through the store that the environment describes (`MASTER_PORT`)."""
        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        is_gpu = settings.device == "cuda" or (settings.device == "auto" and torch.cuda.is_available())
        device = torch.device("cpu")
        if is_gpu:
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count())
            torch.cuda.set_device(device)
        if settings.threads:
            torch.set_num_threads(settings.threads)
        if settings.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        parallel, sizes = settings.sequence_parallel, settings.parallel
        of_group = parallel * math.prod(sizes.values())
        if size % of_group:
            raise RankError(f"{size} ranks are not a multiple of the {of_group} that compute one micro-batch")
        is_divided = size > 1 or settings.offload or settings.backend != "torch"
        if not is_divided:
            return World(rank, size, device, None)
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if is_gpu else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        if settings.backend == "megatron":
            side_by_side = sizes["tensor_parallel"] * sizes["context_parallel"]
            return World(rank, size, device, None, side_by_side, sizes["pipeline_parallel"])
        shard = settings.shard or size
        if size % shard:
            raise RankError(f"shard = {shard} does not divide {size} ranks")
        shape = {"shard": size} if shard == size else {"replicate": size // shard, "shard": shard}
        mesh = init_device_mesh(device.type, tuple(shape.values()), mesh_dim_names=tuple(shape))
        group = dist.new_subgroups(parallel)[0] if parallel > 1 else None  # type: ignore[no-untyped-call]
        return World(rank, size, device, mesh, parallel * sizes["tensor_parallel"], sequence_group=group)

    @property
    def groups(self) -> int:
        """Number of groups of ranks; each group computes micro-batches of its own."""
        return self.size // (self.side_by_side * self.stages)

    @property
    def group(self) -> int:
        """Group of this rank."""
        return self.rank // self.side_by_side % self.groups

    def largest(self, numbers: Tensor) -> Tensor:
        """Returns the elementwise maximum over the ranks of integers on the CPU."""
        if self.size > 1:
            dist.all_reduce(numbers, op=dist.ReduceOp.MAX)
        return numbers

    @contextmanager
    def agreement(self) -> Iterator[None]:
        """Raises on every rank what any of them raises, so that none waits for one that gave up."""
        failure = None
        try:
            yield
        except RankError as error:
            failure = error
        is_failed = self.largest(torch.tensor([failure is not None], dtype=torch.long)).item()
        if failure is not None:
            raise failure
        if is_failed:
            raise PeerFailedError("another rank failed")

    @contextmanager
    def access(self, access: str) -> Iterator[None]:
        """Raises on every rank what any of them raises while it reads or writes files."""
        with self.agreement():
            try:
                yield
            except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
                raise CheckpointError(f"could not {access}: {error}") from error

    def sum_over_shards(self, number: float) -> float:
        """Returns the sum over the ranks that hold parts of one copy, with the same bits on each."""
        return number if self.mesh is None else sum(self.gathered(number, self.mesh["shard"].get_group()))

    def gathered(self, value: T, group: dist.ProcessGroup | None = None) -> list[T]:
        """Returns the values of all ranks, or of those of a group, in their order."""
        if self.size == 1:
            return [value]
        values = [value] * dist.get_world_size(group)
        dist.all_gather_object(values, value, group=group)
        return values

    def open(
        self, folder: str, heads: Heads, settings: Settings, *, is_trained: bool, merged: str | None = None
    ) -> ScoringModel:
        """Opens a model on this rank: whole, or its shard. `merged` is an adapter that is added to one that is not trained."""
        model = self._opened(folder, heads, settings, is_trained=is_trained, merged=merged)
        model.device = self.device
        model.group = self.sequence_group
        model.register_forward_hook(lambda *_: self.advance())
        return model

    def advance(self) -> None:
        """Counts progress."""
        self.advanced += 1

    def _opened(
        self, folder: str, heads: Heads, settings: Settings, *, is_trained: bool, merged: str | None
    ) -> ScoringModel:
        dtype = torch.float64 if settings.dtype == "f64" else torch.float32
        lora, merged = (settings.lora, settings.merged) if is_trained else (None, merged)
        # DeepSpeed divides what it trains by itself.
        if self.mesh is None or (is_trained and settings.backend == "deepspeed"):
            computation = None
            if self.mesh is None:
                computation = Computation(torch.bfloat16 if settings.dtype == "bf16" else dtype, self.device)
            model = open_model(folder, heads, dtype=dtype, lora=lora, merged=merged, computation=computation)
            _prepare(model, settings, is_trained=is_trained)
            model = model.to(self.device)
            if settings.dtype == "bf16" and settings.backend == "torch":
                _cast_weights(model, torch.bfloat16)
            _checkpoint_activations(model, settings)
            return model
        model = open_model(folder, heads, meta=True, dtype=dtype, lora=lora)
        _prepare(model, settings, is_trained=is_trained)
        _checkpoint_activations(model, settings)
        self._shard(model, settings, offload=settings.offload or not is_trained)
        host = torch.device("cpu") if settings.offload or not is_trained else self.device
        model.to_empty(device=host)
        model.hf.tie_weights()
        whole = None
        if self.rank == 0:
            whole = open_model(folder, heads, dtype=dtype, lora=lora, merged=merged)
            _prepare(whole, settings, is_trained=is_trained)
        self._fill(model, whole)
        return model

    def _shard(self, model: ScoringModel, settings: Settings, *, offload: bool) -> None:
        assert self.mesh is not None
        computes_in = torch.bfloat16 if settings.dtype == "bf16" else None
        mixed = MixedPrecisionPolicy(
            param_dtype=computes_in, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        if settings.dtype == "f64":
            mixed = MixedPrecisionPolicy(cast_forward_inputs=False)
        policy = CPUOffloadPolicy() if offload and self.device.type != "cpu" else OffloadPolicy()
        for module in [*model.layers(), model]:
            fully_shard(module, mesh=self.mesh, mp_policy=mixed, offload_policy=policy)
            sharded = cast("FSDPModule", module)
            # Counts are global, so gradients are summed over ranks, not averaged.
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)
            # A rank with an empty micro-batch uses no head, and experts are used by some ranks only.
            sharded.set_reduce_scatter_unused_params(True, recurse=False)

    @torch.no_grad()
    def _fill(self, model: ScoringModel, whole: ScoringModel | None) -> None:
        """Copies rank 0's weights and buffers to the shards of all ranks."""
        given = {} if whole is None else dict([*whole.named_parameters(), *whole.named_buffers()])
        for name, own in [*model.named_parameters(), *model.named_buffers()]:
            shape, source = tuple(own.shape), given.get(name)
            full = torch.empty(shape, dtype=own.dtype) if source is None else source.detach().contiguous()
            self.broadcast_into(own, full)

    def broadcast_into(self, own: Tensor, full: Tensor) -> None:
        """Sends rank 0's `full` to all ranks, which keep their part in `own`."""
        if self.size > 1:
            dist.broadcast(full, src=0)
        self.keep_part(own, full)

    @torch.no_grad()
    def keep_part(self, own: Tensor, full: Tensor) -> None:
        """Copies this rank's part of a whole tensor to `own`."""
        self.advance()
        if own in self.parts:
            part = self.parts[own]
            copy_part(part.flat, part.ordered(full))
        elif isinstance(own, DTensor):
            copy_part(own, full.reshape(own.shape))
        else:
            own.copy_(full.reshape(own.shape))

    def whole(self, tensor: Tensor) -> Tensor:
        """Returns a tensor with all of its parts; every rank has to call it."""
        self.advance()
        if tensor in self.parts:
            return self.parts[tensor].whole()
        full = tensor.detach()
        return full.full_tensor() if isinstance(full, DTensor) else full

    def close(self) -> None:
        """Leaves the process group."""
        if dist.is_initialized():
            dist.destroy_process_group()


def shape_of(weight: Tensor) -> torch.Size:
    """Returns the shape of a weight, also of one that another library has divided."""
    return torch.Size(getattr(weight, WHOLE_SHAPE, weight.shape))


def local_part(tensor: Tensor) -> Tensor:
    """Returns the part of a tensor on this rank."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _prepare(model: ScoringModel, settings: Settings, *, is_trained: bool) -> None:
    """Chooses the weights that get gradients. The base of an adapter keeps the number format of the computation."""
    model.set_trained(is_trained)
    if model.adapter is not None and settings.dtype == "bf16":
        for weight in model.base_weights().values():
            if weight.is_floating_point():
                weight.data = weight.data.to(torch.bfloat16)


class _CastWeights(nn.Module):
    """A module that computes with casts of its weights."""

    def __init__(self, module: nn.Module, of_children: set[int], dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.forward = module, module.forward
        self._own = {
            name: w
            for name, w in self.named_parameters()
            if id(w) not in of_children and w.is_floating_point()
        }
        self._dtype = dtype

    def call(self, *args: object, **kwargs: Any) -> object:  # noqa: ANN401
        casts = {name: weight.to(self._dtype) for name, weight in self._own.items()}
        return functional_call(self, casts, args, kwargs)


def _cast_weights(model: ScoringModel, dtype: torch.dtype) -> None:
    """Makes each layer and the rest cast their weights, as `fully_shard` does, but without buffers to send them."""
    layers = model.layers()
    of_layers = {id(weight) for layer in layers for weight in layer.parameters()}
    for module, of_children in [*((layer, set[int]()) for layer in layers), (model, of_layers)]:
        module.forward = _CastWeights(module, of_children, dtype).call


def _checkpoint_activations(model: ScoringModel, settings: Settings) -> None:
    part = settings.activation_checkpointing
    for layer in model.layers() if part != "none" else ():
        for name, child in layer.named_children() if part == "attention" else [("", layer)]:
            if "attn" in name or "attention" in name or child is layer:
                child.forward = _recomputed(child.forward, has_dropout=settings.lora is not None)


def _recomputed(forward: Callable[..., Any], *, has_dropout: bool) -> Callable[..., Any]:
    """Returns a forward pass whose activations are computed again in the backward pass."""

    def recomputed(*args: object, **kwargs: Any) -> object:  # noqa: ANN401
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(
            partial(forward, **kwargs), *args, use_reentrant=False, preserve_rng_state=has_dropout
        )

    return recomputed
