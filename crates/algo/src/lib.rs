//! Reinforcement-learning algorithms as pure functions of per-token numbers.
//!
//! A training engine yields [`TokenScores`]; [`policy_loss`] maps them to a loss *and to the loss's derivative by
//! each score*, which the engine back-propagates; [`step_loss`] does for losses that must see a whole optimiser step, and
//! [`value_loss`] for a critic of its own. [`advantages`] maps rewards to the weights that the losses use. No tensor,
//! no I/O, no clock, no random number: the same numbers in give the same bits out.
//!
//! Two rules hold everywhere:
//!
//! * **Losses are sums; [`GlobalCounts`] divide.** A coefficient depends on its own sequence and on the counts of
//!   the whole optimiser step, never on what shares its micro-batch, so a split into micro-batches gives the same
//!   bits. The metrics do too, because [`ExactSum`] adds without rounding.
//! * **Coefficients are computed in `f64` and rounded once.** Log-ratios are clamped to ±20 before `exp`.
//!
//! A named [`Method`] is a preset: a point in {advantage × loss × KL × aggregation}. [`AlgorithmSettings`] overrides
//! its knobs one by one and [`Algorithm::resolve`] refuses what makes no sense.
//!
//! Legend: `lp` current log-probability, `old` that of the policy before the batch's first optimiser step, `beh`
//! the sampler's, `ref` the reference model's; R reward, A advantage, ρ = exp(lp − old).

mod advantage;
mod aggregate;
mod algorithm;
mod control;
mod error;
mod exact_sum;
mod filter;
mod kl;
mod learned;
mod loss;
mod method;
mod methods;
mod objective;
mod overlong;
mod reference;
mod refusal;
mod resolve;
mod sampler;
mod settings;
mod show;
mod unbounded;

pub use advantage::kinds as estimators;
pub use advantage::{
    AdvantageKind, AdvantageReport, AdvantageSettings, AdvantageSpec, Advantages, EpisodeAdvantage,
    EpisodeRewards, Estimator, GroupRewards, RunningMoments, StepReward, advantages,
};
pub use aggregate::{Aggregation, GlobalCounts};
pub use algorithm::Algorithm;
pub use control::{AlgorithmState, EntropyControl, KlControl};
pub use error::{AlgoError, Score, Unread};
pub use exact_sum::ExactSum;
pub use filter::{FilterReason, Filters, MaskReason};
pub use kl::{KlEstimator, KlLoss, KlPlacement};
pub use learned::{CriticSpec, PrmSpec};
pub use loss::kinds as losses;
pub use loss::kinds::*;
pub use loss::{
    Correction, ImportanceWeight, LossBatch, LossGrad, LossKind, LossMetrics, LossSettings, LossTerms,
    Mismatch, PolicyLoss, Rejection, Scope, Surrogate, TokenScores, ValueLoss, interpolation, policy_loss,
    step_loss, value_loss,
};
pub use methods::Method;
pub use objective::{LossInputs, LossStep, Objective, PolicyObjective};
pub use overlong::Overlong;
pub use reference::KeyReference;
pub use refusal::{Refusal, UnreadReason};
pub use sampler::Sampler;
pub use settings::{
    AlgorithmSettings, Backbone, CorrectionLevel, CorrectionSettings, CriticSettings, EntropyControlSettings,
    FilterSettings, Keep, KeyInfo, KeyType, Kind, KindSettings, KlSettings, Level, OverlongSettings,
    PrmSettings, Proximal, RENAMED_KEYS, RatioTo, RejectLevel, StatisticFrom, Value, WeightAction,
    WeightLevel,
};
pub use show::MethodInfo;
