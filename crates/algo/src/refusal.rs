//! Reasons for rejecting settings.

use std::fmt;

use crate::{AdvantageKind, DistillationKind, KlEstimator, LossKind, PreferenceKind, Text};

/// An invalid value or combination of settings.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// A number outside its range.
    #[error("{value} is not {must}")]
    OutOfRange {
        /// The number.
        value: f64,
        /// The allowed range, as in "is not …".
        must: &'static str,
    },
    /// A Python function without a valid name.
    #[error("{given:?} is not `file.py:name` or `caller:name`")]
    NoFunction {
        /// The given name; empty if there is none.
        given: Text,
    },
    /// A count of 0.
    #[error("0 is too few")]
    TooFew,
    /// A group of one for an advantage that compares.
    #[error("a group of {group_size} has nothing to compare: advantage \"{}\" is 0 in it", .advantage.name())]
    NothingToCompare {
        /// Episodes per group.
        group_size: u32,
        /// The advantage.
        advantage: AdvantageKind,
    },
    /// Dynamic sampling with groups of one.
    #[error("the outcomes of a group of one are always all equal, so every group would be replaced")]
    EveryGroupFiltered,
    /// Bounds on the length that exclude each other.
    #[error("{max} is less than filter.min_tokens = {min}: no episode would be trained on")]
    NoEpisodeFits {
        /// `filter.min_tokens`.
        min: u64,
        /// `filter.max_tokens`.
        max: u64,
    },
    /// Several optimiser steps on the same samples without an importance ratio.
    #[error(
        "{epochs} x {minibatches} optimiser steps per batch with a loss without a ratio: after the first step the \
         samples are no longer the policy's, and nothing corrects for it"
    )]
    StepsWithoutRatio {
        /// Passes over each batch.
        epochs: u32,
        /// Optimizer steps per pass.
        minibatches: u32,
    },
    /// A loss over sequences with an advantage per token.
    #[error(
        "loss \"{}\" at sequence level needs one advantage per episode, and advantage \"{}\" has one per token",
        .loss.name(), .advantage.name()
    )]
    AdvantagePerToken {
        /// The loss.
        loss: LossKind,
        /// The advantage.
        advantage: AdvantageKind,
    },
    /// An advantage that is another one without whitening.
    #[error("without whitening, advantage \"{}\" is \"{}\"", .advantage.name(), .without.name())]
    SameWithoutWhitening {
        /// The advantage.
        advantage: AdvantageKind,
        /// The equivalent advantage.
        without: AdvantageKind,
    },
    /// k1 in the loss.
    #[error("k1 as a loss has a gradient of zero in expectation: it adds noise and no pull to the reference")]
    K1InLoss,
    /// Another estimator than k1 in the reward.
    #[error("{} in the reward does not give the gradient of the KL: there it is k1", .estimator.name())]
    NotInReward {
        /// The estimator.
        estimator: KlEstimator,
    },
    /// A KL in the reward with an advantage that has no place for it.
    #[error("advantage \"{}\" has no place for a KL in the reward", .advantage.name())]
    NoKlInReward {
        /// The advantage.
        advantage: AdvantageKind,
    },
    /// A KL times a ratio that the loss does not have.
    #[error("loss \"{}\" has no ratio to the proximal policy", .loss.name())]
    NoRatio {
        /// The loss.
        loss: LossKind,
    },
    /// An interpolated proximal policy with a ratio to the sampler.
    #[error("the ratio is taken to the sampler, so nothing reads an interpolated proximal policy")]
    InterpolationUnread,
    /// An interpolated proximal policy without staleness.
    #[error(
        "at max_staleness = 0 without reuse every sample is the newest policy's: there is nothing to interpolate"
    )]
    NothingToInterpolate,
    /// The sampler as the proximal policy, with a correction between the two.
    #[error("with the sampler's own log-probabilities as the proximal policy's, every weight is 1")]
    WeightsAreOne,
    /// The sampler as the proximal policy of stale samples.
    #[error(
        "with max_staleness above 0 or reused groups the sampler is an older policy than the one at the start of the batch"
    )]
    SamplerIsOlder,
    /// "No weight" for a loss whose own ratio is one.
    #[error("loss \"{}\" weighs by its own ratio to the sampler, which this would not turn off", .loss.name())]
    WeighsAnyway {
        /// The loss.
        loss: LossKind,
    },
    /// An importance weight on top of a ratio to the sampler.
    #[error(
        "loss \"{}\" already weighs by its ratio to the sampler: a second weight would count the same twice",
        .loss.name()
    )]
    SecondWeight {
        /// The loss.
        loss: LossKind,
    },
    /// A weight per token for a loss of one term per sequence.
    #[error("loss \"{}\" is one term per sequence, which has one weight", .loss.name())]
    OneWeight {
        /// The loss.
        loss: LossKind,
    },
    /// A rejection per token for a loss of one term per sequence.
    #[error("loss \"{}\" is one term per sequence: none of its tokens can be rejected alone", .loss.name())]
    RejectsTokens {
        /// The loss.
        loss: LossKind,
    },
    /// The loss of another method.
    #[error("\"{}\" is the loss of another method", .kind.name())]
    OtherPreference {
        /// The loss.
        kind: PreferenceKind,
    },
    /// A group too small for a pair.
    #[error("a group of {group_size} has no pair of a chosen and a rejected completion")]
    NoPair {
        /// Episodes per group.
        group_size: u32,
    },
    /// A loss of labelled completions where samples are compared.
    #[error("\"{}\" is a loss of single completions with labels, and samples are compared in pairs", .kind.name())]
    NotOfPairs {
        /// The loss.
        kind: PreferenceKind,
    },
    /// k3+ as the divergence of a rejection.
    #[error("k3+ differs from k3 in its gradient alone, and a rejection has none")]
    K3PlusRejects,
    /// A rejection without its bound.
    #[error("it needs a bound on the divergence")]
    NoRejectBound,
}

