"""Processes rows with TRL's trainers and writes token ids and loss masks to trl_rows.json.

The trainers prepare their data sets when they are created; nothing is trained. The tokenizers are those of the tests of
crate text. Needs trl, transformers and datasets (the file was written with trl 1.16.0):  python trl_rows.py
"""

import json
import pathlib
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, SFTConfig, SFTTrainer

HERE = pathlib.Path(__file__).parent
TOKENIZERS = HERE / "../../../text/tests/golden"
HEADER = {"chatml": ("<|turn|>", "\n", "{{ '\\n' }}"), "llama": ("<|turn|>", "<|end|>\n\n", "")}


def template(family, marked):
    """A template in the form of ChatML or of Llama 3, with or without blocks that mark the text of the assistant."""
    start, after_role, after_turn = HEADER[family]
    turn = "{{ m.content }}<|stop|>"
    own = "{% generation %}" + turn + "{% endgeneration %}" if marked else turn
    return (
        "{% for m in messages %}" + start + "{{ m.role }}" + after_role
        + "{% if m.role == 'assistant' %}" + own + "{% else %}" + turn + "{% endif %}" + after_turn + "{% endfor %}"
        + "{% if add_generation_prompt %}" + start + "assistant" + after_role + "{% endif %}"
    )  # fmt: skip


def says(*messages):
    return [{"role": role, "content": content} for role, content in messages]


USER, AGAIN = ("user", "What is 2 + 2?"), ("user", "Sure?\nReally – größer als 3?")
ANSWER, OTHER, LAST = ("assistant", "It's 4."), ("assistant", " 5, isn't it?"), ("assistant", "Yes:\n\n4 > 3 😀")
SYSTEM = ("system", "Answer in one sentence.")
TEXTS = [
    {"text": "The policy samples tokens and the reward says which were good."},
    {"text": "Zürich größer — „ja“\n\n你好 👍<|stop|>"},
    {"text": " 12 + 30 = 42"},
]
COMPLETIONS = [
    {"prompt": "What is 2 + 2?", "completion": " It's 4, isn't it?"},
    {"prompt": "def f(x):\n", "completion": "    return x\n"},
    {"prompt": "Zürich,", "completion": " Köln, naïve 😀<|stop|>"},
]
ANSWERED = [
    {"prompt": says(USER), "completion": says(ANSWER)},
    {"prompt": says(SYSTEM, USER, ANSWER, AGAIN), "completion": says(LAST)},
]
TALKS = [
    {"messages": says(USER, ANSWER)},
    {"messages": says(SYSTEM, USER, OTHER, AGAIN, LAST)},
    {"messages": says(USER, ANSWER, AGAIN, OTHER, USER, LAST)},
]
PAIRS = [
    {"prompt": "What is 2 + 2?", "chosen": " It's 4.", "rejected": " It's 5, isn't it?"},
    {"chosen": "The pattern shows only at the end.", "rejected": "The pattern says which were good."},
    {"chosen": "12 + 30 = 42", "rejected": "12 + 30 = 58"},
]
TALKED_PAIRS = [
    {"prompt": says(USER), "chosen": says(ANSWER), "rejected": says(OTHER)},
    {"chosen": says(SYSTEM, USER, ANSWER, AGAIN, LAST), "rejected": says(SYSTEM, USER, ANSWER, AGAIN, OTHER)},
]
LABELS = [
    {"prompt": "What is 2 + 2?", "completion": " It's 4.", "label": True},
    {"prompt": "What is 2 + 2?", "completion": " It's 5.", "label": False},
]
TALKED_LABELS = [
    {"prompt": says(SYSTEM, USER), "completion": says(ANSWER), "label": True},
    {"prompt": says(USER, ANSWER, AGAIN), "completion": says(OTHER), "label": False},
]


def model(tokenizer):
    size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **size))


def trainer(kind, rows, tokenizer, **options):
    trainers = {"sft": (SFTTrainer, SFTConfig), "dpo": (DPOTrainer, DPOConfig), "kto": (KTOTrainer, KTOConfig)}
    of, config = trainers[kind]
    with tempfile.TemporaryDirectory() as folder:
        args = config(output_dir=folder, max_length=None, report_to="none", use_cpu=True, bf16=False, **options)
        reference = {} if kind == "sft" else {"ref_model": model(tokenizer)}
        data = Dataset.from_list(rows)
        return of(model(tokenizer), args=args, train_dataset=data, processing_class=tokenizer, **reference)


def supervised(rows, tokenizer, **options):
    for row in trainer("sft", rows, tokenizer, **options).train_dataset:
        labels = row.get("labels") or row["input_ids"]
        mask = [int(label != -100) for label in labels]
        yield [{"ids": row["input_ids"], "mask": [0, *mask[1:]]}]


def completed(prompt, completion):
    return {"ids": prompt + completion, "mask": [0] * len(prompt) + [1] * len(completion)}


def pairs(rows, tokenizer):
    for row in trainer("dpo", rows, tokenizer).train_dataset:
        yield [completed(row["prompt_ids"], row[f"{name}_ids"]) for name in ("chosen", "rejected")]


def labels(rows, tokenizer):
    for row in trainer("kto", rows, tokenizer, per_device_train_batch_size=2).train_dataset:
        yield [completed(row["prompt_ids"], row["completion_ids"])]


def cases():
    for name in ("byte_level", "metaspace"):
        texts = [row for row in TEXTS if name == "byte_level" or "<|stop|>" not in row["text"]]
        yield name, None, "demonstrations", None, texts, supervised, {}
    name = "byte_level"
    yield name, None, "demonstrations", "completion", COMPLETIONS, supervised, {}
    yield name, None, "demonstrations", "all", COMPLETIONS, supervised, {"completion_only_loss": False}
    yield name, None, "pairs", None, PAIRS, pairs, {}
    yield name, None, "labels", None, LABELS, labels, {}
    for family in HEADER:
        plain, marked = template(family, False), template(family, True)
        yield name, plain, "demonstrations", "completion", ANSWERED, supervised, {}
        yield name, plain, "demonstrations", "all", ANSWERED, supervised, {"completion_only_loss": False}
        yield name, plain, "demonstrations", "all", TALKS, supervised, {}
        yield name, marked, "demonstrations", "assistant", TALKS, supervised, {"assistant_only_loss": True}
        yield name, plain, "pairs", None, TALKED_PAIRS, pairs, {}
        yield name, plain, "labels", None, TALKED_LABELS, labels, {}


def main():
    written = []
    for name, chat_template, kind, loss_on, rows, process, options in cases():
        tokenizer = AutoTokenizer.from_pretrained(TOKENIZERS / name)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        if chat_template:
            tokenizer.chat_template = chat_template
        # One row at a time: data sets share the columns of all their rows.
        for row in rows:
            own = [row, row] if kind == "labels" else [row]
            episodes = next(iter(process(own, tokenizer, **options)))
            written.append({"tokenizer": name, "template": chat_template, "kind": kind, "loss_on": loss_on, "row": row,
                            "episodes": episodes})  # fmt: skip
    (HERE / "trl_rows.json").write_text(json.dumps(written, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(len(written), "cases")


if __name__ == "__main__":
    main()
