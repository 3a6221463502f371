"""Writes rows of every type as JSONL and as Parquet, and rows that cannot be used, for `tests/data/formats.rs`.

Needs pyarrow. Run it in this folder: it writes the folder row_types.
"""

import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = pathlib.Path("row_types")


def says(*messages):
    return [{"role": role, "content": content} for role, content in messages]


USER, GOOD, BAD = ("user", "2+2=?"), ("assistant", "It's 4 – naïve."), ("assistant", "5 😀")
SYSTEM, AGAIN = ("system", "Be brief."), ("user", "Sure?\n")

#: What is read, by the name of the file.
TYPES = {
    "text": ("demonstrations", [{"text": "Zürich größer"}, {"text": " 12 + 30 = 42\n"}]),
    "messages": ("demonstrations", [{"messages": says(USER, GOOD)}, {"messages": says(SYSTEM, USER, BAD, AGAIN, GOOD)}]),
    "completion": (
        "demonstrations",
        [{"prompt": "2+2=", "completion": "4", "n": 1}, {"prompt": "def f(x):\n", "completion": "    return x", "n": None}],
    ),
    "answered": (
        "demonstrations",
        [
            {"prompt": says(USER), "completion": says(GOOD)},
            {"prompt": says(SYSTEM, USER, GOOD, AGAIN), "completion": says(BAD)},
        ],
    ),
    "pair": (
        "pairs",
        [
            {"prompt": "2+2=", "chosen": "4", "rejected": "5", "margin": 0.5},
            {"prompt": "3+3=", "chosen": "6", "rejected": "", "margin": None},
        ],
    ),
    "implicit_pair": ("pairs", [{"chosen": "The sum is 12.", "rejected": "The sum is 15."}]),
    "talked_pair": (
        "pairs",
        [
            {"prompt": says(USER), "chosen": says(GOOD), "rejected": says(BAD)},
            {"prompt": says(SYSTEM, USER), "chosen": says(BAD), "rejected": says(GOOD)},
        ],
    ),
    "implicit_talked_pair": ("pairs", [{"chosen": says(USER, GOOD), "rejected": says(USER, BAD)}]),
    "label": (
        "labels",
        [{"prompt": "2+2=", "completion": "4", "label": True}, {"prompt": "2+2=", "completion": "5", "label": False}],
    ),
    "talked_label": ("labels", [{"prompt": says(USER), "completion": says(GOOD), "label": 1}]),
    "unpaired": ("labels", [{"prompt": "2+2=", "chosen": "4", "rejected": "5"}]),
    "implicit_unpaired": ("labels", [{"chosen": says(USER, GOOD), "rejected": says(USER, BAD)}]),
    "steps": (
        "steps",
        [
            {"prompt": "2+2+2=", "completions": ["2+2=4", "4+2=7"], "labels": [True, False]},
            {"prompt": "1+1=", "completions": ["2"], "labels": [True]},
        ],
    ),
    "prompt": ("prompts", [{"prompt": "2+2=", "answer": "4"}, {"prompt": "3+3=", "answer": "6"}]),
    "talked_prompt": ("prompts", [{"prompt": says(SYSTEM, USER), "answer": "4"}]),
}

FINE = {
    "text": {"text": "a"},
    "completion": {"prompt": "p", "completion": "c"},
    "messages": {"messages": says(USER, GOOD)},
    "pair": {"prompt": "p", "chosen": "c", "rejected": "r"},
    "implicit": {"chosen": "pc", "rejected": "pr"},
    "talks": {"chosen": says(USER, GOOD), "rejected": says(USER, BAD)},
    "label": {"prompt": "p", "completion": "c", "label": 1},
    "steps": {"prompt": "p", "completions": ["s", "t"], "labels": [1, 0]},
}

#: The second row cannot be used: what is read, the rows, and the message after the place.
WRONG = {
    "no_text": ("demonstrations", "text", {"text": None}, "no field `text`; the row has no fields"),
    "no_prompt": ("demonstrations", "completion", {"prompt": None}, "no field `prompt`; the row has `completion`"),
    "no_completion": ("demonstrations", "completion", {"completion": None}, "no field `completion`; the row has `prompt`"),
    "no_messages": ("demonstrations", "messages", {"messages": []}, "`messages` contains no messages"),
    "only_an_answer": (
        "demonstrations", "messages", {"messages": says(GOOD)}, "`messages` has no message before the assistant's",
    ),
    "no_role": (
        "demonstrations", "messages", {"messages": says(USER, (None, "x"))},
        "field `messages[1].role` must be text, but it is null",
    ),
    "no_content": (
        "demonstrations", "messages", {"messages": says(USER, ("assistant", None))},
        "field `messages[1].content` must be text or a list of text parts, but it is null",
    ),
    "no_demonstration": (
        "demonstrations", "messages", {"messages": says(USER)},
        "no field `demonstration` or `completion`; the row has `messages`",
    ),
    "no_chosen": ("pairs", "pair", {"chosen": None}, "no field `chosen`; the row has `prompt`, `rejected`"),
    "no_rejected": ("pairs", "pair", {"rejected": None}, "no field `rejected`; the row has `prompt`, `chosen`"),
    "same": (
        "pairs", "implicit", {"chosen": "x", "rejected": "x"},
        "`rejected` is the same text as the chosen one, so that their prompt is unknown; give the prompt a field of its own",
    ),
    "nothing_common": (
        "pairs", "implicit", {"chosen": "x", "rejected": "y"},
        "`rejected` does not begin as the chosen one does, so that there is no prompt; give the prompt a field of its own",
    ),
    "unanswered": (
        "pairs", "talks", {"rejected": says(USER, GOOD, AGAIN)}, "`rejected` does not end with a message of the assistant",
    ),
    "no_label": ("labels", "label", {"label": None}, "no field `label`; the row has `prompt`, `completion`"),
    "label_of_two": ("labels", "label", {"label": 2}, "`label` must be true or false (1 or 0), but is 2"),
    "unpaired_without_rejected": (
        "labels", "pair", {"rejected": None}, "no field `rejected`; the row has `prompt`, `chosen`",
    ),
    "no_steps": ("steps", "steps", {"completions": [], "labels": []}, "`completions` contains no steps"),
    "a_label_too_few": ("steps", "steps", {"labels": [1]}, "`labels` has 1 labels for 2 steps"),
    "empty_step": (
        "steps", "steps", {"completions": ["s", None]}, "field `completions[1]` must be text, but it is null",
    ),
    "step_label_of_two": ("steps", "steps", {"labels": [1, 2]}, "`labels[1]` must be true or false (1 or 0), but is 2"),
}  # fmt: skip


def write(name, rows):
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (FOLDER / f"{name}.jsonl").write_text("".join(lines))
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, FOLDER / f"{name}.parquet", row_group_size=1, compression="zstd", write_statistics=False)


def main():
    FOLDER.mkdir(exist_ok=True)
    for name, (_, rows) in TYPES.items():
        write(name, rows)
    for name, (_, fine, wrong, _) in WRONG.items():
        write(f"wrong_{name}", [FINE[fine], {**FINE[fine], **wrong}])
    types = {name: kind for name, (kind, _) in TYPES.items()}
    wrong = {name: [kind, message] for name, (kind, _, _, message) in WRONG.items()}
    (FOLDER / "index.json").write_text(json.dumps({"types": types, "wrong": wrong}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
