//! Rewards: verifiers and their weighted sums.
//!
//! A [`Scorer`] has named components ([`RewardSettings`]). Each judges a [`Completion`] and returns a [`Assessment`]: a
//! value, or that it does not apply; verifiers also report whether the task is solved and whether an answer could be
//! read. One verifier, the outcome, decides what evaluation counts; other components only shape the reward.
//!
//! A component may judge the tasks of some domains only ([`DomainSet`]); to others it does not apply, and their outcome is the
//! first verifier that does.
//!
//! A component that fails or returns a value that is not finite is an error that names component and sample. What may pass is
//! tried again, here alone. Then the error by default ends the run; with `on_error = "drop"` it is counted by what failed, and
//! the completion has no reward.

mod code;
mod completion;
mod countdown;
mod diversity;
mod domains;
mod environment;
mod error;
mod exact;
mod extract;
mod fence;
mod flat_table;
mod format;
mod function;
mod instructions;
mod json_schema;
pub mod judge;
mod kind;
mod language;
mod length;
pub mod math;
mod multiple_choice;
mod numeric;
mod overlap;
mod random;
mod regex;
mod repetition;
mod retries;
mod reward_model;
mod row;
mod score;
mod scorer;
mod settings;
mod steps;
mod verifier;
mod words;

pub use code::Code;
pub use completion::{AgentText, Assessment, Completion, Reward};
pub use countdown::Countdown;
pub use diversity::Diversity;
pub use domains::DomainSet;
pub use environment::EnvironmentReward;
pub use error::{ComponentError, JudgeError, ReferenceForm, RewardError};
pub use exact::Exact;
pub use extract::Extract;
pub use format::Format;
pub use instructions::Instructions;
pub use json_schema::{JsonDocument, SchemaError};
pub use judge::{Classifier, Critics, ModelJudge};
pub use kind::Kind;
pub use language::Language;
pub use length::Length;
pub use math::Math;
pub use multiple_choice::{MultipleChoice, Scheme};
pub use numeric::Numeric;
pub use overlap::{Measure, Overlap};
pub use random::Random;
pub use regex::RegularExpression;
pub use repetition::Repetition;
pub use reward_model::{RewardBackend, RewardModel};
pub use rloom_function::{CommandFunction, HttpFunction, PythonFunction};
pub use row::RowProblem;
pub use score::Score;
pub use scorer::{CurrentComponent, Judged, Scorer};
pub use settings::{ComponentSettings, OnError, RewardSettings};
pub use steps::{StepReduction, StepRewards};
pub use verifier::Truncated;
