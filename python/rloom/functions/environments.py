"""Environments: plain classes and generator functions."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from .adapters import Signature
from .errors import RefusedError, ResultError
from .samples import Sample, reward

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

FORMS = """the supported forms are
  class Env: def reset(self, task) -> messages; def step(self, reply) -> (messages, reward, done)
  def env(task): reply = yield messages"""


class Episodes:
    """The episodes of an environment in one process."""

    def __init__(self, environment: Any) -> None:
        self._running: dict[str, GeneratorEpisode | ClassEpisode] = {}
        self._create: Callable[[Sample], GeneratorEpisode | ClassEpisode]
        self.operations = {"begin": self.begin, "act": self.act, "end": self.end}
        if inspect.isgeneratorfunction(environment):
            self.form = "generator"
            self._create = lambda task: GeneratorEpisode(environment(**arguments(signature, task)))
        elif isinstance(environment, type) and callable(getattr(environment, "step", None)):
            if not callable(getattr(environment, "reset", None)):
                raise RefusedError(f"the class {environment.__name__} has no `reset`; {FORMS}")
            self.form = "class"
            self._create = lambda task: ClassEpisode(environment(**arguments(signature, task)), task)
        else:
            raise RefusedError(
                f"it is neither a class with `reset` and `step` nor a generator function; {FORMS}"
            )
        signature = Signature(environment)

    def begin(self, request: dict[str, Any]) -> dict[str, Any]:
        """Starts an episode. Without a prompt of its own it has that of the task."""
        task = Sample.read(request["task"])
        episode = self._create(task)
        first = episode.begin()
        self._running[request["episode"]] = episode
        return {"ask": ask(task.prompt if first is None else first)}

    def act(self, request: dict[str, Any]) -> dict[str, Any]:
        """Plays a turn of the policy."""
        episode = self._running[request["episode"]]
        observation, step_reward, done = episode.act(request["text"], request["truncated"])
        return {"step_reward": reward(step_reward), **({"done": {}} if done else {"ask": ask(observation)})}

    def end(self, request: dict[str, Any]) -> dict[str, Any]:
        """Releases what an episode holds."""
        if episode := self._running.pop(request["episode"], None):
            episode.end()
        return {}


def arguments(signature: Signature, task: Sample) -> dict[str, Any]:
    """Arguments of a class, of `reset` or of a generator function, by their names."""
    known = {
        "task": {"prompt": task.prompt, "answer": task.answer, "index": task.task, **task.row},
        "prompt": task.prompt,
        "seed": task.task,
        "episode_seed": task.seed,
        "options": None,
        "row": task.row,
    }
    named = signature.others(tuple(known), task.column)
    return signature.select_named({**named, **known})


def ask(observation: Any) -> dict[str, Any]:
    """The observation as messages or text, with the key of the state if there is one."""
    state = None
    if isinstance(observation, dict) and "messages" in observation:
        state = observation.get("state")
        observation = observation["messages"]
    elif isinstance(observation, dict) and "role" in observation:
        observation = [observation]
    is_list = isinstance(observation, list) and all(isinstance(m, dict) and "role" in m for m in observation)
    if not isinstance(observation, str) and not is_list:
        raise ResultError(f"its observation {observation!r:.100} is neither text nor a list of messages")
    found = {"messages": observation}
    return found if state is None else {**found, "state": str(state)}


class GeneratorEpisode:
    """An episode of a generator function.

    It yields observations, or pairs of an observation and the reward of the turn before, and returns the
    reward of the last turn.
    """

    def __init__(self, generator: Generator[Any, str, Any]) -> None:
        self._generator = generator

    def begin(self) -> Any:
        try:
            return next(self._generator)
        except StopIteration:
            raise ResultError("it ended before its first `yield`, which gives the prompt") from None

    def act(self, reply: str, truncated: bool) -> tuple[Any, Any, bool]:
        try:
            observation = self._generator.send(reply)
        except StopIteration as stop:
            return None, stop.value, True
        reward = None
        if isinstance(observation, tuple):
            if len(observation) != 2:
                raise ResultError(
                    f"it yielded {len(observation)} values; expected messages, or messages and a reward"
                )
            observation, reward = observation
        return observation, reward, False

    def end(self) -> None:
        self._generator.close()


class ClassEpisode:
    """An episode of a class with `reset` and `step`: one instance for each episode."""

    def __init__(self, environment: Any, task: Sample) -> None:
        self._environment = environment
        self._task = task
        self._takes_truncated = Signature(environment.step).has("truncated")

    def begin(self) -> Any:
        reset = self._environment.reset
        first = reset(**arguments(Signature(reset), self._task))
        # gymnasium's form: observation and info.
        is_pair = isinstance(first, tuple) and len(first) == 2 and isinstance(first[1], dict)
        return first[0] if is_pair else first

    def act(self, reply: str, truncated: bool) -> tuple[Any, Any, bool]:
        step = self._environment.step
        result = step(reply, truncated=truncated) if self._takes_truncated else step(reply)
        match result:
            case {"done": done}:
                return result.get("observation", result.get("messages")), result.get("reward"), bool(done)
            case (observation, reward, terminated, ended, dict()):
                return observation, reward, bool(terminated) or bool(ended)
            case (observation, reward, done, dict()) | (observation, reward, done):
                return observation, reward, bool(done)
        raise ResultError(
            f"`step` returned {result!r:.100}; expected (observation, reward, done), "
            "the five values of gymnasium, or a dict with `observation`, `reward` and `done`"
        )

    def end(self) -> None:
        close = getattr(self._environment, "close", None)
        if callable(close):
            close()