/// The reason why nothing reads a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnreadReason {
    /// The method learns from given completions.
    Supervised,
    /// The preference loss has no such setting.
    NotOfPreference(PreferenceKind),
    /// The divergence has no such setting.
    NotOfDistillation(DistillationKind),
    /// The loss has no such setting.
    NotOfLoss(LossKind),
    /// The advantage has no such setting.
    NotOfAdvantage(AdvantageKind),
    /// The loss's other settings leave it without effect.
    IgnoredByLoss(LossKind),
    /// The advantage's other settings leave it without effect.
    IgnoredByAdvantage(AdvantageKind),
    /// Another one.
    Because(&'static str),
}

impl fmt::Display for UnreadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not_of = |f: &mut fmt::Formatter<'_>, what: &str, name: &str, keys: &[crate::KeyInfo]| {
            write!(f, "not a setting of {what} \"{name}\"")?;
            let names: Vec<&str> = keys.iter().map(|key| key.name).collect();
            if names.is_empty() { write!(f, ", which has none") } else { write!(f, ": {}", names.join(", ")) }
        };
        match self {
            Self::Supervised => {
                f.write_str("it learns from given completions: nothing is sampled, compared or clipped")
            }
            Self::NotOfPreference(kind) => not_of(f, "preference", kind.name(), crate::Kind::keys(*kind)),
            Self::NotOfDistillation(kind) => not_of(f, "distillation", kind.name(), crate::Kind::keys(*kind)),
            Self::NotOfLoss(kind) => not_of(f, "loss", kind.name(), crate::Kind::keys(*kind)),
            Self::NotOfAdvantage(kind) => not_of(f, "advantage", kind.name(), crate::Kind::keys(*kind)),
            Self::IgnoredByLoss(kind) => {
                write!(f, "it has no effect with the other settings of loss \"{}\"", kind.name())
            }
            Self::IgnoredByAdvantage(kind) => {
                write!(f, "it has no effect with the other settings of advantage \"{}\"", kind.name())
            }
            Self::Because(reason) => f.write_str(reason),
        }
    }
}
