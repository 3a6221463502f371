"""Renders a game with reasoning after each of its turns, as a template that drops earlier reasoning does, with transformers.

Needs transformers (the file was written with 5.23) and jinja2 (3.1.6):  python earlier_reasoning.py
"""

import json
import pathlib

from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path(__file__).parent
TEMPLATE = HERE / "../../../text/tests/golden/templates/forgetful.jinja"
PROMPT = "0-9:"
#: What the policy writes, and what the environment answers.
TURNS = [("<think>\nhalf\n</think>\n\n4", ">"), ("8", "<"), ("<think>\nonly two\n</think>\n\n5", ">"), ("7", None)]


def main() -> None:
    template = TEMPLATE.read_text(encoding="utf-8").replace("<|end|>", "<|eos|>")
    messages = [{"role": "user", "content": PROMPT}]
    prompts = []
    for written, observation in TURNS:
        texts, _ = render_jinja_template(conversations=[messages], chat_template=template, add_generation_prompt=True)
        prompts.append(texts[0])
        messages.append({"role": "assistant", "content": written})
        if observation is not None:
            messages.append({"role": "user", "content": observation})
    out = {"prompt": PROMPT, "turns": [written for written, _ in TURNS], "prompts": prompts}
    (HERE / "earlier_reasoning.json").write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
