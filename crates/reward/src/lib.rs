//! Verifiers and their weighted sums
