//! The operations of a decoder layer against references in f64, against PyTorch, and against themselves on
//! every instruction set and any number of threads.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod attention;
mod attention_bf16;
mod attention_cached;
mod attention_reference;
mod attention_shared;
mod elementwise;
mod files;
mod formats;
mod golden;
mod norm_and_rope;
mod optimizer;
mod support;
