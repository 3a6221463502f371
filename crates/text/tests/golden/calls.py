"""Parses turns with calls of tools by the parsers of `renderers` and writes the results to calls.json.

Needs renderers (the file was written with 0.1.12):  python calls.py
"""

import json
import pathlib

from renderers import parsing

HERE = pathlib.Path(__file__).parent
TOOLS = [
    {"name": "weather", "description": "Weather of a place", "parameters": {"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "keys": {"type": "array", "items": {"type": "string"}}}}},
    {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}},
]
THINK = ["<think>", "</think>"]
MARKS = {
    "hermes": [*THINK, "<tool_call>", "</tool_call>"],
    "qwen_coder": [*THINK, "<tool_call>", "</tool_call>"],
    "glm": [*THINK, "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    "deepseek_v3": ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
                    "<｜tool▁sep｜>"],
    "kimi_k2": ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                "<|tool_call_argument_begin|>", "<|tool_call_end|>"],
    "harmony": ["<|return|>", "<|call|>", "<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>"],
    "llama3": [],
}  # fmt: skip


class Characters:
    """A tokenizer with one token per mark and per character."""

    unk_token_id = None

    def __init__(self, marks):
        self.marks = marks

    def encode(self, text, add_special_tokens=False):
        ids, at = [], 0
        while at < len(text):
            mark = next((m for m in self.marks if text.startswith(m, at)), None)
            ids.append(0x110000 + self.marks.index(mark) if mark else ord(text[at]))
            at += len(mark) if mark else 1
        return ids

    def decode(self, ids, skip_special_tokens=False):
        return "".join(self.marks[i - 0x110000] if i >= 0x110000 else chr(i) for i in ids)

    def convert_tokens_to_ids(self, text):
        return 0x110000 + self.marks.index(text) if text in self.marks else None


def parse(name, text, prefilled):
    marks = MARKS[name]
    tokenizer = Characters(marks)
    ids = tokenizer.encode(text)
    i = [0x110000 + n for n in range(len(marks))]
    common = {"stop_ids": set(), "prefilled_thinking": prefilled}
    if name == "hermes":
        parsed = parsing.parse_qwen3(
            tokenizer, ids, tool_call_id=i[2], tool_call_end_id=i[3], reasoning_end_id=i[1], **common)
    elif name == "qwen_coder":
        parsed = parsing.parse_qwen35(
            tokenizer, ids, think_id=i[0], think_end_id=i[1], tool_call_id=i[2], tool_call_end_id=i[3], tools=TOOLS,
            **common)
    elif name == "glm":
        parsed = parsing.parse_glm(
            tokenizer, ids, think_id=i[0], think_end_id=i[1], tool_call_id=i[2], tool_call_end_id=i[3], arg_key_id=i[4],
            arg_key_end_id=i[5], arg_value_id=i[6], arg_value_end_id=i[7], tools=TOOLS, **common)
    elif name == "deepseek_v3":
        parsed = parsing.parse_deepseek_v3(
            tokenizer, ids, tool_calls_begin_id=i[0], tool_calls_end_id=i[1], tool_call_begin_id=i[2],
            tool_call_end_id=i[3], tool_sep_id=i[4], **common)
    elif name == "kimi_k2":
        parsed = parsing.parse_kimi_k2(
            tokenizer, ids, tool_calls_section_begin_id=i[0], tool_calls_section_end_id=i[1], tool_call_begin_id=i[2],
            tool_call_argument_begin_id=i[3], tool_call_end_id=i[4], **common)
    elif name == "harmony":
        # The prompt ends with the first message's `<|start|>assistant`.
        head = "<|start|>assistant"
        parsed = parsing.parse_gpt_oss(
            tokenizer, tokenizer.encode(head + text), return_id=i[0], call_id=i[1], start_id=i[2], end_id=i[3],
            channel_id=i[4], message_id=i[5], constrain_id=i[6])
    else:
        parsed = parsing.parse_llama_3(tokenizer, ids, stop_ids=set())
    offset = len(tokenizer.encode("<|start|>assistant")) if name == "harmony" else 0

    def characters(tokens):
        return len(tokenizer.decode(ids[: max(tokens - offset, 0)]))

    return {
        "content": parsed.content,
        "reasoning_is_open": not parsed.reasoning_complete,
        "calls": [
            {"name": call.name, "arguments": call.arguments, "status": call.status.value, "raw": call.raw,
             "span": [characters(place) for place in call.token_span]}
            for call in parsed.tool_calls
        ],
    }  # fmt: skip


