"""Reinforcement-learning post-training for language models."""

from rloom._binary import RloomError
from rloom._native import VERSION as __version__
from rloom._native import NativeError
from rloom._run import Evaluation, Rollout, Run, Sample, Step, Validation, load_run
from rloom._train import RunFailedError, train
from rloom.agent import LeaseError, Session, session, sessions

__all__ = [
    "Evaluation",
    "LeaseError",
    "NativeError",
    "RloomError",
    "Rollout",
    "Run",
    "RunFailedError",
    "Sample",
    "Session",
    "Step",
    "Validation",
    "__version__",
    "load_run",
    "session",
    "sessions",
    "train",
]
