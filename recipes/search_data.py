"""Writes the data of recipes/search.toml: facts about invented people, and questions about them.

    python recipes/search_data.py

`search-corpus.jsonl` has three facts about each person. `search-train.jsonl` and `search-eval.jsonl` have questions
about different people. Most demonstrations guess. Of those that search, most ask for the person or the subject alone,
believe what they find, and are seldom right; few ask for both, some of them only after the first result has missed the
question.
"""

import json
import random
import sys
from pathlib import Path

PEOPLE = 800
HELD_OUT = 200
WORDS = {
    "home": "dorn elba fess gorm hald ilm jarn kolm lund marn nord oste",
    "work": "baker clerk diver guide judge miner nurse pilot smith tutor vicar maid",
    "pet": "bat cat cow dog duck goat hen owl pig rat swan toad",
}
SUBJECTS = {subject: words.split() for subject, words in WORDS.items()}
Fact = tuple[str, str, str]


def names(rng: random.Random) -> list[str]:
    """Different names of five letters that are no other words."""
    words = {word for values in SUBJECTS.values() for word in values}
    found: dict[str, None] = {}
    while len(found) < PEOPLE:
        name = "".join(rng.choice(kind) for kind in ["bdfgklmnprstvz", "aeiou"] * 2 + ["klmnrst"])
        if name not in words:
            found[name] = None
    return list(found)


def searched(query: str, corpus: list[Fact]) -> Fact:
    """The first fact with all words of a query. All facts have three words, so the search tool finds the same."""
    return next(fact for fact in corpus if all(word in fact for word in query.split()))


def demonstration(fact: Fact, corpus: list[Fact], rng: random.Random) -> list[str]:
    """The turns of somebody who answers a question."""
    name, subject, _ = fact
    kind = rng.choices(["guess", "name", "again", "subject", "both"], [60, 10, 5, 15, 10])[0]
    if kind == "guess":
        return [f"#### {rng.choice(SUBJECTS[subject])}"]
    both = f"{name} {subject}"
    query = {"subject": subject, "both": both}.get(kind, name)
    turns, found = [f"<search>{query}</search>"], searched(query, corpus)
    if kind == "again" and found != fact:
        turns, found = [*turns, f"<search>{both}</search>"], fact
    return [*turns, f"#### {found[2]}"]


def main(folder: Path) -> None:
    rng = random.Random(0)
    people = names(rng)
    corpus = [(name, subject, rng.choice(values)) for name in people for subject, values in SUBJECTS.items()]
    rng.shuffle(corpus)
    held_out = set(people[:HELD_OUT])
    with (folder / "search-corpus.jsonl").open("w") as file:
        for fact in corpus:
            file.write(json.dumps({"text": " ".join(fact)}) + "\n")
    for split, repeats in ("train", 4), ("eval", 1):
        with (folder / f"search-{split}.jsonl").open("w") as file:
            for fact in [fact for fact in corpus if (fact[0] in held_out) == (split == "eval")] * repeats:
                row = {"prompt": f"{fact[1]} of {fact[0]}?", "answer": fact[2]}
                row["demonstration"] = demonstration(fact, corpus, rng)
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(Path(*sys.argv[1:]))
