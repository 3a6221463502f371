//! Copies of published weights on the nodes.
mod block;
mod copy;
mod delta;
mod failure;
mod manifest;
mod tensors;
