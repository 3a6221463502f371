"""One rank's part of a training engine: scores, gradients and optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from rloom._native import WeightDigest
from rloom.torch import adapter, quantized
from rloom.torch.batch import Batch
from rloom.torch.comparison import Comparison, Head, most_probable
from rloom.torch.errors import CheckpointError, LossError, NotFiniteError, RankError
from rloom.torch.model import VALUE_HEAD, Scores, ScoringModel, open_model
from rloom.torch.optimizer import Optimizer
from rloom.torch.probe import choose_layout
from rloom.torch.world import World, shape_of

if TYPE_CHECKING:
    from pathlib import Path

    from rloom.torch.loss import Coefficients, Loss
    from rloom.torch.settings import Heads, Settings

#: Number format of the computation, by setting.
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64}

Progress = Callable[[int], None]
Which = Literal["policy", "reference", "teacher"]


@dataclass(frozen=True)
class Trained:
    """Result of a micro-batch."""

    micro_batch: int
    terms: bytes
    #: Tokens that were back-propagated, and tokens of inert sequences.
    tokens: int
    skipped: int


class Engine:
    """Trains one model; every rank makes the same calls, each with its own micro-batches.

    Micro-batch `i` of a step belongs to group `i mod groups` of ranks, which divide its tokens; without sequence
    parallelism a group is one rank. A group without one in a round computes an empty one: collective operations
    need all ranks.
    """

    def __init__(self, settings: Settings, world: World) -> None:
        self.settings = settings
        self.world = world
        self.model = world.open(settings.model, settings.heads, settings, is_trained=True)
        dtype = DTYPES[settings.dtype]
        self.layout = choose_layout(self.model, dtype)
        self.reference: ScoringModel | None = None
        #: Whether the reference is another model than it was opened as.
        self.has_reference_moved = False
        #: Adapter that the stage starts with, while the reference is the policy at the start.
        self.start: list[Tensor] | None = None
        #: Teacher of a distillation, or of a KL to it.
        self.teacher: ScoringModel | None = None
        if settings.lora is not None and settings.reference == settings.lora.start:
            self.start = [local_part(weight).clone() for weight in self.model.named_weights().values()]
        elif settings.reference is not None:
            self.reference = world.open(settings.reference, "policy", settings, is_trained=False)
            choose_layout(self.reference, dtype)
        self.optimizer: Optimizer = _optimizer(self.model, settings, world)
        self.is_parked = False

    def score(
        self,
        batches: dict[int, Batch],
        total: int,
        *,
        progress: Progress,
        which: Which = "policy",
        is_masked: bool = False,
    ) -> list[Scores]:
        """Scores this rank's micro-batches without a gradient; with `is_masked`, by the masks of a training pass."""
        results = []
        with self._scored(which) as model:
            for done, (micro_batch, batch) in enumerate(self._rounds(batches, total), start=1):
                with torch.no_grad(), self.world.agreement(), self._dropout(micro_batch, is_masked):
                    scores = self._score(model, batch)
                    check_finite(scores, micro_batch)
                if micro_batch is not None:
                    results.append(scores)
                progress(done)
        return results

    @contextmanager
    def _scored(self, which: Which) -> Iterator[Any]:
        """The model to score with. The start of an adapter takes the adapter's place meanwhile."""
        if which == "policy":
            yield self.optimizer.module
        elif which == "teacher":
            yield self._opened_teacher()
        elif self.start is None:
            yield self._opened_reference()
        else:
            self._exchange(self.start)
            try:
                yield self.optimizer.module
            finally:
                self._exchange(self.start)

    @torch.no_grad()
    def _exchange(self, others: list[Tensor]) -> None:
        for weight, other in zip(self.model.named_weights().values(), others, strict=True):
            own = local_part(weight)
            kept = own.clone()
            own.copy_(other)
            other.copy_(kept)

    @contextmanager
    def _dropout(self, micro_batch: int | None, is_masked: bool = True) -> Iterator[None]:
        """Drops inputs of the adapter. The masks are those of the micro-batch in this optimizer step."""
        lora = self.settings.lora
        layers = adapter.dropout_layers(self.model) if lora is not None and lora.dropout and is_masked else []
        if lora is not None and layers:
            place = self.world.rank % self.world.side_by_side
            adapter.seed_dropout(
                lora.seed, self.optimizer.steps, -1 if micro_batch is None else micro_batch, place
            )
        for layer in layers:
            layer.train()
        try:
            yield
        finally:
            for layer in layers:
                layer.eval()

    def accumulate(
        self, batches: dict[int, Batch], total: int, loss: Loss, progress: Progress
    ) -> list[Trained]:
        """Adds the gradient of this rank's micro-batches; an error drops that of all calls since a step."""
        try:
            plan = self._plan(batches, total, loss)
            results = []
            for done, ((micro_batch, batch), parts) in enumerate(
                zip(self._rounds(batches, total), plan, strict=True), start=1
            ):
                trained = self._accumulate_one(micro_batch, batch, parts, loss)
                if trained is not None:
                    results.append(trained)
                progress(done)
        except BaseException:
            self.optimizer.zero()
            raise
        finally:
            if self.teacher is not None:
                self.teacher.release()
        return results

    def step(self, learning_rate: float) -> float:
        """Takes an optimizer step and returns the norm of the gradient before clipping."""
        return self.optimizer.step(learning_rate)

    def digest(self) -> int:
        """Returns the digest of the weights, equal on every engine of the same model."""
        return self._digest(self.whole_weights())

    def reference_digest(self) -> int:
        """Returns the digest of the reference's weights, with those of an adapter's base."""
        with self._scored("reference"):
            model = self.model if self.start is not None else self._opened_reference()
            weights = list(model.named_weights().items())
            if self.start is not None:
                weights += model.base_weights().items()
            return self._digest((name, self._numbers(weight)) for name, weight in weights)

    def _digest(self, weights: Iterator[tuple[str, Tensor]]) -> int:
        digest = WeightDigest()
        for _, values in weights:
            if self.world.rank == 0:
                digest.update(values.float().cpu().contiguous().view(-1).numpy().tobytes())
        return digest.value

    @torch.no_grad()
    def sync_reference(self, mixup: float) -> None:
        """Moves the reference towards the policy; each rank has the same part of both."""
        policy = self.model.named_weights()
        for name, weight in self._opened_reference().named_weights().items():
            own, theirs = local_part(weight), local_part(policy[name]).to(weight.device)
            own.copy_((1.0 - mixup) * own.double() + mixup * theirs.double())
        self.has_reference_moved = True

    def release_reference(self) -> None:
        """Frees the reference."""
        self.reference = self.start = None
        free_device(self.world.device)

    def _opened_reference(self) -> ScoringModel:
        if self.reference is None:
            raise RankError("no reference policy is loaded")
        return self.reference

    def open_teacher(self, folder: str, adapter: str | None) -> None:
        """Opens the teacher whose distributions the policy's are compared with; an adapter is added to its weights."""
        self.teacher = self.world.open(folder, "policy", self.settings, is_trained=False, merged=adapter)
        choose_layout(self.teacher, DTYPES[self.settings.dtype])

    def _opened_teacher(self) -> ScoringModel:
        if self.teacher is None:
            raise RankError("no teacher is loaded")
        return self.teacher

    def teacher_top(
        self, batches: dict[int, Batch], total: int, *, k: int, temperature: float, progress: Progress
    ) -> list[tuple[Tensor, Tensor]]:
        """Returns the teacher's most probable tokens at the scored positions of this rank's micro-batches."""
        results = []
        for done, (micro_batch, batch) in enumerate(self._rounds(batches, total), start=1):
            with torch.no_grad(), self.world.agreement():
                head = self._teacher_head(batch)
                ids, logprob = most_probable(head, k, self.model.vocabulary, 1 / temperature)
                split = self._opened_teacher().split(batch)
                ids, logprob = (split.gathered(x, batch.rows - 1) for x in (ids, logprob))
            if micro_batch is not None:
                results.append((ids.to("cpu", torch.int64), logprob.to("cpu", torch.float32)))
            progress(done)
        return results

    def _teacher_head(self, batch: Batch) -> Head:
        """The teacher's head over its hidden states for this rank's scored tokens."""
        teacher = self._opened_teacher()
        if teacher.layout != "unpacked":
            return teacher.head(teacher(batch, rows_only=True))
        count = int(self.world.largest(torch.tensor([len(batch.lengths)])).item())
        each = []
        for sequence in range(count):
            has = sequence < len(batch.lengths)
            rows = teacher(batch.only([sequence]) if has else Batch.dummy(), rows_only=True)
            each += [rows] if has else []
        return teacher.head(torch.cat(each))

    def _compared(self, batch: Batch, loss: Loss) -> Batch:
        """A micro-batch with the teacher's side of a comparison over the whole vocabulary."""
        if loss.divergence is None:
            return batch
        with torch.no_grad():
            teacher = self._teacher_head(batch)
        return replace(batch, comparison=Comparison(teacher, loss.divergence))

    def whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the weights by their names in Hugging Face folders, in the order of the digest; every rank has to call it."""
        for name, weight in self.model.named_weights().items():
            yield name, self.world.whole(weight)

    def merged_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the weights of the base with the adapter added; every rank has to call it."""
        lora = self.settings.lora
        assert lora is not None
        own = dict(self.whole_weights())
        for name, weight in self.model.base_weights().items():
            yield name, adapter.merged(name, self._numbers(weight), own, lora)

    def _numbers(self, weight: Tensor) -> Tensor:
        """Returns a whole tensor of the model or of a quantized base."""
        return self.world.whole(quantized.numbers(weight))

    def load(self, folder: Path) -> None:
        """Replaces the weights by those of a folder; every rank has to call it."""
        self._load(self.model, self.settings.heads, folder)

    def load_reference(self, folder: Path) -> None:
        """Replaces the reference by the model of a folder; every rank has to call it."""
        self._load(self._opened_reference(), "policy", folder)
        self.has_reference_moved = True

    def _load(self, model: ScoringModel, heads: Heads, folder: Path) -> None:
        settings, world = self.settings, self.world
        dtype = torch.float64 if settings.dtype == "f64" else torch.float32
        own, given = model.named_weights(), None
        with world.access(f"read {folder}"):
            if world.rank == 0 and model.adapter is not None:
                given = adapter.read(folder)
                if model.score is not None:
                    head = load_file(folder / VALUE_HEAD)
                    given |= {adapter.PREFIX + name: x for name, x in head.items()}
            elif world.rank == 0:
                # With a value head of its own, the folder is that of a policy.
                whole = open_model(str(folder), heads, dtype=dtype)
                if whole.score is not None:
                    head = load_file(folder / VALUE_HEAD)
                    whole.score.load_state_dict({name.removeprefix("score."): x for name, x in head.items()})
                given = {name: weight.detach() for name, weight in whole.named_weights().items()}
        with world.access(f"read {folder}"):
            if given is not None and {n: x.shape for n, x in given.items()} != {
                n: shape_of(x) for n, x in own.items()
            }:
                raise CheckpointError(f"{folder}: its model has other tensors than the one in training")
        for name, weight in own.items():
            full = torch.empty(shape_of(weight), dtype=dtype) if given is None else given[name]
            world.broadcast_into(weight, full.contiguous())

    def park(self) -> None:
        """Moves weights, gradients and moments from the device to host memory until `resume`."""
        if self.world.device.type == "cuda" and not self.settings.offload and not self.is_parked:
            self.optimizer.move(torch.device("cpu"))
            free_device(self.world.device)
            self.is_parked = True

    def resume(self) -> None:
        """Moves back what `park` moved."""
        if self.is_parked:
            self.optimizer.move(self.world.device)
            self.is_parked = False

    def _rounds(self, batches: dict[int, Batch], total: int) -> Iterator[tuple[int | None, Batch]]:
        """Yields this rank's micro-batches, and an empty one where only other ranks have one."""
        for first in range(0, total, self.world.groups):
            micro_batch = first + self.world.group
            yield (micro_batch, batches[micro_batch]) if micro_batch < total else (None, Batch.dummy())

    def _plan(self, batches: dict[int, Batch], total: int, loss: Loss) -> list[Parts]:
        """Divides each micro-batch into sequences to train and to score; agrees on each round's passes."""
        plan = []
        for micro_batch, batch in self._rounds(batches, total):
            inert = list(loss.inert(micro_batch))[: len(batch.lengths)] if micro_batch is not None else [True]
            inert += [False] * (len(batch.lengths) - len(inert))
            if micro_batch is not None and self.settings.lora is not None and self.settings.lora.dropout:
                # Masks are drawn for the micro-batch as it is.
                inert = [False] * len(inert)
            scored = [i for i, is_inert in enumerate(inert) if is_inert and micro_batch is not None]
            trained = [i for i, is_inert in enumerate(inert) if not is_inert]
            plan.append(Parts(scored, trained))
        sizes = torch.tensor([[len(part.scored), len(part.trained)] for part in plan], dtype=torch.long).view(
            -1, 2
        )
        for part, (scored, trained) in zip(plan, self.world.largest(sizes).tolist(), strict=True):
            part.most_scored, part.most_trained = scored, trained
        return plan

    def _accumulate_one(
        self, micro_batch: int | None, batch: Batch, parts: Parts, loss: Loss
    ) -> Trained | None:
        # Sequences to score go first, while there are no activations in memory.
        scored = batch.only_or_dummy(parts.scored)
        noisy = batch if micro_batch is None else loss.noisy(batch, self.model.width)
        trained = self._compared(noisy.only_or_dummy(parts.trained), loss)
        only_scored = with_graph = None
        with self._dropout(micro_batch):
            if parts.most_scored:
                with torch.no_grad():
                    only_scored = self._score(self.optimizer.module, scored)
            if parts.most_trained:
                if self.model.layout == "unpacked":
                    with torch.no_grad():
                        with_graph = self._score(self.optimizer.module, trained)
                else:
                    with_graph = self.optimizer.module(trained)
        coefficients = None
        with self.world.agreement():
            if micro_batch is not None:
                scores = merged(batch, parts, only_scored, with_graph)
                check_finite(scores, micro_batch)
                coefficients = loss.evaluate(micro_batch, scores)
                check_inert(coefficients, batch, parts.scored, micro_batch)
        if parts.most_trained and self.model.layout == "unpacked":
            with self._dropout(micro_batch):
                self._back_propagate_each(noisy, parts, coefficients, loss)
        elif with_graph is not None:
            with self._dropout(micro_batch):
                self._backward(batch, parts.trained, coefficients, with_graph)
        if micro_batch is None or coefficients is None:
            return None
        count = sum(batch.lengths[i] for i in parts.trained)
        return Trained(micro_batch, coefficients.terms, count, sum(batch.lengths) - count)

    def _back_propagate_each(
        self, batch: Batch, parts: Parts, coefficients: Coefficients | None, loss: Loss
    ) -> None:
        for place in range(parts.most_trained):
            own = parts.trained[place : place + 1]
            scores = self.optimizer.module(self._compared(batch.only_or_dummy(own), loss))
            self._backward(batch, own, coefficients, scores)

    def _backward(
        self, batch: Batch, sequences: Sequence[int], coefficients: Coefficients | None, scores: Scores
    ) -> None:
        """Back-propagates the coefficients of some sequences; zeros where this rank has none."""
        # The gradient reaches all weights on every rank: collective operations wait for each.
        loss = torch.stack([x.sum() * 0 for x in scores if x.requires_grad]).sum()
        if coefficients is not None and len(sequences):
            loss = loss + coefficients.of(batch, sequences, scores)
        self.optimizer.backward(loss)

    def _score(self, model: Any, batch: Batch) -> Scores:
        """Scores a micro-batch without a graph."""
        if model.layout != "unpacked":
            return cast("Scores", model(batch).detached())
        count = int(self.world.largest(torch.tensor([len(batch.lengths)])).item())
        each = []
        for sequence in range(count):
            has = sequence < len(batch.lengths)
            scores = model(batch.only([sequence]) if has else Batch.dummy()).detached()
            each += [scores] if has else []
        return Scores(*(_joined(lists) for lists in zip(*each, strict=True)))


