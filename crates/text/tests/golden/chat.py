"""Renders templates/*.jinja over conversations.json with transformers and writes the results to chat.json.

Needs transformers (the file was written with 5.23) and jinja2 (3.1.6):  python chat.py
"""

import datetime
import json
import pathlib

import transformers.utils.chat_template_utils as chat_template_utils
from transformers import AutoTokenizer

HERE = pathlib.Path(__file__).parent
NOW = (2026, 3, 7, 9, 5, 3)
TOOLS = [
    {"type": "function", "function": {
        "name": "weather", "description": "The \"weather\" & <more>\n of a place — naïve",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "Which city's?", "default": "Zürich"},
            "unit": {"type": "string", "enum": ["c", "f", None, 1], "default": None},
            "days": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
            "keys": {"type": "object", "properties": {
                "x": {"type": ["number", "null"], "default": 0.5}, "get": {"type": "boolean", "default": True}},
                "required": ["x"]},
            "free": {"anyOf": [{"type": "string"}, {"type": "array"}]}},
            "required": ["city"], "additionalProperties": False},
        "return": {"type": "string"}}},
    {"type": "function", "function": {
        "name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}},
]


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(*NOW)


def render(tokenizer, template, conversation):
    """The case that transformers makes of a template and a conversation: a text, a refusal by the template or a failure."""
    arguments = {
        "tools": TOOLS if conversation.get("tools") == "all" else None,
        "documents": conversation.get("documents"),
        "add_generation_prompt": conversation.get("add_generation_prompt", False),
        **conversation.get("variables", {}),
    }
    case = {}
    try:
        case["text"] = tokenizer.apply_chat_template(
            conversation["messages"], chat_template=template, tokenize=False, **arguments)
        if "endgeneration" in template:
            # apply_chat_template returns the marks only as token masks; this is the function it calls.
            messages = [{k: v for k, v in m.items() if v is not None} for m in conversation["messages"]]
            (text,), (spans,) = chat_template_utils.render_jinja_template(
                [messages], chat_template=template, return_assistant_tokens_mask=True,
                **tokenizer.special_tokens_map, **arguments)
            assert text == case["text"]
            case["assistant"] = [text[start:end] for start, end in spans]
    except Exception as error:
        kind = type(error).__name__
        case["refused" if kind == "TemplateError" else "fails"] = str(error)
    return case


def opened():
    """A tokenizer with special tokens, and a clock that stands still."""
    chat_template_utils.datetime = FixedTime
    return AutoTokenizer.from_pretrained(HERE / "characters")


def conversations():
    return json.loads((HERE / "conversations.json").read_text(encoding="utf-8"))


def write(path, tokenizer, cases, **more):
    out = {"now": NOW, "special": tokenizer.special_tokens_map, "tools": TOOLS, **more, "cases": cases}
    path.write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    kinds = {key: sum(key in case for case in cases) for key in ("text", "refused", "fails", "assistant")}
    print(len(cases), "cases", kinds)


def main():
    tokenizer = opened()
    cases = [
        {"template": path.stem, "conversation": name,
         **render(tokenizer, path.read_text(encoding="utf-8"), conversation)}
        for path in sorted((HERE / "templates").glob("*.jinja"))
        for name, conversation in conversations().items()
    ]
    write(HERE / "chat.json", tokenizer, cases)


if __name__ == "__main__":
    main()
