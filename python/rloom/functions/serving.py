"""Answers to requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

from .adapters import Reward
from .environments import Episodes
from .errors import RefusedError, describe
from .methods import Method
from .tools import Tools

VERSION = 1

Load = Callable[[str], Any]


class Server:
    """Answers the requests of one connection."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._operations: dict[str, Callable[[Any], dict[str, Any]]] = {"hello": self._hello}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request; failures are answers, too."""
        kind = "function"
        try:
            for name, body in request.items():
                if name in self._operations:
                    return {"id": request["id"], **self._operations[name](body)}
            raise RefusedError(f"unknown request: {', '.join(request)}")
        except RefusedError as error:
            kind, message = "refused", describe(error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            kind, message = str(getattr(error, "failure_kind", kind)), describe(error)
        return {"id": request.get("id"), "error": {"kind": kind, "message": message}}

    def _hello(self, hello: dict[str, Any]) -> dict[str, Any]:
        if hello["v"] != VERSION:
            raise RefusedError(
                f"the run speaks version {hello['v']} of the protocol, this package version {VERSION}"
            )
        function = self._load(hello["function"])
        served: Reward | Episodes | Method | Tools
        if hello["role"] == "reward":
            served = Reward(function, group=hello["group"])
        elif hello["role"] == "environment":
            served = Episodes(function)
        elif hello["role"] == "tools":
            served = Tools(function)
        else:
            served = Method(function, hello["role"])
        self._operations.update(served.operations)
        return {"ready": {"v": VERSION, "form": served.form}}


def serve(requests: Iterable[bytes], answers: BinaryIO, load: Load) -> None:
    """Answers requests until there are no more. `load` returns the function that the first one names."""
    server = Server(load)
    for line in requests:
        answer = server.answer(json.loads(line))
        answers.write(json.dumps(answer, allow_nan=False).encode() + b"\n")
        answers.flush()
