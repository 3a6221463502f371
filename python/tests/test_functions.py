"""Reward functions and environments by their signature."""

from __future__ import annotations

import array
import base64
import io
import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from rloom.functions.adapters import Reward
from rloom.functions.environments import Episodes
from rloom.functions.errors import RefusedError, ResultError, describe
from rloom.functions.loading import load
from rloom.functions.methods import ARRAYS, Method
from rloom.functions.samples import Sample
from rloom.functions.serving import serve

if TYPE_CHECKING:
    from pathlib import Path

ROW = {
    "data_source": "sums",
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"index": 3},
    "unit": "cm",
}
MESSAGES = [{"role": "user", "content": "1 + 1"}]


def sample(completion: str = "2", **fields: Any) -> Sample:
    known = {"prompt": "1 + 1", "answer": "2", "row": ROW, "prompt_text": "<1 + 1>", "tokens": [7, 8]}
    return Sample(**{**known, "completion": completion, "sample": "5/1", "version": 6, **fields})


def judge(
    function: Any, *samples: Sample, group: bool = False
) -> tuple[list[float | None], dict[str, float]]:
    found = Reward(function, group=group).judge({"samples": list(map(asdict, samples))})
    return found["verdicts"], found["metrics"]


def test_single_completions_get_what_they_name() -> None:
    def score(completion: str, solution: str, unit: str, tokens: list[int], scale: float = 2.0) -> float:
        assert (unit, tokens) == ("cm", [7, 8])
        return scale * (completion == solution)

    assert judge(score, sample()) == ([2.0], {})
    assert judge(lambda completion, **rest: len(rest), sample())[0] == [len(ROW) + 6]
    assert judge(lambda completion: None, sample())[0] == [None]

    class Judge:
        def __call__(self, completion: str, prompt: str) -> bool:
            return prompt == "1 + 1"

    assert judge(Judge, sample())[0] == judge(Judge(), sample())[0] == [1.0]


def test_trl_gets_lists_columns_and_its_helpers() -> None:
    async def score(
        prompts: Any,
        completions: Any,
        completion_ids: Any,
        trainer_state: Any,
        log_extra: Any,
        log_metric: Any,
        **columns: Any,
    ) -> list[float | None]:
        assert prompts == [MESSAGES] * 2
        assert completions == [[{"role": "assistant", "content": text}] for text in ("2", "3")]
        assert completion_ids == [[7, 8]] * 2
        assert columns["unit"] == ["cm", "cm"]
        assert columns["answer"] == ["2", "2"]
        assert trainer_state.global_step == 6
        log_metric("seen", 2)
        log_extra("length", [1, 3])
        log_extra("text", ["a", "b"])
        return [1.0, None]

    samples = [sample("2", prompt=MESSAGES), sample("3", prompt=MESSAGES)]
    assert judge(score, *samples, group=True) == ([1.0, None], {"seen": 2.0, "length": 2.0})

    def plain(completions: list[str], answer: list[str]) -> list[float]:
        return [float(c == a) for c, a in zip(completions, answer, strict=True)]

    assert judge(plain, sample("2"), sample("3"))[0] == [1.0, 0.0]


def test_trainer_state_has_the_step_only() -> None:
    def score(completions: list[str], trainer_state: Any) -> list[float]:
        return [float(trainer_state.max_steps)]

    with pytest.raises(AttributeError, match="trainer_state.max_steps"):
        judge(score, sample())


def test_verl_reads_the_nested_columns() -> None:
    def compute_score(
        data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None
    ) -> dict[str, Any]:
        assert (data_source, ground_truth, extra_info) == ("sums", "4", {"index": 3})
        return {"score": len(solution_str), "acc": True, "pred": "text"}

    assert judge(compute_score, sample("abc")) == ([3.0], {"acc": 1.0})
    with pytest.raises(ResultError, match="no column `data_source`; its other columns: unit"):
        judge(compute_score, sample(row={"unit": "cm"}))
    with pytest.raises(ResultError, match="a dict without `score`: value"):
        judge(lambda data_source, solution_str, ground_truth: {"value": 1}, sample())


def test_openrlhf_gets_the_rendered_prompt() -> None:
    class Tensor:
        def __init__(self, values: list[float]) -> None:
            self._values = values

        def tolist(self) -> list[float]:
            return self._values

    def reward_func(queries: list[str], prompts: list[str], labels: list[str], **kwargs: Any) -> Any:
        assert (queries, prompts, labels) == (["<1 + 1>2"], ["<1 + 1>"], ["2"])
        return {"rewards": Tensor([0.5]), "scores": Tensor([0.5]), "extra_logs": {"n": Tensor([3.0])}}

    assert judge(reward_func, sample()) == ([0.5], {"n": 3.0})
    assert judge(lambda queries, prompts, labels: Tensor([1.0]), sample())[0] == [1.0]


