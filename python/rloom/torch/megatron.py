"""Training by Megatron-Core: an engine whose model is divided by tensors, layers, tokens and experts.

Megatron-Bridge converts weights from and to Hugging Face folders. The schedules of Megatron-Core run the micro-batches
of a step through the pipeline; the loss is known on its last stage.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rloom.torch.batch import Batch
from rloom.torch.engine import DTYPES, Engine, Trained, Which, check_finite, check_inert, merged
from rloom.torch.errors import CheckpointError, NotFiniteError, RankError
from rloom.torch.megatron_model import MegatronModel, check, join_groups, optimizer_config
from rloom.torch.optimizer import STEPS, Optimizer
from rloom.torch.probe import check_packing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rloom.torch.engine import Progress
    from rloom.torch.loss import Loss
    from rloom.torch.model import Scores
    from rloom.torch.settings import Settings
    from rloom.torch.world import World


class MegatronEngine(Engine):
    """Every rank makes the same calls. Ranks of the last pipeline stage have scores and losses; others return nothing."""

    def __init__(self, settings: Settings, world: World) -> None:
        check(settings)
        join_groups(settings, world)
        self.settings, self.world = settings, world
        self.layout = "packed"
        self.megatron = MegatronModel(settings.model, settings, world, is_trained=True)
        self.model = self.megatron.description
        self.frozen: MegatronModel | None = None
        if settings.reference is not None:
            self.frozen = MegatronModel(settings.reference, settings, world, is_trained=False)
        self.optimizer: MegatronOptimizer = MegatronOptimizer(self.megatron, settings, world)
        self.is_parked = False
        check_packing(self._probed, self.model, DTYPES[settings.dtype], world)

    def _probed(self, batch: Batch) -> Tensor | None:
        (scores,) = self._run(self.megatron, [batch])
        return None if scores is None else scores.logprob

    def score(
        self,
        batches: dict[int, Batch],
        total: int,
        *,
        progress: Progress,
        which: Which = "policy",
        is_masked: bool = False,  # noqa: ARG002
    ) -> list[Scores]:
        model = self.megatron if which == "policy" else self.frozen
        if model is None:
            raise RankError("no reference policy is loaded")
        rounds = list(self._rounds(batches, total))
        results = self._run(model, [batch for _, batch in rounds])
        own = []
        with self.world.agreement():
            for (micro_batch, _), scores in zip(rounds, results, strict=True):
                if micro_batch is not None and scores is not None:
                    check_finite(scores, micro_batch)
                    own.append(scores)
        progress(len(rounds))
        return own

    def accumulate(
        self, batches: dict[int, Batch], total: int, loss: Loss, progress: Progress
    ) -> list[Trained]:
        try:
            return self._accumulate(batches, total, loss, progress)
        except BaseException:
            self.optimizer.zero()
            raise

    def _accumulate(
        self, batches: dict[int, Batch], total: int, loss: Loss, progress: Progress
    ) -> list[Trained]:
        plan = self._plan(batches, total, loss)
        rounds = list(self._rounds(batches, total))
        both = list(zip(rounds, plan, strict=True))
        # Sequences that need no backward pass go first.
        scoring = [i for i, parts in enumerate(plan) if parts.most_scored]
        training = [i for i, parts in enumerate(plan) if parts.most_trained]
        scored = dict(
            zip(
                scoring,
                self._run(self.megatron, [rounds[i][1].only_or_dummy(plan[i].scored) for i in scoring]),
                strict=True,
            )
        )
        results: dict[int, Trained] = {}
        failures: list[RankError] = []

        def evaluate(i: int, with_graph: Scores | None) -> Tensor | None:
            """Evaluates the loss of a round; after a failure, and where this rank has no micro-batch, there is none."""
            (micro_batch, batch), parts = both[i]
            if micro_batch is None or failures:
                return None
            try:
                scores = merged(batch, parts, scored.get(i), with_graph)
                check_finite(scores, micro_batch)
                coefficients = loss.evaluate(micro_batch, scores)
                check_inert(coefficients, batch, parts.scored, micro_batch)
            except RankError as error:
                # The other stages go on; all ranks hear of it after the step.
                failures.append(error)
                return None
            count = sum(batch.lengths[sequence] for sequence in parts.trained)
            skipped = sum(batch.lengths) - count
            results[i] = Trained(micro_batch, coefficients.terms, count, skipped)
            if with_graph is None or not len(batch.scored_of(parts.trained)):
                return None
            return coefficients.of(batch, parts.trained, with_graph)

        self._run(
            self.megatron,
            [rounds[i][1].only_or_dummy(plan[i].trained) for i in training],
            lambda place, scores: evaluate(training[place], scores),
        )
        if self.megatron.is_last_stage:
            for i in set(range(len(plan))) - set(training):
                evaluate(i, None)
        with self.world.agreement():
            if failures:
                raise failures[0]
        progress(len(rounds))
        return [results[i] for i in sorted(results)]

    def _run(
        self,
        model: MegatronModel,
        batches: list[Batch],
        loss: Callable[[int, Scores], Tensor | None] | None = None,
    ) -> list[Scores | None]:
        """Runs micro-batches through the pipeline, back-propagates their losses, and returns scores of the last stage."""
        from megatron.core.pipeline_parallel import get_forward_backward_func

        results: list[Scores | None] = [None] * len(batches)
        if not batches:
            return results

        def forward(places: Iterator[int], _module: object) -> tuple[Tensor, Callable[[Tensor], Any]]:
            place = next(places)
            self.world.advance()
            packing = model.packing(batches[place])

            def losses(logits: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
                scores = model.scores(logits, batches[place], packing)
                results[place] = scores.detached()
                value = None if loss is None else loss(place, scores)
                # A gradient reaches all weights: collective operations wait for it.
                whole = logits.sum() * 0 if value is None else value.to(logits.device) + logits.sum() * 0
                return whole.float(), torch.ones((), dtype=torch.int), {}

            return model.forward(packing), losses

        with torch.set_grad_enabled(loss is not None):
            get_forward_backward_func()(
                forward_step_func=forward,
                data_iterator=iter(range(len(batches))),
                model=[model.module],
                num_microbatches=len(batches),
                # Shapes are sent from stage to stage: micro-batches have different lengths.
                seq_length=1,
                micro_batch_size=1,
                forward_only=loss is None,
            )
        return results

    def whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the weights on rank 0 alone."""
        yield from self.megatron.exported()

    def load(self, folder: Path) -> None:
        with self.world.access(f"read {folder}"):
            self.megatron.load(folder)
        self.optimizer.follow_weights()

    def park(self) -> None:
        raise RankError("ranks of the Megatron backend cannot give the memory of a GPU away")

    def resume(self) -> None:
        """Nothing is ever parked."""


