use std::fmt;

use crate::{Level, Method};

/// A per-token or per-episode number, named in errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    /// Current log-probability.
    Logprob,
    /// Entropy over the vocabulary.
    Entropy,
    /// Log-probability before the batch's first optimiser step.
    OldLogprob,
    /// The sampler's log-probability.
    BehaviorLogprob,
    /// The reference model's log-probability.
    ReferenceLogprob,
    /// Advantage.
    Advantage,
    /// A coefficient that the loss returns.
    Coefficient,
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Logprob => "log-probability",
            Self::Entropy => "entropy",
            Self::OldLogprob => "old log-probability",
            Self::BehaviorLogprob => "behaviour log-probability",
            Self::ReferenceLogprob => "reference log-probability",
            Self::Advantage => "advantage",
            Self::Coefficient => "loss coefficient",
        })
    }
}

/// A key that was set and that nothing would read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// Dotted, below the stage's `[algorithm]`.
    pub key: &'static str,
    /// Why nothing reads it.
    pub reason: &'static str,
}

fn unread_list(keys: &[Unread]) -> String {
    let lines: Vec<String> = keys.iter().map(|u| format!("{} ({})", u.key, u.reason)).collect();
    lines.join("; ")
}

fn suggestion(nearest: Option<&Method>) -> String {
    match nearest {
        Some(m) => format!("did you mean \"{}\"?", m.name()),
        None => format!("methods are {}", Method::ALL.map(Method::name).join(", ")),
    }
}

/// What the algorithms refuse.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AlgoError {
    /// No method of that name.
    #[error("there is no method \"{name}\"\nhint: {}", suggestion(.nearest.as_ref()))]
    UnknownMethod {
        /// What was asked for.
        name: String,
        /// The method whose name is close to it.
        nearest: Option<Method>,
    },
    /// Settings that nothing would read.
    #[error("not read by method \"{method}\": {}\nhint: remove what is not read", unread_list(.keys))]
    NotRead {
        /// The stage's method.
        method: Method,
        /// All such keys.
        keys: Vec<Unread>,
    },
    /// A value or combination that makes no sense.
    #[error("{key}: {reason}\nhint: {hint}")]
    Refused {
        /// The key at fault, dotted, below the stage's `[algorithm]`.
        key: &'static str,
        /// What is wrong with it.
        reason: String,
        /// What to do instead.
        hint: String,
    },
    /// Arrays that do not belong together.
    #[error("{what} has {got} entries for {expected} policy tokens")]
    Length {
        /// Which array.
        what: Score,
        /// Its length.
        got: usize,
        /// What the rows or the log-probabilities ask for.
        expected: usize,
    },
    /// Rows do not tile the flat arrays.
    #[error(
        "row {row} is {start}..{end}, which does not continue at {expected}: rows tile the policy tokens in order"
    )]
    Rows {
        /// The first row out of place; the number of rows where they end too early.
        row: usize,
        /// Its start.
        start: usize,
        /// Its end.
        end: usize,
        /// Where it should start, or where the rows should end.
        expected: usize,
    },
    /// An input that the loss reads was not given.
    #[error("the loss reads the {what} of every token and none was given")]
    Missing {
        /// Which one.
        what: Score,
    },
    /// NaN or infinity.
    #[error("{what} is {value} at row {row}, policy token {token}")]
    NonFinite {
        /// Which number.
        what: Score,
        /// The sequence, by its place in the batch's rows.
        row: usize,
        /// The policy token within the sequence.
        token: usize,
        /// NaN, inf or -inf.
        value: f64,
    },
    /// NaN or infinity among the rewards or what is subtracted from them.
    #[error("{what} is {value} in group {group}, episode {episode}")]
    NonFiniteEpisode {
        /// "reward", or which log-probability.
        what: &'static str,
        /// The group's place among those given.
        group: usize,
        /// The episode's place in its group.
        episode: usize,
        /// NaN, inf or -inf.
        value: f64,
    },
    /// An episode's log-probabilities do not match its number of policy tokens.
    #[error(
        "group {group}, episode {episode}: {got} {what} entries for {expected} policy tokens, and the KL in the \
         reward reads them all"
    )]
    EpisodeLength {
        /// Which array.
        what: Score,
        /// The group's place among those given.
        group: usize,
        /// The episode's place in its group.
        episode: usize,
        /// Its length.
        got: usize,
        /// Its number of policy tokens.
        expected: usize,
    },
    /// A sequence-level loss was given an advantage that differs from token to token.
    #[error("row {row}: a loss at {} level needs one advantage per sequence, and it changes at policy token {token}", .level.name())]
    UnevenAdvantage {
        /// The sequence.
        row: usize,
        /// The first token with another advantage.
        token: usize,
        /// The loss's level.
        level: Level,
    },
    /// The micro-batches and the counts of the optimiser step disagree.
    #[error(
        "the step's counts say {counted} {what}, its micro-batches hold {seen}: counts are of the whole optimiser step"
    )]
    Counts {
        /// "tokens" or "sequences".
        what: &'static str,
        /// By the counts.
        counted: u64,
        /// Seen so far.
        seen: u64,
    },
    /// `constant_length` without its constant.
    #[error(
        "loss_aggregation \"constant_length\" divides by the completion limit, and the step's counts say 0"
    )]
    NoCompletionLimit,
}

impl AlgoError {
    /// Keys at fault, dotted, below the stage's `[algorithm]`, so that a reader can point at their lines.
    pub fn keys(&self) -> Vec<&'static str> {
        match self {
            Self::NotRead { keys, .. } => keys.iter().map(|u| u.key).collect(),
            Self::Refused { key, .. } => vec![key],
            _ => Vec::new(),
        }
    }

    /// The batch row at fault, where one is.
    pub fn row(&self) -> Option<usize> {
        match self {
            Self::NonFinite { row, .. } | Self::UnevenAdvantage { row, .. } => Some(*row),
            _ => None,
        }
    }
}
