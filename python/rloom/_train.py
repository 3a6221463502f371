"""Starts a run from Python."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rloom import _binary
from rloom._caller import Caller
from rloom._run import Run, load_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

INTERRUPTED = 130


class RunFailedError(_binary.RloomError):
    """A run that failed, with the message of the binary."""

    def __init__(self, message: str, exit_code: int, run: Path | None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.run = run
        """Folder of the run; None if it was not started."""


def train(
    *recipes: str | os.PathLike[str],
    reward: Callable[..., Any] | None = None,
    environment: Callable[..., Any] | None = None,
    functions: Mapping[str, Callable[..., Any]] | None = None,
    solved_at: float = 1.0,
    overrides: Mapping[str, Any] | None = None,
    run_name: str | None = None,
    resume: str | os.PathLike[str] | None = None,
    quiet: bool = False,
) -> Run:
    """Trains a recipe, or resumes a run, in a child process, and returns the run when it has ended.

    `reward` and `environment` take the place of those of the recipe and are called in this process;
    `functions` are those that the recipe itself names as `caller:NAME`. Evaluations count a task as solved
    from the reward `solved_at` on. `overrides` are settings of the recipe by dotted key. The first Ctrl-C
    finishes the current step and saves, the second stops at once; both raise KeyboardInterrupt when the run
    has ended.
    """
    if bool(recipes) == (resume is not None):
        raise ValueError("pass the files of a recipe, or `resume`")
    served = dict(functions or {})
    settings = dict(overrides or {})
    for name, function in (("reward", reward), ("environment", environment)):
        if function is not None:
            served[name] = function
            settings.update(_of_caller(name, solved_at))
    arguments = [os.fspath(recipe) for recipe in recipes]
    arguments += [f"--set={key}={toml(value)}" for key, value in settings.items()]
    if run_name is not None:
        arguments.append(f"--run-name={run_name}")
    if resume is not None:
        arguments.append(f"--resume={os.fspath(resume)}")
    if quiet:
        arguments.append("--quiet")
    environ = _binary.environment()
    if not served:
        return _run(arguments, environ)
    with contextlib.closing(Caller(served)) as caller:
        return _run(arguments, {**environ, "RLOOM_CALLER": str(caller.path)})


def _of_caller(name: str, solved_at: float) -> dict[str, Any]:
    """Settings that replace the recipe's reward or environment by a function of this process.

    One worker calls it, so that it need not be safe to call from several threads.
    """
    function = {"kind": "python", "function": f"caller:{name}", "workers": 1}
    if name == "environment":
        return {"environment": function}
    return {"reward.components": [{**function, "solved_at": solved_at}]}


def toml(value: Any) -> str:
    """A value in the syntax of TOML, on one line."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {toml(item)}' for key, item in value.items())}}}"
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, (str, bool, int, float)):
        return json.dumps(value, ensure_ascii=False)
    raise TypeError(f"{value!r} has no form in TOML")


def _run(arguments: list[str], environ: dict[str, str]) -> Run:
    """Runs the binary to its end. Its messages go to `sys.stderr` of this process."""
    process = subprocess.Popen(
        [str(_binary.path()), "train", "--owned", *arguments],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    assert process.stderr is not None
    last: deque[str] = deque(maxlen=200)
    reader = threading.Thread(
        target=_forward, args=(process.stderr, last), name="rloom-messages", daemon=True
    )
    reader.start()
    is_interrupted = False
    while True:
        try:
            code = process.wait()
            break
        except KeyboardInterrupt:
            is_interrupted = True
            process.send_signal(signal.SIGINT)
    reader.join(timeout=10)
    if is_interrupted:
        raise KeyboardInterrupt
    # Empty if the binary failed before.
    directory = process.stdout.readline().rstrip("\n")
    run = Path(directory) if os.path.isdir(directory) else None
    if run is not None and code in (0, INTERRUPTED):
        return load_run(run)
    if code < 0:
        raise RunFailedError(f"rloom was ended by {signal.Signals(-code).name}", code, run)
    raise RunFailedError(_binary.error_of("\n".join(last)), code, run)


def _forward(stream: TextIO, last: deque[str]) -> None:
    for line in stream:
        last.append(line.rstrip("\n"))
        # Nothing reads what is written there, or a notebook has replaced it.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(line)
            sys.stderr.flush()
