"""Weights that DeepSpeed has divided: by matrices among ranks of a tensor group, and flat among the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from rloom.torch.errors import ModelError

if TYPE_CHECKING:
    from rloom.torch.model import ScoringModel
    from rloom.torch.world import World

#: What DeepSpeed does with the layers of each style in the plan of transformers.
STYLES: dict[str, dict[str, Any]] = {
    "colwise": {"partition_type": "column"},
    "rowwise": {"partition_type": "row"},
    # Norms of single heads, which each rank has some of.
    "replicated_with_grad_allreduce": {"partition_type": "skip", "grad_allreduce": True},
}


def layers_to_divide(model: ScoringModel, parallel: int) -> list[dict[str, Any]]:
    """Returns the layers of a model to divide by rows or columns, in the form of DeepSpeed's configuration.

    The plan of transformers names them. Embeddings and heads are not divided: scores are computed from whole rows.
    """
    config, name = model.hf.config.get_text_config(), type(model.hf).__name__
    plan: dict[str, str] = getattr(config, "base_model_tp_plan", None) or {}
    unknown = sorted(set(plan.values()) - set(STYLES))
    if unknown or not plan:
        why = f"its plan has {unknown[0]!r}" if unknown else "transformers has no plan for it"
        raise ModelError(f"{name}: the DeepSpeed backend cannot divide its matrices: {why}")
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    if heads % parallel:
        raise ModelError(f"tensor_parallel = {parallel} does not divide the {heads} key heads of {name}")
    layers = []
    for pattern, style in plan.items():
        names = pattern.replace(".", r"\.").replace("*", ".*")
        layers.append({"patterns": [rf".*{names}\.weight$"], **STYLES[style]})
    return layers


def mesh_of(world: World, parallel: int) -> DeviceMesh:
    """Ranks by their place in a tensor group, whose ranks are consecutive, and by group."""
    ranks = torch.arange(world.size).view(-1, parallel).T
    return DeviceMesh(world.device.type, ranks, mesh_dim_names=("tensor", "shard"))


@dataclass(frozen=True)
class Part:
    """This rank's part of a weight, or of a moment or gradient of it."""

    #: The whole as a list: its rows, or what ranks of a tensor group have of all rows one after the other.
    flat: DTensor
    shape: torch.Size
    #: Number of ranks that have columns of their own.
    columns: int = 1

    @staticmethod
    def of(local: Tensor, weight: nn.Parameter, shape: torch.Size, mesh: DeviceMesh) -> Part:
        """Returns the part whose numbers are in `local`, which DeepSpeed has filled up to make parts equal."""
        divided: torch.Size = weight.ds_shape  # type: ignore[attr-defined]
        size = divided.numel()
        first = min(mesh["shard"].get_local_rank() * local.numel(), size)
        own = local[: min(local.numel(), size - first)]
        is_whole = divided == shape
        placements: list[Placement] = [Replicate() if is_whole else Shard(0), Shard(0)]
        flat = DTensor.from_local(
            own, mesh, placements, run_check=False, shape=torch.Size([shape.numel()]), stride=(1,)
        )
        has_columns = not is_whole and divided[0] == shape[0]
        return Part(flat, shape, mesh.size(0) if has_columns else 1)

    def whole(self) -> Tensor:
        """Returns the whole; every rank has to call it."""
        full: Tensor = self.flat.full_tensor().detach()
        if self.columns > 1:
            full = full.view(self.columns, self.shape[0], -1).transpose(0, 1)
        return full.reshape(self.shape)

    def ordered(self, full: Tensor) -> Tensor:
        """Returns a whole as the list that ranks have parts of."""
        if self.columns > 1:
            full = full.reshape(self.shape[0], self.columns, -1).transpose(0, 1)
        return full.reshape(-1)

    def to_save(self) -> DTensor:
        """Returns the part of a list that does not depend on the number of ranks; every rank has to call it."""
        if self.columns == 1:
            return self.flat
        local = self.flat.to_local().detach()
        own = DTensor.from_local(
            torch.empty_like(local),
            self.flat.device_mesh,
            self.flat.placements,
            run_check=False,
            shape=self.flat.shape,
            stride=(1,),
        )
        copy_part(own, self.whole().view(-1))
        return own

    @torch.no_grad()
    def restore(self, saved: Tensor) -> None:
        """Takes the numbers of `to_save`; every rank has to call it."""
        if self.columns > 1 and isinstance(saved, DTensor):
            copy_part(self.flat, self.ordered(saved.full_tensor()))


@torch.no_grad()
def copy_part(own: DTensor, full: Tensor) -> None:
    """Copies this rank's part of a whole tensor to `own`."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(own.shape, own.device_mesh, own.placements)
    part = tuple(slice(start, start + length) for start, length in zip(offset, shape, strict=True))
    if own.to_local().numel():
        own.to_local().copy_(full[part])
