"""Losses as the controller sends them: MessagePack of `rloom_algo::LossStep`."""

from __future__ import annotations

import struct
from typing import Any


def pack(value: Any) -> bytes:
    """Encodes a value in the widest form of its type."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return b"\xcf" + struct.pack(">Q", value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        return b"\xdb" + struct.pack(">I", len(value.encode())) + value.encode()
    if isinstance(value, dict):
        parts = [pack(key) + pack(item) for key, item in value.items()]
        return b"\xdf" + struct.pack(">I", len(parts)) + b"".join(parts)
    parts = [pack(item) for item in value]
    return b"\xdd" + struct.pack(">I", len(parts)) + b"".join(parts)


def policy(surrogate: dict[str, Any], aggregation: str, **terms: Any) -> dict[str, Any]:
    """Objective of a policy or of a process-reward model."""
    loss = {
        "surrogate": surrogate,
        "ratio_to": "old",
        "correction": {"weight": None, "rejection": None},
        "is_stale": False,
        "aggregation": aggregation,
        "kl": None,
        "entropy_coef": 0.0,
        "value": None,
        **terms,
    }
    draws = {"seed": 1, "stage": 0, "purpose": "algorithm", "ticket": 0, "sample": 0, "segment": 0}
    return {"policy": {"loss": loss, "draws": draws}}
