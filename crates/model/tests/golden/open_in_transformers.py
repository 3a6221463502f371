"""Opens folders written by RLoom in transformers, unchanged, and compares logits, the values of critics, or rewards.

    python open_in_transformers.py            (builds the `resave` example with cargo)

Covers the fixtures, saved again, and new random models of each family. Any missing or unexpected tensor is an error, and
so is a logit or value that differs by more than 1e-4. Prints one line per model.
"""

import json
import pathlib
import subprocess
import tempfile

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from reference import NAMES

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE.parent / "fixtures"
WORKSPACE = HERE.parent.parent.parent.parent


def check(kind, source, loader):
    with tempfile.TemporaryDirectory() as folder:
        command = ["cargo", "run", "--quiet", "-p", "rloom-model", "--example", "resave", "--", kind, source, folder]
        subprocess.run(command, cwd=WORKSPACE, check=True)
        model, info = loader.from_pretrained(folder, output_loading_info=True)
        trouble = {kind: list(names) for kind, names in info.items() if names}
        assert not trouble, (source, trouble)
        assert model.dtype == torch.float32, model.dtype
        ours = json.loads((pathlib.Path(folder) / "logits.json").read_text())
        tokens = torch.tensor([ours["tokens"]])
        with torch.no_grad():
            logits = model(tokens).logits[0]
            if kind == "reward":
                # The reward of every prefix.
                logits = torch.cat([model(tokens[:, : n + 1]).logits[0] for n in range(tokens.shape[1])])
            if kind == "process":
                logits = logits[:, 1] - logits[:, 0]
        difference = float((logits.flatten() - torch.tensor(ours["logits"])).abs().max())
        assert difference <= 1e-4, (source, difference)
        if kind == "critic":
            assert model.config.num_labels == 1 and model.dropout.p == 0.0, model.config
        elif kind == "reward":
            assert model.config.num_labels == 1 and model.score.bias is None, model.config
        elif kind == "process":
            assert model.config.id2label == {0: "wrong", 1: "right"} and model.dropout.p == 0.0, model.config
        else:
            model.generate(torch.tensor([ours["tokens"][:4]]), do_sample=False, max_new_tokens=4)
        print(f"{type(model).__name__:27} {pathlib.Path(source).name:17} largest difference {difference:.1e}")


def main():
    new = ["llama", "qwen2", "qwen3"]
    for source in [str(FIXTURES / name) for name in NAMES] + new:
        check("policy", source, AutoModelForCausalLM)
    for source in [str(FIXTURES / name) for name in ["tiny-llama-critic", "tiny-qwen3-critic"]] + new:
        check("critic", source, AutoModelForTokenClassification)

    for source in new:
        check("reward", source, AutoModelForSequenceClassification)
        check("process", source, AutoModelForTokenClassification)


if __name__ == "__main__":
    main()
