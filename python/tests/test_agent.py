"""The helper of agents, against a stand-in for the server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import rloom
from rloom import agent

KEY = "secret"


class Server(ThreadingHTTPServer):
    """Leases the given tasks, and records what is reported."""

    def __init__(self, tasks: list[Any]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.tasks = tasks
        self.reports: list[tuple[str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def lease(self, task: Any) -> dict[str, Any]:
        session = f"{self.url}/s/token"
        return {
            "task": task,
            "base_url": f"{session}/v1",
            "anthropic_base_url": session,
            "api_key": "token",
            "reward_url": f"{session}/reward",
            "finish_url": f"{session}/finish",
            "deadline": 1e10,
        }


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/rl/lease":
            self.server.reports.append((self.path.rpartition("/")[2], body))
            return self.answer(200, {"status": "ok"})
        if self.headers["Authorization"] != f"Bearer {KEY}":
            return self.answer(401, {"error": {"message": "the key is missing or wrong"}})
        task = self.server.tasks.pop(0) if self.server.tasks else None
        return self.answer(204, None) if task is None else self.answer(200, self.server.lease(task))

    def answer(self, status: int, body: Any) -> None:
        text = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    own = Server([])
    thread = threading.Thread(target=own.serve_forever, args=(0.01,))
    thread.start()
    yield own
    own.shutdown()
    thread.join()
    own.server_close()


def lease_file(folder: Path, server: Server, key: str | None = KEY) -> Path:
    path = folder / "lease.json"
    path.write_text(json.dumps({"url": f"{server.url}/rl/lease", "key": key}))
    return path


def test_a_started_program_has_one_episode(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = server.lease({"prompt": "1+2=", "answer": "3"})
    names = {
        "RLOOM_TASK": json.dumps(lease["task"]),
        "OPENAI_BASE_URL": lease["base_url"],
        "ANTHROPIC_BASE_URL": lease["anthropic_base_url"],
        "OPENAI_API_KEY": lease["api_key"],
        "RLOOM_REWARD_URL": lease["reward_url"],
        "RLOOM_FINISH_URL": lease["finish_url"],
        "http_proxy": "http://127.0.0.1:1",
    }
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    with rloom.session() as s:
        assert (s.task["answer"], s.base_url, s.deadline) == ("3", lease["base_url"], None)
        s.reward(0.5, call="call_1")
        s.reward(1, "tests", agent="coder")
    assert server.reports == [
        ("reward", {"value": 0.5, "name": "reward", "call_id": "call_1"}),
        ("reward", {"value": 1.0, "name": "tests", "agent": "coder"}),
        ("finish", {"status": "finished"}),
    ]


def test_episodes_are_leased_until_the_run_ends(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "_GONE", 0.1)
    monkeypatch.delenv("RLOOM_TASK", raising=False)
    server.tasks = [{"prompt": "a"}, None, {"prompt": "b"}]
    path = lease_file(tmp_path, server)
    seen = []
    for s in rloom.sessions(path):
        with s:
            seen.append(s.task["prompt"])
            s.reward(1.0)
        if s.task["prompt"] == "b":
            path.unlink()
    assert seen == ["a", "b"]
    assert [name for name, _ in server.reports] == ["reward", "finish"] * 2


def test_an_exception_fails_the_episode(server: Server, tmp_path: Path) -> None:
    server.tasks = ["a"]
    with pytest.raises(ValueError, match="no tool"), rloom.session(lease_file(tmp_path, server)):
        raise ValueError("no tool")
    assert server.reports == [("finish", {"status": "failed", "message": "ValueError: no tool"})]


def test_a_wrong_key_is_an_error(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lease_file(tmp_path, server, None)
    with pytest.raises(rloom.LeaseError, match="status 401"):
        rloom.session(path)
    monkeypatch.setenv("RLOOM_LEASE_KEY", KEY)
    server.tasks = [{"prompt": "a"}]
    assert rloom.session(path).task == {"prompt": "a"}


def test_without_a_run_there_is_no_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "_BEGINNING", 0.1)
    monkeypatch.delenv("RLOOM_TASK", raising=False)
    with pytest.raises(rloom.LeaseError, match="RLOOM_LEASE"):
        rloom.session()
    with pytest.raises(rloom.LeaseError, match="has ended"):
        rloom.session(tmp_path / "lease.json")
