//! Judges: language models that give rewards.
//!
//! An asker puts the texts into a prompt, asks a model of a server or of this process, and reads the verdict from its
//! answer. An answer without a verdict in the required form is a failure, never a value.

mod asker;
mod cache;
mod calibrate;
mod calibration;
mod chat;
mod classifier;
mod client;
mod critics;
mod digest;
mod error;
mod form;
mod gate;
mod kind;
mod labelled;
mod model;
mod pairs;
mod prompt;
mod rate;
mod reward;
mod settings;
mod verdict_line;

pub use calibrate::calibrate;
pub use calibration::{Agreement, Calibration, CalibrationError, MasterKey};
pub use critics::{Critic, Critics};
pub use error::{ModelError, Unreadable};
pub(crate) use gate::{Clock, Gate};
pub use model::{Answer, JudgeModel, JudgeModels, Question, RewardModelKind, RewardScorer};
pub(crate) use rate::Rate;
pub use settings::{Against, CacheSettings, Classifier, Criterion, Limits, ModelJudge, VerdictKind};
