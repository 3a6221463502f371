"""Serves functions of this process to a run, over a Unix socket."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloom.functions.errors import RefusedError
from rloom.functions.serving import serve

if TYPE_CHECKING:
    from collections.abc import Mapping


class Caller:
    """A socket on which a run finds functions by name, each connection in a thread of its own."""

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self._functions = dict(functions)
        # For this user alone. Below /tmp, because the path of a socket is limited to about 100 bytes.
        self._folder = tempfile.TemporaryDirectory(prefix="rloom-", dir="/tmp")
        self.path = Path(self._folder.name) / "caller"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._connections: set[socket.socket] = set()
        self._is_closed = False
        threading.Thread(target=self._accept, name="rloom-caller", daemon=True).start()

    def close(self) -> None:
        """Ends all connections."""
        self._is_closed = True
        # A thread that waits for a connection or for a request is woken by a shutdown, and not by a close.
        for connection in [self._listener, *self._connections]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._folder.cleanup()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._is_closed:
                    return
                continue
            self._connections.add(connection)
            threading.Thread(
                target=self._serve, args=[connection], name="rloom-function", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        # A run that ends closes its connections in the middle of anything.
        with connection, contextlib.suppress(OSError, ValueError):
            serve(connection.makefile("rb"), connection.makefile("wb"), self._function)
        self._connections.discard(connection)

    def _function(self, name: str) -> Any:
        if name not in self._functions:
            served = ", ".join(sorted(self._functions)) or "none"
            raise RefusedError(f"the caller of rloom.train serves no function `{name}` (served: {served})")
        return self._functions[name]
