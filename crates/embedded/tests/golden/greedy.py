"""Greedy completions of the tiny checkpoints by `transformers.generate`: writes greedy.json to this folder.

    python greedy.py

Each case holds a prompt, the tokens that follow and the log-probability of each under the full softmax at temperature
1. One batch of one: padding would change nothing but rounding. The gap between the best and the second best logit is
asserted, so that rounding cannot change a token.
"""

import json
import pathlib
import random

import torch
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE.parent.parent.parent / "model" / "tests" / "fixtures"
MAX_NEW_TOKENS = 24


def main():
    torch.manual_seed(0)
    models = {}
    for name in ["tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-mistral-window"]:
        model = AutoModelForCausalLM.from_pretrained(FIXTURES / name, dtype=torch.float32).eval()
        cases = []
        rng = random.Random(name)
        for length in [1, 3, 5, 8, 13, 16, 17, 33, 40, 64]:
            prompt = [1] + [rng.randrange(3, 96) for _ in range(length - 1)]
            out = model.generate(
                torch.tensor([prompt]),
                do_sample=False,
                max_new_tokens=MAX_NEW_TOKENS,
                output_logits=True,
                return_dict_in_generate=True,
            )
            tokens = out.sequences[0, length:].tolist()
            logits = torch.cat(out.logits).double()
            best = logits.topk(2).values
            assert (best[:, 0] - best[:, 1]).min() > 1e-3, (name, length)
            logprobs = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
            stop = "stop_token" if tokens[-1] in model.generation_config.eos_token_id else "length"
            cases.append({"prompt": prompt, "tokens": tokens, "logprobs": logprobs.tolist(), "stop": stop})
        stops = [case["stop"] for case in cases]
        assert len(set(stops)) == 2, (name, stops)
        print(name, stops)
        models[name] = cases
    data = {"fixtures": "crates/model/tests/fixtures", "max_new_tokens": MAX_NEW_TOKENS, "models": models}
    text = json.dumps(data, indent=1)
    (HERE / "greedy.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
