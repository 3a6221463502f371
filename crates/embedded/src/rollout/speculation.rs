//! Drafts of what comes next, to be verified several tokens at a time.
//!
//! A sequence whose last tokens occurred in it before probably goes on as it did then. The tokens that followed are
//! drafted: a step computes their rows together with the row that is due, and draws the token after each, or gets its
//! logits for the sampler to draw from, as it always does, each position with its own random number. The rows count as
//! long as what is drawn is what was drafted. Every token is therefore chosen from the same logits by the same number as without
//! drafts, and the result is the same to the byte; a draft decides how many steps it takes, and nothing else. What
//! wrong drafts left in the cache lies behind the sequence's end, where it is overwritten before it is read.
//!
//! [`NgramIndex`] finds the drafts, [`Drafter`] decides how long they are to be.

mod cost;
mod drafter;
mod ngram;

pub(crate) use drafter::{Drafter, Lookup};
use ngram::{NgramIndex, ORDERS};