def test_slime_gets_samples() -> None:
    async def custom_rm(args: Any, sample: Any, **kwargs: Any) -> float:
        assert (sample.prompt, sample.response, sample.label) == ("1 + 1", "2", "2")
        assert (sample.index, sample.group_index, sample.status.value) == (1, 5, "truncated")
        assert sample.metadata == ROW
        return 0.5

    assert judge(custom_rm, sample(truncated=True))[0] == [0.5]
    with pytest.raises(AttributeError, match="args.rm_url"):
        judge(lambda args, sample: args.rm_url, sample())

    def group(args: Any, samples: Any) -> list[float]:
        return [float(len(samples))] * len(samples)

    assert judge(group, sample(), sample(), group=True)[0] == [2.0, 2.0]
    with pytest.raises(RefusedError, match="set `group = true`"):
        Reward(group, group=False)


def positional(completion: str, /) -> float:
    return 0.0


@pytest.mark.parametrize(
    ("function", "group", "message"),
    [
        (lambda text, gold: 0, False, "its parameters (text, gold) fit no form; the supported forms are"),
        (lambda completion, completions: 0, False, "fit several forms (trl and single)"),
        (lambda completion: 0, True, "it takes one completion at a time: remove `group = true`"),
        (positional, False, "its parameters completion are positional-only"),
        (3, False, "it is of type int and cannot be called"),
    ],
)
def test_other_signatures_are_refused(function: Any, group: bool, message: str) -> None:
    with pytest.raises(RefusedError) as caught:
        Reward(function, group=group)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0, 2.0], "2 rewards for 1 completions"),
        ([math.nan], "it returned nan: a reward must be finite; return None where"),
        ([math.inf], "it returned inf: a reward must be finite"),
        (["1"], "'1', which is not a number"),
        ("1", "'1' instead of a list of 1 rewards"),
        (None, "None instead of a list of 1 rewards"),
        ({"a": 1}, "instead of a list"),
    ],
)
def test_wrong_values_are_errors(value: Any, message: str) -> None:
    with pytest.raises(ResultError) as caught:
        judge(lambda completions: value, sample())
    assert message in str(caught.value)


def test_unknown_parameters_are_named() -> None:
    with pytest.raises(ResultError, match="nothing is known for its parameters `rubric`; there are .*`?unit"):
        judge(lambda completion, rubric: 0, sample())


def answers(requests: list[dict[str, Any]], function: Any) -> list[dict[str, Any]]:
    output = io.BytesIO()
    serve([json.dumps(request).encode() for request in requests], output, lambda name: function)
    return [json.loads(line) for line in output.getvalue().splitlines()]


def test_a_connection_is_served_in_turn() -> None:
    hello = {"id": 1, "hello": {"v": 1, "role": "reward", "function": "f", "group": False}}
    fields = {"prompt": "p", "completion": "c", "answer": "a", "row": {}, "steps": []}
    request = {"id": 2, "judge": {"samples": [fields]}}
    assert answers([hello, request], lambda completion: 1) == [
        {"id": 1, "ready": {"v": 1, "form": "single"}},
        {"id": 2, "verdicts": [1.0], "metrics": {}},
    ]
    failed = answers([hello, request, request], lambda completion: 1 / 0)
    assert failed[1]["id"] == 2
    assert failed[2]["error"]["kind"] == "function"
    assert failed[2]["error"]["message"].startswith("ZeroDivisionError")
    newer = {"id": 1, "hello": {**hello["hello"], "v": 2}}  # type: ignore[dict-item]
    assert "speaks version 2" in answers([newer], lambda completion: 1)[0]["error"]["message"]
    assert answers([{"id": 9, "nonsense": {}}], None)[0]["error"]["kind"] == "refused"


def episode(environment: Any, *replies: str) -> list[dict[str, Any]]:
    episodes = Episodes(environment)
    task = {"prompt": "start", "answer": "7", "task": 4, "row": {"unit": "cm"}}
    found = [episodes.begin({"episode": "a", "task": task})]
    found += [episodes.act({"episode": "a", "text": r, "truncated": False}) for r in replies]
    assert episodes.end({"episode": "a"}) == {}
    return found


