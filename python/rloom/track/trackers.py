"""The trackers, through their own packages."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


class Tracker(Protocol):
    """One run at a tracker."""

    def last_step(self) -> int | None:
        """Last step that is stored; None if the tracker does not tell."""

    def log(self, step: int, metrics: dict[str, float], time: float) -> None:
        """Passes on metrics of a global step. `time` is their Unix time in seconds."""

    def table(self, step: int, columns: Sequence[str], rows: list[list[Any]]) -> None:
        """Passes on samples."""

    def finish(self, state: str) -> None:
        """Ends the connection. `state` is that of the run."""


def flat(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by dotted key; stages are numbered."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            yield from flat(
                {item.get("name", str(n)): item for n, item in enumerate(value)}, f"{prefix}{key}."
            )
        else:
            yield f"{prefix}{key}", value


class Wandb:
    """Weights & Biases. Offline, each process writes a folder; `wandb sync` joins them by the key."""

    def __init__(self, run: Path, key: str, project: str, config: dict[str, Any], *, is_new: bool) -> None:
        import wandb

        self._table = wandb.Table
        self._run = wandb.init(
            project=project,
            id=key,
            name=run.resolve().name,
            resume="never" if is_new else "allow",
            config=config,
            dir=os.environ.get("WANDB_DIR", str(run / "tracking")),
            settings=wandb.Settings(console="off", x_disable_stats=True, disable_git=True, disable_code=True),
        )
        self._is_offline = self._run.offline

    def last_step(self) -> int | None:
        return None if self._is_offline else int(self._run.step) - 1

    def log(self, step: int, metrics: dict[str, float], time: float) -> None:
        self._run.log({**metrics, "_timestamp": time}, step=step)

    def table(self, step: int, columns: Sequence[str], rows: list[list[Any]]) -> None:
        self._run.log({"samples": self._table(columns=list(columns), data=rows)}, step=step)

    def finish(self, state: str) -> None:
        self._run.finish(exit_code=int(state in ("failed", "killed")))


class Mlflow:
    """MLflow: `project` is the experiment, and the key is a tag."""

    BATCH = 100
    LONGEST_PARAMETER = 500

    def __init__(self, run: Path, key: str, project: str, config: dict[str, Any], *, is_new: bool) -> None:
        from mlflow import entities
        from mlflow.tracking import MlflowClient

        self._metric, self._client = entities.Metric, MlflowClient()
        experiment = self._client.get_experiment_by_name(project)
        number = experiment.experiment_id if experiment else self._client.create_experiment(project)
        found = self._client.search_runs([number], f"tags.`rloom.key` = '{key}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {"rloom.key": key}
        self._id = self._client.create_run(number, tags=tags, run_name=run.resolve().name).info.run_id
        values = [
            (key, value if isinstance(value, str) else json.dumps(value)) for key, value in flat(config)
        ]
        parameters = [entities.Param(key, value[: self.LONGEST_PARAMETER]) for key, value in values]
        for start in range(0, len(parameters), self.BATCH):
            self._client.log_batch(self._id, params=parameters[start : start + self.BATCH])

    @staticmethod
    def name(metric: str) -> str:
        """MLflow's name: it forbids characters, and stores in folders have no `reward` beside `reward/exact`."""
        return re.sub(r"[^\w\-. :]", "_", metric.replace("/", "."))

    def last_step(self) -> int | None:
        return int(self._client.get_run(self._id).data.metrics.get("global_step", 0))

    def log(self, step: int, metrics: dict[str, float], time: float) -> None:
        stamp = int(time * 1000)
        of_step = [self._metric(self.name(name), value, stamp, step) for name, value in metrics.items()]
        # The step comes last: a process that is killed between two batches repeats the step.
        of_step.append(self._metric("global_step", step, stamp, step))
        for start in range(0, len(of_step), self.BATCH):
            self._client.log_batch(self._id, metrics=of_step[start : start + self.BATCH])

    def table(self, step: int, columns: Sequence[str], rows: list[list[Any]]) -> None:
        lines = [json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) for row in rows]
        self._client.log_text(self._id, "\n".join(lines) + "\n", f"samples/step-{step:06}.jsonl")

    def finish(self, state: str) -> None:
        ends = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED", "interrupted": "KILLED"}
        if state in ends:
            self._client.set_terminated(self._id, ends[state])


class Trackio:
    """Trackio: the key is the name of its run."""

    def __init__(self, run: Path, key: str, project: str, config: dict[str, Any], *, is_new: bool) -> None:
        import trackio

        self._table = trackio.Table
        settings = {
            key: value if isinstance(value, (bool, int, float, str)) else json.dumps(value)
            for key, value in flat(config)
        }
        self._stored = 0 if is_new else trackio.SQLiteStorage.get_max_step_for_run(project, key) or 0
        self._run = trackio.init(
            project=project,
            name=key,
            config=settings,
            resume="never" if is_new else "allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def last_step(self) -> int | None:
        return self._stored

    def log(self, step: int, metrics: dict[str, float], time: float) -> None:
        self._run.log(metrics, step=step)

    def table(self, step: int, columns: Sequence[str], rows: list[list[Any]]) -> None:
        self._run.log({"samples": self._table(columns=list(columns), data=rows)}, step=step)

    def finish(self, state: str) -> None:
        self._run.finish()


TRACKERS: dict[str, Callable[..., Tracker]] = {"wandb": Wandb, "mlflow": Mlflow, "trackio": Trackio}
