//! The operations of a decoder layer compared with references in f64, with PyTorch, and with themselves on every
//! instruction set and any number of threads.
#![expect(clippy::unwrap_used, reason = "tests and their helpers fail by panicking")]

mod attention;
mod attention_bf16;
mod attention_cached;
mod attention_reference;
mod attention_shared;
mod attention_window;
mod elementwise;
mod files;
mod formats;
mod golden;
mod norm_and_rope;
mod optimizer;
mod support;
