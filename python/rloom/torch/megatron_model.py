"""A model of Megatron-Core that Megatron-Bridge converts from and to a Hugging Face folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rloom._native import digest_order
from rloom.torch.errors import BatchError, ModelError, RankError
from rloom.torch.head import sharded_token_scores
from rloom.torch.megatron_packing import Packing
from rloom.torch.model import Scores, ScoringModel, open_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rloom.torch.batch import Batch
    from rloom.torch.settings import Settings
    from rloom.torch.world import World

#: Seed of Megatron's generators. Nothing here draws from them: weights are read, and there is no dropout.
SEED = 1


def provider_settings(settings: Settings, *, is_trained: bool) -> dict[str, Any]:
    """Settings of a model of Megatron-Core by those of a rank."""
    dtype = torch.bfloat16 if settings.dtype == "bf16" else torch.float32
    recomputed = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    is_recomputed = is_trained and settings.activation_checkpointing == "block"
    return {
        "tensor_model_parallel_size": settings.tensor_parallel,
        "pipeline_model_parallel_size": settings.pipeline_parallel,
        "context_parallel_size": settings.context_parallel,
        "expert_model_parallel_size": settings.expert_parallel,
        "expert_tensor_parallel_size": 1,
        # Between layers, ranks that divide matrices also divide the tokens.
        "sequence_parallel": settings.tensor_parallel > 1,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": settings.dtype == "bf16",
        "fp16": False,
        "autocast_dtype": dtype,
        "variable_seq_lengths": True,
        # Losses are sums: gradients are summed over ranks, and micro-batches are not weighted.
        "calculate_per_token_loss": True,
        "finalize_model_grads_func": None,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        # Losses are those of the algorithm alone.
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        # The one that takes micro-batches of different lengths.
        "moe_token_dispatcher_type": "alltoall",
        "mtp_num_layers": None,
        "deterministic_mode": settings.deterministic,
        # The logits of a rank are columns of all rows.
        "parallel_output": True,
        "should_pad_vocab": True,
        **(recomputed if is_recomputed else {}),
    }


def optimizer_config(settings: Settings, *, is_divided: bool) -> Any:  # noqa: ANN401
    """Settings of Megatron's optimizer by those of a rank; the learning rate comes with each step."""
    from megatron.core.optimizer import OptimizerConfig

    own, is_bf16 = settings.optimizer, settings.dtype == "bf16"
    return OptimizerConfig(
        optimizer="adam",
        lr=0.0,
        min_lr=0.0,
        weight_decay=own.weight_decay,
        adam_beta1=own.betas[0],
        adam_beta2=own.betas[1],
        adam_eps=own.eps,
        clip_grad=own.max_grad_norm,
        bf16=is_bf16,
        params_dtype=torch.bfloat16 if is_bf16 else torch.float32,
        use_distributed_optimizer=is_divided,
    )


def check(settings: Settings) -> None:
    """Refuses settings that Megatron does not have here."""
    values = {
        "heads": settings.heads != "policy",
        "shard": settings.shard is not None,
        "offload": settings.offload,
        "dtype": settings.dtype == "f64",
        "sequence_parallel": settings.sequence_parallel > 1,
    }
    named = [name for name, is_set in values.items() if is_set]
    if named:
        raise RankError(f"the Megatron backend does not have `{named[0]}` = {getattr(settings, named[0])}")


def check_rotary_base(provider: Any, description: ScoringModel) -> None:  # noqa: ANN401
    """Refuses what a Megatron-Bridge for older configurations does not find in one of transformers 5."""
    parameters = getattr(description.hf.config.get_text_config(), "rope_parameters", None) or {}
    wanted, read = parameters.get("rope_theta"), getattr(provider, "rotary_base", None)
    if wanted is not None and read is not None and float(wanted) != float(read):
        raise ModelError(
            f"Megatron-Bridge reads a rotary base of {read:g}, and the model has {wanted:g}; "
            "install a version for transformers 5"
        )


def check_experts(settings: Settings, description: ScoringModel) -> None:
    """Refuses to divide experts that a model does not have."""
    if settings.expert_parallel > 1 and not description.has_experts:
        name = type(description.hf).__name__
        raise ModelError(f"expert_parallel = {settings.expert_parallel}: {name} has no experts; set it to 1")


