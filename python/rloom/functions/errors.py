"""Errors, and their text for the run."""

from __future__ import annotations

import traceback
from pathlib import Path


class RefusedError(Exception):
    """A function that cannot be used: it does not load, or its signature is not supported."""


class ResultError(Exception):
    """A value that a function must not return."""


def describe(error: BaseException) -> str:
    """The error, then its traceback without the frames of this package."""
    if isinstance(error, RefusedError | ResultError):
        if error.__cause__ is None:
            return str(error)
        error = error.__cause__
    summary = "".join(traceback.format_exception_only(error)).strip()
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_own(f.filename)]
    if not frames:
        return summary
    trace = "".join(traceback.format_list(frames)).rstrip()
    return f"{summary}\nTraceback (most recent call last):\n{trace}"


def is_own(filename: str) -> bool:
    """True for the code of this package and of the import system."""
    folder = str(Path(globals().get("__file__", "<rloom.functions>/errors")).parent)
    return filename.startswith((folder, "<rloom.functions", "<frozen importlib", "<string>"))
