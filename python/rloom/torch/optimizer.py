"""AdamW with global clipping, equal to the embedded engine's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rloom.torch.errors import NotFiniteError
from rloom.torch.world import World, local_part

if TYPE_CHECKING:
    from rloom.torch.model import ScoringModel
    from rloom.torch.settings import OptimizerSettings

MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """Updates the weights of a model; moments are as large as the weights."""

    def __init__(self, model: ScoringModel, settings: OptimizerSettings, world: World) -> None:
        self.model = model
        self.weights = model.named_weights()
        self.settings = settings
        self.world = world
        self.steps = 0
        # Matrices decay, the embedding table included; norms and biases do not.
        groups = [
            {
                "params": [w for w in self.weights.values() if w.ndim > 1],
                "weight_decay": settings.weight_decay,
            },
            {"params": [w for w in self.weights.values() if w.ndim <= 1], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        self.adamw = torch.optim.AdamW(groups, lr=0.0, betas=settings.betas, eps=settings.eps, fused=True)

    def zero(self) -> None:
        """Drops the gradient."""
        self.adamw.zero_grad(set_to_none=True)

    @torch.no_grad()
    def step(self, learning_rate: float) -> float:
        """Applies the gradient, clipped to the global norm, drops it, and returns its norm."""
        try:
            return self._step(learning_rate)
        finally:
            self.zero()

    def _step(self, learning_rate: float) -> float:
        self.model.release()
        gradients = []
        for weight in self.weights.values():
            # A tensor without a gradient still decays and moves on by its moments.
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            gradients.append(local_part(weight.grad))
        norm = math.sqrt(self.world.sum_over_shards(math.fsum(_sum_squares(g) for g in gradients)))
        if not math.isfinite(norm):
            raise NotFiniteError("gradient")
        limit = self.settings.max_grad_norm
        scale = min(limit / (norm + 1e-6), 1.0) if limit > 0 else 1.0
        if scale < 1.0:
            torch._foreach_mul_(gradients, scale)
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate
        self.adamw.step()
        self.steps += 1
        return norm

    def state(self) -> dict[str, Tensor]:
        """Returns the moments by name, `exp_avg.NAME` and `exp_avg_sq.NAME`: zeros before the first step."""
        state: dict[str, Tensor] = {}
        for name, weight in self.weights.items():
            own = self.adamw.state[weight]
            if not own:
                on_host = torch.tensor(0.0, device=local_part(weight).device)
                own.update(step=on_host, **{moment: torch.zeros_like(weight) for moment in MOMENTS})
            state |= {f"{moment}.{name}": own[moment] for moment in MOMENTS}
        return state

    def restored(self, steps: int) -> None:
        """Continues after `steps` steps, whose moments are in the tensors of `state`."""
        self.steps = steps
        for weight in self.weights.values():
            self.adamw.state[weight]["step"].fill_(float(steps))


def _sum_squares(gradient: Tensor) -> float:
    """Sum of squares; in f64, which is slower, where it is beyond the range of the gradient's own format."""
    if not gradient.numel():
        return 0.0
    norm = float(torch.linalg.vector_norm(gradient))
    if not math.isfinite(norm):
        norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
    return norm**2
