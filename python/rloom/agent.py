"""Episodes for agents that RLoom trains. One file without dependencies: it can be copied to where the agent runs.

An agent that RLoom starts (`environment.command`) has one episode:

    with rloom.session() as s:
        client = OpenAI(base_url=s.base_url, api_key=s.api_key)
        ...
        s.reward(1.0)

An agent that leases episodes (`environment.lease = true`) has one after another, until the run has ended:

    for s in rloom.sessions("runs/NAME/agents/lease.json"):
        with s:
            ...
            s.reward(1.0)

At the end of the block the episode is finished; an exception makes it a failed one, which is attempted again.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LeaseError", "Session", "session", "sessions"]

# Seconds for an answer to a report.
_TIMEOUT = 60.0
# Seconds that the server holds a request for a lease.
_PATIENCE = 20.0
# Seconds without a server after which a run has ended that had one.
_GONE = 30.0
# Seconds that a run may take until it has a server: earlier stages may have none.
_BEGINNING = 3600.0

# Sessions are on this machine, which no proxy reaches.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class LeaseError(Exception):
    """There is no episode to lease: the run has ended, or the address is wrong."""


def _post(url: str, body: Mapping[str, Any], key: str = "", timeout: float = _TIMEOUT) -> Any:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with _opener.open(request, timeout=timeout) as answer:
        text = answer.read()
    return json.loads(text) if text else None


class Session:
    """An episode: its task, and the address of the policy. Also a context manager that finishes it."""

    def __init__(self, lease: Mapping[str, Any]) -> None:
        #: The task: `prompt` (text, or a list of messages), `index`, `domain`, `answer` unless the recipe hides it, and the
        #: other `fields` of its row.
        self.task: dict[str, Any] = lease["task"]
        #: Base URL for clients of OpenAI's API.
        self.base_url: str = lease["base_url"]
        #: Base URL for clients of Anthropic's API.
        self.anthropic_base_url: str = lease["anthropic_base_url"]
        #: API key for either.
        self.api_key: str = lease["api_key"]
        #: Time at which the episode ends, in seconds since 1970; None if RLoom ends the program.
        self.deadline: float | None = lease.get("deadline")
        self._reward_url: str = lease["reward_url"]
        self._finish_url: str = lease["finish_url"]
        self._is_over = False

    def reward(
        self, value: float, name: str = "reward", *, call: str | None = None, agent: str | None = None
    ) -> None:
        """Reports a reward: of the episode, or with the `id` of an answer of the call that it answers.

        The rewards of an episode are added up.
        """
        body: dict[str, Any] = {"value": float(value), "name": name}
        if call is not None:
            body["call_id"] = call
        if agent is not None:
            body["agent"] = agent
        _post(self._reward_url, body, self.api_key)

    def finish(self, failure: str | None = None) -> None:
        """Ends the episode, as a failed one if there is a failure. Later calls of the policy are refused."""
        if self._is_over:
            return
        self._is_over = True
        status = (
            {"status": "finished"} if failure is None else {"status": "failed", "message": failure[:1000]}
        )
        _post(self._finish_url, status, self.api_key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
            return
        # Without a server the run has ended, or misses the end of the session in time.
        with contextlib.suppress(OSError):
            self.finish(f"{type(error).__name__}: {error}")


def session(lease: str | os.PathLike[str] | None = None) -> Session:
    """The episode of this program, or one that it leases. Waits for a lease.

    `lease` is the path of the run's `agents/lease.json`, by default that in `RLOOM_LEASE`. A key in `RLOOM_LEASE_KEY` is used
    instead of that in the file.
    """
    if lease is None and "RLOOM_TASK" in os.environ:
        return Session(
            {
                "task": json.loads(os.environ["RLOOM_TASK"]),
                "base_url": os.environ["OPENAI_BASE_URL"],
                "anthropic_base_url": os.environ["ANTHROPIC_BASE_URL"],
                "api_key": os.environ["OPENAI_API_KEY"],
                "reward_url": os.environ["RLOOM_REWARD_URL"],
                "finish_url": os.environ["RLOOM_FINISH_URL"],
            }
        )
    leased = next(sessions(lease), None)
    if leased is None:
        raise LeaseError("the run has ended")
    return leased


def sessions(lease: str | os.PathLike[str] | None = None) -> Iterator[Session]:
    """Leases episodes, one after another, until the run has ended. Waits for the run to begin."""
    path = lease if lease is not None else os.environ.get("RLOOM_LEASE")
    if path is None:
        raise LeaseError("RLOOM_LEASE does not name the file lease.json of a run, and there is no RLOOM_TASK")
    last, patience = time.monotonic(), _BEGINNING
    while True:
        try:
            # Read again each time: a resumed run has another address.
            address = json.loads(Path(path).read_text())
            key = os.environ.get("RLOOM_LEASE_KEY") or address["key"] or ""
            leased = _post(address["url"], {"wait_seconds": _PATIENCE}, key, _PATIENCE + _TIMEOUT)
        except urllib.error.HTTPError as error:
            if error.code not in (429, 503):
                raise LeaseError(f"status {error.code}: {error.read().decode(errors='replace')}") from error
        except (OSError, ValueError):
            pass  # No file or no server: the run has ended, or is to be resumed.
        else:
            last, patience = time.monotonic(), _GONE
            if leased is not None:
                yield Session(leased)
                last = time.monotonic()
            continue
        if time.monotonic() - last > patience:
            return
        time.sleep(0.5)
