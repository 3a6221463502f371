"""Runs passed to a tracker by its package: a stand-in that writes down its calls."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from rloom import _binary, load_run
from rloom.track import Mlflow, Trackio, Wandb

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PACKAGE = """
import json, os
def write(*call):
    print("not for the protocol")
    with open(os.environ["CALLS"], "a") as file:
        file.write(json.dumps(call) + "\\n")
class Table:
    def __init__(self, columns, data):
        self.size = [len(columns), len(data)]
class Storage:
    @staticmethod
    def get_max_step_for_run(project, key):
        return 7
SQLiteStorage = Storage
class Run:
    failures = int(os.environ.get("FAILURES", "0"))
    def log(self, metrics, step):
        if Run.failures:
            Run.failures -= 1
            raise ConnectionError("no route")
        write("log", step, {k: v.size if isinstance(v, Table) else v for k, v in metrics.items()})
    def finish(self):
        write("finish")
def init(**options):
    write("init", options)
    return Run()
"""


class Track:
    """The command, with the stand-in as the package trackio."""

    def __init__(self, run: Path, folder: Path) -> None:
        (folder / "trackio.py").write_text(PACKAGE)
        self.file = folder / "calls"
        self.command = [str(_binary.path()), "track", str(run), "--to", "trackio", "--python", sys.executable]
        self.environ = {**_binary.environment(), "PYTHONPATH": str(folder), "CALLS": str(self.file)}

    def __call__(self, folder: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        environ = {**self.environ, **environ}
        return subprocess.run(
            self.command,
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def calls(self, kind: str) -> list[list[Any]]:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [call[1:] for call in map(json.loads, lines) if call[0] == kind]


@pytest.fixture
def track(run_folder: Path, tmp_path: Path) -> Track:
    return Track(run_folder, tmp_path)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_run_is_passed_on_once(run_folder: Path, track: Track) -> None:
    for _ in range(2):
        done = track()
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
    metrics = {step: values for step, values in track.calls("log") if "loss" in values}
    assert metrics == {step.global_step: step.metrics for step in load_run(run_folder).steps}
    assert len([values for _, values in track.calls("log") if "loss" in values]) == len(metrics)
    assert any("samples" in values for _, values in track.calls("log"))
    ((first,), (second,)) = track.calls("init")
    assert (first["resume"], first["name"]) == ("allow", second["name"])
    assert (first["config"]["stage.rl.method"], first["config"]["stage.rl.steps"]) == ("grpo", 4)
    assert len(track.calls("finish")) == 2


def test_a_call_that_fails_is_repeated(track: Track) -> None:
    done = track(FAILURES="1")
    assert done.returncode == 0
    assert "warning: trackio: ConnectionError: no route\n" in done.stderr
    assert [step for step, values in track.calls("log") if "loss" in values] == [1, 2, 3, 4, 5, 6, 7]


def test_the_connection_ends_when_rloom_is_killed(run_folder: Path, track: Track) -> None:
    file = run_folder / "events.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    with (run_folder / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen(track.command, env=track.environ) as process:
            until(lambda: any(step == 7 for step, _ in track.calls("log")))
            process.send_signal(signal.SIGKILL)
    until(lambda: len(track.calls("finish")) == 1)


def test_a_package_that_is_not_installed_is_named(track: Track, tmp_path: Path) -> None:
    (tmp_path / "trackio.py").write_text("import no_such_package\n")
    done = track()
    error, hint = done.stderr.splitlines()
    assert (done.returncode, error) == (1, f"error: {sys.executable} has no package no_such_package")
    assert hint == "hint: install it (pip install trackio), or name another interpreter with --python"


def test_a_tracker_that_refuses_the_run_is_quoted(track: Track, tmp_path: Path) -> None:
    (tmp_path / "trackio.py").write_text("raise RuntimeError('no key')\n")
    done = track()
    *warnings, error = done.stderr.splitlines()
    assert warnings == ["warning: trackio: RuntimeError: no key"] * 4
    text = "error: trackio cannot be started: RuntimeError: no key; the same command tries again"
    assert (done.returncode, error) == (1, text)


def test_files_in_the_working_directory_do_not_hide_packages(track: Track, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    for name in ("json", "re", "trackio"):
        (folder / f"{name}.py").write_text("raise RuntimeError('of the working directory')\n")
    done = track(folder)
    assert done.returncode == 0, done.stderr
    assert len(track.calls("finish")) == 1


class FakeRun:
    """A run of wandb, of which the server has the summary."""

    def __init__(self, summary: dict[str, Any], *, offline: bool) -> None:
        self.summary, self.offline, self.step = summary, offline, 0
        self.logged: list[tuple[int, int | None]] = []
        self.axes: list[tuple[str, str]] = []

    def define_metric(self, name: str, step_metric: str) -> None:
        self.axes.append((name, step_metric))

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        assert step is None or step >= self.step, "wandb drops it"
        self.step = self.step + 1 if step is None else step
        self.summary.update(values)
        self.logged.append((values["global_step"], step))


@pytest.mark.parametrize("offline", [False, True])
def test_steps_of_wandb_grow(monkeypatch: pytest.MonkeyPatch, offline: bool) -> None:
    summary: dict[str, Any] = {}

    def start() -> tuple[Wandb, FakeRun]:
        run = FakeRun(summary, offline=offline)
        wandb = SimpleNamespace(Table=dict, Settings=dict, init=lambda **_: run)
        monkeypatch.setitem(sys.modules, "wandb", wandb)
        tracker = Wandb("runs/a", "a", "a-1", "sums", {})
        return tracker, run

    tracker, run = start()
    assert tracker.stored == (None if offline else -1)
    assert run.axes == [("*", "global_step")]
    tracker.log(0, {"eval/reward": 0.5}, 1.0)
    tracker.log(1, {"loss": 0.5}, 2.0)
    tracker.table(0, ["prompt"], [["1+1="]])
    tracker.log(2, {"loss": 0.25}, 3.0)
    assert [step for step, _ in run.logged] == [0, 1, 1, 2]
    tracker, run = start()
    assert tracker.stored == (None if offline else 2)
    tracker.log(2, {"eval/reward": 0.75}, 4.0)
    assert run.logged == [(2, 2 if offline else None)]


@pytest.mark.parametrize("variable", ["", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"])
def test_only_a_local_trackio_tells_what_it_has(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    storage = SimpleNamespace(get_max_step_for_run=lambda *_: None)
    package = SimpleNamespace(Table=dict, SQLiteStorage=storage, init=lambda **_: None)
    monkeypatch.setitem(sys.modules, "trackio", package)
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "somewhere")
    assert Trackio("a-1", "sums", {}).stored == (None if variable else -1)


def test_a_missing_interpreter_is_named(run_folder: Path) -> None:
    command = [str(_binary.path()), "track", str(run_folder), "--to", "mlflow", "--python", "/no/python"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert done.stderr.startswith("error: could not start the tracker mlflow with /no/python: ")
    assert "has the package `mlflow`" in done.stderr


def test_names_that_mlflow_accepts() -> None:
    names = ["reward", "reward/exact", "eval/pass@1"]
    assert [Mlflow.name(name) for name in names] == ["reward", "reward.exact", "eval.pass_1"]
