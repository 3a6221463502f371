"""Rewards by a model in a folder that `AutoModelForSequenceClassification` of transformers opens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .errors import RefusedError


class RewardModel:
    """The last output of the model, without an activation, for each completion."""

    def __init__(self, folder: str, batch_tokens: int) -> None:
        if not Path(folder, "config.json").is_file():
            raise RefusedError(f"{folder} is no folder of transformers: it has no config.json")
        try:
            import torch
            import transformers
        except ImportError as error:
            raise RefusedError("a reward model needs torch and transformers") from error
        self._torch, self._batch_tokens = torch, batch_tokens
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
            kind: Any = transformers.AutoModelForSequenceClassification
            model, loading = kind.from_pretrained(folder, output_loading_info=True)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise RefusedError(f"transformers cannot open {folder}") from error
        if missing := sorted(loading["missing_keys"]):
            raise RefusedError(f"{folder} is no reward model: the tensors {', '.join(missing)} are missing")
        # Folders that RLoom has trained end texts with the end-of-text token.
        own = getattr(model.config, "rloom", None) or {}
        self._end: int | None = self._tokenizer.eos_token_id if own.get("end_token") else None
        self._model: Any = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()

    def score(self, prompts: Sequence[Any], completions: Sequence[Any]) -> list[float]:
        """Scores completions, in batches of texts of similar lengths."""
        texts = [self._tokens(*both) for both in zip(prompts, completions, strict=True)]
        pad = self._model.config.get_text_config().pad_token_id
        # Without a padding token, the model takes the last token of a batch of one.
        limit = 0 if pad is None else self._batch_tokens
        scores = [0.0] * len(texts)
        for batch in batches([len(text) for text in texts], limit):
            for index, score in zip(batch, self._outputs([texts[i] for i in batch], pad), strict=True):
                scores[index] = score
        return scores

    def _outputs(self, texts: list[list[int]], pad: int | None) -> list[float]:
        torch, longest = self._torch, max(map(len, texts))
        rows = [text + [pad or 0] * (longest - len(text)) for text in texts]
        mask = [[1] * len(text) + [0] * (longest - len(text)) for text in texts]
        inputs = {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}
        with torch.inference_mode():
            logits = self._model(**{name: x.to(self._model.device) for name, x in inputs.items()}).logits
        scores: list[float] = logits[:, -1].double().tolist()
        return scores

    def _tokens(self, prompt: Any, completion: Any) -> list[int]:
        """A conversation in the form of the model's chat template; plain text without one."""
        if self._tokenizer.chat_template is not None:
            if isinstance(prompt, str):
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
