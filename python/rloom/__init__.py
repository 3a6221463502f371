"""Reinforcement-learning post-training for language models."""

from rloom._binary import RloomError
from rloom._native import VERSION as __version__
from rloom._native import NativeError
from rloom._run import Evaluation, Rollout, Run, Sample, Step, load_run

__all__ = [
    "Evaluation",
    "NativeError",
    "RloomError",
    "Rollout",
    "Run",
    "Sample",
    "Step",
    "__version__",
    "load_run",
]
