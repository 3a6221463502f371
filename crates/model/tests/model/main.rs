//! The model's public interface: compared with PyTorch and transformers, with finite differences, and with itself;
//! files as found in practice.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test helpers fail by panicking")]

mod candidates;
mod config;
mod decode;
mod files;
mod finite_differences;
mod golden;
mod gradients;
mod lora;
mod memory;
mod optimizer;
mod quantized;
mod reference;
mod rewards;
mod shared;
mod value;
