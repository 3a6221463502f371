"""Runs started from Python."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest
import rloom
from rloom._train import toml


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(recipe, tmp_path / "tiny.toml")
    return tmp_path


def test_a_recipe_is_trained(capsys: pytest.CaptureFixture[str]) -> None:
    run = rloom.train("tiny.toml", overrides={"stage.rl.steps": 2, "run.seed": 5})
    assert (run.state, len(run.steps), run.config["run"]["seed"]) == ("finished", 5, 5)
    assert run.path == Path("runs/tiny")
    assert "finished after" in capsys.readouterr().err, "messages go to sys.stderr, which a notebook shows"
    again = rloom.train(Path("tiny.toml"), quiet=True)
    assert again.path == Path("runs/tiny-2")
    assert capsys.readouterr().err == ""
    assert rloom.train("tiny.toml", run_name="mine", quiet=True).path == Path("runs/mine")


def test_a_function_of_the_program_is_the_reward() -> None:
    seen = []

    def reward(completions: list[str], answer: list[str], **columns: object) -> list[float]:
        seen.extend(completions)
        return [len(completion) / 4 for completion in completions]

    run = rloom.train("tiny.toml", reward=reward, solved_at=0.5, quiet=True)
    rollouts = list(run.rollouts())
    assert len(rollouts) == 16
    for rollout in rollouts:
        assert list(rollout.components.values()) == [len(rollout.completion) / 4]
        assert rollout.solved == (len(rollout.completion) >= 2)
    assert {rollout.completion for rollout in rollouts} <= set(seen)


def test_a_class_of_the_program_is_the_environment() -> None:
    class Env:
        """At most two turns, each with the length of its reply as the reward."""

        episodes: ClassVar[list[tuple[str, list[str]]]] = []

        def reset(self, task: dict[str, str]) -> str:
            self.replies: list[str] = []
            self.episodes.append((task["prompt"], self.replies))
            return task["prompt"]

        def step(self, reply: str) -> tuple[str, float, bool]:
            self.replies.append(reply)
            return "1", len(reply), len(self.replies) == 2

    run = rloom.train(
        "tiny.toml",
        environment=Env,
        overrides={
            "stage.rl.steps": 2,
            "reward.components": [{"kind": "environment"}],
            "sampling.max_new_tokens": 12,
        },
        quiet=True,
    )
    assert (run.state, [step.stage for step in run.steps].count("rl")) == ("finished", 2)
    rollouts = list(run.rollouts())
    assert len(rollouts) == 8
    played = {(prompt, float(sum(map(len, replies)))) for prompt, replies in Env.episodes}
    turns = []
    for rollout in rollouts:
        (reward,) = rollout.components.values()
        assert (rollout.prompt, reward) in played
        turns.append([span["author"] for span in rollout.spans].count("policy"))
    assert set(turns) == {1, 2}, "a reply that reaches the limit of tokens ends its episode"


def test_a_reward_that_fails_ends_the_run_with_its_traceback() -> None:
    def reward(completions: list[str]) -> list[float]:
        raise LookupError("no such score")

    with pytest.raises(rloom.RunFailedError, match="LookupError: no such score"):
        rloom.train("tiny.toml", reward=reward, quiet=True)


def test_a_run_is_resumed() -> None:
    first = rloom.train("tiny.toml", quiet=True)
    more = rloom.train(resume="tiny", overrides={"stage.rl.steps": 6}, quiet=True)
    assert more.path == first.path
    assert [step.global_step for step in more.steps] == list(range(1, 10))


def test_a_mistake_in_the_recipe_is_shown_with_its_place() -> None:
    with pytest.raises(rloom.RunFailedError, match="lerning_rate") as failed:
        rloom.train("tiny.toml", overrides={"trainer.lerning_rate": 1e-3})
    assert failed.value.exit_code == 2
    assert failed.value.run is None
    assert "hint" in str(failed.value) or "did you mean" in str(failed.value)
    assert not Path("runs").exists()


def test_a_run_that_fails_raises_its_error() -> None:
    rloom.train("tiny.toml", run_name="taken", quiet=True)
    with pytest.raises(rloom.RunFailedError, match="runs/taken") as failed:
        rloom.train("tiny.toml", run_name="taken", quiet=True)
    assert failed.value.exit_code == 2


def test_arguments_that_contradict_are_refused() -> None:
    with pytest.raises(ValueError, match="pass the files of a recipe, or `resume`"):
        rloom.train()
    with pytest.raises(ValueError, match="pass the files of a recipe, or `resume`"):
        rloom.train("tiny.toml", resume="runs/tiny")


def test_settings_in_the_syntax_of_toml() -> None:
    assert toml({"a b": [1, 2.5, True, "x"], "c": {"d": Path("e")}}) == (
        '{"a b" = [1, 2.5, true, "x"], "c" = {"d" = "e"}}'
    )
    assert toml('"ü\n😀') == '"\\"ü\\n😀"'
    with pytest.raises(TypeError, match="None has no form in TOML"):
        toml(None)


PROGRAM = """
import rloom, signal
# A suite in the background of a script inherits that Ctrl-C is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    rloom.train("tiny.toml", overrides={"stage.rl.steps": 100000})
except KeyboardInterrupt:
    print(rloom.load_run("tiny").state)
"""


def started() -> subprocess.Popen[str]:
    """A program that trains, once its run is in its second stage."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(("rl 1/", "rl      1/")):
            return process
    raise AssertionError("the run ended before its second stage")


def test_ctrl_c_saves_and_raises() -> None:
    process = started()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=300)
    assert out == "interrupted\n"
    assert process.returncode == 0


def test_a_second_ctrl_c_stops_at_once() -> None:
    process = started()
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    out, _ = process.communicate(timeout=300)
    assert out in ("interrupted\n", "killed\n")


def test_a_run_ends_with_the_program_that_started_it() -> None:
    process = started()
    process.kill()
    process.wait(timeout=300)
    until = time.monotonic() + 300
    while rloom.load_run("tiny").state == "running":
        assert time.monotonic() < until, "the run continues without the program"
        time.sleep(0.1)
    assert rloom.load_run("tiny").state == "interrupted", "it has saved its last step"


def test_a_run_that_is_killed_is_an_error() -> None:
    program = PROGRAM.replace(
        "except KeyboardInterrupt:", "except rloom.RunFailedError as error:\n    print(error)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    next(line for line in process.stderr if line.startswith("rl"))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    out, _ = process.communicate(timeout=300)
    assert out == "rloom was ended by SIGKILL\nkilled\n"
