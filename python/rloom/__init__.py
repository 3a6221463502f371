"""Reinforcement-learning post-training for language models."""

from rloom._native import VERSION as __version__
from rloom._native import NativeError

__all__ = ["NativeError", "__version__"]
