//! Gangs of PyTorch ranks. The tests need `RLOOM_TEST_PYTHON`, an interpreter with torch, transformers and rloom, and
//! run with `--ignored`.

mod conformance;
mod exactness;
mod failures;
mod local_ranks;
mod support;
