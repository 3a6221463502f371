//! Tasks from files and generators, and the order in which a run uses them.
//!
//! [`DataSettings`] selects a source: files (JSONL or Parquet, local or on a hub) or a built-in generator. [`Dataset::open`] returns the
//! tasks of one [`Split`], numbered from 0; [`Cursor`] maps positions to these numbers, epoch after epoch. Generators and
//! orders are pure functions of (seed, position), without state that would have to be replayed on resume.
//!
//! Splits are disjoint by construction: the assignment of tasks to splits does not depend on the run's seed, so runs
//! with different seeds hold out the same tasks.

mod cursor;
mod dataset;
mod error;
mod files;
mod fingerprint;
mod generator;
mod jsonl;
mod messages;
mod mixture;
mod parquet_file;
mod paths;
mod permutation;
mod prompt_format;
mod record;
mod row_kind;
mod row_rules;
mod rows;
mod settings;
mod source;
mod targets;

pub use cursor::{
    Cursor, CursorChange, CursorError, CursorFingerprint, CursorItem, Order, SourceFingerprint,
};
pub use dataset::{Dataset, Split};
pub use error::{DataError, DataSettingProblem, FieldProblem, JsonType, Location};
pub use files::FileSettings;
pub use fingerprint::{DataChange, FileFingerprint, first_change};
pub use generator::{
    ArithmeticSettings, BanditSettings, BlackjackSettings, ConnectFourSettings, CountdownSettings,
    DigitOrder, Digits, FrozenLakeSettings, GradedRows, GuessSettings, HeldOut, KuhnPokerSettings, Notation,
    Operation, ProgramsSettings, Seat, SokobanSettings, SortingSettings, Style, SudokuSettings,
    TicTacToeSettings, Wording, WordleSettings,
};
pub use mixture::WeightedSource;
pub use parquet_file::SizeProblem;
pub use paths::{DataPath, Paths};
pub use prompt_format::PromptFormat;
pub use row_kind::RowKind;
pub use row_rules::{RowRules, TooLong};
pub use rows::RowCache;
pub use settings::DataSettings;
pub use source::Source;

use permutation::Permutation;
