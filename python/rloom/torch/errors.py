"""Errors of a rank, by kind. The kind is what the controller reads."""

from __future__ import annotations


class RankError(Exception):
    """A failed job that leaves the weights unchanged; `fields` are the details that the controller needs."""

    kind = "engine"

    def __init__(self, message: str, **fields: object) -> None:
        super().__init__(message)
        self.fields = fields


class ModelError(RankError):
    """A model or folder that cannot be opened, read or written."""

    kind = "model"


class MissingPackageError(RankError):
    """A package that the environment of the ranks lacks."""

    kind = "model"

    def __init__(self, package: str, needed_by: str, hint: str) -> None:
        super().__init__(f"{needed_by} needs the Python package {package}", hint=hint)


class CheckpointError(RankError):
    """A checkpoint that cannot be written or restored."""

    kind = "checkpoint"


class BatchError(RankError):
    """A micro-batch that the model cannot compute."""

    kind = "batch"


class LossError(RankError):
    """A loss that refuses its inputs."""

    kind = "loss"


class NotFiniteError(RankError):
    """A score, loss or gradient that is infinite or NaN."""

    kind = "not_finite"

    def __init__(self, what: str, micro_batch: int | None = None) -> None:
        super().__init__(f"the {what} is not finite", what=what, micro_batch=micro_batch)


class TransferError(RankError):
    """Weights that could not be sent to a server."""

    kind = "transfer"


class PeerFailedError(RankError):
    """Another rank failed in the same job and reports why."""

    kind = "peer_failed"
