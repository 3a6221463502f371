"""Functions of this process, called over a socket as a run calls them."""

from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
from rloom._caller import Caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SAMPLE = {
    "sample": "0/0",
    "stage": 0,
    "task": 0,
    "prompt": "1+1=",
    "prompt_text": "1+1=",
    "completion": "2",
    "tokens": [2],
    "answer": "2",
    "domain": "",
    "stop": "stop_token",
    "truncated": False,
    "steps": [],
    "row": {},
    "seed": 0,
}


class Connection:
    """A connection of a run."""

    def __init__(self, path: Path, name: str, role: str = "reward") -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(path))
        self._answers = self.socket.makefile("rb")
        self.hello = self.ask(hello={"v": 1, "role": role, "function": name, "group": False})

    def ask(self, **request: Any) -> dict[str, Any]:
        self.socket.sendall(json.dumps({"id": 7, **request}).encode() + b"\n")
        answer: dict[str, Any] = json.loads(self._answers.readline())
        assert answer.pop("id") == 7
        return answer

    def judge(self, completion: str) -> dict[str, Any]:
        return self.ask(judge={"samples": [{**SAMPLE, "completion": completion}]})


@pytest.fixture
def serve() -> Iterator[Callable[..., Path]]:
    callers = []

    def started(**functions: Any) -> Path:
        callers.append(Caller(functions))
        return callers[-1].path

    yield started
    for caller in callers:
        caller.close()


def test_functions_are_found_by_name(serve: Callable[..., Path]) -> None:
    def length(completion: str, answer: str) -> float:
        return len(completion) / len(answer)

    def fails(completion: str) -> float:
        raise ZeroDivisionError(completion)

    path = serve(length=length, fails=fails)
    one, two = Connection(path, "length"), Connection(path, "fails")
    assert one.hello["ready"]["v"] == 1
    assert one.judge("123")["verdicts"] == [3.0]
    assert two.judge("abc")["error"]["message"].startswith("ZeroDivisionError: abc")
    assert one.judge("1")["verdicts"] == [1.0], "an error of one call is no error of another"


def test_an_unknown_function_is_refused(serve: Callable[..., Path]) -> None:
    connection = Connection(serve(one=len, two=len), "three")
    assert connection.hello["error"]["kind"] == "refused"
    message = connection.hello["error"]["message"]
    assert "the caller of rloom.train serves no function `three` (served: one, two)" in message


def test_connections_are_served_at_the_same_time(serve: Callable[..., Path]) -> None:
    barrier = threading.Barrier(2, timeout=300)

    def meet(completion: str) -> float:
        barrier.wait()
        return float(completion)

    path = serve(meet=meet)
    connections = [Connection(path, "meet") for _ in range(2)]
    found: list[Any] = [None, None]

    def call(number: int) -> None:
        found[number] = connections[number].judge(str(number))["verdicts"]

    threads = [threading.Thread(target=call, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[0.0], [1.0]]


def test_a_connection_that_breaks_affects_no_other(serve: Callable[..., Path]) -> None:
    path = serve(one=lambda completion: 1.0)
    broken, whole = Connection(path, "one"), Connection(path, "one")
    broken.socket.sendall(b'{"id": 8, "jud')
    broken.socket.shutdown(socket.SHUT_RDWR)
    assert whole.judge("")["verdicts"] == [1.0]
    nonsense = Connection(path, "one")
    nonsense.socket.sendall(b"nonsense\n")
    assert nonsense._answers.readline() == b""
    assert whole.judge("")["verdicts"] == [1.0]


def test_the_socket_is_private_and_goes_with_the_caller() -> None:
    caller = Caller({"one": lambda completion: 1.0})
    assert caller.path.parent.stat().st_mode & 0o077 == 0
    connection = Connection(caller.path, "one")
    caller.close()
    assert not caller.path.exists()
    assert connection.socket.recv(1) == b"", "a run notices at once"
