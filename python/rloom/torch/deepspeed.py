"""Training by DeepSpeed's ZeRO-3: the interface of `optimizer.py` over its partitioned weights, gradients and moments."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rloom.torch.division import Part, layers_to_divide, mesh_of
from rloom.torch.errors import ModelError, NotFiniteError, RankError
from rloom.torch.optimizer import MOMENTS, Optimizer, clip_scale, decay_groups, global_norm
from rloom.torch.probe import check_division
from rloom.torch.world import WHOLE_SHAPE, shape_of

if TYPE_CHECKING:
    from rloom.torch.model import ScoringModel
    from rloom.torch.settings import Settings
    from rloom.torch.world import World


def check(settings: Settings) -> None:
    """Refuses settings that ZeRO-3 does not have here."""
    values = {
        "shard": settings.shard is not None,
        "offload": settings.offload,
        "dtype": settings.dtype == "f64",
        "pipeline_parallel": settings.pipeline_parallel > 1,
        "context_parallel": settings.context_parallel > 1,
        "expert_parallel": settings.expert_parallel > 1,
    }
    named = [name for name, is_set in values.items() if is_set]
    if named:
        raise RankError(f"the DeepSpeed backend does not have `{named[0]}` = {getattr(settings, named[0])}")
    if settings.tensor_parallel > 1 and settings.sequence_parallel > 1:
        raise RankError("the DeepSpeed backend has either `tensor_parallel` or `sequence_parallel`, not both")


class ZeroOptimizer(Optimizer):
    """Partitions a model and updates it. Masters and moments are flat parts of f32, gradients are summed over ranks."""

    def __init__(self, model: ScoringModel, settings: Settings, world: World) -> None:
        check(settings)
        # A rank that sends no token to an expert has no gradient of it, and DeepSpeed waits for it for ever.
        if model.has_experts:
            raise ModelError(
                f"{type(model.hf).__name__}: the DeepSpeed backend does not train mixtures of experts"
            )
        self.model, self.world, self.settings = model, world, settings.optimizer
        self.weights = model.named_weights()
        self.steps = 0
        for weight in self.weights.values():
            setattr(weight, WHOLE_SHAPE, weight.shape)
        parallel = settings.tensor_parallel
        # DeepSpeed sums over ranks of one tensor group, and averages over groups.
        self.averaged_over = world.size // parallel
        if parallel == 1:
            self.engine: Any = _initialized(model, settings, world, [])
        else:
            layers = layers_to_divide(model, parallel)
            with check_division(model, settings.dtype):
                self.engine = _initialized(model, settings, world, layers)
            check_sizes(model, parallel)
        self.mesh = mesh_of(world, parallel)
        self.module = self.engine
        self.zero_3: Any = self.engine.optimizer
        self.adamw = self.zero_3.optimizer
        world.parts.update({weight: self._part_of(weight) for weight in self.weights.values()})
        # State that the first step would make, for restores before it.
        for flat in self.zero_3.fp32_partitioned_groups_flat:
            on_host = torch.tensor(0.0)
            self.adamw.state[flat] = {
                "step": on_host,
                **{moment: torch.zeros_like(flat) for moment in MOMENTS},
            }

    def _part(self, local: Tensor, weight: nn.Parameter) -> Part:
        return Part.of(local, weight, shape_of(weight), self.mesh)

    def _part_of(self, weight: nn.Parameter, moment: str | None = None) -> Part:
        return self._part(self.zero_3.get_local_fp32_param(weight, moment), weight)

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss * self.averaged_over, scale_wrt_gas=False)

    def zero(self) -> None:
        self.zero_3.zero_grad()
        self.zero_3.averaged_gradients = {}
        self.zero_3.grad_partitions_flat_buffer.zero_()

    def gradients(self) -> dict[str, Tensor]:
        gradients = {name: self.zero_3.get_local_fp32_grad_for_param(w) for name, w in self.weights.items()}
        return {name: self._part(g, self.weights[name]).whole().clone() for name, g in gradients.items()}

    def _step(self, learning_rate: float) -> float:
        zero_3 = self.zero_3
        for i, group in enumerate(zero_3.fp16_groups):
            if i not in zero_3.averaged_gradients:  # nothing was back-propagated: weights decay
                zero_3.averaged_gradients[i] = [
                    torch.zeros_like(w.ds_tensor, dtype=torch.float32) for w in group
                ]
        norm = global_norm(self._own_gradients(), self.world)
        scale = clip_scale(norm, self.settings.max_grad_norm)
        if scale < 1.0:
            torch._foreach_mul_([g for group in zero_3.averaged_gradients.values() for g in group], scale)
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate
        zero_3.step()
        if zero_3.overflow:
            raise NotFiniteError("gradient")
        self.steps += 1
        return norm

    def _own_gradients(self) -> list[Tensor]:
        """Gradients that count on this rank; those of weights that a tensor group does not divide become equal in it."""
        own = []
        group = self.mesh["tensor"].get_group()
        is_first = self.mesh["tensor"].get_local_rank() == 0
        for i, weights in enumerate(self.zero_3.fp16_groups):
            for weight, gradient in zip(weights, self.zero_3.averaged_gradients[i], strict=True):
                if weight.ds_shape != shape_of(weight):
                    own.append(gradient)
                    continue
                if self.mesh.size(0) > 1:
                    # Kernels of GPUs may round differently from rank to rank, and copies would drift apart.
                    dist.broadcast(gradient, group_src=0, group=group)
                own += [gradient] if is_first else []
        return own

    def state(self) -> dict[str, Tensor]:
        return {
            f"{moment}.{name}": self._part_of(weight, moment).to_save()
            for name, weight in self.weights.items()
            for moment in MOMENTS
        }

    def restored(self, steps: int, state: dict[str, Tensor]) -> None:
        self.steps = steps
        for name, weight in self.weights.items():
            for moment in MOMENTS:
                self._part_of(weight, moment).restore(state[f"{moment}.{name}"])
        for i, flat in enumerate(self.zero_3.fp32_partitioned_groups_flat):
            self.adamw.state[flat]["step"].fill_(float(steps))
            # The weights of the computation follow the masters.
            self.zero_3._reassign_or_swap_out_partitioned_parameters(i)

    def move(self, device: torch.device) -> None:
        if device.type != self.world.device.type:
            raise RankError("ranks of the DeepSpeed backend cannot give the memory of a GPU away")


def check_sizes(model: ScoringModel, parallel: int) -> None:
    """Refuses a model of which ranks of a tensor group have parts of different sizes."""
    for name, weight in model.named_weights().items():
        own, whole = weight.ds_shape.numel(), shape_of(weight).numel()  # type: ignore[attr-defined]
        if own not in (whole, whole // parallel):
            shape = list(shape_of(weight))
            raise ModelError(
                f"tensor_parallel = {parallel} does not divide {name}, which has the shape {shape}"
            )


def _initialized(model: ScoringModel, settings: Settings, world: World, layers: list[dict[str, Any]]) -> Any:  # noqa: ANN401
    if world.device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ["LOCAL_RANK"] = str(world.device.index or 0)
    try:
        import deepspeed
    except ImportError as error:
        raise RankError(f"the environment of the ranks has no DeepSpeed: {error}") from error
    # Processors communicate by gloo; DeepSpeed would compile a kernel of its own for minutes.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    is_bf16 = settings.dtype == "bf16"
    optimizer = settings.optimizer
    adamw = torch.optim.AdamW(
        decay_groups(model.named_weights(), optimizer),
        lr=0.0,
        betas=optimizer.betas,
        eps=optimizer.eps,
        fused=True,
    )
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": is_bf16},
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "steps_per_print": sys.maxsize,
    }
    if layers:
        plan = {"use_default_specs": False, "layer_specs": layers}
        config["tensor_parallel"] = {"autotp_size": settings.tensor_parallel, "partition_config": plan}
    # The root computes with weights of the heads itself.
    hf: Any = model.hf
    heads = [model.score, hf.score if model.is_classifier else hf.get_output_embeddings()]
    engine, *_ = deepspeed.initialize(model=model, optimizer=adamw, config=config, dist_init_required=False)
    if layers:
        # It compares the arguments of ranks as tensors, and a batch is none. Ranks of a group are sent the same ones.
        engine.first_dataloader_check.remove()
    for head in heads:
        for weight in () if head is None else head.parameters():
            deepspeed.zero.register_external_parameter(model, weight)
    return engine
