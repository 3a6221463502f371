"""Reward functions by their signature."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from .errors import RefusedError, ResultError
from .samples import Metrics, Sample, items, reward, rewards

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
        self._metrics = Metrics()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.operations = {"judge": self.judge}
        self.form, self._adapter, self._takes_groups = self._choose()
        if group and not self._takes_groups:
            raise RefusedError("it takes one completion at a time: remove `group = true`")
        if not group and self.form == "slime_group":
            raise RefusedError("it takes all samples of a group: set `group = true`")

    def judge(self, request: dict[str, Any]) -> dict[str, Any]:
        """Calls the function."""
        samples = [Sample.read(fields) for fields in request["samples"]]
        if self._takes_groups:
            verdicts = rewards(self._adapter(samples), len(samples))
        else:
            verdicts = [reward(self._adapter(sample)) for sample in samples]
        return {"verdicts": verdicts, "metrics": self._metrics.take()}

    def _choose(self) -> tuple[str, Callable[[Any], Any], bool]:
        """The form, its adapter, and True if that takes several completions at a time."""
        forms: list[tuple[str, list[str], Callable[[Any], Any], bool]] = [
            ("verl", ["data_source", "solution_str", "ground_truth"], self._verl, False),
            ("openrlhf", ["queries", "prompts", "labels"], self._openrlhf, True),
            ("slime", ["args", "sample"], self._slime, False),
            ("slime_group", ["args", "samples"], self._slime_group, True),
            ("trl", ["completions"], self._trl, True),
            ("single", ["completion"], self._single, False),
        ]
        signature = self._signature
        fitting = [(form, adapter, groups) for form, names, adapter, groups in forms if signature.has(*names)]
        if not fitting:
            raise RefusedError(f"its parameters {signature.text} fit no form; {FORMS}")
        if len(fitting) > 1:
            names = " and ".join(form for form, _, _ in fitting)
            raise RefusedError(f"its parameters {signature.text} fit several forms ({names}); {FORMS}")
        return fitting[0]

    def _call(self, **arguments: Any) -> Any:
        result = self._function(**self._signature.select(arguments))
        if not inspect.isawaitable(result):
            return result
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(_awaited(result))

    def _trl(self, samples: Sequence[Sample]) -> Any:
        # As in TRL, the completion of a conversation is a list with one message.
        completions: list[Any] = [
            s.completion if isinstance(s.prompt, str) else [{"role": "assistant", "content": s.completion}]
            for s in samples
        ]
        columns = {name: [s.row.get(name) for s in samples] for s in samples for name in s.row}
        return self._call(
            **{
                "answer": [s.answer for s in samples],
                **columns,
                **self._signature.others(("answer",), lambda name: [s.column(name) for s in samples]),
                "prompts": [s.prompt for s in samples],
                "completions": completions,
                "completion_ids": [s.tokens for s in samples],
                "trainer_state": TrainerState(samples),
                "log_extra": self._metrics.add_column,
                "log_metric": self._metrics.add,
            }
        )

    def _openrlhf(self, samples: Sequence[Sample]) -> Any:
        result = self._call(
            queries=[s.prompt_text + s.completion for s in samples],
            prompts=[s.prompt_text for s in samples],
            labels=[s.answer for s in samples],
        )
        if not isinstance(result, dict):
            return result
        for name, values in result.get("extra_logs", {}).items():
            self._metrics.add_column(name, items(values, "a list"))
        return of_dict(result, "rewards")

    def _verl(self, sample: Sample) -> Any:
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
            return result
        score = of_dict(result, "score")
        for name, value in result.items():
            if name != "score":
                self._metrics.add(name, value)
        return score

    def _slime(self, sample: Sample) -> Any:
        return self._call(args=Arguments(), sample=slime_sample(sample))

    def _slime_group(self, samples: Sequence[Sample]) -> Any:
        return self._call(args=Arguments(), samples=[slime_sample(sample) for sample in samples])

    def _single(self, sample: Sample) -> Any:
        names = ("prompt", "completion", "tokens", "truncated", "stop", "row")
        context = {name: getattr(sample, name) for name in names}
        columns = {"answer": sample.answer, **sample.row}
        named = self._signature.others((*context, *columns), sample.column)
        return self._call(**{**columns, **named, **context})


def of_dict(result: dict[str, Any], name: str) -> Any:
    """The entry that a function that returns a dict has to have."""
    if name not in result:
        raise ResultError(f"it returned a dict without `{name}`: {', '.join(map(str, result))}")
    return result[name]


def callable_of(function: Any) -> Any:
    """A function as it is, or an instance of a class."""
    if isinstance(function, type):
        try:
            function = function()
        except TypeError as error:
            raise RefusedError(f"the class {function.__name__} needs arguments: {error}") from None
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
            raise RefusedError(f"its signature cannot be read: {error}") from None
        parameters = list(signature.parameters.values())
        self.text = str(signature).split(" ->")[0]
        self._takes_others = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        fixed = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
        if fixed:
            raise RefusedError(
                f"its parameters {', '.join(fixed)} are positional-only; arguments are passed by name"
            )

    def unknown(self, known: Sequence[str]) -> list[str]:
        """Parameters without a default that are not among `known`."""
        return [name for name, p in self._named.items() if name not in known and p.default is p.empty]

    def has(self, *names: str) -> bool:
        """True if these are parameters."""
        return all(name in self._named for name in names)

    def others(self, known: Sequence[str], column: Callable[[str], Any]) -> dict[str, Any]:
        """Arguments for parameters that mean the reference answer: `answer`, `solution` and so on."""
        found = {}
        for name in self._named:
            if name not in known or name == "answer":
                with contextlib.suppress(KeyError):
                    found[name] = column(name)
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
