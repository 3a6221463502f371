"""Environments of other libraries, for `environment = { kind = "python", function = "file.py:name" }`.

Each function returns the environment for a line of that file, such as
`lake = rloom.environments.gymnasium("FrozenLake-v1", is_slippery=False)`. The libraries are not dependencies of
this package. An episode begins with the index of its task as its seed, so the episodes of a group begin alike; what
follows by chance has a seed of each episode where the library allows it (gymnasium, TextArena).
"""

from __future__ import annotations

import contextlib
import inspect
import json
import random
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    Episode = Callable[..., Generator[Any, str, float]]

INVALID = "That is not a valid action"


class OpenEnvError(RuntimeError):
    """An OpenEnv server that does not answer as its protocol says."""


def gymnasium(
    environment: str | Callable[..., Any],
    *,
    parse: Callable[[str], Any] | None = None,
    show: Callable[[Any, Any], str] | None = None,
    invalid_reward: float = -0.1,
    **options: Any,
) -> Episode:
    """An environment of gymnasium, by its id or as a function that makes it with `options`.

    `parse` turns the policy's text into an action and raises ValueError for one that is not; by default it takes
    the last whole number of a discrete space, and the text itself otherwise. `show` turns observation and environment
    into text; by default it is what the environment renders in mode "ansi", else the observation.
    """

    def make() -> Any:
        if not isinstance(environment, str):
            return environment(**options)
        import gymnasium as library

        return library.make(environment, **options)

    def play(task: dict[str, Any], seed: int, episode_seed: int) -> Generator[Any, str, float]:
        made = make()
        with contextlib.closing(made) if hasattr(made, "close") else contextlib.nullcontext():
            shown, parsed = show or _shown, parse or _action(made)
            return (yield from _steps(made, task, (seed, episode_seed), parsed, shown, invalid_reward))

    return play


def gem(environment: str, *, invalid_reward: float = -0.1, **options: Any) -> Episode:
    """An environment of GEM (`gem-llm`), by its id. Actions and observations are texts."""

    def make(**options: Any) -> Any:
        import gem as library

        return library.make(environment, **options)

    return gymnasium(make, parse=str, show=lambda text, _: text, invalid_reward=invalid_reward, **options)


def textarena(
    environment: str, *, opponent: Callable[[str], str] | None = None, players: int = 1, **options: Any
) -> Episode:
    """An environment of TextArena, by its id. The policy is player 0; `opponent` answers for the other `players`.

    TextArena draws from the generator of the module `random`: each episode has a state of it of its own.
    """
    if players > 1 and opponent is None:
        raise ValueError(f"{environment} with {players} players needs an `opponent`")

    def play(task: dict[str, Any], seed: int, episode_seed: int) -> Generator[Any, str, float]:
        import textarena as library

        with _Chance(seed).own():
            made = library.make(environment, **options)
            made.reset(num_players=players, seed=seed)
        chance = _Chance(episode_seed)
        seen, prompt, done = "", _before(task), False
        while True:
            with chance.own():
                while not done:
                    player, observation = made.get_observation()
                    if player == 0:
                        break
                    done, _ = made.step(action=opponent(observation) if opponent else "")
            if done:
                return float(made.close()[0][0])
            # Observations repeat the whole history, which the policy has already.
            new = observation.removeprefix(seen)
            seen = observation
            reply = yield prompt + new
            prompt = ""
            with chance.own():
                done, _ = made.step(action=reply)

    return play


def skyrl_gym(environment: str, *, options: dict[str, Any] | None = None) -> Episode:
    """An environment of SkyRL-gym, by its id. It gets the columns of the task as `extras`."""

    def play(task: dict[str, Any]) -> Generator[Any, str, float]:
        import skyrl_gym as library

        extras = {"reward_spec": {"ground_truth": task["answer"]}, **task}
        made = library.make(environment, env_config=options or {}, extras=extras)
        try:
            messages, _ = made.init(_messages(task["prompt"]))
            reply = yield messages
            while True:
                result = made.step(reply)
                if result["done"]:
                    return float(result["reward"])
                reply = yield result["observations"], float(result["reward"])
        finally:
            made.close()

    return play


