"""The command line, which `rloom track` calls."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from rloom.track.following import Following, TrackingError
from rloom.track.trackers import TRACKERS


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="rloom track", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--to", choices=TRACKERS, required=True)
    parser.add_argument("--project", default="rloom")
    parser.add_argument("--no-follow", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    os.nice(5)  # Training has the right of way.
    try:
        with Following(arguments.run, arguments.to, arguments.project) as following:
            following.run(follow=not arguments.no_follow)
    except TrackingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
