//! Losses: per-token numbers in, coefficients out.
//!
//! To add a loss, write its file (settings, defaults, checks and kernel), declare it here and give it a line in the
//! table.

mod batch;
mod cispo;
mod clip_cov;
mod correction;
mod covariance;
mod dft;
mod distillation_loss;
mod dppo;
mod dppo_kl;
mod dppo_tv;
mod dro;
mod gmpo;
mod gspo;
mod gspo_token;
mod implicit_reward;
mod inert;
mod inputs;
mod interpolation;
pub(crate) mod kernel;
mod kimi;
mod kl_cov;
mod luspo;
mod metrics;
mod policy_loss;
mod ppo_clip;
mod preference_loss;
mod python;
mod reinforce;
mod reward_loss;
mod sapo;
mod sft;
mod statistics;
mod step_loss;
mod surrogate;
mod terms;
mod topr;
mod value_loss;
mod vespo;

pub use batch::{GivenLoss, LossBatch, LossGrad, Mismatch, TokenScores};
pub use correction::{Correction, ImportanceWeight, Rejection};
pub use distillation_loss::{DistillationLoss, TeacherTop, distillation_loss};
pub use interpolation::interpolation;
pub use kernel::Scope;
pub(crate) use kernel::StaleWeight;
pub use metrics::LossMetrics;
pub use policy_loss::{PolicyLoss, policy_loss};
pub use preference_loss::{PreferenceLoss, preference_loss, preference_step};
pub use reward_loss::{RewardLoss, StepLabel, reward_loss};
pub use step_loss::step_loss;
pub use terms::LossTerms;
pub use value_loss::{ValueLoss, value_loss};

/// The kind of a loss and its settings.
pub type LossSettings = crate::settings::kind::KindSettings<LossKind>;

surrogate::losses! {
    recipes {
        /// PPO's clipped ratio.
        ppo_clip::PpoClip = "ppo_clip",
        /// The plain policy gradient.
        reinforce::Reinforce = "reinforce",
        /// The clipped ratio of a whole sequence, length-normalised.
        gspo::Gspo = "gspo",
        /// The value of `gspo`, with a gradient per token.
        gspo_token::GspoToken = "gspo_token",
        /// The clipped ratio of a whole sequence, times its length.
        luspo::Luspo = "luspo",
        /// The geometric mean of ratios clipped in log space.
        gmpo::Gmpo = "gmpo",
        /// A policy gradient weighted by the capped ratio, held constant.
        cispo::Cispo = "cispo",
        /// A sigmoid gate of the ratio instead of the clip.
        sapo::Sapo = "sapo",
        /// A smooth kernel of the sequence's ratio instead of the clip, held constant.
        vespo::Vespo = "vespo",
        /// Policy gradient for positive advantages, with truncated importance weights for negative ones.
        topr::Topr = "topr",
        /// A policy gradient with a quadratic penalty per token.
        dro::Dro = "dro",
        /// A policy gradient with a quadratic penalty per sequence.
        kimi::Kimi = "kimi",
        /// Truncated importance weights within a total-variation trust region.
        dppo_tv::DppoTv = "dppo_tv",
        /// Truncated importance weights within a binary-KL trust region.
        dppo_kl::DppoKl = "dppo_kl",
        /// `ppo_clip` without the gradient of a few tokens of high covariance.
        clip_cov::ClipCov = "clip_cov",
        /// A penalty on the few tokens of highest covariance.
        kl_cov::KlCov = "kl_cov",
        /// A Python function.
        python::Python = "python",
    }
    internal {
        /// Cross-entropy of an implicit process-reward model with outcomes.
        implicit_reward::ImplicitReward,
        /// Negative log-likelihood.
        sft::Sft,
        /// Negative log-likelihood weighted by the token's probability.
        dft::Dft,
    }
}
