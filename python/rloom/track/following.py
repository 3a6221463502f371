"""From the event stream to a tracker, continuing where an earlier process stopped."""

from __future__ import annotations

import fcntl
import json
import secrets
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rloom import RloomError, _binary
from rloom.track.stream import Stream
from rloom.track.trackers import TRACKERS, Tracker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

POLL_SECONDS = 1.0
KILLED_AFTER = 5
"""Polls without a process and without an end, after which the run counts as killed."""
ATTEMPTS = 5
"""Calls of a tracker before it is given up; the waits between them double from one second."""
TABLE_STEPS = 50
"""Steps between tables of samples in a run without evaluations."""
TABLE_ROWS = 200
COLUMNS = (
    *("kind", "stage", "global_step", "ticket", "sample", "prompt", "completion", "answer"),
    *("reward", "advantage", "solved", "tokens", "stop"),
)


class TrackingError(Exception):
    """A run that cannot be passed on, in words for the user."""


@dataclass
class State:
    """What the tracker has, so that a later process continues."""

    id: str
    project: str
    step: int = 0
    """Last global step whose metrics were passed on."""
    evaluation: int = -1
    """Last global step whose evaluation was passed on."""
    samples: int = -1
    """Last global step whose samples were passed on."""


class Following:
    """Passes the events of one run to one tracker."""

    def __init__(self, run: Path, name: str, project: str) -> None:
        if not (run / "config.toml").is_file():
            raise TrackingError(f"{run} is not a run: it has no config.toml")
        self._run = run
        self._name = name
        self._folder = run / "tracking"
        self._folder.mkdir(exist_ok=True)
        self._lock = (self._folder / f"{name}.lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrackingError(f"another process passes {run} to {name} already") from None
        self._state, is_new = self._restored(project)
        self._rows: list[list[Any]] = []
        self._stream = Stream(run)
        self._tracker = self._started(is_new=is_new)

    def __enter__(self) -> Following:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *error: object) -> None:
        self._tracker.finish(self._stream.end or "running")
        self._stream.close()
        self._lock.close()

    def run(self, *, follow: bool) -> None:
        """Passes on all events; with `follow` until the run has ended."""
        quiet_polls = 0
        while True:
            is_running = self._stream.is_running()
            count = 0
            for event in self._stream.new():
                self._take(event)
                count += 1
            if self._stream.end or not follow:
                break
            quiet_polls = 0 if count or is_running else quiet_polls + 1
            if quiet_polls == KILLED_AFTER:
                self._stream.end = "killed"
                break
            time.sleep(POLL_SECONDS)
        if self._stream.end:
            self._pass_table()

    def _restored(self, project: str) -> tuple[State, bool]:
        try:
            return State(**json.loads(self._state_file.read_text())), False
        except FileNotFoundError:
            return State(id=f"{self._run.resolve().name}-{secrets.token_hex(4)}", project=project), True
        except (ValueError, TypeError) as error:
            raise TrackingError(f"{self._state_file} is damaged: remove it to track the run anew") from error

    @property
    def _state_file(self) -> Path:
        return self._folder / f"{self._name}.json"

    def _save(self) -> None:
        partial = self._state_file.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self._state)))
        partial.replace(self._state_file)

    def _started(self, *, is_new: bool) -> Tracker:
        try:
            (line,) = _binary.lines("export", str(self._run), "config")
        except (RloomError, OSError) as error:
            raise TrackingError(str(error)) from error
        config = json.loads(line)
        try:
            tracker = TRACKERS[self._name](
                self._run, self._state.id, self._state.project, config, is_new=is_new
            )
        except ModuleNotFoundError as error:
            raise TrackingError(
                f"{sys.executable} has no package {error.name}: install it (pip install {self._name}), or "
                "name another interpreter with --python"
            ) from error
        except Exception as error:
            raise TrackingError(f"{self._name} cannot be started: {type(error).__name__}: {error}") from error
        # What the tracker has stored counts more than what was passed on to it.
        stored = tracker.last_step()
        self._state.step = self._state.step if stored is None else min(stored, self._state.step)
        self._save()
        return tracker

    def _take(self, event: dict[str, Any]) -> None:
        kind, step = event["event"], event["global_step"]
        if kind == "step" and step > self._state.step:
            self._call(lambda: self._tracker.log(step, event["metrics"], event["time"]))
            self._state.step = step
            self._save()
        elif kind == "evaluation" and step > self._state.evaluation:
            self._call(lambda: self._tracker.log(step, event["metrics"], event["time"]))
            self._state.evaluation = step
            self._save()
        elif kind in ("sample", "evaluation_sample") and step > self._state.samples:
            self._rows.append([event.get(name, kind) for name in COLUMNS])
        if kind == "step" and self._is_table_due(step):
            self._pass_table()

    def _is_table_due(self, step: int) -> bool:
        """True at the first step after an evaluation, whose samples follow it."""
        is_evaluated = any(row[0] == "evaluation_sample" for row in self._rows)
        return is_evaluated or step - self._state.samples > TABLE_STEPS

    def _pass_table(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._call(lambda: self._tracker.table(self._state.step, COLUMNS, rows[-TABLE_ROWS:]))
            self._state.samples = max(row[2] for row in rows)
            self._save()

    def _call(self, passed_on: Callable[[], None]) -> None:
        for attempt in range(ATTEMPTS):
            try:
                return passed_on()
            except Exception as error:
                message = f"{self._name}: {type(error).__name__}: {error}"
                if attempt + 1 == ATTEMPTS:
                    raise TrackingError(
                        f"{message}; the same command continues after the last step"
                    ) from error
                print(f"warning: {message}", file=sys.stderr)
                time.sleep(2**attempt)
        return None
