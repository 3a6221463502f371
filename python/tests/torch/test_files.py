"""Files that several ranks write, on a file system that shows them to other hosts late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gangs import gang
from rloom.torch import files
from rloom.torch.errors import RankError
from test_gradients import engine
from test_steps import SETTINGS

if TYPE_CHECKING:
    from pathlib import Path


def test_rank_0_waits_for_files_that_appear_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []

    def wait(seconds: float) -> None:
        """The host of another rank has written more of its file at each look."""
        with (tmp_path / "late").open("ab") as file:
            file.write(b"12")
        waits.append(seconds)

    monkeypatch.setattr("time.sleep", wait)
    files._await_visible(tmp_path, [("late", 6)])
    assert len(waits) == 3
    monkeypatch.setattr(files, "VISIBLE_SECONDS", 0.0)
    with pytest.raises(OSError, match="late has 6 of 9 bytes after 0 s: not all ranks see the same folder"):
        files._await_visible(tmp_path, [("late", 9)])
    with pytest.raises(OSError, match="never is missing"):
        files._await_visible(tmp_path, [("never", 1)])


def saved(folder: Path, model: Path) -> tuple[files.Listed, str]:
    own = engine(model, optimizer=SETTINGS)
    listed = files.save(own, folder)
    # Rank 0 does not see a file that was written.
    size = files._size
    if own.world.rank == 0:
        files._size = lambda path: None if path.name == "config.json" else size(path)
    files.VISIBLE_SECONDS = 0.2
    try:
        files.write_model(own, folder)
    except RankError as error:
        return listed, str(error)
    return listed, ""


def test_all_ranks_name_the_files_that_they_wrote(qwen: Path, tmp_path: Path) -> None:
    (listed, error), (_, other) = gang(2, saved, tmp_path, qwen)
    on_disk = {str(p.relative_to(tmp_path)): p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()}
    assert dict(listed) == on_disk
    assert {"trainer/optimizer/__0_0.distcp", "trainer/optimizer/__1_0.distcp"} <= on_disk.keys()
    assert "config.json is missing after 0.2 s" in error
    assert "another rank failed" in other
