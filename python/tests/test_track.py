"""Runs passed to a tracker: everything once, in order, whatever ends in between."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from rloom import _binary, load_run
from rloom.track import following
from rloom.track.following import Following, TrackingError
from rloom.track.trackers import TRACKERS, Mlflow, flat

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


class Recorder:
    """A tracker that remembers what it gets, over several processes."""

    stored: list[tuple[int, dict[str, float]]]
    tables: list[tuple[int, list[list[Any]]]]
    keys: list[tuple[str, str, bool]]
    states: list[str]
    knows_steps = False
    failures = 0

    def __init__(self, run: Path, key: str, project: str, config: dict[str, Any], *, is_new: bool) -> None:
        assert config["run"]["seed"] == 3
        self.keys.append((key, project, is_new))

    def last_step(self) -> int | None:
        return max((step for step, _ in self.stored), default=0) if self.knows_steps else None

    def log(self, step: int, metrics: dict[str, float], time: float) -> None:
        assert time > 1e9
        if self.failures > 0:
            Recorder.failures -= 1
            raise ConnectionError("no route")
        self.stored.append((step, metrics))

    def table(self, step: int, columns: Sequence[str], rows: list[list[Any]]) -> None:
        assert list(columns) == list(following.COLUMNS)
        self.tables.append((step, rows))

    def finish(self, state: str) -> None:
        self.states.append(state)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Recorder]]:
    monkeypatch.setitem(TRACKERS, "wandb", Recorder)
    monkeypatch.setattr(following, "POLL_SECONDS", 0.01)
    monkeypatch.setattr("time.sleep", lambda _: None)
    Recorder.stored, Recorder.tables, Recorder.keys, Recorder.states = [], [], [], []
    Recorder.failures, Recorder.knows_steps = 0, False
    return Recorder  # type: ignore[return-value]


def follow(run: Path, *, is_following: bool = True, project: str = "sums") -> None:
    with Following(run, "wandb", project) as process:
        process.run(follow=is_following)


def reported(run: Path) -> list[tuple[int, dict[str, float]]]:
    """Metrics of the steps and evaluations, without the second evaluation of the same weights."""
    found: dict[tuple[str, int], tuple[int, dict[str, float]]] = {}
    for event in map(json.loads, (run / "events.jsonl").read_text().splitlines()):
        if event["event"] in ("step", "evaluation"):
            key = (event["event"], event["global_step"])
            found.setdefault(key, (event["global_step"], event["metrics"]))
    return list(found.values())


def rows_of(recorder: type[Recorder]) -> list[list[Any]]:
    return [row[:8] for _, rows in recorder.tables for row in rows]


def samples_of(run_folder: Path) -> list[list[Any]]:
    run = load_run(run_folder)
    kinds = [("sample", run.samples), ("evaluation_sample", run.evaluation_samples)]
    return [
        [kind, s.stage, s.global_step, s.ticket, s.sample, s.prompt, s.completion, s.answer]
        for kind, samples in kinds
        for s in samples
    ]


def test_a_finished_run_is_passed_on_once(run_folder: Path, recorder: type[Recorder]) -> None:
    follow(run_folder)
    assert recorder.stored == reported(run_folder)
    assert recorder.states == ["finished"]
    assert sorted(rows_of(recorder)) == sorted(samples_of(run_folder))
    assert {row[0] for row in rows_of(recorder)} == {"sample", "evaluation_sample"}
    follow(run_folder, project="another")
    assert recorder.stored == reported(run_folder), "a second call adds nothing"
    assert sorted(rows_of(recorder)) == sorted(samples_of(run_folder))
    (first, second) = recorder.keys
    assert (first[0], first[1]) == (second[0], second[1]) == (first[0], "sums")
    assert (first[2], second[2]) == (True, False)


@pytest.mark.parametrize("knows_steps", [False, True])
def test_a_later_call_continues(run_folder: Path, recorder: type[Recorder], *, knows_steps: bool) -> None:
    recorder.knows_steps = knows_steps
    file = run_folder / "events.jsonl"
    whole = file.read_bytes()
    for size in range(0, len(whole), len(whole) // 9):
        file.write_bytes(whole[:size])  # in the middle of lines
        follow(run_folder, is_following=False)
    file.write_bytes(whole)
    follow(run_folder)
    assert recorder.stored == reported(run_folder)
    assert recorder.states[-2:] == ["running", "finished"]
    assert sorted(rows_of(recorder)) == sorted(samples_of(run_folder))


def test_steps_that_a_tracker_has_lost_are_passed_on_again(
    run_folder: Path, recorder: type[Recorder]
) -> None:
    recorder.knows_steps = True
    follow(run_folder)
    recorder.stored[:] = [(step, metrics) for step, metrics in recorder.stored if step <= 3]
    follow(run_folder)
    steps = [(step, metrics) for step, metrics in recorder.stored if "loss" in metrics]
    assert steps == [(step, metrics) for step, metrics in reported(run_folder) if "loss" in metrics]


def test_steps_that_a_resumed_run_repeats_are_passed_on_once(
    run_folder: Path, recorder: type[Recorder]
) -> None:
    file = run_folder / "events.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    wanted = reported(run_folder)
    (end,) = [line for line in lines if '"event":"run_finished"' in line]
    repeated = [line for line in lines if '"event":"step"' in line or '"event":"evaluation"' in line][-3:]
    start = [line for line in lines if '"event":"run_started"' in line]
    file.write_text("".join([*lines[:-1], *start, *repeated, end]))
    follow(run_folder)
    assert recorder.stored == wanted


def test_a_running_run_is_followed_to_its_end(
    run_folder: Path, recorder: type[Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = run_folder / "events.jsonl"
    whole = file.read_bytes()
    file.write_bytes(b"")
    done = threading.Event()
    # The run writes a little whenever the tracker waits, and holds its lock meanwhile.
    position = 0

    def write(_: float) -> None:
        nonlocal position
        with file.open("ab") as out:
            out.write(whole[position : position + 777])
        position += 777
        if position > len(whole):
            done.set()

    monkeypatch.setattr("time.sleep", write)
    with (run_folder / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        follow(run_folder)
    assert done.is_set()
    assert recorder.stored == reported(run_folder)
    assert recorder.states == ["finished"]


def test_a_killed_run_ends_the_tracking(run_folder: Path, recorder: type[Recorder]) -> None:
    file = run_folder / "events.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    follow(run_folder)
    assert recorder.states == ["killed"]


def test_damaged_lines_are_left_out(run_folder: Path, recorder: type[Recorder]) -> None:
    file = run_folder / "events.jsonl"
    wanted = reported(run_folder)
    file.write_bytes(b'null\n{"event"\n\xff\xfe\n[]\n\n{"a": 1}\n' + file.read_bytes())
    follow(run_folder)
    assert recorder.stored == wanted


def test_a_call_that_fails_is_repeated(
    run_folder: Path, recorder: type[Recorder], capsys: pytest.CaptureFixture[str]
) -> None:
    recorder.failures = following.ATTEMPTS - 1
    follow(run_folder)
    assert recorder.stored == reported(run_folder)
    assert (
        capsys.readouterr().err.count("warning: wandb: ConnectionError: no route") == following.ATTEMPTS - 1
    )


def test_a_tracker_that_keeps_failing_is_given_up_and_continued(
    run_folder: Path, recorder: type[Recorder]
) -> None:
    recorder.failures = following.ATTEMPTS
    with pytest.raises(TrackingError, match="no route; the same command continues after the last step"):
        follow(run_folder)
    follow(run_folder)
    assert recorder.stored == reported(run_folder)


def test_two_processes_do_not_pass_on_the_same_run(run_folder: Path, recorder: type[Recorder]) -> None:
    with Following(run_folder, "wandb", "p"), pytest.raises(TrackingError, match="another process"):
        Following(run_folder, "wandb", "p")
    follow(run_folder)
    assert recorder.stored == reported(run_folder)


def test_refusals(run_folder: Path, tmp_path: Path, recorder: type[Recorder]) -> None:
    with pytest.raises(TrackingError, match="is not a run"):
        follow(tmp_path)
    follow(run_folder)
    (run_folder / "tracking/wandb.json").write_text("{")
    with pytest.raises(TrackingError, match=r"tracking/wandb.json is damaged: remove it"):
        follow(run_folder)
    assert len(recorder.keys) == 1


def test_a_tracker_that_is_not_installed_is_named(run_folder: Path) -> None:
    command = [str(_binary.path()), "track", str(run_folder), "--to", "trackio", "--python", sys.executable]
    program = "import sys; sys.modules['trackio'] = None\n"
    (run_folder / "sitecustomize.py").write_text(program)
    environ = _binary.environment()
    environ["PYTHONPATH"] = f"{run_folder}:{environ.get('PYTHONPATH', '')}"
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"error: {sys.executable} has no package trackio: install it (pip install trackio)"
    )


def test_a_missing_interpreter_is_named(run_folder: Path) -> None:
    command = [str(_binary.path()), "track", str(run_folder), "--to", "mlflow", "--python", "/no/python"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert done.stderr.startswith("error: could not start the tracker mlflow with /no/python: ")
    assert "has the packages `rloom` and `mlflow`" in done.stderr


def test_names_that_mlflow_accepts() -> None:
    names = ["reward", "reward/exact", "eval/pass@1"]
    assert [Mlflow.name(name) for name in names] == ["reward", "reward.exact", "eval.pass_1"]


def test_settings_have_dotted_names() -> None:
    config = {"run": {"seed": 3}, "stage": [{"name": "rl", "steps": 4}], "list": [1, 2], "empty": {}}
    assert dict(flat(config)) == {"run.seed": 3, "stage.rl.name": "rl", "stage.rl.steps": 4, "list": [1, 2]}
