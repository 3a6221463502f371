"""Settings of a rank, as the controller sends them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Heads = Literal["policy", "policy_and_value", "critic", "reward", "process_reward"]
#: Heads in place of the language head.
CLASSIFIERS = ("critic", "reward", "process_reward")
#: Heads of reward models, of completions or of steps.
REWARDS = ("reward", "process_reward")
#: Names of the tensors of a value head.
VALUE_NAMES = ("score.weight", "score.bias")


@dataclass(frozen=True)
class OptimizerSettings:
    """Settings of AdamW; names as in a recipe."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0


@dataclass(frozen=True)
class LoraSettings:
    """Settings of a LoRA adapter; names as in a recipe."""

    rank: int
    alpha: float
    rslora: bool
    dora: bool
    dropout: float
    targets: list[str]
    #: Seed of a new adapter and of dropout.
    seed: int
    #: Folder that the stage starts from: the base, or an adapter of it.
    start: str
    #: Number format of the base's linear layers; `None` for that of the computation.
    quantize: Literal["nf4"] | None = None


@dataclass(frozen=True)
class Settings:
    """Model, placement and precision of a gang."""

    #: Folder of the policy, or of the base of its adapter.
    model: str
    backend: Literal["torch", "deepspeed", "megatron"] = "torch"
    heads: Heads = "policy"
    #: Padding token of a reward model's tokenizer, which its folder names.
    pad_token: int | None = None
    #: Folder of the reference policy, if the algorithm reads it.
    reference: str | None = None
    #: Trains an adapter instead of the weights.
    lora: LoraSettings | None = None
    #: Folder of an adapter whose sum with the model is trained.
    merged: str | None = None
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    #: Number format of matrix products; weights, gradients and optimizer state are f32.
    dtype: Literal["f32", "bf16", "f64"] = "f32"
    activation_checkpointing: Literal["none", "attention", "block"] = "none"
    #: Ranks that a copy of the weights is divided among; `None`: all of them.
    shard: int | None = None
    #: Consecutive ranks that divide the tokens of a micro-batch.
    sequence_parallel: int = 1
    #: Sizes of Megatron; names as in a recipe.
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1
    #: Keeps weights and optimizer state in host memory and moves them to the device layer by layer.
    offload: bool = False
    #: Uses deterministic algorithms only.
    deterministic: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"
    #: Compute threads of a rank; 0 leaves the choice to PyTorch.
    threads: int = 0

    @property
    def parallel(self) -> dict[str, int]:
        """Sizes that multiply to the number of ranks which compute the same micro-batch."""
        names = ("tensor_parallel", "pipeline_parallel", "context_parallel")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Settings:
        """Reads a message."""
        lora = given.get("lora")
        own = {
            "optimizer": OptimizerSettings(**given["optimizer"]),
            "lora": None if lora is None else LoraSettings(**lora),
        }
        return cls(**{**given, **own})