def reasoning_gym(dataset: str, **options: Any) -> Episode:
    """A data set of reasoning-gym: the question of the task's index, and the score of the answer."""

    def play(task: dict[str, Any], seed: int) -> Generator[Any, str, float]:
        import reasoning_gym as library

        questions = library.create_dataset(dataset, **{"seed": seed, "size": 1, **options})
        entry = questions[seed % len(questions)]
        reply = yield _before(task) + entry["question"]
        return float(questions.score_answer(answer=_answer(reply), entry=entry))

    return play


def verifiers_tools(make: Callable[[], Any]) -> Episode:
    """A `ToolEnv` of verifiers before 0.2, made by the given function.

    The policy calls tools with `<tool_call>{"name": …, "arguments": {…}}</tool_call>`; a turn without a call ends the
    episode, which the functions of the environment's rubric score.
    """
    made: list[Any] = []

    def play(task: dict[str, Any]) -> Generator[Any, str, float]:
        import asyncio

        if not made:
            made.append(make())
        (env,) = made
        tools = [f"{t.__name__}{inspect.signature(t)}: {inspect.getdoc(t) or ''}" for t in env.tools]
        system = "\n".join([env.system_prompt or "You can call these tools:", *tools])
        prompt = _messages(task["prompt"])
        completion: list[dict[str, Any]] = []
        observation = [{"role": "system", "content": system}, *prompt]
        for _ in range(env.max_turns if env.max_turns > 0 else 1000):
            reply = yield observation
            completion.append({"role": "assistant", "content": reply})
            calls = re.findall(r"<tool_call>(.*?)</tool_call>", reply, re.DOTALL)
            if not calls:
                break
            observation = [{"role": "user", "content": _call(env, call)} for call in calls]
            completion += observation
        known = {"prompt": prompt, "completion": completion, "answer": task["answer"], "info": task}
        return asyncio.run(_score(env.rubric, known))

    return play


def openenv(
    url: str,
    *,
    action: Callable[[str], dict[str, Any]] = lambda text: {"message": text},
    show: Callable[[dict[str, Any]], str] = json.dumps,
    invalid_reward: float = -0.1,
    timeout: float = 60.0,
) -> Episode:
    """An environment of an OpenEnv server, by the address of its WebSocket (`ws://host:port/ws`); needs `websockets`.

    `action` turns the policy's text into an action of the environment, `show` an observation into text. An action that the
    server finds invalid costs `invalid_reward`, and the policy is told why.
    """

    def play(task: dict[str, Any], seed: int) -> Generator[Any, str, float]:
        from websockets.sync.client import connect

        with connect(url, open_timeout=timeout) as socket:

            def ask(kind: str, data: dict[str, Any]) -> dict[str, Any]:
                socket.send(json.dumps({"type": kind, "data": data}))
                answer: dict[str, Any] = json.loads(socket.recv(timeout=timeout))
                if answer.get("type") not in ("observation", "error"):
                    raise OpenEnvError(f"{url} answered {kind} with {str(answer)[:200]}")
                data = answer.get("data") or {}
                if answer["type"] == "error" and (kind != "step" or data.get("code") != "VALIDATION_ERROR"):
                    raise OpenEnvError(f"{url} answered {kind}: {data.get('code')}: {data.get('message')}")
                return answer

            first = ask("reset", {"seed": seed})["data"]
            reply = yield _before(task) + show(first["observation"])
            while True:
                answer = ask("step", action(reply))
                data = answer["data"]
                if answer["type"] == "error":
                    reply = yield f"{INVALID}: {data.get('message')}", invalid_reward
                    continue
                reward = float(data.get("reward") or 0.0)
                if data["done"]:
                    socket.send(json.dumps({"type": "close"}))
                    return reward
                reply = yield show(data["observation"]), reward

    return play


