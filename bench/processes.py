"""Processes that end with the caller."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def started(command: list, **options: object) -> Iterator[subprocess.Popen]:
    """Starts a process without input in its own session. It and its children are ended in any case."""
    parts = [str(part) for part in command]
    process = subprocess.Popen(parts, stdin=subprocess.DEVNULL, start_new_session=True, **options)
    try:
        yield process
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
