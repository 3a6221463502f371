"""Reports of jobs that do not count micro-batches: a long one is no hang, and a hang is no long one."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, cast

import pytest
from rloom.torch import files, rank
from rloom.torch.rank import Rank
from test_gradients import BATCHES, engine, silent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rloom._native import Connection
    from rloom.torch.engine import Engine

MINUTES = 300.0


class Recorded:
    """A connection that keeps what a rank sends and what its beats would report."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.progress: list[tuple[str, int, int]] = []

    def set_progress(self, phase: str, done: int, total: int) -> None:
        self.progress.append((phase, done, total))

    def send(self, epoch: int, job: int, message: str, tensors: object, seconds: float) -> None:
        self.sent.append(message)


class Disk:
    """Counts polls, and bytes that a test claims to move."""

    def __init__(self) -> None:
        self.polls = 0
        self.bytes = 0

    def transferred(self) -> int:
        self.polls += 1
        return self.bytes


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Counters of a disk, polled every few milliseconds."""
    disk = Disk()
    monkeypatch.setattr(rank, "_transferred", disk.transferred)
    monkeypatch.setattr(rank, "WATCH_SECONDS", 0.002)
    return disk


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + MINUTES
    while not condition():
        assert time.monotonic() < end, "no report"
        threading.Event().wait(0.002)


def saving(own: Engine) -> tuple[Rank, Recorded]:
    recorded = Recorded()
    saver = Rank(cast("Connection", recorded), 0, 1)
    saver.world, saver.opened, saver.phase = own.world, own, "save"
    return saver, recorded


def test_bytes_and_tensors_that_move_are_reported(qwen: Path, tmp_path: Path, disk: Disk) -> None:
    own = engine(qwen)

    def transfer() -> None:
        disk.bytes += 1

    steps: list[Callable[[], Any]] = [
        transfer,
        own.digest,
        lambda: own.score({0: BATCHES[0]}, 1, progress=silent),
        lambda: files.save(own, tmp_path),
        lambda: files.restore(own, tmp_path),
    ]
    saver, recorded = saving(own)
    for step in steps:
        recorded.sent.clear()
        disk.polls = 0
        with saver._watched():
            until(lambda: disk.polls > 1)
            step()
            until(lambda: len(recorded.sent) > 0)
        assert set(recorded.sent) == {'{"progress": 0}'}
    assert {phase for phase, _, _ in recorded.progress} == {"save"}
    assert recorded.progress[-1][1] == own.world.advanced > 100


def test_a_job_with_micro_batches_keeps_their_count(qwen: Path, disk: Disk) -> None:
    saver, recorded = saving(engine(qwen))
    with saver._watched():
        saver._progress(8)(3)
        until(lambda: disk.polls > 1)
        recorded.progress.clear()
        disk.bytes += 1
        until(lambda: len(recorded.progress) > 0)
    assert set(recorded.progress) == {("save", 3, 8)}


def test_a_job_that_waits_reports_nothing(qwen: Path, disk: Disk) -> None:
    saver, recorded = saving(engine(qwen))
    with saver._watched():
        until(lambda: disk.polls > 50)
    assert not recorded.sent
    assert not recorded.progress


def test_bytes_of_disks_count_and_those_of_sockets_do_not(tmp_path: Path) -> None:
    (tmp_path / "io").write_text("rchar: 1\nwchar: 20\nread_bytes: 300\nwrite_bytes: 4000\n")
    assert rank._transferred(tmp_path / "io") == 4300
    assert rank._transferred(tmp_path / "missing") == 0
