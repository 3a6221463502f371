"""Writes json_schemas.jsonl: verdicts of the library jsonschema 4 (draft 2020-12) on generated schemas and documents.

    pip install 'jsonschema>=4,<5'
    python json_schemas.py > json_schemas.jsonl
"""

import json
import random

from jsonschema import Draft202012Validator

KEYS = ["a", "b", "c", "ab"]
SCALARS = [None, True, False, 0, 1, 2, 3, 1.0, 2.5, -4, 100, "", "a", "ab", "abc", "äöü", "5"]


def document(generator, depth):
    kind = generator.random()
    if depth == 0 or kind < 0.45:
        return generator.choice(SCALARS)
    if kind < 0.7:
        return [document(generator, depth - 1) for _ in range(generator.randint(0, 4))]
    return {key: document(generator, depth - 1) for key in generator.sample(KEYS, generator.randint(0, 4))}


def schema(generator, depth):
    if generator.random() < 0.08:
        return generator.random() < 0.7
    found = {}
    sub = lambda: schema(generator, depth - 1)
    types = ["null", "boolean", "integer", "number", "string", "array", "object"]
    simple = {
        "type": lambda: generator.choice([generator.choice(types), generator.sample(types, 3)]),
        "enum": lambda: generator.sample(SCALARS, 4) + [[1], {"a": 1}],
        "const": lambda: generator.choice(SCALARS + [[1.0], {"a": 1}]),
        "minimum": lambda: generator.choice([0, 1, 1.5]),
        "maximum": lambda: generator.choice([2, 2.5, 99]),
        "exclusiveMinimum": lambda: generator.choice([0, 1]),
        "exclusiveMaximum": lambda: generator.choice([2, 100]),
        "multipleOf": lambda: generator.choice([1, 2, 0.5]),
        "minLength": lambda: generator.randint(0, 3),
        "maxLength": lambda: generator.randint(0, 3),
        "pattern": lambda: generator.choice(["^a", "b", "^[a-z]*$", "^.{2}$"]),
        "minItems": lambda: generator.randint(0, 3),
        "maxItems": lambda: generator.randint(0, 3),
        "uniqueItems": lambda: generator.random() < 0.8,
        "minProperties": lambda: generator.randint(0, 2),
        "maxProperties": lambda: generator.randint(0, 3),
        "required": lambda: generator.sample(KEYS, generator.randint(0, 2)),
        "dependentRequired": lambda: {generator.choice(KEYS): generator.sample(KEYS, 1)},
        "title": lambda: "t",
    }
    nested = {
        "contains": sub,
        "items": sub,
        "prefixItems": lambda: [sub() for _ in range(generator.randint(1, 2))],
        "propertyNames": lambda: {"pattern": generator.choice(["^a", "^.$", "b|c"])},
        "properties": lambda: {key: sub() for key in generator.sample(KEYS, 2)},
        "patternProperties": lambda: {generator.choice(["^a", "b$"]): sub()},
        "additionalProperties": lambda: generator.choice([False, sub()]),
        "allOf": lambda: [sub() for _ in range(generator.randint(1, 2))],
        "anyOf": lambda: [sub() for _ in range(generator.randint(1, 3))],
        "oneOf": lambda: [sub() for _ in range(generator.randint(1, 3))],
        "not": sub,
        "if": sub,
        "then": sub,
        "else": sub,
        "$ref": lambda: "#/$defs/x~1y",
    }
    choices = dict(simple)
    if depth > 0:
        choices.update(nested)
    for keyword in generator.sample(sorted(choices), generator.randint(1, 3)):
        found[keyword] = choices[keyword]()
    return found


def main():
    generator = random.Random(3)
    counts = {True: 0, False: 0}
    while min(counts.values()) < 600:
        own = schema(generator, 2)
        if isinstance(own, bool):
            continue
        own["$defs"] = {"x/y": schema(generator, 0)}
        Draft202012Validator.check_schema(own)
        validator = Draft202012Validator(own)
        for _ in range(3):
            given = document(generator, 2)
            accepted = validator.is_valid(given)
            if counts[accepted] >= 600:
                continue
            counts[accepted] += 1
            print(json.dumps({"schema": own, "document": given, "accepted": accepted}, ensure_ascii=False))


main()
