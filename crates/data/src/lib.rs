//! Where tasks come from, and in which order.
//!
//! [`DataSettings`] names a source: files (JSONL or Parquet) or a built-in generator. [`Dataset::open`] gives
//! the tasks of one [`Split`] of it, numbered from 0; [`Cursor`] walks over those numbers, epoch after epoch.
//! Generators and orders are pure functions of (seed, position): nothing is drawn from a stream that has to
//! be replayed, so resuming is only a matter of remembering a number.
//!
//! Splits are disjoint by construction, not by chance: which tasks are held out is fixed before any task is
//! drawn and does not depend on the run's seed, so runs of several seeds are measured on the same kind of
//! unseen task.

mod cursor;
mod dataset;
mod error;
mod files;
mod generator;
mod jsonl;
mod parquet_rows;
mod permutation;
mod presentation;
mod record;
mod settings;

pub use cursor::{Cursor, CursorError, CursorState, Order, Place};
pub use dataset::{Dataset, Split};
pub use error::{DataError, Location};
pub use files::{FileSettings, Paths};
pub use generator::{
    ArithmeticSettings, CountdownSettings, DigitOrder, Digits, GuessSettings, HeldOut, Operation,
    SortingSettings, Style, Wording,
};
pub use permutation::Permutation;
pub use presentation::Presentation;
pub use settings::{DataSettings, Source};
