"""Starts a run from Python."""

from __future__ import annotations

import contextlib
import ctypes
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
from rloom._run import Run, folder, load_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

INTERRUPTED = 130
PR_SET_PDEATHSIG = 1


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
    sets = [f"--set={key}={toml(value)}" for key, value in settings.items()]
    with contextlib.ExitStack() as stack:
        environ = _binary.environment()
        if served:
            caller = stack.enter_context(contextlib.closing(Caller(served)))
            environ["RLOOM_CALLER"] = str(caller.path)
        if resume is None:
            files = [os.fspath(recipe) for recipe in recipes]
            directory = _new_folder([*files, *sets], run_name, environ)
            arguments = [*files, f"--run-name={directory.name}", *sets]
        else:
            directory = folder(resume)
            arguments = [f"--resume={directory}", *sets]
        return _ended(["train", *arguments], directory, environ, quiet=quiet)


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


def _new_folder(arguments: list[str], run_name: str | None, environ: dict[str, str]) -> Path:
    """Folder of the new run: the recipe's, with a number if that exists. Checks the configuration."""
    command = [str(_binary.path()), "train", *arguments, "--dry-run"]
    done = subprocess.run([*command, "--json"], env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        # Once more, for the message with the excerpts of the files.
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        raise RunFailedError(_binary.error_of(done.stderr), done.returncode, None)
    plan = json.loads(done.stdout)
    directory = Path(plan["plan"]["run_directory"])
    if run_name is not None:
        return directory.with_name(run_name)
    candidate, number = directory, 1
    while candidate.exists() and plan["config"]["run"].get("resume") != "auto":
        number += 1
        candidate = directory.with_name(f"{directory.name}-{number}")
    return candidate


def _ended(arguments: list[str], directory: Path, environ: dict[str, str], *, quiet: bool) -> Run:
    """Runs the binary to its end. Its messages go to `sys.stderr` of this process."""
    command = [str(_binary.path()), *arguments, *(["--quiet"] if quiet else [])]
    process = subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        preexec_fn=_own_group(),
    )
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
    if code not in (0, INTERRUPTED):
        message = (
            f"rloom was ended by {signal.Signals(-code).name}"
            if code < 0
            else _binary.error_of("\n".join(last))
        )
        raise RunFailedError(message, code, directory if directory.is_dir() else None)
    return load_run(directory)


def _own_group() -> Callable[[], None]:
    """Prepares the child: it gets Ctrl-C from this process alone, and saves when this process dies."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)

    def prepare() -> None:
        os.setpgid(0, 0)
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    return prepare


def _forward(stream: TextIO, last: deque[str]) -> None:
    for line in stream:
        last.append(line.rstrip("\n"))
        # Nothing reads what is written there, or a notebook has replaced it.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(line)
            sys.stderr.flush()
