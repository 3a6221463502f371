"""Layers with the names of Transformer Engine's, in plain PyTorch on Megatron-Core's own."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.transformer.identity_op import IdentityOp
from rloom.torch.attention import packed_attention
from torch import Tensor, nn


class Norm(nn.Module):
    """A norm of tokens that ranks may divide."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        return nn.functional.rms_norm(hidden, hidden.shape[-1:], self.weight, self.eps)


class TELayerNormColumnParallelLinear(ColumnParallelLinear):  # type: ignore[misc]
    """A norm and a linear layer in one module, under the name by which conversions know it."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **options: Any) -> None:
        super().__init__(input_size, output_size, config=config, **options)
        self.layer_norm_weight = nn.Parameter(torch.ones(input_size, dtype=config.params_dtype))
        self.layer_norm_weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden: Tensor, *given: Any, **options: Any) -> Any:
        normed = nn.functional.rms_norm(
            hidden, hidden.shape[-1:], self.layer_norm_weight, self.config.layernorm_epsilon
        )
        return super().forward(normed, *given, **options)


class PackedAttention(nn.Module):
    """Attention within each sequence of `[T, H, E]`."""

    is_causal = True

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **options: Any) -> Tensor:
        bounds = options["packed_seq_params"].cu_seqlens_q.tolist()
        lengths = [end - start for start, end in zip(bounds, bounds[1:], strict=False)]
        q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
        out, _none = packed_attention(self, q, k, v, None, sequence_lengths=lengths)
        return out[0].flatten(1)


#: Settings of a model without Transformer Engine and without kernels for GPUs.
WITHOUT_GPU = {
    "gradient_accumulation_fusion": False,
    "masked_softmax_fusion": False,
    "bias_dropout_fusion": False,
    "bias_activation_fusion": False,
    "moe_grouped_gemm": False,
    "moe_permute_fusion": False,
    "batch_p2p_comm": False,
}


def spec(provider: Any) -> Any:
    """Returns Megatron-Core's layers without Transformer Engine, with its names and attention for packed sequences."""
    own = get_gpt_layer_local_spec(
        num_experts=provider.num_moe_experts,
        moe_grouped_gemm=False,
        qk_layernorm=provider.qk_layernorm,
        normalization=provider.normalization,
    )
    layers = own.submodules
    layers.input_layernorm = IdentityOp
    layers.self_attention.submodules.q_layernorm = Norm if provider.qk_layernorm else IdentityOp
    layers.self_attention.submodules.k_layernorm = Norm if provider.qk_layernorm else IdentityOp
    layers.self_attention.submodules.linear_qkv = TELayerNormColumnParallelLinear
    layers.self_attention.submodules.core_attention = PackedAttention
    layers.pre_mlp_layernorm = Norm
    if provider.num_moe_experts is None:
        layers.pre_mlp_layernorm = IdentityOp
        layers.mlp.submodules.linear_fc1 = TELayerNormColumnParallelLinear
    layers.sharded_state_dict_keys_map = {}
    return own
