//! Rewards: verifiers, and their weighted sums.
//!
//! A [`Scorer`] is made of named components ([`RewardSettings`]). Each sees a [`Completion`] and gives a
//! [`Verdict`]: a value, or that it does not apply; verifiers also say whether the task was solved and
//! whether an answer could be read at all. One verifier, the outcome, decides what evaluation counts,
//! whatever is added to the value for shaping.
//!
//! Nothing is silent: a component that fails, or gives a number that is not finite, is an error that names
//! component and sample. By default it ends the run; when it is not to, it is counted.

mod completion;
mod countdown;
mod environment;
mod error;
mod exact;
mod extract;
mod format;
mod length;
pub mod math;
mod numeric;
mod random;
mod scorer;
mod settings;
mod verifier;

pub use completion::{Completion, Reward, Verdict};
pub use countdown::Countdown;
pub use environment::EnvironmentReward;
pub use error::{JudgeError, RewardError};
pub use exact::Exact;
pub use extract::Extract;
pub use format::Format;
pub use length::Length;
pub use math::Math;
pub use numeric::Numeric;
pub use random::Random;
pub use scorer::{AtWork, Scorer};
pub use settings::{ComponentSettings, Kind, OnError, RewardSettings};
pub use verifier::Truncated;
