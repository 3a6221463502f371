//! Gangs of PyTorch ranks. The tests need `RLOOM_TEST_PYTHON`, an interpreter with torch, transformers and rloom, and
//! run with `--ignored`.
//! With `RLOOM_TEST_BACKEND=deepspeed` DeepSpeed divides the models; those of tests that name `shard` are refused.
//! With `deepspeed-matrices`, pairs of ranks also divide matrices, and tests of ranks that divide tokens are refused, too.

mod adapters;
mod conformance;
mod distillation;
mod exactness;
mod failures;
mod local_ranks;
mod publications;
mod reward_models;
pub(crate) mod support;

pub(crate) use exactness::train;
