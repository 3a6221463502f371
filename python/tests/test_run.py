"""Runs read from their directories."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import rloom
from rloom import RloomError, load_run


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def write_events(run: Path, lines: list[dict[str, Any]]) -> None:
    (run / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_finished_run(trained: Path) -> None:
    run = load_run(trained)
    assert (run.state, run.error, run.notes, run.warnings) == ("finished", None, [], [])
    assert [(s.stage, s.step, s.global_step) for s in run.steps] == [
        *(("warmup", step, step) for step in (1, 2, 3)),
        *(("rl", step, step + 3) for step in (1, 2, 3, 4)),
    ]
    lines = [line for line in events(trained) if line["event"] == "step"]
    assert [s.metrics for s in run.steps] == [line["metrics"] for line in lines]
    assert run.series("loss") == [(s.global_step, s.metrics["loss"]) for s in run.steps]
    assert "loss" in run.metrics
    evaluated = [line for line in events(trained) if line["event"] == "evaluation"]
    assert [(e.global_step, e.metrics, e.tasks) for e in run.evaluations] == [
        (line["global_step"], line["metrics"], 4) for line in evaluated
    ]
    (name,) = [name for name in run.evaluations[0].metrics if name.endswith("accuracy")]
    assert len(run.series(name)) == len(evaluated)
    assert len(run.evaluation_samples) == sum(e["event"] == "evaluation_sample" for e in events(trained))
    sample = next(sample for sample in run.samples if sample.stage == "rl")
    assert set(sample.components) == {"exact"}
    assert run.checkpoints[-1] == trained / "checkpoints/rl-step-000004"
    assert run.config["stage"][1]["method"] == "grpo"


def test_rollouts_are_all_that_was_trained(trained: Path) -> None:
    run = load_run(trained)
    rollouts = list(run.rollouts())
    assert [(r.stage, r.step) for r in rollouts] == [("rl", step) for step in (1, 2, 3, 4) for _ in range(4)]
    assert {r.version for r in rollouts if r.step == 3} == {2}
    for rollout in rollouts:
        policy = [span for span in rollout.spans if span["author"] == "policy"]
        assert sum(s["range"]["end"] - s["range"]["start"] for s in policy) == len(rollout.logprobs)
    shown = {(s.ticket, s.sample): s for s in run.samples if s.stage == "rl"}
    for rollout in rollouts:
        if sample := shown.get((rollout.ticket, rollout.sample)):
            assert (sample.completion, sample.advantage) == (rollout.completion, rollout.advantage)
            assert (sample.components, sample.stop) == (rollout.components, rollout.stop)
    assert [r.step for r in run.rollouts(steps=[2, 4])] == [2] * 4 + [4] * 4
    assert list(run.rollouts(stage="warmup")) == []


def test_the_last_report_of_a_repeated_step_counts(run_folder: Path) -> None:
    lines = events(run_folder)
    (start,) = [line for line in lines if line["event"] == "stage_started" and line["stage"] == "rl"]
    again = [line for line in lines if line["event"] == "step" and line["stage"] == "rl"][2:3]
    again[0] = {**again[0], "attempt": 2, "metrics": {"loss": 7.0}}
    write_events(run_folder, [*lines, {**start, "attempt": 2, "from_step": 2}, *again])
    run = load_run(run_folder)
    assert [(s.step, s.attempt) for s in run.steps if s.stage == "rl"] == [(1, 1), (2, 1), (3, 2)]
    assert run.steps[-1].metrics == {"loss": 7.0}
    assert {r.step for r in run.rollouts()} == {1, 2, 3}, "the rollouts of step 4 belong to no step"


def test_torn_lines_are_left_out_and_mentioned(run_folder: Path) -> None:
    file = run_folder / "events.jsonl"
    whole = file.read_text().splitlines(keepends=True)
    step = next(n for n, line in enumerate(whole) if '"event":"step"' in line)
    file.write_text("".join([*whole[:step], whole[step][:40] + "\n", *whole[step + 1 :], '{"attempt":1,"ti']))
    run = load_run(run_folder)
    assert [s.global_step for s in run.steps] == [2, 3, 4, 5, 6, 7]
    assert run.notes == [
        "1 line of events.jsonl could not be read and are left out",
        "the last line of events.jsonl is incomplete",
    ]


def test_states(run_folder: Path) -> None:
    lines = events(run_folder)
    assert lines[-1]["event"] == "run_finished"
    write_events(run_folder, [*lines[:-1], {**lines[-1], "event": "run_interrupted"}])
    assert load_run(run_folder).state == "interrupted"
    write_events(run_folder, [*lines[:-1], {**lines[-1], "event": "run_failed", "error": "no space"}])
    run = load_run(run_folder)
    assert (run.state, run.error) == ("failed", "no space")
    write_events(run_folder, lines[:-1])
    assert load_run(run_folder).state == "killed"
    with (run_folder / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert load_run(run_folder).state == "running"


def test_a_run_is_found_by_its_name(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained.parents[1])
    assert load_run("tiny").path == Path("runs/tiny")
    assert len(list(load_run("tiny").rollouts(steps=[1]))) == 4


def test_other_folders_are_refused(tmp_path: Path, run_folder: Path) -> None:
    with pytest.raises(RloomError, match="nothing does not exist\nhint: pass the folder of a run"):
        load_run(tmp_path / "nothing")
    with pytest.raises(RloomError, match="is not a run"):
        load_run(tmp_path)
    file = run_folder / "rollouts/rl-step-000002.jsonl.zst"
    file.write_bytes(file.read_bytes()[:100])
    run = load_run(run_folder)
    assert len(list(run.rollouts(steps=[1]))) == 4
    with pytest.raises(RloomError, match="rl-step-000002.jsonl.zst"):
        list(run.rollouts())


def test_frames(trained: Path) -> None:
    run = load_run(trained)
    frame = run.frame()
    assert list(frame.index) == [1, 2, 3, 4, 5, 6, 7]
    assert list(frame["stage"]) == ["warmup"] * 3 + ["rl"] * 4
    assert list(frame["loss"]) == [step.metrics["loss"] for step in run.steps]
    assert pd.isna(frame["reward"].iloc[0])
    assert list(run.evaluation_frame().index) == [e.global_step for e in run.evaluations]
    assert list(run.sample_frame()["completion"]) == [s.completion for s in run.samples]


def test_frames_of_a_run_without_steps(run_folder: Path) -> None:
    write_events(run_folder, events(run_folder)[:1])
    run = load_run(run_folder)
    assert len(run.frame()) == len(run.sample_frame()) == 0


def test_frames_need_pandas(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = load_run(trained)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="frames need pandas: pip install pandas"):
        run.frame()


def test_a_missing_binary_is_named(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLOOM_BINARY", "/no/such/rloom")
    with pytest.raises(FileNotFoundError, match="/no/such/rloom"):
        load_run(trained)


def test_the_script_is_the_binary(trained: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "import sys; sys.argv[0] = 'rloom'; from rloom._binary import main; main()",
    ]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"rloom {rloom.__version__}\n"
    failed = subprocess.run([*command, "inspect", "nothing"], capture_output=True, text=True, check=False)
    assert failed.returncode == 2
    inspected = subprocess.run([*command, "inspect", str(trained)], capture_output=True, check=True)
    assert inspected.stdout
