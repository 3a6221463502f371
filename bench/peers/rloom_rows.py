"""Steps of SFT or DPO in a run of RLoom: the seconds between the steps of its events, so they contain everything."""

import itertools
import json
import subprocess
import tempfile
from pathlib import Path

import qwen
from rows import LENGTH, SEQUENCES, batch, rows, tokenizer
from workloads import SHAPES, arguments, report, threads

given = arguments("--rloom", "--method")
shape = SHAPES["S"]
steps = given.warm + given.steps


def write(folder: Path) -> Path:
    """Writes model, tokenizer, rows and recipe; returns the recipe."""
    qwen.model("S").save_pretrained(folder / "model")
    tokenizer(shape).save_pretrained(folder / "model")
    lines = (json.dumps(row) + "\n" for row in rows(given.method, shape, steps))
    (folder / "rows.jsonl").write_text("".join(lines))
    keys = {
        "run.directory": str(folder),
        "run.name": "run",
        "run.checkpoint_every": steps,
        "run.threads": threads(),
        "model.path": str(folder / "model"),
        "model.dtype": given.dtype,
        "data.path": str(folder / "rows.jsonl"),
        "trainer.learning_rate": 1e-5,
        "trainer.micro_batch_tokens": SEQUENCES * LENGTH,
    }
    stage = f"""
[[stage]]
name = "rows"
method = "{given.method}"
steps = {steps}
groups_per_batch = {batch(given.method)}
order = "sequential"
"""
    recipe = folder / "recipe.toml"
    recipe.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()) + stage)
    return recipe


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    run = subprocess.run([given.rloom, "train", write(folder), "--quiet"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    events = [json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines()]

done = [event for event in events if event["event"] == "step"]
assert len(done) == steps, f"{len(done)} steps instead of {steps}"
for event in done:
    metrics = event["metrics"]
    seen = metrics["tokens/trained"] + metrics.get("tokens/shared", 0)
    assert seen == SEQUENCES * LENGTH, f"{seen} tokens in a step instead of {SEQUENCES * LENGTH}"
seconds = [after["elapsed"] - before["elapsed"] for before, after in itertools.pairwise(done)][given.warm - 1 :]
report(seconds, SEQUENCES * LENGTH, parameters=shape.parameters(), versions=qwen.VERSIONS)
