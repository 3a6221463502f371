"""A causal language model with the heads of a policy, a policy with values, a critic, or a reward model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from rloom._native import digest_order
from rloom.torch import adapter, quantized
from rloom.torch.attention import PACKED, AttentionNotSupportedError
from rloom.torch.comparison import Head
from rloom.torch.errors import BatchError, ModelError
from rloom.torch.head import token_scores
from rloom.torch.sequence import Split
from rloom.torch.settings import CLASSIFIERS, REWARDS

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from rloom.torch.batch import Batch
    from rloom.torch.quantized import Computation
    from rloom.torch.settings import Heads, LoraSettings

#: File of a policy's value head in a checkpoint.
VALUE_HEAD = "trainer/value_head.safetensors"
#: Treatment of a micro-batch: packed with own attention or the mask of transformers, or sequence by sequence.
Layout = Literal["packed", "masked", "unpacked"]
#: Class and labels of the heads in place of the language head.
KINDS: dict[str, tuple[Any, list[str]]] = {
    "critic": (AutoModelForTokenClassification, ["value"]),
    "reward": (AutoModelForSequenceClassification, ["value"]),
    "process_reward": (AutoModelForTokenClassification, ["wrong", "right"]),
}
#: Settings of mixtures of experts in configurations.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


class Scores(NamedTuple):
    """Scores of a micro-batch's scored tokens; those of absent heads are empty."""

    logprob: Tensor
    entropy: Tensor
    value: Tensor
    #: Value after each sequence's last token; with a gradient in a reward model alone.
    last_value: Tensor
    #: Divergence from a teacher, or log-probabilities of candidates, `[S, k]`, of a batch with a comparison.
    divergence: Tensor
    candidate_logprob: Tensor

    def detached(self) -> Scores:
        """Returns the scores on the CPU, without their graph."""
        return Scores(*(x.detach().to("cpu", torch.float32) for x in self))


