"""The packages of the trackers themselves, without a network."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rloom import _binary, load_run
from rloom.track import TRACKERS, Mlflow

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.long, pytest.mark.trackers]


def track(run: Path, name: str, folder: Path, *options: str) -> None:
    """Runs the command with the tracker's data in a folder."""
    environ = {
        **_binary.environment(),
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": (folder / "mlflow").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "TRACKIO_DIR": str(folder / "trackio"),
        "HF_HUB_OFFLINE": "1",
    }
    command = [str(_binary.path()), "track", str(run), "--to", name, "--project", "sums", *options]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr


def in_two_calls(run: Path, name: str, folder: Path) -> None:
    """Passes on the first steps of the run, then all of it, then all of it again."""
    file = run / "events.jsonl"
    whole = file.read_text().splitlines(keepends=True)
    cut = next(n for n, line in enumerate(whole) if '"event":"step"' in line and '"global_step":5' in line)
    file.write_text("".join(whole[:cut]))
    track(run, name, folder, "--no-follow")
    file.write_text("".join(whole))
    track(run, name, folder)
    track(run, name, folder)


def records(file: bytes) -> Iterator[bytes]:
    """Records of a file of wandb, in the format of LevelDB's log: pieces with headers in blocks."""
    position, record = 7, b""
    while position + 7 <= len(file):
        if 0x8000 - position % 0x8000 < 7:
            position += 0x8000 - position % 0x8000
            continue
        _, length, kind = struct.unpack_from("<IHB", file, position)
        if kind == 0:
            return
        record += file[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


def test_wandb_offline(run_folder: Path, tmp_path: Path) -> None:
    in_two_calls(run_folder, "wandb", tmp_path)
    from wandb.proto import wandb_internal_pb2

    steps, configs, keys = [], [], set()
    for file in sorted(run_folder.glob("tracking/wandb/offline-run-*/*.wandb")):
        for data in records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.run.run_id:
                keys.add((record.run.run_id, record.run.project))
                configs.append({item.key for item in record.run.config.update})
            if record.history.item:
                items = {
                    i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item
                }
                steps.append((items["_step"], items))
    run = load_run(run_folder)
    assert [step for step, _ in steps if step] == [1, 2, 3, 4, 5, 6, 7]
    found = dict(steps)
    for step in [*run.steps, *run.evaluations]:
        for name, value in step.metrics.items():
            assert found[step.global_step][name] == pytest.approx(value)
    assert any(name.startswith("samples") for _, items in steps for name in items)
    assert {project for _, project in keys} == {"sums"}
    assert len(keys) == 1, "all folders are of one run"
    assert {"run", "stage"} <= configs[0]


def test_mlflow_in_a_folder(run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_two_calls(run_folder, "mlflow", tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient((tmp_path / "mlflow").as_uri())
    experiment = client.get_experiment_by_name("sums")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["stage.rl.method"] == "grpo"
    run = load_run(run_folder)
    for kind in (run.steps, run.evaluations):
        for name in {name for step in kind for name in step.metrics}:
            stored = Mlflow.name(name)
            history = [(m.step, m.value) for m in client.get_metric_history(found.info.run_id, stored)]
            # Weights that end one stage and begin the next are evaluated twice, and passed on once.
            wanted = {s.global_step: s.metrics[name] for s in reversed(kind) if name in s.metrics}
            assert sorted(history) == sorted(wanted.items())
    samples = client.list_artifacts(found.info.run_id, "samples")
    assert samples
    text = Path(client.download_artifacts(found.info.run_id, samples[-1].path, str(tmp_path))).read_text()
    assert {"prompt", "completion", "reward"} <= json.loads(text.splitlines()[0]).keys()


def test_trackio_on_this_machine(run_folder: Path, tmp_path: Path) -> None:
    in_two_calls(run_folder, "trackio", tmp_path)
    program = """
import json, sys
from trackio import SQLiteStorage as storage
(run,) = storage.get_runs("sums")
print(json.dumps([storage.get_logs("sums", run), storage.get_run_config("sums", run)], default=str))
"""
    environ = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True, timeout=300
    )
    logs, config = json.loads(done.stdout.splitlines()[-1])
    run = load_run(run_folder)
    losses = [(log["step"], log["loss"]) for log in logs if "loss" in log]
    assert losses == [(step.global_step, step.metrics["loss"]) for step in run.steps]
    assert config["stage.rl.method"] == "grpo"
    assert any("samples" in log for log in logs)


@pytest.mark.parametrize("name", TRACKERS)
def test_a_process_that_is_stopped_is_continued(run_folder: Path, tmp_path: Path, name: str) -> None:
    file = run_folder / "events.jsonl"
    whole = file.read_text().splitlines(keepends=True)
    file.write_text("".join(whole[:-1]))
    environ = {
        **_binary.environment(),
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": (tmp_path / "mlflow").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
    }
    command = [str(_binary.path()), "track", str(run_folder), "--to", name]
    with (run_folder / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        state = run_folder / f"tracking/{name}.json"
        until = time.monotonic() + 300
        while not (state.exists() and json.loads(state.read_text())["step"] == 7):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=300) == 130
    file.write_text("".join(whole))
    track(run_folder, name, tmp_path)
