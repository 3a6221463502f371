//! The operations of a decoder layer against references in f64, against PyTorch, and against themselves on every
//! instruction set and any number of threads.

mod attention;
mod attention_cached;
mod attention_reference;
mod support;
