"""Continues conversations after calls of tools by the renderers of `renderers` and writes the added text to bridge.json.

Needs renderers (the file was written with 0.1.12):  python bridge.py
"""

import json
import pathlib

from calls import Characters
from renderers import deepseek_v3, glm45, gpt_oss, kimi_k2, llama_3, qwen3, qwen35

HERE = pathlib.Path(__file__).parent
CHATML = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>", "<tool_response>",
          "</tool_response>", "<think>", "</think>"]  # fmt: skip
FAMILIES = {
    "qwen3": (qwen3.Qwen3Renderer, CHATML, "<|im_end|>", "hermes"),
    "qwen35": (qwen35.Qwen35Renderer, [*CHATML, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"],
               "<|im_end|>", "qwen_coder"),
    "glm45": (glm45.GLM45Renderer, ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
              "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
              "</arg_value>", "<tool_response>", "</tool_response>"], "<|observation|>", "glm"),
    "deepseek_v3": (deepseek_v3.DeepSeekV3Renderer, [f"<｜{name}｜>" for name in (
        "begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant", "tool▁calls▁begin", "tool▁calls▁end", "tool▁call▁begin",
        "tool▁call▁end", "tool▁outputs▁begin", "tool▁outputs▁end", "tool▁output▁begin", "tool▁output▁end", "tool▁sep")],
        "<｜end▁of▁sentence｜>", "deepseek_v3"),
    "kimi_k2": (kimi_k2.KimiK2Renderer, ["<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>",
                "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                "<|tool_call_argument_begin|>", "<|tool_call_end|>", "[BOS]", "[EOS]", "<think>", "</think>"],
                "<|im_end|>", "kimi_k2"),
    "gpt_oss": (gpt_oss.GptOssRenderer, ["<|start|>", "<|end|>", "<|return|>", "<|call|>", "<|channel|>", "<|message|>",
                "<|constrain|>", "<|endoftext|>", "<|startoftext|>"], "<|call|>", "harmony"),
    "llama_3": (llama_3.Llama3Renderer, ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
                "<|end_of_text|>", "<|eom_id|>", "<|python_tag|>"], "<|eot_id|>", "llama3"),
}  # fmt: skip
TOOLS = [{"name": "weather", "description": "Weather of a place", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]  # fmt: skip
ARGUMENTS = {"city": "Zürich"}
TURNS = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>',
    "qwen_coder": "<tool_call>\n<function=weather>\n<parameter=city>\nZürich\n</parameter>\n</function>\n</tool_call>",
    "glm": "\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Zürich</arg_value>\n</tool_call>",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{}\n```"
                   "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{}"
               "<|tool_call_end|><|tool_calls_section_end|>",
    "harmony": "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{}",
    "llama3": '{"name": "weather", "parameters": {"city": "Zürich"}}',
}  # fmt: skip
RESULTS = {"one": ["21 °C"], "two": ["21 °C", 'a "quoted"\nline']}


def results(family, texts):
    ids = {"kimi_k2": "functions.weather:{}"}.get(family, "call{:05}")
    return [
        {"role": "tool", "name": "weather", "tool_call_id": ids.format(n), "content": text} for n, text in enumerate(texts)
    ]


def main():
    cases = []
    for family, (renderer, marks, end, form) in FAMILIES.items():
        tokenizer = Characters(marks)
        tokenizer.name_or_path, tokenizer.eos_token_id, tokenizer.bos_token_id = family, None, None
        try:
            made = renderer(tokenizer)
            prompt = made.render_ids([{"role": "user", "content": "How warm?"}], tools=TOOLS, add_generation_prompt=True)
        except Exception as error:  # noqa: BLE001
            print(family, repr(error))
            continue
        for name, texts in RESULTS.items():
            for stopped in (True, False):
                turn = tokenizer.encode(TURNS[form] + (end if stopped else ""))
                new = results(family, texts)
                bridged = made.bridge_to_next_turn(prompt, turn, new, tools=TOOLS)
                if bridged is None:
                    print(family, name, stopped, "refused")
                    continue
                ids = bridged.token_ids
                assert ids[: len(prompt) + len(turn)] == prompt + turn, family
                text = tokenizer.decode(ids[len(prompt) + len(turn) :])
                cases.append({"family": family, "format": form, "results": texts, "turn_end": end if stopped else "",
                              "end": end, "added": text})  # fmt: skip
    out = {"tools": TOOLS, "cases": cases}
    (HERE / "bridge.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(len(cases), "cases")


if __name__ == "__main__":
    main()
