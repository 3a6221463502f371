//! Per-token numbers in, coefficients out.

mod cispo;
mod correction;
mod covariance;
mod dppo;
mod gmpo;
mod gspo;
mod implicit_reward;
mod inert;
mod inputs;
mod interpolation;
mod kernel;
mod metrics;
mod policy_loss;
mod ppo_clip;
mod reinforce;
mod sapo;
mod sft;
mod statistics;
mod step_loss;
mod terms;
mod topr;
mod value_loss;

use std::ops::Range;

use serde::{Deserialize, Serialize};

pub use cispo::Cispo;
pub use correction::{Correction, ImportanceWeight, Rejection};
pub use covariance::{ClipCov, KlCov};
pub use dppo::{Divergence, Dppo};
pub use gmpo::Gmpo;
pub use gspo::Gspo;
pub use implicit_reward::ImplicitReward;
pub use interpolation::interpolation;
pub use kernel::Scope;
pub use metrics::LossMetrics;
pub use policy_loss::policy_loss;
pub use ppo_clip::PpoClip;
pub use reinforce::Reinforce;
pub use sapo::Sapo;
pub use sft::Sft;
pub use step_loss::step_loss;
pub use terms::LossTerms;
pub use topr::Topr;
pub use value_loss::{ValueLoss, value_loss};

use crate::{Aggregation, KlLoss, RatioTo};
use kernel::Kernel;

/// What the training engine knows of each policy token of a micro-batch, flat over its rows.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenScores {
    /// log p(token | what precedes it) at the token's sampling temperature (nats).
    pub logprob: Vec<f32>,
    /// Entropy of the same distribution over the whole vocabulary (nats).
    pub entropy: Vec<f32>,
    /// The value head's output: the value of the prefix before the token; empty without one.
    pub value: Vec<f32>,
    /// Per sequence: the value after its last token, from which a truncated episode bootstraps; empty without a value
    /// head.
    pub last_value: Vec<f32>,
    /// Log-probabilities of k requested token ids per scored position, position by position (`[S, k]`); empty if none
    /// were requested. No loss reads them yet: they are for distillation.
    pub candidate_logprob: Vec<f32>,
}

/// Which of the trainer's log-probabilities are held against the sampler's. Where both come from the same weights the
/// difference is that of two engines; of a stale sample it is its age as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mismatch {
    /// None: nothing is reported.
    #[default]
    Unmeasured,
    /// The scores themselves, in the first optimiser step of a batch.
    Scores,
    /// `old_logprob`, where the trainer has recomputed it.
    Old,
}

/// A micro-batch without its scores. It never divides a sequence.
///
/// Per-token arrays are flat over the rows' policy tokens. What a loss does not read may be `None`; what it reads and is
/// not given is an error.
#[derive(Debug, Clone, Copy, Default)]
pub struct LossBatch<'a> {
    /// Policy tokens of each sequence in the flat arrays: in order, without gaps, empty where it has none.
    pub rows: &'a [Range<usize>],
    /// Rows that are not trained on: all their coefficients are 0, and they stay in every count. Empty for none.
    pub masked: &'a [bool],
    /// Advantage of each token; `None` for supervised losses.
    pub advantage: Option<&'a [f32]>,
    /// Log-probabilities of the proximal policy, before the batch's first optimiser step; `None` for supervised losses.
    pub old_logprob: Option<&'a [f32]>,
    /// The sampler's log-probabilities.
    pub behavior_logprob: Option<&'a [f32]>,
    /// The reference model's log-probabilities.
    pub reference_logprob: Option<&'a [f32]>,
    /// α of each token where the proximal policy is interpolated: old = beh + α(lp − beh), held constant
    /// ([`interpolation`]). It then takes the place of `old_logprob`.
    pub interpolation: Option<&'a [f32]>,
    /// What each token's value should have been ([`crate::Advantages::returns`]).
    pub returns: Option<&'a [f32]>,
    /// The value of each token before the batch's first optimiser step.
    pub old_value: Option<&'a [f32]>,
    /// Per row: the outcome, 0 to 1, that [`Surrogate::ImplicitReward`] learns from.
    pub outcome: Option<&'a [f32]>,
    /// What `behavior_logprob` is held against.
    pub mismatch: Mismatch,
}

