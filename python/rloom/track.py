"""Trackers through their own packages: a request a line on stdin, an answer a line on stdout.

`rloom track` contains this text and runs it with `python -c`: the interpreter needs the tracker's package only.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and sys.path[0] == "":  # the working directory, whose files must not hide packages
    del sys.path[0]

import json
import os
import re
import signal
from typing import Any


class Wandb:
    """Weights & Biases. Offline, each process writes a folder; `wandb sync` joins them by the key."""

    def __init__(self, run: str, name: str, key: str, project: str, config: Any, **_: Any) -> None:
        import wandb

        self._table = wandb.Table
        self._run = wandb.init(
            project=project,
            id=key,
            name=name,
            resume="allow",
            config=config,
            dir=os.environ.get("WANDB_DIR", os.path.join(run, "tracking")),
            settings=wandb.Settings(console="off", x_disable_stats=True, disable_git=True, disable_code=True),
        )
        self._run.define_metric("*", step_metric="global_step")
        self._last = int(self._run.summary.get("global_step", -1))
        self.stored = None if self._run.offline else self._last

    def _log(self, step: int, values: dict[str, Any]) -> None:
        # Its own steps must grow in each process, and over the folders of offline processes.
        own = max(step, self._run.step) if self._run.offline else None
        self._run.log({**values, "global_step": step}, step=own)
        self._last = max(self._last, step)

    def log(self, step: int, metrics: dict[str, float], time: float) -> None:
        self._log(step, {**metrics, "_timestamp": time})

    def table(self, step: int, columns: list[str], rows: list[list[Any]]) -> None:
        # The last step is what a later process continues after: samples do not lower it.
        self._log(max(step, self._last), {"samples": self._table(columns=columns, data=rows)})

    def finish(self, state: str) -> None:
        self._run.finish(exit_code=int(state in ("failed", "killed")))


class Mlflow:
    """MLflow: `project` is the experiment, and the key is a tag."""

    def __init__(self, name: str, key: str, project: str, settings: dict[str, Any], **_: Any) -> None:
        from mlflow import entities
        from mlflow.tracking import MlflowClient

        self._metric, self._client = entities.Metric, MlflowClient()
        experiment = self._client.get_experiment_by_name(project)
        number = experiment.experiment_id if experiment else self._client.create_experiment(project)
        found = self._client.search_runs([number], f"tags.`rloom.key` = '{key}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._client.create_run(number, tags={"rloom.key": key}, run_name=name).info.run_id
            texts = {name: v if isinstance(v, str) else json.dumps(v) for name, v in settings.items()}
            self._log("params", [entities.Param(name, text[:500]) for name, text in texts.items()])
        self.stored = int(self._client.get_run(self._id).data.metrics.get("global_step", -1))

    def _log(self, kind: str, values: list[Any]) -> None:
        for start in range(0, len(values), 100):
            self._client.log_batch(self._id, **{kind: values[start : start + 100]})

    @staticmethod
    def name(metric: str) -> str:
        """MLflow's name: it forbids characters, and stores in folders have no `reward` beside `reward/exact`."""
        return re.sub(r"[^\w\-. :]", "_", metric.replace("/", "."))

    def log(self, step: int, metrics: dict[str, float], time: float) -> None:
        # The step comes last: a process that is killed between two batches repeats the step.
        named = {**{self.name(name): value for name, value in metrics.items()}, "global_step": step}
        self._log("metrics", [self._metric(name, v, int(time * 1000), step) for name, v in named.items()])

    def table(self, step: int, columns: list[str], rows: list[list[Any]]) -> None:
        lines = [json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n" for row in rows]
        self._client.log_text(self._id, "".join(lines), f"samples/step-{step:06}.jsonl")

    def finish(self, state: str) -> None:
        ends = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED", "interrupted": "KILLED"}
        if state in ends:
            self._client.set_terminated(self._id, ends[state])


class Trackio:
    """Trackio: the key is the name of its run."""

    def __init__(self, key: str, project: str, settings: dict[str, Any], **_: Any) -> None:
        import trackio

        self._table = trackio.Table
        # A Space or a server has the steps, then, and does not tell.
        is_local = not (os.environ.get("TRACKIO_SPACE_ID") or os.environ.get("TRACKIO_SERVER_URL"))
        stored = trackio.SQLiteStorage.get_max_step_for_run(project, key) if is_local else None
        self.stored = -1 if is_local and stored is None else stored
        self._run = trackio.init(
            project=project,
            name=key,
            config=settings,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, step: int, metrics: dict[str, float], time: float) -> None:
        self._run.log(metrics, step=step)

    def table(self, step: int, columns: list[str], rows: list[list[Any]]) -> None:
        self._run.log({"samples": self._table(columns=columns, data=rows)}, step=step)

    def finish(self, state: str) -> None:
        self._run.finish()


TRACKERS = {"wandb": Wandb, "mlflow": Mlflow, "trackio": Trackio}


def main(name: str) -> None:
    """Answers requests until one is `finish`, or until there are no more because `rloom` was killed."""
    # Packages print to stderr, and may ask for a key at the terminal.
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2 if os.isatty(2) else os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            # The first one is for `rloom`, which then sends `finish`.
            signal.signal(number, lambda number, _: signal.signal(number, signal.SIG_DFL))
    tracker: Any = None
    for line in requests:
        [(operation, body)] = json.loads(line).items()
        answer: dict[str, Any] = {}
        try:
            if operation == "start":
                tracker = TRACKERS[name](**body)
                answer["stored"] = tracker.stored
            else:
                getattr(tracker, operation)(**body)
        except ModuleNotFoundError as error:
            answer = {"missing": error.name, "python": sys.executable, "error": str(error)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()
        if operation == "finish":
            return
    if tracker is not None:
        tracker.finish("running")


if __name__ == "__main__":
    main(sys.argv[1])