class ScoringModel(nn.Module):
    """Scores tokens. `forward` computes the heads: the root's hooks gather their sharded weights."""

    def __init__(self, hf: PreTrainedModel, heads: Heads, lora: LoraSettings | None = None) -> None:
        super().__init__()
        # Batches have no padding: the padding token is learned like any other.
        embeddings: Any = hf.get_input_embeddings()
        embeddings.padding_idx = None
        self.hf = hf
        #: Configuration of the adapter that is trained instead of the weights.
        self.adapter: Any = None if lora is None else adapter.add_adapter(hf, lora)
        self.heads = heads
        self.layout: Layout = "packed"
        #: Device of the computation; weights that are offloaded are in host memory.
        self.device = hf.device
        #: Ranks that divide the tokens of a packed micro-batch.
        self.group: ProcessGroup | None = None
        # A value head of zeros: all initial values are exactly 0.
        self.score: nn.Linear | None = None
        if heads == "policy_and_value":
            with torch.device(hf.device):
                self.score = nn.Linear(hf.config.get_text_config().hidden_size, 1)
            _zero(self.score)

    @property
    def is_classifier(self) -> bool:
        """True if values take the place of the language head."""
        return self.heads in CLASSIFIERS

    @property
    def rewards(self) -> bool:
        """True for a reward model of completions or of steps."""
        return self.heads in REWARDS

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        embedding: Any = self.hf.get_input_embeddings()
        return int(embedding.weight.shape[0])

    @property
    def width(self) -> int:
        """Width of the embeddings of tokens."""
        embedding: Any = self.hf.get_input_embeddings()
        return int(getattr(embedding, "embedding_dim", 0) or self.hf.config.get_text_config().hidden_size)

    @property
    def has_experts(self) -> bool:
        """True for a mixture of experts."""
        config = self.hf.config.get_text_config()
        return any(getattr(config, name, None) for name in EXPERTS)

    def forward(self, batch: Batch, own_head: bool = False, rows_only: bool = False) -> Scores | Tensor:
        """Scores a micro-batch, or returns `[T, V]` logits of the model's own head.

        With `rows_only`, returns the hidden states that predict this rank's scored tokens, `[S, D]`.
        """
        split = self.split(batch)
        if own_head:
            return self.hf(**self._inputs(batch, split)).logits[0]  # type: ignore[no-any-return]
        backbone: Any = self.hf.base_model
        # After the final norm, `[T, D]`; with a group, of this rank's tokens.
        hidden = backbone(**self._inputs(batch, split)).last_hidden_state[0]
        before = batch.rows - 1
        own = split.own(before)
        rows = batch.rows[own].to(hidden.device)
        predicting = hidden[rows - 1 - split.first]
        if rows_only:
            return predicting  # type: ignore[no-any-return]
        logprob = entropy = values = last_values = hidden.new_empty(0, dtype=torch.float32)
        divergence = candidates = logprob
        if not self.is_classifier:
            head = self.head(predicting)
            targets, inverse = batch.tokens.to(rows.device)[rows], batch.inv_temperature[own].to(rows.device)
            scores = token_scores(predicting, head.weight, head.bias, targets, inverse)
            logprob, entropy = (split.gathered(x, before) for x in scores)
            if batch.comparison is not None:
                compared = split.gathered(batch.comparison.of_rank(own).scores(head), before)
                if batch.comparison.candidates is None:
                    divergence = compared
                else:
                    candidates = compared
        value: Any = self.hf.score if self.is_classifier else self.score
        if value is not None:
            values = split.gathered(_values(value, predicting), before)
            ends = torch.tensor(batch.starts[1:]) - 1
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.rewards):
                last = hidden[(ends[split.own(ends)] - split.first).to(hidden.device)]
                last_values = split.gathered(_values(value, last), ends)
        return Scores(logprob, entropy, values, last_values, divergence, candidates)

    def split(self, batch: Batch) -> Split:
        """The division of a micro-batch's tokens among the ranks of a group."""
        return Split.of(len(batch.tokens), self.group if self.layout == "packed" else None)

    def head(self, hidden: Tensor) -> Head:
        """The language head over hidden states. Sharded weights are gathered during and after a forward pass."""
        hf: Any = self.hf
        head = hf.get_output_embeddings()
        return Head(hidden, head.weight, head.bias)

    def _inputs(self, batch: Batch, split: Split) -> dict[str, object]:
        if batch.tokens.numel() and int(batch.tokens.max()) >= self.vocabulary:
            raise BatchError(
                f"token id {int(batch.tokens.max())} is outside of the vocabulary of {self.vocabulary}"
            )
        inputs: dict[str, object] = {
            "input_ids": split.part(batch.tokens).to(self.device)[None],
            "position_ids": split.part(batch.positions).to(self.device)[None],
            "use_cache": False,
        }
        if batch.noise is not None:
            embedding: Any = self.hf.get_input_embeddings()
            own = embedding(inputs.pop("input_ids"))
            noise = split.part_of_rows(batch.noise).to(own.device, own.dtype)
            inputs["inputs_embeds"] = own + noise[None]
        if self.layout == "packed":
            inputs["sequence_lengths"] = batch.lengths + ((split.padding,) if split.padding else ())
        if split.group is not None:
            inputs["sequence_group"] = split.group
        return inputs

    def set_layout(self, layout: Layout) -> None:
        """Chooses the treatment of micro-batches."""
        implementation = {"packed": PACKED, "masked": "sdpa", "unpacked": "sdpa"}[layout]
        if implementation == "sdpa" and not self.hf._supports_sdpa:
            implementation = "eager"
        if implementation == PACKED and not self.hf._supports_attention_backend:
            raise AttentionNotSupportedError(f"{type(self.hf).__name__} has attention of its own")
        self.hf.set_attn_implementation(implementation)
        self.layout = layout

    def layers(self) -> list[nn.Module]:
        """Returns the decoder layers."""
        names = set(self.hf._no_split_modules or [])
        return [module for module in self.hf.modules() if type(module).__name__ in names]

    def release(self) -> None:
        """Drops gathered weights; a forward pass without a backward pass leaves the root's, which then go stale."""
        if isinstance(self, FSDPModule):
            self.reshard()

    def named_weights(self) -> dict[str, nn.Parameter]:
        """Returns the trained tensors by their names in Hugging Face folders, in the order of the digest."""
        self.release()
        named = {name.removeprefix("hf."): parameter for name, parameter in self.named_parameters()}
        if self.adapter is not None:
            named = adapter.adapter_weights(named)
        return {name: named[name] for name in digest_order(list(named))}

    def base_weights(self) -> dict[str, nn.Parameter]:
        """Returns the tensors of an adapter's base by their names in Hugging Face folders, in the order of the digest.

        Those of quantized layers are packed: `quantized.numbers` reads them.
        A value head is none of them: it is trained with the adapter.
        """
        self.release()
        named = adapter.base_weights(
            {name.removeprefix("hf."): parameter for name, parameter in self.named_parameters()}
        )
        return {name: named[name] for name in digest_order(list(named))}

    def set_trained(self, is_trained: bool) -> None:
        """Chooses the tensors that get gradients: all that are trained, or none."""
        self.requires_grad_(False)
        for weight in self.named_weights().values() if is_trained else ():
            weight.requires_grad_(True)


