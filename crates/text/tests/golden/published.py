"""Renders the chat templates of installed packages with transformers, for the ignored test in ../text/published.rs.

    python published.py OUT.json

The templates are those of TRL and axolotl, and of vLLM where it is installed; they are read from the packages and not copied into the
project. Each is rendered over conversations.json and the conversations below, with and without tools, a generation prompt
and the variables by which templates turn reasoning on and off.
"""

import importlib.util
import pathlib
import sys

import chat

#: Folders of templates in packages.
FOLDERS = {
    "axolotl": "utils/chat_templates/templates",
    "trl": "chat_templates",
    "vllm": "transformers_utils/chat_templates",
}
VARIABLES = [
    {},
    {"enable_thinking": False, "reasoning_effort": "low", "preserve_thinking": True, "add_vision_id": True},
    {"enable_thinking": True, "thinking": True, "clear_thinking": False, "keep_past_thinking": True,
     "model_identity": "You are Ada.", "builtin_tools": ["python", "browser"], "tools_in_user_message": False},
]


def call(name, arguments, identifier="call00001"):
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


CONVERSATIONS = {
    "loop_with_reasoning": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Is it warmer in Bern?"},
        {"role": "assistant", "content": "", "reasoning_content": "I look.\n\nTwice.", "tool_calls": [
            call("weather", {"city": "Bern"}), call("weather", {"city": "Zürich", "days": [1, 2]}, "call00002")]},
        {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": "20"},
        {"role": "tool", "name": "weather", "tool_call_id": "call00002", "content": "{\"t\": 19.5}"},
        {"role": "assistant", "content": "One more. ", "reasoning_content": "\nStrange.\n", "tool_calls": [
            call("now", {}, "call00003")]},
        {"role": "tool", "name": "now", "tool_call_id": "call00003", "content": ""},
        {"role": "assistant", "content": " Yes.\n", "reasoning_content": "20 > 19.5"},
        {"role": "user", "content": "Sure?"},
    ],
    "values_of_arguments": [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "x", "tool_calls": [call("f", {
            "text": "a\n\"b\" <c> & 'd' \\ é 😀 \u2028", "none": None, "yes": True, "no": False, "zero": 0, "big": 12345678901234,
            "float": 2.0, "small": 1e-7, "list": [], "map": {}, "nested": {"a": [{"b": [1, "2", None]}]},
            "lines": "first\n  second\n", "quote": "it's", "empty": ""})]},
        {"role": "tool", "tool_call_id": "call00001", "content": "[1, 2]"},
    ],
    "arguments_as_text": [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [call("f", "{\"a\": \"ü\", \"b\": [1, 2.50]}")]},
        {"role": "tool", "tool_call_id": "call00001", "name": "f", "content": [{"type": "text", "text": "Part"}]},
        {"role": "assistant", "content": "Done."},
    ],
    "calls_without_the_outer_object": [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {"a": 1}}]},
        {"role": "tool", "name": "f", "content": "2"},
    ],
    "reasoning_in_all_turns": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\none\n</think>\n\nb"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d", "reasoning_content": "two"},
        {"role": "user", "content": "e"},
        {"role": "assistant", "content": "<think></think>f"},
        {"role": "user", "content": "g"},
        {"role": "assistant", "content": "</think>h"},
    ],
    "ends_with_reasoning_alone": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "", "reasoning_content": "so"}],
    "developer": [
        {"role": "developer", "content": "Rules."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}],
    "two_systems": [
        {"role": "system", "content": "One."}, {"role": "system", "content": "Two."}, {"role": "user", "content": "Hi"}],
    "late_system": [
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, {"role": "system", "content": "Now rhyme."},
        {"role": "user", "content": "Go"}],
    "images": [
        {"role": "system", "content": [{"type": "text", "text": "See."}]},
        {"role": "user", "content": [
            {"type": "text", "text": "What is "}, {"type": "image"}, {"type": "text", "text": " and "},
            {"type": "image_url", "image_url": {"url": "x"}}, {"type": "video", "video": "y"}, {"type": "audio"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Things"}, {"type": "text", "text": "."}]},
        {"role": "user", "content": [{"type": "text", "text": ""}]},
    ],
    "white_space": [
        {"role": "system", "content": "\n\n"}, {"role": "user", "content": "  \t\n"},
        {"role": "assistant", "content": "\u00a0\u3000x\u200b \r\n"}, {"role": "user", "content": "\x1cy\x85"}],
    "tags_in_the_text": [
        {"role": "user", "content": "<|im_start|>system\nx<|im_end|> <tool_response>a</tool_response>"},
        {"role": "assistant", "content": "<tool_call>\n{}\n</tool_call><|channel|>final"},
        {"role": "user", "content": "<tool_response>a</tool_response>"}],
    "tool_first": [{"role": "tool", "content": "x"}, {"role": "user", "content": "y"}],
    "assistant_alone": [{"role": "assistant", "content": "x"}],
    "assistant_twice": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"}],
    "unknown_role": [{"role": "user", "content": "a"}, {"role": "critic", "content": "b"}],
    "names": [
        {"role": "user", "name": "Zoë", "content": "a"}, {"role": "assistant", "name": "Ada", "content": "b"},
        {"role": "user", "content": "c"}],
    "numbers_for_text": [{"role": "user", "content": 7}, {"role": "assistant", "content": True}],
}


def templates():
    for package, folder in FOLDERS.items():
        found = importlib.util.find_spec(package)
        if found is not None and found.origin is not None:
            for path in sorted((pathlib.Path(found.origin).parent / folder).glob("*.jinja")):
                yield f"{package}/{path.stem}", path.read_text(encoding="utf-8")


def main():
    tokenizer = chat.opened()
    conversations = dict(chat.conversations())
    variants = [(tools, prompt, variables) for tools in (None, "all") for prompt in (False, True) for variables in VARIABLES]
    # Each conversation in a third of the variants, another third for the next one.
    for place, (name, messages) in enumerate(CONVERSATIONS.items()):
        for number, (tools, prompt, variables) in enumerate(variants):
            if (number + place) % 3 == 0 or (tools and prompt and not variables):
                conversations[f"{name} {number}"] = {
                    "messages": messages, "tools": tools, "add_generation_prompt": prompt, "variables": variables}
    sources = dict(templates())
    cases = [
        {"template": template, "conversation": name, **chat.render(tokenizer, source, conversation)}
        for template, source in sources.items()
        for name, conversation in conversations.items()
    ]
    print(len(sources), "templates,", len(conversations), "conversations")
    chat.write(pathlib.Path(sys.argv[1]), tokenizer, cases, templates=sources, conversations=conversations)


if __name__ == "__main__":
    main()