def test_environments_answer_with_observations_and_rewards() -> None:
    class Gym:
        def reset(self, seed: int, options: Any = None) -> Any:
            return f"seed {seed}", {}

        def step(self, reply: str) -> Any:
            return "next", 0.5, False, reply == "stop", {}

    assert episode(Gym, "go", "stop") == [
        {"ask": {"messages": "seed 4"}},
        {"step_reward": 0.5, "ask": {"messages": "next"}},
        {"step_reward": 0.5, "done": {}},
    ]

    class Dicts:
        def __init__(self, unit: str) -> None:
            self.unit = unit

        def reset(self) -> None:
            return None

        def step(self, reply: str, truncated: bool) -> Any:
            return {"observation": {"role": "user", "content": self.unit}, "done": truncated}

    message = {"messages": [{"role": "user", "content": "cm"}]}
    assert episode(Dicts, "go")[:2] == [
        {"ask": {"messages": "start"}},
        {"step_reward": None, "ask": message},
    ]

    def stateful(task: Any) -> Any:
        yield {"messages": task["prompt"], "state": 1}
        return 2

    assert episode(stateful, "x") == [
        {"ask": {"messages": "start", "state": "1"}},
        {"step_reward": 2.0, "done": {}},
    ]


def test_other_environments_are_refused() -> None:
    class NoReset:
        def step(self, reply: str) -> Any: ...

    with pytest.raises(RefusedError, match="has no `reset`"):
        Episodes(NoReset)
    with pytest.raises(
        RefusedError, match="neither a class with `reset` and `step` nor a generator function"
    ):
        Episodes(lambda task: None)
    with pytest.raises(ResultError, match="before its first `yield`"):
        episode(empty)


def empty(task: Any) -> Any:
    if task is None:
        yield


def test_files_are_loaded_with_their_folder(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("VALUE = 3\n")
    file = tmp_path / "own_rewards.py"
    file.write_text("from helper import VALUE\nclass A:\n    def f(self): return VALUE\na = A()\n")
    assert load(f"{file}:a.f")() == 3
    with pytest.raises(RefusedError, match="has no `b`; it has A"):
        load(f"{file}:b")
    file.write_text("def broken(:\n")
    with pytest.raises(RefusedError) as caught:
        load(f"{file}:broken")
    assert "SyntaxError" in describe(caught.value)


def array_of(*values: float) -> str:
    return base64.b64encode(array.array("f", values).tobytes()).decode()


def test_a_loss_gets_arrays_of_numpy() -> None:
    np = pytest.importorskip("numpy")

    def loss(logprob: Any, old: Any, advantage: Any, mask: Any, divisor: Any) -> Any:
        assert logprob.dtype == np.float64
        terms = mask * np.exp(logprob - old) * advantage / divisor
        return -terms.sum(), -terms

    numbers = dict.fromkeys(ARRAYS, array_of(-1.0, -2.0, -3.0, -4.0)) | {
        "advantage": array_of(1.0, 1.0, 1.0, 8.0),
        "lengths": [2, 1, 1],
        "divisors": [4.0, 2.0, 2.0],
        "masked": [False, False, True],
    }
    answer = Method(loss, "loss").compute({"numbers": numbers})["loss"]
    assert answer["value"] == -1.0
    assert np.frombuffer(base64.b64decode(answer["d_logprob"])).tolist() == [-0.25, -0.25, -0.5, 0.0]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ((0.0, [math.nan]), "returned nan as d_logprob"),
        ((math.inf, [0.0]), "returned inf as loss"),
        ((0.0, [0.0], [-math.inf]), "returned -inf as d_entropy"),
        ((0.0, [0.0, 0.0]), "returned 2 numbers as d_logprob for 1 tokens"),
        (0.0, "must return"),
    ],
)
def test_a_loss_returns_a_finite_number_for_each_token(returned: object, message: str) -> None:
    numbers = dict.fromkeys(ARRAYS, array_of(-1.0)) | {"lengths": [1], "divisors": [1.0], "masked": [False]}
    with pytest.raises(ResultError, match=message):
        Method(lambda logprob: returned, "loss").compute({"numbers": numbers})  # noqa: ARG005


def test_advantages_and_decisions_of_numpy() -> None:
    np = pytest.importorskip("numpy")
    numbers = {"rewards": [1.0, 3.0], "lengths": [2, 1]}
    whole = Method(lambda rewards: np.array(rewards) - np.mean(rewards), "advantage")
    assert whole.compute({"numbers": numbers}) == {"advantages": [[-1.0], [1.0]]}
    by_token = Method(lambda lengths: np.arange(sum(lengths)), "advantage")
    assert by_token.compute({"numbers": numbers}) == {"advantages": [[0.0, 1.0], [2.0]]}
    keep = Method(lambda rewards: np.std(rewards) > 0, "filter")
    assert keep.compute({"numbers": numbers}) == {"keep": True}
    with pytest.raises(ResultError, match="returned 2.0 instead of True or False"):
        Method(lambda rewards: np.mean(rewards), "filter").compute({"numbers": numbers})
