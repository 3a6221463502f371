"""The process of a function."""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import BinaryIO

from .loading import load
from .serving import serve


def run(requests: BinaryIO, answers: BinaryIO) -> None:
    """Serves the function that the first request names until the requests end."""
    # An interrupt from the terminal is for the run, which ends its processes itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with contextlib.suppress(BrokenPipeError):
        serve(requests, answers, lambda hello: load(hello["function"]))
    sys.stdout.flush()
