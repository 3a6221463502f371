//! The operations compared with references, with PyTorch, and with themselves on every instruction set and any number of
//! threads.

mod fused;
mod head;
mod head_bf16;
mod head_divergence;
mod head_draw;
mod int8;
mod layers;
mod linear;
mod linear_bf16;
mod portable;
mod support;
