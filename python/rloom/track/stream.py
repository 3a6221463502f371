"""The event stream of a run while it is written."""

from __future__ import annotations

import fcntl
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENDS = {"run_finished": "finished", "run_interrupted": "interrupted", "run_failed": "failed"}


class Stream:
    """Reads `events.jsonl` from its beginning, and each call of `new` what was added since."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._file = (run / "events.jsonl").open("rb")
        self._rest = b""
        self.end: str | None = None
        """State of the run, once its process has reported the end."""

    def new(self) -> Iterator[dict[str, Any]]:
        """Events added since the last call. Damaged lines are left out."""
        self._rest += self._file.read()
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            try:
                event = json.loads(line)
                kind = event["event"]
            except (ValueError, TypeError, KeyError):
                continue
            if kind == "run_started":
                self.end = None
            self.end = ENDS.get(kind, self.end)
            yield event

    def is_running(self) -> bool:
        """True while a process trains the run."""
        try:
            with (self._run / "lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