def _steps(
    environment: Any,
    task: dict[str, Any],
    seeds: tuple[int, int],
    parse: Callable[[str], Any],
    show: Callable[[Any, Any], str],
    invalid_reward: float,
) -> Generator[Any, str, float]:
    """Plays an environment with `reset` and `step` of gymnasium. `seeds` are of its beginning and of what follows."""
    observation, _ = environment.reset(seed=seeds[0])
    inner = getattr(environment, "unwrapped", environment)
    generator: Any = getattr(inner, "np_random", None)
    if hasattr(generator, "bit_generator"):
        inner.np_random = type(generator)(type(generator.bit_generator)(seeds[1]))
    reply = yield {"messages": _before(task) + show(observation, environment), "state": str(observation)}
    while True:
        try:
            action = parse(reply)
        except ValueError as error:
            reason = f": {error}" if str(error) else ""
            reply = yield {"messages": INVALID + reason, "state": str(observation)}, invalid_reward
            continue
        observation, reward, terminated, truncated, _ = environment.step(action)
        if terminated or truncated:
            return float(reward)
        reply = yield {"messages": show(observation, environment), "state": str(observation)}, float(reward)


def _action(environment: Any) -> Callable[[str], Any]:
    """The default parser of an action space."""
    space = environment.action_space
    first, count = int(getattr(space, "start", 0)), getattr(space, "n", None)
    if count is None:
        return str

    def parse(text: str) -> int:
        numbers = re.findall(r"-?\d+", text)
        if not numbers or not first <= int(numbers[-1]) < first + int(count):
            raise ValueError(f"expected a number from {first} to {first + int(count) - 1}")
        return int(numbers[-1])

    return parse


def _shown(observation: Any, environment: Any) -> str:
    rendered = environment.render() if getattr(environment, "render_mode", None) == "ansi" else None
    return str(observation if rendered is None else rendered)


def _before(task: dict[str, Any]) -> str:
    """What the task says before the first observation."""
    prompt = task["prompt"]
    text = prompt if isinstance(prompt, str) else "\n".join(str(m["content"]) for m in prompt)
    return f"{text}\n" if text else ""


def _messages(prompt: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def _answer(reply: str) -> str:
    """The text in the last `<answer>` tags, or all of it."""
    tagged = re.findall(r"<answer>(.*?)</answer>", reply, re.DOTALL)
    return (tagged[-1] if tagged else reply).strip()


def _call(environment: Any, text: str) -> str:
    """Calls a tool; mistakes are told to the policy."""
    try:
        call = json.loads(text)
        tool = {tool.__name__: tool for tool in environment.tools}[call["name"]]
        result = tool(**call.get("arguments", {}))
    except Exception as error:
        return f"<tool_response>\nerror: {type(error).__name__}: {error}\n</tool_response>"
    return f"<tool_response>\n{result}\n</tool_response>"


async def _score(rubric: Any, known: dict[str, Any]) -> float:
    """The weighted sum of the functions of a rubric, called with what each asks for. Weight 0 is for monitoring."""
    known = {**known, "state": known, "parser": getattr(rubric, "parser", None)}
    total = 0.0
    for function, weight in zip(rubric._get_reward_funcs(), rubric._get_reward_weights(), strict=True):
        if weight != 0:
            named = inspect.signature(function).parameters
            value = function(**{name: known[name] for name in named if name in known})
            total += weight * float(await value if inspect.isawaitable(value) else value)
    return total


class _Chance:
    """A state of the module `random` for one episode."""

    def __init__(self, seed: int) -> None:
        self._state = random.Random(seed).getstate()

    @contextlib.contextmanager
    def own(self) -> Iterator[None]:
        others = random.getstate()
        random.setstate(self._state)
        try:
            yield
        finally:
            self._state = random.getstate()
            random.setstate(others)
