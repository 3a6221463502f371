"""Environments of other libraries, played against the libraries themselves (run by .ci/rewards)."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import random
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from types import ModuleType

pytestmark = pytest.mark.rewards


def _load() -> ModuleType:
    """The module alone, so that these tests need no wheel."""
    file = Path(__file__).parents[2] / "rloom" / "environments.py"
    spec = importlib.util.spec_from_file_location("rloom_environments", file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


environments = _load()


def play(episode: Generator[Any, str, float], replies: list[str]) -> tuple[list[Any], list[float]]:
    """The observations and the rewards of the turns."""
    observations, rewards = [next(episode)], []
    for reply in replies:
        try:
            result = episode.send(reply)
        except StopIteration as stop:
            rewards.append(stop.value)
            return observations, rewards
        observation, reward = result if isinstance(result, tuple) else (result, None)
        observations.append(observation)
        rewards.append(reward)
    return observations, rewards


def task(prompt: str = "", answer: str = "", **row: Any) -> dict[str, Any]:
    return {"prompt": prompt, "answer": answer, "index": 3, **row}


def test_gymnasium() -> None:
    pytest.importorskip("gymnasium")
    lake = environments.gymnasium("FrozenLake-v1", is_slippery=False, render_mode="ansi")
    path = ["down", "1", "1", "2", "move 2", "1", "2"]
    observations, rewards = play(lake(task=task("Cross the lake."), seed=3, episode_seed=1), path)
    assert rewards == [-0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    assert observations[0]["messages"].startswith("Cross the lake.\n")
    assert "FHFH" in observations[0]["messages"]
    assert observations[1]["messages"] == "That is not a valid action: expected a number from 0 to 3"
    assert [o["state"] for o in observations] == ["0", "0", "4", "8", "9", "10", "14"]
    with contextlib.closing(lake(task=task(), seed=3, episode_seed=1)) as again:
        assert next(again)["state"] == "0"


def test_gymnasium_repeats_its_seeds() -> None:
    pytest.importorskip("gymnasium")
    cards = environments.gymnasium("Blackjack-v1", show=lambda hand, _: str(hand))

    def hands(seed: int, episode_seed: int) -> tuple[list[Any], list[float]]:
        return play(cards(task=task(), seed=seed, episode_seed=episode_seed), ["1"] * 8)

    assert hands(5, 1) == hands(5, 1)
    assert len({str(hands(seed, 1)) for seed in (5, 6, 7)}) > 1
    # The episodes of a group begin alike and differ afterwards.
    group = [hands(5, episode)[0] for episode in range(8)]
    assert len({str(observations[0]) for observations in group}) == 1
    assert len({str(observations) for observations in group}) > 1


def test_gem() -> None:
    pytest.importorskip("gem")
    guess = environments.gem("game:GuessTheNumber-v0-easy")
    observations, rewards = play(
        guess(task=task(), seed=3, episode_seed=1), [f"\\boxed{{{n}}}" for n in range(1, 11)]
    )
    assert "number" in observations[0]["messages"]
    assert all(isinstance(reward, float) for reward in rewards)
    assert (observations, rewards) == play(
        guess(task=task(), seed=3, episode_seed=1), [f"\\boxed{{{n}}}" for n in range(1, 11)]
    )


def test_textarena_against_an_opponent() -> None:
    pytest.importorskip("textarena")
    nim = environments.textarena("Nim-v0", players=2, opponent=lambda _: "[0 1]")
    moves = ["[0 1]", "[1 1]", "[2 1]", "[3 1]"]
    random.seed(1)
    before = random.getstate()
    observations, rewards = play(nim(task=task(), seed=3, episode_seed=1), moves)
    assert random.getstate() == before
    assert len(observations[1]) < len(observations[0])
    assert (observations, rewards) == play(nim(task=task(), seed=3, episode_seed=1), moves)
    with pytest.raises(ValueError, match="needs an `opponent`"):
        environments.textarena("Nim-v0", players=2)


def test_skyrl_gym() -> None:
    pytest.importorskip("skyrl_gym")
    episode = environments.skyrl_gym("gsm8k")
    for reply, reward in [("#### 4", 1.0), ("#### 5", 0.0)]:
        observations, rewards = play(episode(task=task("2+2?", "4", max_turns=1)), [reply])
        assert observations == [[{"role": "user", "content": "2+2?"}]]
        assert rewards == [reward]


def test_reasoning_gym() -> None:
    library = pytest.importorskip("reasoning_gym")
    episode = environments.reasoning_gym("basic_arithmetic")
    entry = library.create_dataset("basic_arithmetic", seed=3, size=1)[0]
    observations, rewards = play(episode(task=task(), seed=3), [f"<answer>{entry['answer']}</answer>"])
    assert observations == [entry["question"]]
    assert rewards == [1.0]
    assert play(episode(task=task(), seed=3), ["nothing"])[1][0] < 1.0


def test_verifiers_tools() -> None:
    verifiers = pytest.importorskip("verifiers")
    datasets = pytest.importorskip("datasets")

    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    def is_right(completion: list[dict[str, str]], answer: str) -> float:
        return float(completion[-1]["content"] == answer)

    def make() -> Any:
        rows = datasets.Dataset.from_list([{"question": "2+2?", "answer": "4"}])
        return verifiers.ToolEnv(tools=[add], dataset=rows, rubric=verifiers.Rubric(funcs=[is_right]))

    episode = environments.verifiers_tools(make)
    call = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool_call>'
    wrong = '<tool_call>{"name": "subtract"}</tool_call>'
    observations, rewards = play(episode(task=task("2+2?", "4")), [wrong, call, "4"])
    assert "Adds two numbers." in observations[0][0]["content"]
    assert observations[1][0]["content"].startswith("<tool_response>\nerror: KeyError")
    assert observations[2] == [{"role": "user", "content": "<tool_response>\n4\n</tool_response>"}]
    assert rewards == [None, None, 1.0]


@contextlib.contextmanager
def _server() -> Iterator[str]:
    """A stand-in of an OpenEnv server: three echoes, then the end."""
    server_module = pytest.importorskip("websockets.sync.server")

    def serve(socket: Any) -> None:
        turns = 0
        for text in socket:
            request = json.loads(text)
            if request["type"] == "close":
                return
            data = request.get("data", {})
            if request["type"] == "reset":
                answer: dict[str, Any] = {
                    "observation": {"text": f"seed {data['seed']}"},
                    "reward": None,
                    "done": False,
                }
            elif not data["message"]:
                error = {"message": "message is empty", "code": "VALIDATION_ERROR"}
                socket.send(json.dumps({"type": "error", "data": error}))
                continue
            elif data["message"] == "crash":
                error = {"message": "no room", "code": "CAPACITY_REACHED"}
                socket.send(json.dumps({"type": "error", "data": error}))
                continue
            else:
                turns += 1
                answer = {"observation": {"text": data["message"]}, "reward": 0.5, "done": turns == 3}
            socket.send(json.dumps({"type": "observation", "data": answer}))

    with server_module.serve(serve, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}/ws"
        server.shutdown()


def test_openenv() -> None:
    with _server() as url:
        echo = environments.openenv(url, show=lambda observation: observation["text"])
        observations, rewards = play(echo(task=task(), seed=3), ["a", "", "b", "c"])
        assert observations == ["seed 3", "a", "That is not a valid action: message is empty", "b"]
        assert rewards == [0.5, -0.1, 0.5, 0.5]
        # A failure of the server is an error, never a reward.
        with pytest.raises(environments.OpenEnvError, match="CAPACITY_REACHED: no room"):
            play(echo(task=task(), seed=3), ["crash"])
