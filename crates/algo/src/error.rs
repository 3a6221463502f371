use std::fmt;

pub(crate) use crate::refusal::{Refusal, UnreadReason};
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
    /// The policy's log-probability at half the temperature.
    SharpenedLogprob,
    /// Advantage.
    Advantage,
    /// The value head's output.
    Value,
    /// Log-probability under the process-reward model.
    PrmLogprob,
    /// Log-probability under what the process-reward model started from.
    PrmReferenceLogprob,
    /// Position of the proximal policy between sampler and current policy.
    Interpolation,
    /// The value before the batch's first optimiser step.
    OldValue,
    /// Target of a value.
    Return,
    /// Outcome of an episode, 0 to 1.
    Outcome,
    /// Margin of a preference.
    Margin,
    /// Divergence of the student from its teacher.
    Divergence,
    /// The student's log-probability of a candidate.
    CandidateLogprob,
    /// The teacher's log-probability of a candidate.
    TeacherLogprob,
    /// A coefficient that the loss returns.
    Coefficient,
}

impl Score {
    /// Name in errors.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Logprob => "log-probability",
            Self::Entropy => "entropy",
            Self::OldLogprob => "old log-probability",
            Self::BehaviorLogprob => "behaviour log-probability",
            Self::ReferenceLogprob => "reference log-probability",
            Self::SharpenedLogprob => "log-probability at half the temperature",
            Self::Advantage => "advantage",
            Self::Value => "value",
            Self::PrmLogprob => "process-reward log-probability",
            Self::PrmReferenceLogprob => "process-reward reference log-probability",
            Self::Interpolation => "interpolation",
            Self::OldValue => "old value",
            Self::Return => "return",
            Self::Outcome => "outcome",
            Self::Margin => "margin",
            Self::Divergence => "divergence from the teacher",
            Self::CandidateLogprob => "candidate log-probability",
            Self::TeacherLogprob => "teacher log-probability",
            Self::Coefficient => "loss coefficient",
        }
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A key that was set and that nothing would read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// Dotted, below the stage's `[algorithm]`.
    pub key: &'static str,
    /// The reason.
    pub reason: UnreadReason,
}

fn unread_list(keys: &[Unread]) -> String {
    let lines: Vec<String> = keys.iter().map(|u| format!("{} ({})", u.key, u.reason)).collect();
    lines.join("; ")
}

fn suggestion(nearest: Option<&Method>) -> String {
    match nearest {
        Some(m) => format!("did you mean \"{}\"?", m.name()),
        None => {
            format!("methods are {}", Method::ALL.iter().map(|m| m.name()).collect::<Vec<_>>().join(", "))
        }
    }
}

