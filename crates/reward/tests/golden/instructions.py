"""Writes instructions.jsonl: verdicts of the checks of open-instruct's `open_instruct/if_functions.py` (commit 021dd06) on generated texts.

    pip install langdetect==1.0.9
    python instructions.py path/to/if_functions.py > instructions.jsonl

The check of the language is left out, since the detectors differ. So is JSON with NaN and infinity, which Python's parser accepts.
"""

import importlib.util
import json
import random
import sys

PIECES = (
    "The cat sat.|A dog ran!|Why so?|Dr. Who, e.g. me.|NASA and the USA|* point|- other|* * *|\n|\n\n|<<Title>>|<<open|[name]|[a [b]|"
    "*high*|**bold**|SECTION 1|Section 2|section3|P.S. bye|P.P.S|******|\"quoted\"|\"|hello|HELLO|, then|word word|über Ä|1 2 3|"
    '{"a": 1}|My answer is yes.|My answer is no.|The end|  |\t|It is 3.5 m. So|I.B.M. is|U.S.A. Today|finis.'
).split("|")


def arguments(generator):
    count = generator.choice([0, 1, 2, 3, 4, 5, 8, 15, 25])
    quantifier = generator.choice(["at least", "around", "at most"])
    paragraphs = generator.choice([1, 1, 2, 2, 3])
    words = generator.sample(["cat", "DOG", "nasa", "word", "über", "hello", "zebra", "the", "point"], generator.randint(1, 3))
    return {
        "verify_keywords": {"keyword_list": words},
        "verify_keyword_frequency": {"word": words[0], "N": count},
        "validate_forbidden_words": {"forbidden_words": words},
        "verify_letter_frequency": {"letter": generator.choice("aetsN*"), "N": count},
        "verify_paragraph_count": {"N": count},
        "validate_word_constraint": {"N": count, "quantifier": quantifier},
        "verify_sentence_constraint": {"N": count, "quantifier": quantifier},
        "validate_paragraphs": {
            "N": paragraphs,
            "first_word": generator.choice(["The", "A", "*", "My"]),
            "i": generator.randint(1, paragraphs),
        },
        "verify_postscript": {"postscript_marker": generator.choice(["P.S.", "P.P.S"])},
        "validate_placeholders": {"N": count},
        "verify_bullet_points": {"N": count},
        "validate_title": {},
        "validate_choice": {"options": generator.choice([["My answer is yes.", "My answer is no."], ["A", "B"]])},
        "validate_highlighted_sections": {"N": count},
        "validate_sections": {"N": count, "section_splitter": generator.choice(["Section", "SECTION", "S"])},
        "validate_json_format": {},
        "validate_repeat_prompt": {"original_prompt": generator.choice(["The cat sat.", "hello", "A dog"])},
        "validate_two_responses": {},
        "validate_uppercase": {},
        "validate_lowercase": {},
        "validate_frequency_capital_words": {"N": count, "quantifier": quantifier},
        "validate_end": {"end_phrase": generator.choice(["The end", "finis.", "yes."])},
        "validate_quotation": {},
        "validate_no_commas": {},
    }


def text(generator):
    separator = generator.choice([" ", "", "\n", "\n\n", " "])
    pieces = PIECES if generator.random() < 0.8 else generator.sample(PIECES, 3)
    text = separator.join(generator.choice(pieces) for _ in range(generator.randint(1, generator.choice([3, 14])))).strip()
    change = generator.random()
    if change < 0.1:
        text = text.upper()
    elif change < 0.2:
        text = text.lower()
    elif change < 0.3:
        text = '"' + text + '"'
    elif change < 0.4:
        text = text.replace(",", "")
    elif change < 0.45:
        text = json.dumps({"text": text})
    return text


def main():
    spec = importlib.util.spec_from_file_location("if_functions", sys.argv[1])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    generator = random.Random(11)
    counts = {}
    for _ in range(1200):
        answer = text(generator)
        if not answer:
            continue
        every = arguments(generator)
        for name in generator.sample(sorted(every), 6):
            accepted = bool(module.IF_FUNCTIONS_MAP[name](answer, **every[name]))
            # At most as many of one verdict as there is room for, so that both occur.
            if counts.get((name, accepted), 0) >= 40:
                continue
            counts[name, accepted] = counts.get((name, accepted), 0) + 1
            check = {"func_name": name, **every[name]}
            print(json.dumps({"answer": answer, "check": check, "accepted": accepted}, ensure_ascii=False))
    for name in every:
        assert counts.get((name, True), 0) >= 2 and counts.get((name, False), 0) >= 2, (name, counts)


main()
