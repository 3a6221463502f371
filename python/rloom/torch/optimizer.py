"""AdamW with global clipping, equal to the embedded engine's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from rloom.torch.errors import CheckpointError, NotFiniteError
from rloom.torch.world import World, local_part

if TYPE_CHECKING:
    from pathlib import Path

    from rloom.torch.model import ScoringModel
    from rloom.torch.settings import OptimizerSettings, Settings

MOMENTS = ("exp_avg", "exp_avg_sq")
STEPS = "steps"


class Optimizer:
    """Back-propagates into the weights of a model and updates them; moments are as large as the weights."""

    def __init__(self, model: ScoringModel, settings: Settings, world: World) -> None:
        self.model = model
        #: Computes micro-batches.
        self.module: Any = model
        self.weights = model.named_weights()
        self.settings = settings.optimizer
        self.world = world
        self.steps = 0
        groups, own = decay_groups(self.weights, self.settings), self.settings
        self.adamw = torch.optim.AdamW(groups, lr=0.0, betas=own.betas, eps=own.eps, fused=True)

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of this rank's part of a loss; the parts are summed."""
        loss.backward()  # type: ignore[no-untyped-call]

    def gradients(self) -> dict[str, Tensor]:
        """Returns the accumulated gradient by name; for tests."""
        return {
            name: torch.zeros(w.shape) if w.grad is None else self.world.whole(w.grad).clone()
            for name, w in self.weights.items()
        }

    def move(self, device: torch.device) -> None:
        """Moves weights, gradients and moments to a device."""
        self.model.to(device)
        for own in self.adamw.state.values():
            own.update({name: x.to(device) for name, x in own.items() if isinstance(x, Tensor)})

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
        norm = global_norm(gradients, self.world)
        scale = clip_scale(norm, self.settings.max_grad_norm)
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

    def write(self, folder: Path) -> None:
        """Writes the moments as a distributed checkpoint of PyTorch; every rank has to call it."""
        state = {**self.state(), STEPS: torch.tensor(self.steps)}
        try:
            state_dict_saver.save(state, checkpoint_id=folder, no_dist=self.world.mesh is None)
        except (CheckpointException, OSError) as error:
            raise CheckpointError(f"{folder}: {error}") from error

    def read(self, folder: Path) -> None:
        """Reads the moments of any number of ranks; every rank has to call it."""
        steps = torch.tensor(0)
        state = {**self.state(), STEPS: steps}
        try:
            state_dict_loader.load(state, checkpoint_id=folder, no_dist=self.world.mesh is None)
        except (CheckpointException, OSError, RuntimeError) as error:
            raise CheckpointError(f"{folder}: {error}") from error
        self.restored(int(steps), state)

    def restored(self, steps: int, _state: dict[str, Tensor]) -> None:
        """Continues after `steps` steps, whose moments are in the tensors that `state` gave."""
        self.steps = steps
        for weight in self.weights.values():
            self.adamw.state[weight]["step"].fill_(float(steps))


def decay_groups(weights: dict[str, nn.Parameter], settings: OptimizerSettings) -> list[dict[str, Any]]:
    """Groups of weights for AdamW: matrices decay, the embedding table included; norms and biases do not."""
    groups = [
        {"params": [w for w in weights.values() if w.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [w for w in weights.values() if w.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def global_norm(gradients: list[Tensor], world: World) -> float:
    """Norm of the gradient of which each rank has parts, with the same bits on all ranks."""
    norm = math.sqrt(world.sum_over_shards(math.fsum(_sum_squares(g) for g in gradients)))
    if not math.isfinite(norm):
        raise NotFiniteError("gradient")
    return norm


def clip_scale(norm: float, limit: float) -> float:
    """Factor that limits a gradient to a norm; 0 is no limit."""
    return min(limit / (norm + 1e-6), 1.0) if limit > 0 else 1.0


def _sum_squares(gradient: Tensor) -> float:
    """Sum of squares; in f64, which is slower, where it is beyond the range of the gradient's own format."""
    if not gradient.numel():
        return 0.0
    norm = float(torch.linalg.vector_norm(gradient))
    if not math.isfinite(norm):
        norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
    return norm**2
