//! Decoder-only transformers with hand-written backward passes, and Hugging Face folders in and out