/// Errors of settings, advantages and losses.
#[derive(Debug, Clone, PartialEq, miette::Diagnostic, thiserror::Error)]
pub enum AlgoError {
    /// No method of that name.
    #[error("unknown method \"{name}\"")]
    #[diagnostic(help("{}", suggestion(nearest.as_ref())))]
    UnknownMethod {
        /// The given name.
        name: String,
        /// The method whose name is close to it.
        nearest: Option<Method>,
    },
    /// Settings that nothing would read.
    #[error("not read by method \"{method}\": {}", unread_list(.keys))]
    #[diagnostic(help("remove these keys"))]
    NotRead {
        /// The stage's method.
        method: Method,
        /// All such keys.
        keys: Vec<Unread>,
    },
    /// A value or combination that makes no sense.
    #[error("{key}: {reason}")]
    #[diagnostic(help("{hint}"))]
    Refused {
        /// The key at fault, dotted, below the stage's `[algorithm]`.
        key: &'static str,
        /// The reason.
        reason: Refusal,
        /// A way out.
        hint: &'static str,
    },
    /// Arrays that do not belong together.
    #[error("{what} has {got} entries for {expected} policy tokens")]
    Length {
        /// The array.
        what: Score,
        /// Its length.
        got: usize,
        /// Length of the rows or the log-probabilities.
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
        /// Its expected start, or the expected end of the rows.
        expected: usize,
    },
    /// An input that the loss reads was not given.
    #[error("the loss reads the {what} and none was given")]
    Missing {
        /// Its name or number.
        what: Score,
    },
    /// NaN or infinity.
    #[error("{what} is {value} at row {row}, policy token {token}")]
    NonFinite {
        /// The number.
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
    /// An episode's array does not match its number of policy tokens.
    #[error(
        "group {group}, episode {episode}: {got} {what} entries for {expected} policy tokens, and the advantage reads \
         them all"
    )]
    EpisodeLength {
        /// The array.
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
    /// A group without the one greedy episode that its others are compared with.
    #[error("group {group} has {got} episodes of role baseline, and the advantage compares with exactly one")]
    BaselineEpisodes {
        /// The group's place among those given.
        group: usize,
        /// Their number.
        got: usize,
    },
    /// Episodes of one group with different named rewards, or without any.
    #[error("group {group}, episode {episode}: {got} named rewards where the advantage reads {}", .expected.max(&1))]
    NamedRewards {
        /// The group's place among those given.
        group: usize,
        /// The episode's place in its group.
        episode: usize,
        /// Their number.
        got: usize,
        /// Their number in the group's first episode.
        expected: usize,
    },
    /// An episode whose turns were not combined with those of other episodes.
    #[error(
        "group {group}, episode {episode}: the advantage reads rewards of its turns in combination with those of other episodes, \
         and there are none"
    )]
    NotRecombined {
        /// The group's place among those given.
        group: usize,
        /// The episode's place in its group.
        episode: usize,
    },
    /// A step outside its episode, or before the end of the step before it.
    #[error(
        "group {group}, episode {episode}: step {step} is policy tokens {start}..{end} of {tokens}: steps are in order, \
         do not overlap and lie within the episode"
    )]
    StepTokens {
        /// The group's place among those given.
        group: usize,
        /// The episode's place in its group.
        episode: usize,
        /// The step's place in its episode.
        step: usize,
        /// Its first policy token.
        start: usize,
        /// The policy token after its last.
        end: usize,
        /// Policy tokens of the episode.
        tokens: usize,
    },
    /// A labelled step that is empty or ends outside of its row.
    #[error(
        "row {row}: step {step} ends after {end} of {tokens} policy tokens: steps are in order and have at least one token each"
    )]
    StepEnd {
        /// The sequence.
        row: usize,
        /// The step's place in its row.
        step: usize,
        /// Policy tokens up to its end.
        end: usize,
        /// Policy tokens of the row.
        tokens: usize,
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
    /// A per-row array that does not belong to the rows.
    #[error("{what} has {got} entries for {expected} rows")]
    RowLength {
        /// "mask", "episode_tokens" or "outcome".
        what: &'static str,
        /// Its length.
        got: usize,
        /// Rows of the batch.
        expected: usize,
    },
    /// An outcome that is no probability.
    #[error("the outcome of row {row} is {value}: the process-reward model learns from outcomes from 0 to 1")]
    OutcomeRange {
        /// The sequence.
        row: usize,
        /// Its outcome.
        value: f64,
    },
    /// Rows that do not form pairs.
    #[error(
        "row {row} is out of place: rows of a loss of pairs alternate between a chosen and a rejected completion, each with \
         policy tokens"
    )]
    NotPaired {
        /// The first such row.
        row: usize,
    },
    /// A step of one completion for a loss that joins prompts with completions of others.
    #[error(
        "the optimiser step has one completion, and the loss compares with completions of other prompts: `groups_per_batch` \
         must be 2 or more"
    )]
    OneCompletion,
    /// A group whose rewards are tied, for a method that trains on pairs.
    #[error("group {ticket} has no best and worst episode: its rewards are equal")]
    NoPair {
        /// The group's ticket.
        ticket: u64,
    },
    /// An episode of several segments in a pair.
    #[error(
        "an episode of group {ticket} has {segments} segments, and a preference pair is of whole completions"
    )]
    #[diagnostic(help("use an environment without `history` and with a single agent"))]
    DividedPair {
        /// The group's ticket.
        ticket: u64,
        /// Number of segments.
        segments: usize,
    },
    /// A correction of single tokens for a surrogate that has none.
    #[error("the surrogate is one term per sequence, and its correction weighs or rejects single tokens")]
    #[diagnostic(help(
        "weigh at level \"sequence\" or \"geometric\", reject at \"sequence_mean\" or \"sequence_max\""
    ))]
    TokenCorrection,
    /// A loss of step scope was given one micro-batch.
    #[error("the loss picks tokens out of the whole optimiser step, and one micro-batch was given")]
    #[diagnostic(help("score all micro-batches first, then call step_loss with them"))]
    StepScope,
    /// Micro-batches and scores do not pair up.
    #[error("{batches} micro-batches were given with the scores of {scores}")]
    MicroBatches {
        /// Micro-batches.
        batches: usize,
        /// Scores.
        scores: usize,
    },
    /// The step has no micro-batch of that number.
    #[error("the step has {micro_batches} micro-batches, and number {micro_batch} was requested")]
    NoMicroBatch {
        /// The requested number.
        micro_batch: usize,
        /// Micro-batches of the step.
        micro_batches: usize,
    },
    /// An error in one micro-batch of a step.
    #[error("micro-batch {micro_batch}: {error}")]
    #[diagnostic(forward(error))]
    InMicroBatch {
        /// Its name or number.
        micro_batch: usize,
        /// The error; its row is counted within the micro-batch.
        error: Box<AlgoError>,
    },
}

impl AlgoError {
    pub(crate) fn out_of_range(
        key: &'static str,
        value: f64,
        must: &'static str,
        hint: &'static str,
    ) -> Self {
        Self::Refused { key, reason: Refusal::OutOfRange { value, must }, hint }
    }

    /// Keys at fault, dotted, below the stage's `[algorithm]`, so that a reader can point at their lines.
    pub fn keys(&self) -> Vec<&'static str> {
        match self {
            Self::NotRead { keys, .. } => keys.iter().map(|u| u.key).collect(),
            Self::Refused { key, .. } => vec![key],
            _ => Vec::new(),
        }
    }

    /// True if a score, a coefficient, a reward or a value is NaN or infinite.
    pub fn is_not_finite(&self) -> bool {
        match self {
            Self::NonFinite { .. } | Self::NonFiniteEpisode { .. } => true,
            Self::InMicroBatch { error, .. } => error.is_not_finite(),
            _ => false,
        }
    }

    /// The batch row at fault, where one is.
    pub fn row(&self) -> Option<usize> {
        match self {
            Self::NonFinite { row, .. }
            | Self::UnevenAdvantage { row, .. }
            | Self::OutcomeRange { row, .. }
            | Self::NotPaired { row } => Some(*row),
            Self::InMicroBatch { error, .. } => error.row(),
            _ => None,
        }
    }

    /// The micro-batch of the step at fault, where [`step_loss`](crate::step_loss) names one.
    pub fn micro_batch(&self) -> Option<usize> {
        match self {
            Self::InMicroBatch { micro_batch, .. } => Some(*micro_batch),
            _ => None,
        }
    }
}