def join_groups(settings: Settings, world: World) -> None:
    """Makes the process groups. Ranks that divide matrices are next to each other, pipeline stages farthest apart."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=settings.tensor_parallel,
        pipeline_model_parallel_size=settings.pipeline_parallel,
        context_parallel_size=settings.context_parallel,
        expert_model_parallel_size=settings.expert_parallel,
        expert_tensor_parallel_size=1,
        order="tp-cp-ep-dp-pp",
    )
    if world.device.type == "cuda":
        model_parallel_cuda_manual_seed(SEED)


class MegatronModel:
    """This rank's part of a model."""

    def __init__(self, folder: str, settings: Settings, world: World, *, is_trained: bool) -> None:
        try:
            from megatron.bridge import AutoBridge
            from megatron.core import parallel_state
        except ImportError as error:
            raise RankError(f"the environment of the ranks has no Megatron-Bridge: {error}") from error
        self.world = world
        #: The model of transformers without weights, which describes the folder.
        self.description: ScoringModel = open_model(folder, "policy", meta=True)
        check_experts(settings, self.description)
        self.vocabulary = self.description.vocabulary
        self.tensor_group = parallel_state.get_tensor_model_parallel_group()
        self.context_group = parallel_state.get_context_parallel_group()
        self.is_last_stage = parallel_state.is_pipeline_last_stage()
        try:
            self.bridge = AutoBridge.from_hf_pretrained(folder)
            provider = self.bridge.to_megatron_provider(load_weights=False)
        except (ValueError, KeyError, AttributeError, NotImplementedError) as error:
            name = type(self.description.hf).__name__
            raise ModelError(f"{name}: Megatron-Bridge does not convert this model: {error}") from error
        check_rotary_base(provider, self.description)
        for name, value in provider_settings(settings, is_trained=is_trained).items():
            setattr(provider, name, value)
        self.module: Any = self._built(provider, is_trained=is_trained)
        self.load(folder)

    def _built(self, provider: Any, *, is_trained: bool) -> Any:  # noqa: ANN401
        from megatron.core import parallel_state
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

        provider.finalize()
        (module,) = provider.provide_distributed_model(
            wrap_with_ddp=False, use_cpu_initialization=self.world.device.type == "cpu"
        )
        if not is_trained:
            return module.requires_grad_(False).eval()
        size = parallel_state.get_data_parallel_world_size(with_context_parallel=True)
        config = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True, overlap_grad_reduce=False, use_distributed_optimizer=size > 1
        )
        return DistributedDataParallel(provider, config, module)

    def load(self, folder: str | Path) -> None:
        """Replaces the weights by those of a Hugging Face folder."""
        self.bridge.load_hf_weights([self.module], hf_path=str(folder))

    def exported(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the whole weights on rank 0, by their names in Hugging Face folders; every rank has to call it."""
        known = self.description.named_weights()
        whole: dict[str, Tensor] = {}
        for name, weight in self.bridge.export_hf_weights([self.module], cpu=True, show_progress=False):
            self.world.advance()
            # Tied weights are written once.
            if self.world.rank == 0 and name in known:
                whole[name] = weight
        for name in digest_order(list(whole)):
            yield name, whole[name].detach()

    def packing(self, batch: Batch) -> Packing:
        """Returns this rank's tokens of a micro-batch."""
        if batch.tokens.numel() and int(batch.tokens.max()) >= self.vocabulary:
            raise BatchError(
                f"token id {int(batch.tokens.max())} is outside of the vocabulary of {self.vocabulary}"
            )
        return Packing.of(
            batch, self.context_group.size(), self.context_group.rank(), self.tensor_group.size()
        )

    def forward(self, packing: Packing) -> Tensor:
        """Computes this stage: logits `[1, T, V / N]` on the last one."""
        device = self.world.device
        output: Tensor = self.module(
            input_ids=packing.tokens.to(device)[None],
            position_ids=packing.positions.to(device)[None],
            attention_mask=None,
            packed_seq_params=packing.parameters(device),
        )
        return output

    def scores(self, logits: Tensor, batch: Batch, packing: Packing) -> Scores:
        """Returns the scores of all scored tokens."""
        device = logits.device
        targets, inverse = batch.tokens[batch.rows[packing.own]], batch.inv_temperature[packing.own]
        rows = logits[0, packing.before.to(device)]
        own = sharded_token_scores(
            rows, self.vocabulary, targets.to(device), inverse.to(device), self.tensor_group
        )
        none = rows.new_empty(0, dtype=torch.float32)
        logprob, entropy = (packing.joined(x, len(batch.rows), self.context_group) for x in own)
        return Scores(logprob, entropy, none, none, none, none)
