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
        options = {"max_length": None, **options}
        args = config(output_dir=folder, report_to="none", use_cpu=True, bf16=False, **options)
        reference = {} if kind == "sft" else {"ref_model": model(tokenizer)}
        data = Dataset.from_list(rows)
        return of(model(tokenizer), args=args, train_dataset=data, processing_class=tokenizer, **reference)


def supervised(rows, tokenizer, **options):
    for row in trainer("sft", rows, tokenizer, **options).train_dataset:
        labels = row.get("labels") or row["input_ids"]
        mask = [int(label != -100) for label in labels]
        yield [{"ids": row["input_ids"], "mask": [0, *mask[1:]]}]


def collated(of, rows):
    """What the trainer's collator makes of prepared rows: token ids and masks without padding."""
    batch = of.data_collator(list(rows))
    for ids, is_token, mask in zip(*(batch[key] for key in ("input_ids", "attention_mask", "completion_mask"))):
        length = int(is_token.sum())
        yield {"ids": ids[:length].tolist(), "mask": mask[:length].tolist()}


def pairs(rows, tokenizer, **options):
    of = trainer("dpo", rows, tokenizer, **options)
    for row in of.train_dataset:
        yield list(collated(of, [row]))


def labels(rows, tokenizer, **options):
    of = trainer("kto", rows, tokenizer, per_device_train_batch_size=2, **options)
    for row in of.train_dataset:
        yield list(collated(of, [row]))


def unpaired(rows, tokenizer, **options):
    """Both completions of a pair: the chosen ones come first."""
    of = trainer("kto", rows, tokenizer, per_device_train_batch_size=2, **options)
    half = len(of.train_dataset) // 2
    for chosen, rejected in zip(of.train_dataset.select(range(half)), of.train_dataset.select(range(half, 2 * half))):
        assert chosen["label"] and not rejected["label"]
        yield [*collated(of, [chosen]), *collated(of, [rejected])]


def cases():
    for name in ("byte_level", "metaspace"):
        texts = [row for row in TEXTS if name == "byte_level" or "<|stop|>" not in row["text"]]
        yield name, None, "demonstrations", None, texts, supervised, {}
    name = "byte_level"
    yield name, None, "demonstrations", "completion", COMPLETIONS, supervised, {}
    yield name, None, "demonstrations", "all", COMPLETIONS, supervised, {"completion_only_loss": False}
    yield name, None, "pairs", None, PAIRS, pairs, {}
    yield name, None, "labels", None, LABELS, labels, {}
    # Implicit prompts of texts end elsewhere: TRL's in the middle of a word.
    yield name, None, "labels", None, PAIRS[:1], unpaired, {}
    # With the number of tokens that are too many.
    for mode in ("keep_start", "keep_end"):
        yield name, None, "demonstrations", None, TEXTS, supervised, {"truncation_mode": mode}, 3
        yield name, None, "demonstrations", "completion", COMPLETIONS, supervised, {"truncation_mode": mode}, 2
    yield name, None, "pairs", None, PAIRS[:1], pairs, {"truncation_mode": "keep_start"}, 2
    yield name, None, "labels", None, LABELS, labels, {"truncation_mode": "keep_start"}, 2
    for family in HEADER:
        plain, marked = template(family, False), template(family, True)
        yield name, plain, "demonstrations", "completion", ANSWERED, supervised, {}
        yield name, plain, "demonstrations", "all", ANSWERED, supervised, {"completion_only_loss": False}
        yield name, plain, "demonstrations", "all", TALKS, supervised, {}
        yield name, marked, "demonstrations", "assistant", TALKS, supervised, {"assistant_only_loss": True}
        yield name, plain, "pairs", None, TALKED_PAIRS, pairs, {}
        yield name, plain, "labels", None, TALKED_LABELS, labels, {}
        yield name, plain, "labels", None, TALKED_PAIRS, unpaired, {}
        yield name, plain, "demonstrations", "completion", ANSWERED, supervised, {"truncation_mode": "keep_start"}, 4
        assistant = {"assistant_only_loss": True, "truncation_mode": "keep_start"}
        yield name, marked, "demonstrations", "assistant", TALKS, supervised, assistant, 5
    # The other family writes more after the last turn, which RLoom leaves out.
    end = {"truncation_mode": "keep_end"}
    marked = template("llama", True)
    yield name, marked, "demonstrations", "completion", ANSWERED, supervised, end, 3
    yield name, marked, "demonstrations", "assistant", TALKS, supervised, {"assistant_only_loss": True, **end}, 6


def main():
    written = []
    for name, chat_template, kind, loss_on, rows, process, options, *excess in cases():
        tokenizer = AutoTokenizer.from_pretrained(TOKENIZERS / name)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        if chat_template:
            tokenizer.chat_template = chat_template
        # One row at a time: data sets share the columns of all their rows.
        for row in rows:
            own = [row, row] if kind == "labels" else [row]
            mode = options.get("truncation_mode")
            # Only SFT and DPO have both modes.
            given = {k: v for k, v in options.items() if process in (supervised, pairs) or k != "truncation_mode"}
            episodes = next(iter(process(own, tokenizer, **given)))
            limit = max(len(episode["ids"]) for episode in episodes) - excess[0] if excess else None
            if excess:
                episodes = next(iter(process(own, tokenizer, **given, max_length=limit)))
            written.append({"tokenizer": name, "template": chat_template, "kind": kind, "loss_on": loss_on,
                            "max_tokens": limit, "too_long": mode, "row": row, "episodes": episodes})  # fmt: skip
    (HERE / "trl_rows.json").write_text(json.dumps(written, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(len(written), "cases")


if __name__ == "__main__":
    main()
