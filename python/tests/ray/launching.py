"""The launcher as a controller runs it."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

#: Limit of every wait.
SECONDS = 120.0
TOKEN = "secret-of-the-run-0123456789"


class Controller:
    """Listens as a controller does and runs the launcher."""

    def __init__(self, program: Path, *arguments: str, controller: str = "", **environment: str) -> None:
        self.listener = socket.create_server(("0.0.0.0", 0))
        self.listener.settimeout(SECONDS)
        address = controller or f"0.0.0.0:{self.listener.getsockname()[1]}"
        command = [sys.executable, "-m", "rloom.ray", "--controller", address, "--program", str(program)]
        self.process = subprocess.Popen(
            [*command, *arguments],
            env={**os.environ, "RLOOM_TOKEN": TOKEN, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.connections: dict[int, socket.socket] = {}

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.put(json.loads(line))

    def event(self, name: str, skip: tuple[str, ...] = ("pending",)) -> dict[str, Any]:
        """The next event, which has this name; those to skip may come before it."""
        deadline = time.monotonic() + SECONDS
        while True:
            event = self.events.get(timeout=deadline - time.monotonic())
            if event["event"] == name:
                return event
            assert event["event"] in skip, event

    def accept(self) -> dict[str, Any]:
        """The next daemon that connects."""
        connection, _ = self.listener.accept()
        connection.settimeout(SECONDS)
        started: dict[str, Any] = json.loads(connection.makefile().readline())
        self.connections[started["index"]] = connection
        return started

    def end(self) -> int:
        """Closes the launcher's standard input. Returns its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(SECONDS)


def gone(pid: int) -> bool:
    """Whether a process ends within the limit."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        status = Path(f"/proc/{pid}/stat")
        try:
            if status.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False