def open_engine(settings: Settings, world: World) -> Engine:
    """Opens the engine of a backend."""
    if settings.backend != "megatron":
        return Engine(settings, world)
    from rloom.torch.megatron import MegatronEngine

    return MegatronEngine(settings, world)


def _optimizer(model: ScoringModel, settings: Settings, world: World) -> Optimizer:
    if settings.backend == "torch":
        return Optimizer(model, settings, world)
    from rloom.torch.deepspeed import ZeroOptimizer

    return ZeroOptimizer(model, settings, world)


def local_part(weight: Tensor) -> Tensor:
    """Returns the part of a tensor that this rank has."""
    own = weight.detach()
    return own.to_local() if isinstance(own, DTensor) else own


def free_device(device: torch.device) -> None:
    """Gives memory that no tensor uses back to the device, including buffers that a server has read."""
    if device.type == "cuda":
        torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


@dataclass
class Parts:
    """Sequences of a micro-batch, and the largest number of each kind on any rank."""

    scored: Sequence[int]
    trained: Sequence[int]
    most_scored: int = 0
    most_trained: int = 0


def check_inert(coefficients: Coefficients, batch: Batch, sequences: Sequence[int], micro_batch: int) -> None:
    """Refuses a loss that has coefficients for sequences which it declared to have none."""
    for sequence in sequences:
        if not coefficients.is_zero(batch, [sequence]):
            raise LossError("inert", micro_batch=micro_batch, not_inert=sequence)


