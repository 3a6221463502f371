"""Rewards by a model in a folder of transformers, of completions or of their steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .errors import RefusedError

#: File of an adapter of PEFT, and the name of the weight of a reward model's head.
ADAPTER, HEAD = "adapter_config.json", "score.weight"
#: Functions of the probabilities that the steps of a completion are right.
REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "product": math.prod,
    "mean": lambda steps: sum(steps) / len(steps),
    "last": lambda steps: steps[-1],
}


class RewardModel:
    """The last output of the model, without an activation, for each completion.

    A model of steps has `steps`: the `separator` that ends a step and the function to `reduce` the probabilities that steps are
    right to one value.
    """

    def __init__(self, folder: str, batch_tokens: int, steps: dict[str, str] | None = None) -> None:
        if not any(Path(folder, name).is_file() for name in ("config.json", ADAPTER)):
            raise RefusedError(f"{folder} is no folder of transformers: it has no config.json")
        try:
            import torch
            import transformers
        except ImportError as error:
            raise RefusedError("a reward model needs torch and transformers") from error
        self._torch, self._batch_tokens, self._steps = torch, batch_tokens, steps
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
            kind: Any = (
                transformers.AutoModelForTokenClassification
                if steps
                else transformers.AutoModelForSequenceClassification
            )
            if Path(folder, ADAPTER).is_file():
                model, missing = _adapted(folder, kind)
            else:
                model, loading = kind.from_pretrained(folder, output_loading_info=True)
                missing = sorted(loading["missing_keys"])
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise RefusedError(f"transformers cannot open {folder}") from error
        if missing:
            raise RefusedError(f"{folder} is no reward model: the tensors {', '.join(missing)} are missing")
        if steps and model.config.num_labels != 2:
            labels = model.config.num_labels
            raise RefusedError(
                f"{folder} is no process-reward model: it has {labels} labels, not wrong and right"
            )
        # Folders that RLoom has trained end texts with the end-of-text token.
        own = getattr(model.config, "rloom", None) or {}
        self._end: int | None = self._tokenizer.eos_token_id if own.get("end_token") else None
        self._model: Any = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()

    def score(self, prompts: Sequence[Any], completions: Sequence[Any]) -> list[float]:
        """Scores completions, in batches of texts of similar lengths."""
        both = zip(prompts, completions, strict=True)
        if self._steps is None:
            texts, ends = [self._tokens(*each) for each in both], []
        else:
            texts, ends = map(list, zip(*[self._step_tokens(*each) for each in both], strict=True))
        pad = self._model.config.get_text_config().pad_token_id
        # Without a padding token, a model of completions takes the last token of a batch of one.
        limit = 0 if pad is None and not ends else self._batch_tokens
        scores = [0.0] * len(texts)
        for batch in batches([len(text) for text in texts], limit):
            outputs = self._outputs([texts[i] for i in batch], pad)
            for row, index in enumerate(batch):
                scores[index] = self._reduced(outputs[row, ends[index]]) if ends else float(outputs[row, -1])
        return scores

    def _reduced(self, logits: Any) -> float:
        """The value of a completion from the logits of wrong and right after each step."""
        right = self._torch.sigmoid(logits[:, 1] - logits[:, 0]).tolist()
        return REDUCTIONS[(self._steps or {})["reduce"]](right)

    def _outputs(self, texts: list[list[int]], pad: int | None) -> Any:
        torch, longest = self._torch, max(map(len, texts))
        rows = [text + [pad or 0] * (longest - len(text)) for text in texts]
        mask = [[1] * len(text) + [0] * (longest - len(text)) for text in texts]
        inputs = {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}
        with torch.inference_mode():
            logits = self._model(**{name: x.to(self._model.device) for name, x in inputs.items()}).logits
        return logits.double().cpu()

    def _step_tokens(self, prompt: Any, completion: Any) -> tuple[list[int], list[int]]:
        """The tokens of prompt and steps, and the places of the last token of each step. Steps are tokenised separately."""
        separator = (self._steps or {})["separator"]

        def encode(text: str) -> list[int]:
            tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
            return tokens

        if not isinstance(completion, str):
            completion = completion[-1]["content"]
        if not isinstance(prompt, str) and self._tokenizer.chat_template is not None:
            text = self._tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
            tokens = encode(text)
        else:
            if not isinstance(prompt, str):
                prompt = "\n".join(message["content"] for message in prompt)
            tokens = self._tokenizer.encode(prompt)
        ends = []
        for step in [text for text in completion.split(separator) if text.strip()] or [completion.strip()]:
            tokens = tokens + encode(step) + encode(separator)
            ends.append(len(tokens) - 1)
        return self._checked(tokens), ends

    def _tokens(self, prompt: Any, completion: Any) -> list[int]:
        """A conversation in the form of the model's chat template; plain text without one.

        Models that RLoom has trained know the text of such a prompt as it is.
        """
        is_text = isinstance(prompt, str)
        if self._tokenizer.chat_template is not None and not (is_text and self._end is not None):
            if is_text:
                prompt = [{"role": "user", "content": prompt}]
                completion = [{"role": "assistant", "content": completion}]
            # Templates contain the special tokens already.
            text = self._tokenizer.apply_chat_template([*prompt, *completion], tokenize=False)
            return self._checked(self._ended(self._tokenizer.encode(text, add_special_tokens=False)))
        if not isinstance(prompt, str):
            prompt = "\n".join(message["content"] for message in prompt)
            completion = completion[-1]["content"]
        return self._checked(self._ended(self._tokenizer.encode(prompt + completion)))

    def _ended(self, tokens: list[int]) -> list[int]:
        """The tokens up to the last end-of-text token, which is added if there is none, for models that read it."""
        if self._end is None:
            return tokens
        last = max((place for place, token in enumerate(tokens) if token == self._end), default=None)
        return [*tokens, self._end] if last is None else tokens[: last + 1]

    def _checked(self, tokens: list[int]) -> list[int]:
        longest = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        if not tokens or (longest is not None and len(tokens) > longest):
            raise ValueError(f"the text has {len(tokens)} tokens, the reward model holds 1 to {longest}")
        return tokens


def _adapted(folder: str, kind: Any) -> tuple[Any, list[str]]:
    """Opens an adapter over its base, a causal language model, with the adapter's value head.

    Returns the model, with the adapter added to its weights, and the names of missing tensors.
    """
    try:
        import peft
    except ImportError as error:
        raise RefusedError(f"{folder} is an adapter, which needs peft") from error
    import transformers
    from safetensors import safe_open

    with safe_open(Path(folder, "adapter_model.safetensors"), framework="pt") as file:
        given = {name.removeprefix("base_model.model.") for name in file.keys()}  # noqa: SIM118
        labels = file.get_slice(f"base_model.model.{HEAD}").get_shape()[0] if HEAD in given else 1
    settings = peft.PeftConfig.from_pretrained(folder)
    # RLoom writes the configuration of the whole model; adapters of other programs have that of their base.
    if Path(folder, "config.json").is_file():
        config = transformers.AutoConfig.from_pretrained(folder)
    else:
        config = transformers.AutoConfig.from_pretrained(settings.base_model_name_or_path, num_labels=labels)
    base, loading = kind.from_pretrained(
        settings.base_model_name_or_path, config=config, output_loading_info=True
    )
    # Of any head: PEFT's models of a task want all methods of its own.
    settings.task_type = None
    model = peft.PeftModel.from_pretrained(base, folder, config=settings).merge_and_unload()
    return model, sorted(set(loading["missing_keys"]) - given)


def batches(lengths: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Indices of texts that are computed together: at most `limit` tokens with padding, or one text."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and lengths[index] * (len(batch) + 1) > limit:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