/// The part of a loss that learns from the advantage (or from demonstrations, or outcomes).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Surrogate {
    /// Clipped importance ratio.
    PpoClip(PpoClip),
    /// Plain policy gradient.
    Reinforce(Reinforce),
    /// Clipped ratio of a whole sequence, or its form with a gradient by token.
    Gspo(Gspo),
    /// Geometric mean of ratios clipped in log space.
    Gmpo(Gmpo),
    /// Policy gradient weighted by the capped ratio.
    Cispo(Cispo),
    /// Sigmoid gate of the ratio.
    Sapo(Sapo),
    /// Policy gradient, with truncated importance on negative advantages.
    Topr(Topr),
    /// Truncated importance inside a trust region.
    Dppo(Dppo),
    /// `PpoClip` without the gradient of some tokens of high covariance.
    ClipCov(ClipCov),
    /// A penalty on the tokens of highest covariance.
    KlCov(KlCov),
    /// Cross-entropy of an implicit process-reward model with outcomes.
    ImplicitReward(ImplicitReward),
    /// Negative log-likelihood.
    Sft(Sft),
}

/// A loss: Σ surrogate·weight + coef·KL − coef·entropy + coef·value loss, each over its normaliser.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PolicyLoss {
    /// The surrogate.
    pub surrogate: Surrogate,
    /// What its importance ratio is taken to.
    pub ratio_to: RatioTo,
    /// Weights and rejection for a sampler that is not the proximal policy. They hold for the surrogate alone.
    pub correction: Correction,
    /// Whether samples may be of an older policy. The metrics then tell how far the policy has gone from its samplers also
    /// where no weight does ([`LossMetrics::correction_weight_mean`]); no coefficient depends on it.
    pub is_stale: bool,
    /// Normaliser of the per-token terms: a token-scoped surrogate, KL and entropy. A surrogate that is one term per
    /// sequence is divided by the number of sequences.
    pub aggregation: Aggregation,
    /// Divergence from the reference; `None` for none.
    pub kl: Option<KlLoss>,
    /// Weight of the entropy bonus, 0 for none.
    pub entropy_coef: f64,
    /// The value loss of a shared backbone; a critic of its own has [`value_loss`].
    pub value: Option<ValueLoss>,
}

impl Surrogate {
    fn kernel(&self) -> &dyn Kernel {
        match self {
            Self::PpoClip(loss) => loss,
            Self::Reinforce(loss) => loss,
            Self::Gspo(loss) => loss,
            Self::Gmpo(loss) => loss,
            Self::Cispo(loss) => loss,
            Self::Sapo(loss) => loss,
            Self::Topr(loss) => loss,
            Self::Dppo(loss) => loss,
            Self::ClipCov(loss) => loss,
            Self::KlCov(loss) => loss,
            Self::ImplicitReward(loss) => loss,
            Self::Sft(loss) => loss,
        }
    }

    /// What of an optimiser step it must see at once.
    pub fn scope(&self) -> Scope {
        self.kernel().scope()
    }

    /// Whether it is one term per sequence: its normaliser is the number of sequences, and all tokens of a sequence
    /// share one advantage.
    pub fn is_per_sequence(&self) -> bool {
        self.kernel().is_per_sequence()
    }

    /// Whether it reads an advantage.
    pub fn reads_advantage(&self) -> bool {
        self.kernel().reads().advantage
    }

    /// Whether it reads the proximal policy's log-probabilities.
    pub fn reads_old(&self) -> bool {
        self.kernel().reads().old
    }

    /// Whether it reads the sampler's log-probabilities.
    pub fn reads_behavior(&self) -> bool {
        self.kernel().reads().behavior
    }

    /// Whether it reads the reference's log-probabilities.
    pub fn reads_reference(&self) -> bool {
        self.kernel().reads().reference
    }

    /// Whether it reads the outcome of each sequence.
    pub fn reads_outcome(&self) -> bool {
        self.kernel().reads().outcome
    }

    /// Whether it corrects for samples that are a few optimiser steps old.
    pub fn has_ratio(&self) -> bool {
        self.reads_old() || self.reads_behavior()
    }
}

impl PolicyLoss {
    /// A surrogate and its normaliser, without anything else.
    pub fn new(surrogate: Surrogate, aggregation: Aggregation) -> Self {
        Self {
            surrogate,
            ratio_to: RatioTo::Old,
            correction: Correction::default(),
            is_stale: false,
            aggregation,
            kl: None,
            entropy_coef: 0.0,
            value: None,
        }
    }

    /// Whether it reads the reference's log-probabilities.
    pub fn reads_reference(&self) -> bool {
        self.kl.is_some() || self.surrogate.reads_reference()
    }

    /// What of an optimiser step it must see at once: the engine calls [`policy_loss`] with at least that much, and
    /// [`step_loss`] where it is [`Scope::Step`].
    pub fn scope(&self) -> Scope {
        self.surrogate.scope()
    }
}

/// The derivative of the loss by each score, and the sums behind the metrics.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
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