def merged(batch: Batch, parts: Parts, scored: Scores | None, trained: Scores | None) -> Scores:
    """Returns the scores of the whole micro-batch from those of its parts."""
    lists = []
    for field in Scores._fields:
        of_sequence = [
            [i] if field == "last_value" else batch.scored_of([i]).tolist() for i in range(len(batch.lengths))
        ]
        whole = None
        for sequences, scores in ((parts.scored, scored), (parts.trained, trained)):
            own = [index for i in sequences for index in of_sequence[i]]
            given = None if scores is None else getattr(scores, field)
            if given is not None and own and len(given):
                if whole is None:
                    whole = torch.empty(sum(len(own) for own in of_sequence), *given.shape[1:])
                whole[own] = given.detach().float().cpu()
        lists.append(torch.empty(0) if whole is None else whole)
    return Scores(*lists)


def _joined(lists: Sequence[Tensor]) -> Tensor:
    """Joins the scores of sequences; those of a sequence without scored tokens may have no width."""
    filled = [x for x in lists if len(x)]
    return torch.cat(filled) if filled else lists[0]


def check_finite(scores: Scores, micro_batch: int | None) -> None:
    """Refuses scores that are infinite or NaN."""
    named = (("log_probability", scores[:2]), ("value", scores[2:4]), ("log_probability", scores[4:]))
    for what, lists in named:
        if not all(bool(torch.isfinite(x).all()) for x in lists):
            raise NotFiniteError(what, micro_batch)
