"""Functions of users: rewards and environments, called by a run in processes of their own."""

from __future__ import annotations

from .errors import RefusedError
from .serving import serve

__all__ = ["RefusedError", "serve"]
