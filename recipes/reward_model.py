"""Rewards by a reward model in a folder that `AutoModelForSequenceClassification` of transformers opens.

    reward.components = [{ kind = "python", function = "recipes/reward_model.py:score", python = ".venv/bin/python",
                           workers = 1, group = true }]

The environment variable RLOOM_REWARD_MODEL names the folder or the hub model; the interpreter needs torch and transformers. The
reward is the model's last output, without an activation.
"""

import os
from functools import cache

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


@cache
def opened():
    """Tokenizer and model, read once per process."""
    name = os.environ["RLOOM_REWARD_MODEL"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(name, padding_side="right")
    model = AutoModelForSequenceClassification.from_pretrained(name).to(device).eval()
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    # The model finds the last token of each text by its padding.
    model.config.pad_token_id = tokenizer.pad_token_id
    return tokenizer, model


def text_of(tokenizer, prompt, completion) -> str:
    """A conversation in the form of the model's chat template; plain text without one."""
    if isinstance(prompt, str):
        if tokenizer.chat_template is None:
            return prompt + completion
        prompt, completion = [{"role": "user", "content": prompt}], [{"role": "assistant", "content": completion}]
    return tokenizer.apply_chat_template([*prompt, *completion], tokenize=False)


@torch.inference_mode()
def score(completions, prompts) -> list[float]:
    """The model's output for each completion."""
    tokenizer, model = opened()
    texts = [text_of(tokenizer, *both) for both in zip(prompts, completions, strict=True)]
    # Templates contain the special tokens already.
    special = tokenizer.chat_template is None
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=special)
    inputs.pop("token_type_ids", None)
    return model(**inputs.to(model.device)).logits[:, -1].double().tolist()
