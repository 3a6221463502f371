"""Rows and tokenizer of the workloads `SFT step S` and `DPO step S`: every sequence has the length of a training step's.

Texts are learned as a whole; a pair has a prompt of half a sequence. The last token of a sequence is the end of text.
"""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from workloads import SHAPES, Shape, prompts

#: Sequences of a batch and tokens of each; a pair has two.
SEQUENCES, LENGTH = SHAPES["S"].train
END = "<end>"


def tokenizer(shape: Shape) -> PreTrainedTokenizerFast:
    """Creates a tokenizer with one word per id. Id 0 is the end of text, which no row contains."""
    words = {END: 0} | {f"w{i}": i for i in range(1, shape.vocabulary)}
    made = Tokenizer(models.WordLevel(words, unk_token="w1"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, pad_token=END)


def batch(method: str) -> int:
    """Rows of a batch."""
    return SEQUENCES if method == "sft" else SEQUENCES // 2


def rows(method: str, shape: Shape, steps: int) -> list[dict[str, str]]:
    """Returns the rows of all steps, in order."""
    count, half = steps * batch(method), LENGTH // 2
    if method == "sft":
        return [{"text": said(ids)} for ids in prompts(shape, count, LENGTH - 1)]
    found = []
    for ids in prompts(shape, count, 2 * LENGTH - half - 2):
        prompt, completions = ids[:half], ids[half:]
        chosen, rejected = completions[: half - 1], completions[half - 1 :]
        # TRL joins the texts of prompt and completion before it tokenises them.
        found.append({"prompt": said(prompt) + " ", "chosen": said(chosen), "rejected": said(rejected)})
    return found


def said(ids: list[int]) -> str:
    return " ".join(f"w{i}" for i in ids)