def open_model(
    folder: str,
    heads: Heads,
    *,
    meta: bool = False,
    dtype: torch.dtype = torch.float32,
    lora: LoraSettings | None = None,
    merged: str | None = None,
    computation: Computation | None = None,
) -> ScoringModel:
    """Opens a Hugging Face folder in host memory; with `meta`, its shapes alone.

    `lora` adds an adapter, new or the one that it starts from; `merged` is the folder of one that is added to the weights.
    A quantized base is for the products of a `computation`, on its device.
    """
    is_quantized = lora is not None and lora.quantize is not None
    if is_quantized and computation is None:
        raise ModelError("`lora.quantize` needs one rank, without `offload`")
    kind, labels = KINDS.get(heads, (AutoModelForCausalLM, []))
    quiet = logging.getLogger("transformers")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        if labels:
            _set_classifier(config, heads, labels)
        if meta:
            with torch.device("meta"):
                return ScoringModel(kind.from_config(config, dtype=dtype), heads, lora).eval()
        hf, loading = kind.from_pretrained(
            folder, config=config, local_files_only=True, dtype=dtype, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{folder}: transformers cannot open this folder: {error}") from error
    finally:
        quiet.setLevel(level)
    missing = set(loading["missing_keys"])
    if labels:
        if not isinstance(getattr(hf, "score", None), nn.Linear):
            raise ModelError(f"{folder}: {type(hf).__name__} has no linear value head called score")
        if missing & {"score.weight", "score.bias"}:
            _zero(hf.score)
        missing -= {"score.weight", "score.bias"}
    if missing:
        raise ModelError(f"{folder}: {len(missing)} tensors are missing, such as {min(missing)}")
    if merged:
        hf = adapter.merged_model(hf, merged)
    if is_quantized and computation is not None:
        quantized.quantize(hf, computation)
    model = ScoringModel(hf, heads, lora)
    if lora is not None and lora.start != folder:
        adapter.load(Path(lora.start), model.named_weights(), lora, model.adapter.target_modules)
    # Dropout would make scores depend on the call; only that of an adapter is used, in training.
    return model.eval()


def _set_classifier(config: Any, heads: Heads, labels: list[str]) -> None:
    """Sets the fields of the head, as the embedded engine writes them."""
    if heads == "reward":
        # Texts that the model learns from end with an end-of-text token, which is no padding then.
        config.rloom = {"end_token": True}
        if config.pad_token_id is not None and config.pad_token_id in _end_tokens(config):
            config.pad_token_id = None
    else:
        config.classifier_dropout = 0.0
    if len(config.id2label) != len(labels) or heads == "critic" or _has_default_labels(config):
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: number for number, label in enumerate(labels)}


def set_pad_token(config: Any, pad: int | None) -> None:
    """Names the padding token of the tokenizer, by which transformers finds the last token of a text."""
    if config.pad_token_id is None and pad is not None and pad not in _end_tokens(config):
        config.pad_token_id = pad


def _end_tokens(config: Any) -> list[int]:
    end = config.eos_token_id
    return [end] if isinstance(end, int) else list(end or ())


def _has_default_labels(config: Any) -> bool:
    return all(label == f"LABEL_{number}" for number, label in config.id2label.items())


def _values(head: nn.Linear, hidden: Tensor) -> Tensor:
    """Returns the value of each row; with the labels wrong and right, the difference of their logits."""
    precision = torch.promote_types(hidden.dtype, torch.float32)
    bias = None if head.bias is None else head.bias.to(precision)
    values = nn.functional.linear(hidden.to(precision), head.weight.to(precision), bias)
    # No view: hooks on the outputs of a sharded model warn about views.
    return values[:, 0].clone() if values.shape[1] == 1 else values[:, 1] - values[:, 0]


@torch.no_grad()
def _zero(head: nn.Linear) -> None:
    for parameter in head.parameters():
        parameter.zero_()
