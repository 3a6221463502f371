//! Per-token numbers in, coefficients out.

mod kernel;
mod policy_loss;
mod ppo_clip;
mod reinforce;
mod sft;
mod terms;

use std::ops::Range;

pub use kernel::Scope;
pub use policy_loss::policy_loss;
pub use ppo_clip::PpoClip;
pub use reinforce::Reinforce;
pub use sft::Sft;
pub use terms::{LossMetrics, LossTerms};

use crate::{Aggregation, KlLoss};
use kernel::Kernel;

/// What the training engine knows of each policy token of a micro-batch, flat over its rows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenScores {
    /// log p(token | what precedes it) at the token's sampling temperature (nats).
    pub logprob: Vec<f32>,
    /// Entropy of the same distribution over the whole vocabulary (nats).
    pub entropy: Vec<f32>,
    /// The value head's output; empty without one.
    pub value: Vec<f32>,
}

/// Which of the trainer's log-probabilities can be held against the sampler's: both must come from the same weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mismatch {
    /// None: nothing is reported.
    #[default]
    Unmeasured,
    /// The scores themselves: the first optimiser step of a batch whose sampler had the weights being trained.
    Scores,
    /// `old_logprob`, where the trainer has recomputed it.
    Old,
}

/// A micro-batch without its scores. It never divides a sequence.
#[derive(Debug, Clone, Copy, Default)]
pub struct LossBatch<'a> {
    /// Policy tokens of each sequence in the flat arrays: in order, without gaps, empty where it has none.
    pub rows: &'a [Range<usize>],
    /// Advantage of each token; `None` for supervised losses.
    pub advantage: Option<&'a [f32]>,
    /// Log-probabilities before the batch's first optimiser step; `None` for supervised losses.
    pub old_logprob: Option<&'a [f32]>,
    /// The sampler's log-probabilities.
    pub behavior_logprob: Option<&'a [f32]>,
    /// The reference model's log-probabilities.
    pub reference_logprob: Option<&'a [f32]>,
    /// What `behavior_logprob` is held against.
    pub mismatch: Mismatch,
}

/// The part of a loss that learns from the advantage (or from demonstrations).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Surrogate {
    /// Clipped importance ratio.
    PpoClip(PpoClip),
    /// Plain policy gradient.
    Reinforce(Reinforce),
    /// Negative log-likelihood.
    Sft(Sft),
}

impl Surrogate {
    fn kernel(&self) -> Kernel<'_> {
        match self {
            Self::PpoClip(loss) => Kernel::Token(loss),
            Self::Reinforce(loss) => loss.kernel(),
            Self::Sft(loss) => Kernel::Token(loss),
        }
    }

    /// What of an optimiser step it must see at once.
    pub fn scope(&self) -> Scope {
        self.kernel().scope()
    }

    /// Whether it reads an advantage.
    pub fn reads_advantage(&self) -> bool {
        !matches!(self, Self::Sft(_))
    }

    /// Whether it reads `old_logprob`: then it corrects for samples that are a few optimiser steps old.
    pub fn has_ratio(&self) -> bool {
        matches!(self, Self::PpoClip(_))
    }
}

/// A loss: Σ surrogate + coef·KL − coef·entropy, each over its normaliser.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PolicyLoss {
    /// The surrogate.
    pub surrogate: Surrogate,
    /// Normaliser of the per-token terms: a token-scoped surrogate, KL and entropy. A sequence-scoped surrogate is
    /// divided by the number of sequences.
    pub aggregation: Aggregation,
    /// Divergence from the reference; `None` for none.
    pub kl: Option<KlLoss>,
    /// Weight of the entropy bonus, 0 for none.
    pub entropy_coef: f64,
}

impl PolicyLoss {
    /// What of an optimiser step it must see at once: the engine calls [`policy_loss`] with at least that much.
    pub fn scope(&self) -> Scope {
        self.surrogate.scope()
    }
}

/// The derivative of the loss by each score, and the sums behind the metrics.
#[derive(Debug, Clone, Default)]
pub struct LossGrad {
    /// By each log-probability.
    pub d_logprob: Vec<f32>,
    /// By each entropy.
    pub d_entropy: Vec<f32>,
    /// By each value; empty without a value head.
    pub d_value: Vec<f32>,
    /// Sums to merge over the micro-batches of the optimiser step.
    pub terms: LossTerms,
}