class MegatronOptimizer(Optimizer):
    """Megatron-Core's AdamW. With several data-parallel ranks each updates a part of the weights."""

    def __init__(self, model: MegatronModel, settings: Settings, world: World) -> None:
        from megatron.core.optimizer import get_megatron_optimizer

        self.megatron, self.world, self.settings = model, world, settings.optimizer
        self.steps = 0
        is_divided = model.module.ddp_config.use_distributed_optimizer
        self.adamw: Any = get_megatron_optimizer(
            optimizer_config(settings, is_divided=is_divided), [model.module]
        )

    def follow_weights(self) -> None:
        """Makes the masters equal to the weights of the model."""
        self.adamw.reload_model_params()

    def zero(self) -> None:
        self.megatron.module.zero_grad_buffer()
        self.adamw.zero_grad()

    def _reduce(self, *, to_all: bool = False) -> None:
        from megatron.core.distributed import finalize_model_grads

        # Gradients are sums over all ranks: nothing divides by tokens.
        finalize_model_grads([self.megatron.module], None, force_all_reduce=to_all)

    def _step(self, learning_rate: float) -> float:
        self._reduce()
        self.adamw.prepare_grads()
        norm = float(self.adamw.get_grad_norm())
        if not torch.isfinite(torch.tensor(norm)):
            raise NotFiniteError("gradient")
        for group in self.adamw.param_groups:
            # Megatron's own scheduler applies the factors, 0 for the decay of norms and biases.
            group["lr"] = learning_rate * group.get("lr_mult", 1.0)
            group["weight_decay"] = self.settings.weight_decay * group.get("wd_mult", 1.0)
        self.adamw.step()
        self.steps += 1
        return norm

    def gradients(self) -> dict[str, Tensor]:
        with self._reduced():
            return {name: gradient.clone() for name, gradient in self.megatron.exported()}

    @contextmanager
    def _reduced(self) -> Iterator[None]:
        """Puts gradients, summed over all ranks, in the place of the weights."""
        module = self.megatron.module
        buffers = [buffer.grad_data for buffer in (*module.buffers, *module.expert_parallel_buffers)]
        own = [data.clone() for data in buffers]
        weights = [(weight, weight.data) for weight in module.parameters()]
        try:
            self._reduce(to_all=True)
            for weight, _ in weights:
                weight.data = weight.main_grad
            yield
        finally:
            for weight, data in weights:
                weight.data = data
            for data, before in zip(buffers, own, strict=True):
                data.copy_(before)

    def state(self) -> dict[str, Tensor]:
        raise CheckpointError("moments of the built-in engine do not open with the Megatron backend")

    def _sharded(self, *, is_loading: bool) -> dict[str, Any]:
        weights = self.megatron.module.sharded_state_dict()
        moments = self.adamw.sharded_state_dict(weights, is_loading=is_loading)
        return {"optimizer": moments, STEPS: self.steps}

    def write(self, folder: Path) -> None:
        from megatron.core import dist_checkpointing

        with self.world.access(f"write {folder}"):
            dist_checkpointing.save(self._sharded(is_loading=False), str(folder))

    def read(self, folder: Path) -> None:
        from megatron.core import dist_checkpointing

        with self.world.access(f"read {folder}"):
            state = dist_checkpointing.load(self._sharded(is_loading=True), str(folder))
            self.adamw.load_state_dict(state["optimizer"])
            self.steps = int(state[STEPS])