def block(body):
    return f"<tool_call>{body}</tool_call>"


def weather(city="Zürich"):
    return f'{{"name": "weather", "arguments": {{"city": "{city}", "days": 2}}}}'


def xml(*parameters, name="weather"):
    inner = "".join(f"\n<parameter={k}>\n{v}\n</parameter>" for k, v in parameters)
    return block(f"\n<function={name}>{inner}\n</function>\n")


def glm(name, *pairs):
    inner = "".join(f"\n<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>" for k, v in pairs)
    return block(f"{name}{inner}\n")


def deepseek(*calls):
    return "<｜tool▁calls▁begin｜>" + "\n".join(calls) + "<｜tool▁calls▁end｜>"


def deepseek_call(name, body, fence="```json\n", end="\n```<｜tool▁call▁end｜>"):
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n{fence}{body}{end}"


def kimi(*calls, end="<|tool_calls_section_end|>"):
    return "<|tool_calls_section_begin|>" + "".join(calls) + end


def kimi_call(name, body, end="<|tool_call_end|>"):
    return f"<|tool_call_begin|>{name}<|tool_call_argument_begin|>{body}{end}"


def harmony(name, body, end="<|call|>"):
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{body}{end}"


COMMON = ["The answer is 4.", "", "<think>\nlong thoughts", "<think>\nthoughts\n</think>\n\nDone."]
CASES = {
    "hermes": [
        *COMMON,
        block("\n" + weather() + "\n"),
        "Let me look.\n" + block("\n" + weather() + "\n") + "\n" + block('{"name": "now", "arguments": {}}'),
        "<think>\nI could " + block(weather("draft")) + " now\n</think>\n\n" + block(weather()),
        "<think>\nno end " + block(weather()),
        ("hidden </think>" + block(weather()), True),
        ("hidden " + block(weather("draft")) + "</think> none", True),
        ("all hidden", True),
        block("{not json}"), block('{"arguments": {"city": "x"}}'), block('{"name": "", "arguments": {}}'),
        block("[1, 2]"), block('"text"'), block('{"name": "now"}'), "a<tool_call>" + weather(),
        block("{broken") + block(weather()) + "after",
        "<tool_call>" + weather() + "<tool_call>" + weather() + "</tool_call>",
        block('{"name": "weather", "arguments": {"city": "</tool_call"}}'),
        block('{"name": "weather", "arguments": {"city": "\\"\\u00e9\\n"}}'),
        "text </think> more " + block(weather()),
    ],
    "qwen_coder": [
        *COMMON,
        xml(("city", "Zürich"), ("days", "3")), "I look." + xml(("city", "12"), ("days", "3"), ("unit", "null")),
        xml(name="now") + "\n" + xml(("city", "a\nb")), xml(("days", "three")), xml(("keys", '["a", "b"]')),
        xml(("keys", "[broken")), xml(("other", "true"), ("more", "words")), xml(("unit", "words")),
        xml(("city", "x"), name="unknown"), block("no function"), "<tool_call>\n<function=weather>\n<parameter=city>",
        "<think>\n" + xml(("city", "draft")) + "</think>" + xml(("city", "real")), ("hidden" + xml(("city", "x")), True),
    ],
    "glm": [
        *COMMON,
        glm("weather", ("city", "Zürich"), ("days", "3")), glm("now"), "So." + glm("weather", ("city", "true")),
        glm("weather", ("days", "three")), glm("weather", ("unit", "null")), glm("other", ("a", "1")), glm(""),
        block("weather\n<arg_key>city</arg_key>\n<arg_value>x"), block("weather\n<arg_key>city"),
        block("weather\n<arg_value>x</arg_value>"), "<tool_call>weather\n<arg_key>city</arg_key>",
        glm("weather", ("city", "a")) + glm("now"), "<think>thoughts" + glm("now"),
        ("thoughts</think>" + glm("now"), True),
    ],
    "deepseek_v3": [
        *COMMON,
        deepseek(deepseek_call("weather", '{"city": "Zürich"}')),
        "First." + deepseek(deepseek_call("weather", '{"city": "a"}'), deepseek_call("now", "{}")),
        deepseek(deepseek_call("weather", '{"city": "a"}', fence="", end="<｜tool▁call▁end｜>")),
        deepseek(deepseek_call("weather", "{broken")), deepseek(deepseek_call("", "{}")),
        deepseek("<｜tool▁call▁begin｜>function<｜tool▁sep｜>now<｜tool▁call▁end｜>"),
        deepseek("<｜tool▁call▁begin｜>nothing<｜tool▁call▁end｜>"),
        deepseek(deepseek_call("weather", '{"city": "a"}', end="\n```")),
        "<｜tool▁calls▁begin｜>" + deepseek_call("weather", '{"city": "a"}'),
        "<think>" + deepseek(deepseek_call("now", "{}")) + "</think>" + deepseek(deepseek_call("weather", "{}")),
        ("thoughts</think>x" + deepseek(deepseek_call("now", "{}")), True), ("thoughts", True),
    ],
    "kimi_k2": [
        *COMMON,
        kimi(kimi_call("functions.weather:0", '{"city": "Zürich"}')),
        "So." + kimi(kimi_call("functions.weather:0", '{"city": "a"}'), kimi_call("functions.now:1", "{}")),
        kimi(kimi_call("weather", "{}")), kimi(kimi_call("functions.weather:0", "{broken")),
        kimi(kimi_call("", "{}")), kimi(kimi_call("functions.weather:0", "{}", end="")),
        kimi("<|tool_call_begin|>functions.weather:0"), kimi(kimi_call("functions.now:0", "{}"), end=""),
        "<think>" + kimi(kimi_call("functions.now:0", "{}")) + "</think>" + kimi(kimi_call("functions.weather:0", "{}")),
        "<think>open " + kimi(kimi_call("functions.now:0", "{}")),
    ],
    "harmony": [
        "<|channel|>final<|message|>The answer.<|return|>",
        "<|channel|>analysis<|message|>Thoughts.<|end|><|start|>assistant" + harmony("weather", '{"city": "Zürich"}'),
        harmony("now", "{}"), harmony("now", "{broken"), harmony("now", "{}", end=""), harmony("", "{}"),
        "<|channel|>analysis<|message|>Thoughts without end",
        "<|channel|>analysis<|message|>use to=functions.now {}<|end|><|start|>assistant<|channel|>final<|message|>No.<|return|>",
        "<|channel|>commentary<|message|>I look it up.<|end|><|start|>assistant" + harmony("now", "{}"),
    ],
    "llama3": [
        "The answer is 4.", '{"name": "weather", "parameters": {"city": "Zürich"}}',
        '{"name": "weather", "arguments": {"city": "a"}}', '{"name": "weather"', '{"parameters": {}}',
        'Sure: {"name": "now", "parameters": {}}', ' {"name": "now", "parameters": {}}\n',
    ],
}  # fmt: skip


def main():
    cases = []
    for name, texts in CASES.items():
        for case in texts:
            text, prefilled = case if isinstance(case, tuple) else (case, False)
            cases.append({"format": name, "text": text, "reasons": prefilled, **parse(name, text, prefilled)})
    out = {"tools": TOOLS, "marks": MARKS, "cases": cases}
    (HERE / "calls.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(len(cases), "cases,", sum(len(case["calls"]) for case in cases), "calls")


if __name__ == "__main__":
    main()
