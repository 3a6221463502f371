//! Reinforcement-learning algorithms as pure functions of per-token numbers
