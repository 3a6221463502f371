"""Answers to requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

from .adapters import Reward
from .environments import Episodes
from .errors import RefusedError, describe
from .methods import NAMES, Method
from .samples import Sample

VERSION = 1

Load = Callable[[dict[str, Any]], Any]


class Server:
    """Answers the requests of one connection."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._reward: Reward | None = None
        self._episodes: Episodes | None = None
        self._method: Method | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request; failures are answers, too."""
        kind = "function"
        try:
            return {"id": request["id"], **self._operation(request)}
        except RefusedError as error:
            kind, message = "refused", describe(error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            message = describe(error)
        return {"id": request.get("id"), "error": {"kind": kind, "message": message}}

    def _operation(self, request: dict[str, Any]) -> dict[str, Any]:
        if "hello" in request:
            return self._hello(request["hello"])
        if "judge" in request and self._reward is not None:
            samples = [Sample.read(fields) for fields in request["judge"]["samples"]]
            verdicts = self._reward.judge(samples)
            return {"verdicts": verdicts, "metrics": self._reward.metrics.take()}
        if "compute" in request and self._method is not None:
            return self._method.compute(request["compute"]["numbers"])
        if self._episodes is not None:
            for operation in ("begin", "act", "end"):
                if operation in request:
                    return self._episodes.answer(operation, request[operation])
        raise RefusedError(f"unknown request: {', '.join(request)}")

    def _hello(self, hello: dict[str, Any]) -> dict[str, Any]:
        if hello["v"] != VERSION:
            raise RefusedError(
                f"the run speaks version {hello['v']} of the protocol, this package version {VERSION}"
            )
        function = self._load(hello)
        if hello["role"] == "environment":
            self._episodes = Episodes(function)
            form = self._episodes.form
        elif hello["role"] in NAMES:
            self._method = Method(function, hello["role"])
            form = hello["role"]
        else:
            self._reward = Reward(function, group=hello["group"])
            form = self._reward.form
        return {"ready": {"v": VERSION, "form": form}}


def serve(requests: Iterable[bytes], answers: BinaryIO, load: Load) -> None:
    """Answers requests until there are no more. `load` returns the function that `hello` asks for."""
    server = Server(load)
    for line in requests:
        answer = server.answer(json.loads(line))
        answers.write(json.dumps(answer, allow_nan=False).encode() + b"\n")
        answers.flush()
