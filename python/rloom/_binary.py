"""The `rloom` binary of this package."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn


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


def main() -> NoReturn:
    """Replaces this process by the binary: the console script `rloom`."""
    try:
        binary = path()
        os.execv(binary, ["rloom", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"error: {error}")
