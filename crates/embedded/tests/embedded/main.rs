//! The rollout and training engines.

mod rollout;
mod samplers;
mod train;
