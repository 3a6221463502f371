"""The `rloom` binary of this package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator


class RloomError(RuntimeError):
    """A failure of the binary, with its message."""


def path() -> Path:
    """Path of the binary: `RLOOM_BINARY`, or the one in this package."""
    if named := os.environ.get("RLOOM_BINARY"):
        return Path(named)
    own = Path(__file__).parent / "bin" / "rloom"
    if not own.exists():
        raise FileNotFoundError(
            f"{own} does not exist: the package was installed without the rloom binary; "
            "reinstall it, or set RLOOM_BINARY to the path of one"
        )
    return own


def environment() -> dict[str, str]:
    """Environment of the binary, whose `python3` is this interpreter."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return {**os.environ, "PATH": os.pathsep.join(folders)}


def lines(*arguments: str) -> Iterator[str]:
    """Lines that a command writes to standard output."""
    with subprocess.Popen(
        [str(path()), *arguments],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        yield from process.stdout
        # A command that writes data has little to say, so that its messages fit into the pipe meanwhile.
        messages = process.stderr.read()
    if process.returncode:
        raise RloomError(error_of(messages))


def error_of(messages: str) -> str:
    """The error at the end of the binary's messages, which begins with the last line `error…`."""
    all_lines = messages.splitlines()
    starts = [number for number, line in enumerate(all_lines) if line.startswith("error")]
    text = "\n".join(all_lines[starts[-1] if starts else -20 :]).strip()
    return text.removeprefix("error: ") or "rloom failed without a message"


def main() -> NoReturn:
    """Replaces this process by the binary: the console script `rloom`."""
    try:
        binary = path()
        os.execve(binary, ["rloom", *sys.argv[1:]], environment())
    except OSError as error:
        sys.exit(f"error: {error}")
