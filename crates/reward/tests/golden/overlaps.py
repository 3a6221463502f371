"""Writes overlaps.jsonl: ROUGE of rouge-score 0.1.2 and BLEU of sacrebleu 2.6.0 for generated pairs of texts.

    pip install rouge-score==0.1.2 sacrebleu==2.6.0
    python overlaps.py > overlaps.jsonl
"""

import json
import random

from rouge_score import rouge_scorer
from sacrebleu.metrics import BLEU

WORDS = (
    "the a cat dog sat on mat ran to house 3.5 1,000 U.S. e.g. don't it's naïve Straße 数 100% $5 (yes) [no] "
    "a-b 3-4 5- -6 x&y &amp; &quot;q&quot; end. stop! why? a,b 1.5.2 _x_ {z} and/or #1 @me ~ ^ | `code` \n"
).split(" ")


def text(generator, longest):
    return " ".join(generator.choice(WORDS) for _ in range(generator.randint(0, longest)))


def edited(generator, original):
    words = original.split(" ")
    for _ in range(generator.randint(0, 5)):
        at = generator.randrange(len(words) + 1)
        action = generator.random()
        if action < 0.4 and words:
            del words[min(at, len(words) - 1)]
        elif action < 0.8:
            words.insert(at, generator.choice(WORDS))
        else:
            generator.shuffle(words)
    return " ".join(words)


def main():
    generator = random.Random(7)
    rouge = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=False)
    bleu = BLEU(effective_order=True)
    for number in range(600):
        reference = text(generator, 150 if number % 20 == 0 else 25)
        answer = edited(generator, reference) if generator.random() < 0.7 else text(generator, 30)
        if not reference.strip():
            continue
        scores = rouge.score(reference, answer)
        row = {"answer": answer, "reference": reference}
        row.update({name: score.fmeasure for name, score in scores.items()})
        row["bleu"] = bleu.sentence_score(answer, [reference]).score / 100
        print(json.dumps(row, ensure_ascii=False))


main()
