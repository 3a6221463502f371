//! Speculative decoding: drafts of the next tokens, verified several at a time.
//!
//! A sequence whose last tokens occurred in it before probably continues as it did then. The tokens that followed are
//! drafted: a step computes their rows together with the regular one, and each position is sampled as usual, from its own
//! logits with its own random number. Rows count as long as the sampled tokens equal the drafted ones. Every token is
//! therefore sampled from the same logits with the same number as without drafts, and the result is bitwise identical;
//! drafts affect only the number of steps. Keys and values of wrong drafts lie beyond the sequence's end, where they are
//! overwritten before they are read.
//!
//! [`NgramIndex`] finds the drafts, [`Drafter`] determines their length.

mod cost;
mod drafter;
mod ngram;

pub(crate) use drafter::{Drafter, Lookup};
use ngram::{NgramIndex, ORDERS};
