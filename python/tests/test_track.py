"""Runs passed to a tracker by its package: a stand-in that writes down its calls."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from rloom import _binary, load_run
from rloom.track import Mlflow

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

    def __call__(self, **environ: str) -> subprocess.CompletedProcess[str]:
        environ = {**self.environ, **environ}
        return subprocess.run(
            self.command, env=environ, capture_output=True, text=True, check=False, timeout=300
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
    assert (first["resume"], second["resume"], first["name"]) == ("never", "allow", second["name"])
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
    assert (done.returncode, done.stderr) == (1, "error: trackio cannot be started: RuntimeError: no key\n")


def test_a_missing_interpreter_is_named(run_folder: Path) -> None:
    command = [str(_binary.path()), "track", str(run_folder), "--to", "mlflow", "--python", "/no/python"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert done.stderr.startswith("error: could not start the tracker mlflow with /no/python: ")
    assert "has the package `mlflow`" in done.stderr


def test_names_that_mlflow_accepts() -> None:
    names = ["reward", "reward/exact", "eval/pass@1"]
    assert [Mlflow.name(name) for name in names] == ["reward", "reward.exact", "eval.pass_1"]
