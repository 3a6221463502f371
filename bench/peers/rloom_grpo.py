"""A GRPO step of a run of RLoom with PyTorch ranks: rollout, random rewards, one optimiser step, no KL term.

`--rollout` names the engine that samples, `--vllm` the interpreter of vLLM's environment. The seconds of a step are those
between the steps of the run's events, so they contain everything.
"""

import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import qwen
from tokenizers import Tokenizer, models, pre_tokenizers
from workloads import GRPO, SHAPES, arguments, prompts, report

given = arguments("--rloom", "--rollout", "--vllm")
tasks, samples, prompt, new = GRPO
shape = SHAPES["S"]
steps = given.warm + given.steps
PARTS = ("rollout", "reward", "train", "publish")
REWARD = """
import random

def reward(completions, **_):
    return [random.random() for _ in completions]
"""


def settings(folder: Path) -> dict:
    """Returns the recipe's keys outside of its stage."""
    found = {
        "run.directory": str(folder),
        "run.name": "run",
        "run.checkpoint_every": steps,
        "model.path": str(folder / "model"),
        "model.dtype": given.dtype,
        "data.path": str(folder / "data.jsonl"),
        "data.eval_path": str(folder / "data.jsonl"),
        "eval.every": steps,
        "eval.tasks": 1,
        "sampling.max_new_tokens": new,
        "trainer.backend": "torch",
        "trainer.python": sys.executable,
        "trainer.learning_rate": 1e-5,
        "trainer.micro_batch_tokens": tasks * samples * (prompt + new),
        "rollout.engine": given.rollout,
    }
    if given.rollout == "vllm":
        dtype = {"f32": "float32", "bf16": "bfloat16"}[given.dtype]
        found |= {
            "rollout.python": given.vllm,
            "rollout.max_requests": tasks * samples,
            "rollout.args": ["--dtype", dtype, "--enforce-eager"],
        }
    return found


def write(folder: Path) -> Path:
    """Writes model, tokenizer, prompts, reward and recipe; returns the recipe."""
    qwen.model("S").save_pretrained(folder / "model")
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(shape.vocabulary)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    rows = [{"prompt": " ".join(f"w{i}" for i in ids)} for ids in prompts(shape, tasks * steps, prompt)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "reward.py").write_text(REWARD)
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings(folder).items())
    recipe = folder / "recipe.toml"
    recipe.write_text(f"""{keys}
[[reward.components]]
kind = "python"
function = "{folder}/reward.py:reward"
solved_at = 0.5

[[stage]]
name = "rl"
method = "grpo"
steps = {steps}
groups_per_batch = {tasks}
algorithm.group_size = {samples}
""")
    return recipe


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    run = subprocess.run([given.rloom, "train", write(folder), "--quiet"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    events = [json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines()]

done = [event for event in events if event["event"] == "step"]
metrics = [event["metrics"] for event in done]
assert len(done) == steps, f"{len(done)} steps instead of {steps}"
assert all(line["completions/min_length"] == new for line in metrics), "a completion is shorter"
seconds = [after["elapsed"] - before["elapsed"] for before, after in itertools.pairwise(done)][given.warm - 1 :]
phases = [{"name": part, "seconds": median(line[f"time/{part}"] for line in metrics[given.warm :])} for part in PARTS]
report(seconds, tasks * samples * new, phases=phases, parameters=shape.parameters(), versions=qwen.VERSIONS)
