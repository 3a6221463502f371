"""Reward functions by their signature."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from .errors import RefusedError, ResultError
from .samples import Metrics, Sample, number, numbers

Rewards = list[float | None]
Adapter = Callable[[Sequence[Sample]], Rewards]

FORMS = """the supported forms are
  def score(completion, answer, …)  one completion; other parameters are columns
  def score(prompts, completions, **columns)  TRL
  def compute_score(data_source, solution_str, ground_truth, extra_info)  verl
  def reward_func(queries, prompts, labels, **kwargs)  OpenRLHF
  def custom_rm(args, sample)  slime; (args, samples) with `group = true`"""


class Reward:
    """A reward function behind one interface: samples in, numbers out."""

    def __init__(self, function: Any, *, group: bool) -> None:
        self._function = function = callable_of(function)
        self._signature = Signature(function)
        self.metrics = Metrics()
        self.form, adapter, takes_groups = self._choose()
        if group and not takes_groups:
            raise RefusedError("it takes one completion at a time: remove `group = true`")
        if not group and self.form == "slime_group":
            raise RefusedError("it takes all samples of a group: set `group = true`")
        self._adapter = adapter
        self._loop: asyncio.AbstractEventLoop | None = None

    def judge(self, samples: Sequence[Sample]) -> Rewards:
        """Calls the function."""
        return self._adapter(samples)

    def _choose(self) -> tuple[str, Adapter, bool]:
        """The form, its adapter, and True if it takes several completions at a time."""
        has = self._signature.has
        forms: list[tuple[str, bool, Adapter, bool]] = [
            ("verl", has("data_source", "solution_str", "ground_truth"), self._verl, False),
            ("openrlhf", has("queries", "prompts", "labels"), self._openrlhf, True),
            ("slime", has("args", "sample"), self._slime, False),
            ("slime_group", has("args", "samples"), self._slime_group, True),
            ("trl", has("completions"), self._trl, True),
            ("single", has("completion"), self._single, False),
        ]
        fitting = [(form, adapter, groups) for form, fits, adapter, groups in forms if fits]
        parameters = self._signature.text()
        if not fitting:
            raise RefusedError(f"its parameters {parameters} fit no form; {FORMS}")
        if len(fitting) > 1:
            names = " and ".join(form for form, _, _ in fitting)
            raise RefusedError(f"its parameters {parameters} fit several forms ({names}); {FORMS}")
        return fitting[0]

    def _call(self, **arguments: Any) -> Any:
        result = self._function(**self._signature.select(arguments))
        if not inspect.isawaitable(result):
            return result
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(_awaited(result))

    def _trl(self, samples: Sequence[Sample]) -> Rewards:
        # As in TRL, the completion of a conversation is a list with one message.
        completions: list[Any] = [
            [{"role": "assistant", "content": s.completion}] if s.is_conversation else s.completion
            for s in samples
        ]
        columns = {name: [s.row.get(name) for s in samples] for s in samples for name in s.row}
        arguments = {
            "answer": [s.answer for s in samples],
            **columns,
            **self._signature.others(("answer",), lambda name: [s.column(name) for s in samples]),
            "prompts": [s.prompt for s in samples],
            "completions": completions,
            "completion_ids": [s.tokens for s in samples],
            "trainer_state": TrainerState(samples),
            "log_extra": self.metrics.add_column,
            "log_metric": self.metrics.add,
        }
        return numbers(self._call(**arguments), len(samples))

    def _openrlhf(self, samples: Sequence[Sample]) -> Rewards:
        result = self._call(
            queries=[s.prompt_text + s.completion for s in samples],
            prompts=[s.prompt_text for s in samples],
            labels=[s.answer for s in samples],
        )
        if isinstance(result, dict):
            for name, values in result.get("extra_logs", {}).items():
                self.metrics.add_column(name, values.tolist() if hasattr(values, "tolist") else values)
            if "rewards" not in result:
                raise ResultError(f"it returned a dict without `rewards`: {', '.join(map(str, result))}")
            result = result["rewards"]
        return numbers(result, len(samples))

    def _verl(self, samples: Sequence[Sample]) -> Rewards:
        return [self._verl_score(sample) for sample in samples]

    def _verl_score(self, sample: Sample) -> float | None:
        if "data_source" not in sample.row:
            columns = ", ".join(sample.row) or "none"
            raise ResultError(f"the data has no column `data_source`; its other columns: {columns}")
        reward_model = sample.row.get("reward_model") or {}
        result = self._call(
            data_source=sample.row["data_source"],
            solution_str=sample.completion,
            ground_truth=reward_model.get("ground_truth", sample.answer),
            extra_info=sample.row.get("extra_info") or {},
        )
        if not isinstance(result, dict):
            return number(result)
        if "score" not in result:
            raise ResultError(f"it returned a dict without `score`: {', '.join(map(str, result))}")
        for name, value in result.items():
            if name != "score":
                self.metrics.add(name, value)
        return number(result["score"])

    def _slime(self, samples: Sequence[Sample]) -> Rewards:
        return [number(self._call(args=Arguments(), sample=slime_sample(s))) for s in samples]

    def _slime_group(self, samples: Sequence[Sample]) -> Rewards:
        return numbers(self._call(args=Arguments(), samples=[slime_sample(s) for s in samples]), len(samples))

    def _single(self, samples: Sequence[Sample]) -> Rewards:
        return [self._single_score(sample) for sample in samples]

    def _single_score(self, sample: Sample) -> float | None:
        context = {
            "prompt": sample.prompt,
            "completion": sample.completion,
            "tokens": sample.tokens,
            "truncated": sample.truncated,
            "stop": sample.stop,
            "row": sample.row,
        }
        columns = {"answer": sample.answer, **sample.row}
        columns = {name: value for name, value in columns.items() if name not in context}
        named = self._signature.others((*context, *columns), sample.column)
        return number(self._call(**{**columns, **named, **context}))


def callable_of(function: Any) -> Any:
    """A function as it is, or an instance of a class."""
    if isinstance(function, type):
        try:
            function = function()
        except TypeError as error:
            raise RefusedError(f"the class {function.__name__} needs arguments: {error}") from error
    if not callable(function):
        raise RefusedError(f"it is of type {type(function).__name__} and cannot be called")
    return function


async def _awaited(result: Any) -> Any:
    return await result


class Signature:
    """The parameters of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise RefusedError(f"its signature cannot be read: {error}") from error
        kinds = inspect.Parameter
        parameters = list(signature.parameters.values())
        self._text = str(signature).split(" ->")[0]
        self._takes_others = any(p.kind is kinds.VAR_KEYWORD for p in parameters)
        self._named = {
            p.name: p for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
        }
        fixed = [p.name for p in parameters if p.kind is kinds.POSITIONAL_ONLY]
        if fixed:
            raise RefusedError(
                f"its parameters {', '.join(fixed)} are positional-only; arguments are passed by name"
            )

    def unknown(self, known: Sequence[str]) -> list[str]:
        """Parameters without a default that are not among `known`."""
        empty = inspect.Parameter.empty
        return [name for name, p in self._named.items() if name not in known and p.default is empty]

    def text(self) -> str:
        """The signature as the source has it."""
        return self._text

    def has(self, *names: str) -> bool:
        """True if these are parameters."""
        return all(name in self._named for name in names)

    def others(self, known: Sequence[str], column: Callable[[str], Any]) -> dict[str, Any]:
        """Arguments for parameters that mean the reference answer: `answer`, `solution` and so on."""
        found = {}
        for name in self._named:
            if name not in known or name == "answer":
                try:
                    found[name] = column(name)
                except KeyError:
                    continue
        return found

    def select(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments that the function takes. A parameter without argument and default is an error."""
        missing = self.unknown(list(arguments))
        if missing:
            names = ", ".join(f"`{name}`" for name in missing)
            raise ResultError(
                f"nothing is known for its parameters {names}; there are {', '.join(arguments)}"
            )
        return arguments if self._takes_others else self.select_named(arguments)

    def select_named(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments that are parameters."""
        return {name: value for name, value in arguments.items() if name in self._named}


class TrainerState:
    """The part of TRL's `trainer_state` that a run has: the steps of training of the sampling policy."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.global_step = min((s.version for s in samples), default=0)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"`trainer_state.{name}` is not available; `trainer_state.global_step` is")


class Arguments:
    """Stands for slime's `args`, which a run does not have."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"`args.{name}` is not available: slime's arguments do not exist here")


def slime_sample(sample: Sample) -> SimpleNamespace:
    """A sample with the attributes of slime's."""
    ticket, _, index = sample.sample.partition("/")
    status = "truncated" if sample.truncated else "completed"
    return SimpleNamespace(
        group_index=int(ticket) if ticket.isdigit() else None,
        index=int(index) if index.isdigit() else None,
        prompt=sample.prompt,
        tokens=sample.tokens,
        response=sample.completion,
        response_length=len(sample.tokens),
        label=sample.answer,
        reward=None,
        metadata=sample.row.get("metadata") or sample.row,
        status=SimpleNamespace(name=status.upper(), value=status),
    )
