//! Reinforcement-learning algorithms as pure functions of per-token numbers.
//!
//! A training engine yields [`TokenScores`]; [`LossStep`] maps them to a loss *and to the loss's derivative by each
//! score*, which the engine back-propagates. A loss is data, so an engine in another process evaluates the same
//! function. [`advantages`] maps rewards to the weights that the losses use. No tensors, no I/O, no clock and no hidden
//! random numbers: equal inputs give bitwise identical outputs.
//!
//! Two rules hold throughout:
//!
//! * **Losses are sums; [`GlobalCounts`] divide.** A coefficient depends on its own sequence and on the counts of
//!   the whole optimiser step, never on the other sequences of its micro-batch, so results do not depend on the split
//!   into micro-batches. Neither do the metrics, because [`ExactSum`] adds without rounding.
//! * **Coefficients are computed in `f64` and rounded once.** Log-ratios are clamped to ±20 before `exp`.
//!
//! A named [`Method`] is a preset: a point in {advantage × loss × KL × aggregation}. [`AlgorithmSettings`] overrides
//! its settings one by one and [`Algorithm::resolve`] rejects invalid combinations.
//!
//! A loss is one file in `loss/`, an estimator one file in `advantage/`: settings, defaults, checks and kernel, with a
//! line in the table of its module. A preset is an entry in the table of `methods`.
//!
//! Legend: `lp` current log-probability, `old` that of the policy before the batch's first optimiser step, `beh`
//! the sampler's, `ref` the reference model's; R reward, A advantage, ρ = exp(lp − old).

mod advantage;
mod aggregate;
mod algorithm;
mod control;
mod difficulty;
mod distillation;
mod error;
mod exact_sum;
mod filter;
mod idle;
mod kl;
mod learned;
mod loss;
mod message;
mod method;
mod methods;
mod noise;
mod objective;
mod overlong;
mod pair;
mod preference;
mod reference;
mod refusal;
mod resolve;
mod sampler;
mod settings;
mod show;
mod unbounded;

pub use advantage::kinds as estimators;
pub use advantage::{
    AdvantageKind, AdvantageReport, AdvantageSettings, AdvantageSpec, Advantages, AgentPart, AgentTurn,
    EpisodeAdvantage, EpisodeRewards, Estimator, GroupRewards, Pairing, Recombination, RoleBaselines,
    RunningMoments, Shaping, ShapingHistory, StatesFrom, StepReward, advantages, advantages_of_roles,
};
pub use aggregate::{Aggregation, GlobalCounts};
pub use algorithm::Algorithm;
pub use control::{AlgorithmState, EntropyControl, KlControl};
pub use difficulty::DifficultyFilter;
pub use distillation::kinds as distillations;
pub use distillation::{Distillation, DistillationKind, DistillationSettings, VocabularyDivergence};
pub use error::{AlgoError, Score, Unread};
pub use exact_sum::ExactSum;
pub use filter::{FilterReason, Filters, MaskReason};
pub use kl::{KlEstimator, KlLoss, KlPlacement};
pub use learned::{CriticSpec, PrmSpec, RewardModelSpec};
pub use loss::kinds as losses;
pub use loss::kinds::*;
pub use loss::{
    Correction, DistillationLoss, GivenLoss, ImportanceWeight, LossBatch, LossGrad, LossKind, LossMetrics,
    LossSettings, LossTerms, Mismatch, PolicyLoss, PreferenceLoss, Rejection, RewardLoss, Scope, StepLabel,
    Surrogate, TeacherTop, TokenScores, ValueLoss, distillation_loss, interpolation, policy_loss,
    preference_loss, preference_step, reward_loss, step_loss, value_loss,
};
pub use message::MessageError;
pub use method::DataKind;
pub use methods::Method;
pub use noise::EmbeddingNoise;
pub use objective::{LossInputs, LossStep, Objective, PolicyObjective};
pub use overlong::Overlong;
pub use pair::best_and_worst;
pub use preference::kinds as preferences;
pub use preference::{
    Anchor, Divergence, PairLoss, PairLossKind, Preference, PreferenceKind, PreferenceSettings, RunningMean,
    WeightedLoss, WeightedLosses,
};
pub use reference::KeyReference;
pub use refusal::{Refusal, UnreadReason};
pub use sampler::Sampler;
pub use settings::{
    AlgorithmFunction, AlgorithmSettings, Backbone, CorrectionLevel, CorrectionSettings, CriticSettings,
    EntropyControlSettings, FilterSettings, Keep, KeyInfo, KeyType, Kind, KindSettings, KlSettings, Level,
    OverlongSettings, PrmSettings, Proximal, RENAMED_KEYS, RatioTo, RejectLevel, RewardModelSettings,
    StatisticFrom, Text, Value, WeightAction, WeightLevel,
};
pub use show::MethodInfo;
