"""Records of a run directory: metrics, evaluations and samples."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rloom import _binary

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    import pandas as pd

R = TypeVar("R")

KINDS = [
    "stage_started",
    "step",
    "sample",
    "evaluation",
    "evaluation_sample",
    "validation",
    "checkpoint",
    "warning",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A trained step with its metrics."""

    stage: str
    step: int
    """Step within the stage, from 1."""
    global_step: int
    """Step over all stages."""
    attempt: int
    """1 for the first process of the run, 2 after the first resume, and so on."""
    time: float
    """Unix time in seconds."""
    elapsed: float
    """Seconds since the process started."""
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation(Step):
    """An evaluation on held-out tasks."""

    tasks: int
    best: bool
    """True if this is the best version so far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation(Step):
    """The loss of a version on held-out rows."""

    rows: int
    best: bool
    """True if this is the best version so far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A completion as text, with its rewards."""

    stage: str
    step: int
    global_step: int
    ticket: int
    """Ticket of the group; in an evaluation, the index of the task."""
    sample: int
    """Index of the completion in its group."""
    task: int
    prompt: str
    completion: str
    answer: str
    reward: float | None
    components: dict[str, float | None]
    failures: dict[str, dict[str, Any]]
    """Kind, message and `retryable` of the components that failed."""
    advantage: float | None
    solved: bool | None
    tokens: int
    stop: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """A trained trajectory: its tokens and what sampled them."""

    stage: str
    step: int
    version: int
    """Policy version before the step."""
    ticket: int
    sample: int
    segment: int
    task: int
    prompt: str
    completion: str
    answer: str
    role: str
    components: dict[str, float | None]
    failures: dict[str, dict[str, Any]]
    """Kind, message and `retryable` of the components that failed."""
    solved: bool | None
    advantage: float | None
    tokens: list[int]
    spans: list[dict[str, Any]]
    """Author and temperature of each range of tokens."""
    logprobs: list[float]
    """Log-probability of each policy token, from the sampler."""
    versions: list[dict[str, Any]]
    """Policy version that sampled each range of tokens."""
    stop: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run directory as it was when it was loaded."""

    path: Path
    state: str
    """"finished", "interrupted", "failed", "running" or "killed"."""
    error: str | None
    """Error of a failed run."""
    steps: list[Step]
    evaluations: list[Evaluation]
    validations: list[Validation]
    samples: list[Sample]
    """Completions that the event stream shows of each step; `rollouts` has all."""
    evaluation_samples: list[Sample]
    checkpoints: list[Path]
    """Folders of the checkpoints that still exist, oldest first."""
    warnings: list[str]
    notes: list[str] = field(default_factory=list)
    """Sentences about lines of the event stream that could not be read."""

    @property
    def config(self) -> dict[str, Any]:
        """Resolved configuration."""
        (line,) = _binary.lines("export", str(self.path), "config")
        config: dict[str, Any] = json.loads(line)
        return config

    @property
    def metrics(self) -> list[str]:
        """Names of all metrics of the steps, in order."""
        return sorted({name for step in self.steps for name in step.metrics})

    def series(self, metric: str) -> list[tuple[int, float]]:
        """Values of a metric with their global steps; evaluations have the prefix `eval/`, validations `validation/`."""
        return [
            (s.global_step, s.metrics[metric])
            for s in [*self.steps, *self.evaluations, *self.validations]
            if metric in s.metrics
        ]

    def rollouts(self, stage: str | None = None, steps: Iterable[int] | None = None) -> Iterator[Rollout]:
        """Trained trajectories in training order, of one stage or all, of some steps or all."""
        arguments = [f"--step={step}" for step in steps or ()]
        if stage is not None:
            arguments.append(f"--stage={stage}")
        for line in _binary.lines("export", str(self.path), "rollouts", *arguments):
            yield _rollout(json.loads(line))

    def frame(self) -> pd.DataFrame:
        """Metrics of the steps as a pandas frame, indexed by the global step. Needs pandas."""
        return _frame(self.steps)

    def evaluation_frame(self) -> pd.DataFrame:
        """Metrics of the evaluations as a pandas frame, indexed by the global step. Needs pandas."""
        return _frame(self.evaluations)

    def sample_frame(self) -> pd.DataFrame:
        """Samples of the steps as a pandas frame. Needs pandas."""
        rows = [asdict(sample) for sample in self.samples]
        return _pandas().DataFrame(rows, columns=[field.name for field in fields(Sample)])


def folder(run: str | os.PathLike[str]) -> Path:
    """Folder of a run, given as a path or as its name under `runs`."""
    named = Path("runs") / run
    return named if not (Path(run) / "config.toml").is_file() and named.is_dir() else Path(run)


def load_run(path: str | os.PathLike[str]) -> Run:
    """Loads a run directory, also of a run that is in progress or was killed.

    Of a step that a resumed run repeated, the last report counts. Torn lines are left out and mentioned in
    `notes`.
    """
    directory = folder(path)
    events: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    end: dict[str, Any] = {}
    kinds = [f"--kind={kind}" for kind in KINDS]
    for line in map(json.loads, _binary.lines("export", str(directory), "events", *kinds)):
        if "event" in line:
            events[line["event"]].append(line)
        else:
            end = line
    folders = (directory / line["path"] for line in events["checkpoint"])
    return Run(
        path=directory,
        state=end["state"],
        error=end["error"],
        steps=[_record(Step, line) for line in events["step"]],
        evaluations=[_record(Evaluation, line) for line in events["evaluation"]],
        validations=[_record(Validation, line) for line in events["validation"]],
        samples=[_record(Sample, line) for line in events["sample"]],
        evaluation_samples=[_record(Sample, line) for line in events["evaluation_sample"]],
        checkpoints=[folder for folder in dict.fromkeys(folders) if folder.is_dir()],
        warnings=[line["message"] for line in events["warning"]],
        notes=end["notes"],
    )


def _record(kind: type[R], line: dict[str, Any]) -> R:
    line = {"failures": {}, **line}
    return kind(**{field.name: line[field.name] for field in fields(kind)})  # type: ignore[arg-type]


def _rollout(line: dict[str, Any]) -> Rollout:
    rewards = line["rewards"]
    components = {component["name"]: component["value"] for component in rewards["components"]}
    failures = {
        component["name"]: failure
        for component in rewards["components"]
        if isinstance(failure := component.get("failure"), dict)
    }
    judged = {"components": components, "failures": failures, "solved": rewards["solved"]}
    return _record(Rollout, {**line, **line["key"], **judged})


def _pandas() -> Any:
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("frames need pandas: pip install pandas") from error
    return pd


def _frame(steps: Iterable[Step]) -> pd.DataFrame:
    columns = ["global_step", "stage", "step", "elapsed"]
    rows = [{**{name: getattr(step, name) for name in columns}, **step.metrics} for step in steps]
    return _pandas().DataFrame(rows, columns=None if rows else columns).set_index("global_step")
