"""Writes the corpus and the questions of recipes/search.toml: facts about invented places, which no model can know.

    python make.py
"""

import json
import pathlib
import random

HERE = pathlib.Path(__file__).parent
PLACES = 640
HELD_OUT = 128
PROPERTIES = ("river", "metal", "ruler")


def names(count, syllables, random):
    found = {}
    while len(found) < count:
        name = "".join(random.choice("bdfgklmnprstvz") + random.choice("aeiou") for _ in range(syllables))
        found[name] = None
    return list(found)


def write(name, rows):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (HERE / name).write_text(text, encoding="utf-8")


def main():
    numbers = random.Random(7)
    places = names(PLACES, 3, numbers)
    values = {p: names(PLACES, 2, numbers)[:400] for p in PROPERTIES}
    corpus, questions = [], []
    for place in places:
        facts = {p: numbers.choice(values[p]) for p in PROPERTIES}
        order = numbers.sample(PROPERTIES, len(PROPERTIES))
        corpus.append({"title": place, "text": " ".join(f"{p} {facts[p]}." for p in order)})
        asked = numbers.choice(PROPERTIES)
        answer = facts[asked]
        calls = numbers.random() < 0.2
        # Most demonstrations guess.
        guess = numbers.choice(values[asked])
        turns = [f"<search>{place}</search>", f"#### {answer}"] if calls else f"#### {guess}"
        questions.append({"question": f"{asked} of {place}?", "answer": answer, "demonstration": turns})
    write("corpus.jsonl", corpus)
    write("train.jsonl", questions[:-HELD_OUT])
    write("test.jsonl", [{k: q[k] for k in ("question", "answer")} for q in questions[-HELD_OUT:]])


if __name__ == "__main__":
    main()
