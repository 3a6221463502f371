use crate::{
    AdvantageKind, AdvantageSpec, AlgorithmSettings, Estimator, KlEstimator, KlPlacement, KlSettings, Level,
    LossKind, Method, PolicyLoss, Scope, Surrogate,
};

/// A method with all its knobs resolved: what a stage trains with. Made by [`Algorithm::resolve`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Algorithm {
    /// The preset it started from.
    pub method: Method,
    /// Episodes per task; 1 for supervised methods.
    pub group_size: u32,
    /// How rewards become advantages; `None` for supervised methods.
    pub advantage: Option<AdvantageSpec>,
    /// The loss.
    pub loss: PolicyLoss,
    /// Passes over each batch.
    pub epochs: u32,
    /// Optimiser steps per pass.
    pub minibatches: u32,
}

impl Algorithm {
    /// A method as its preset has it.
    pub fn preset(method: Method) -> Self {
        Self::of_preset(method)
    }

    /// Whether a reference model must be loaded.
    pub fn needs_reference(&self) -> bool {
        self.loss.kl.is_some() || self.kl_reward_coef() > 0.0
    }

    /// Whether the reference's log-probabilities enter the advantages: then it scores before they are made.
    pub fn needs_reference_for_advantages(&self) -> bool {
        self.kl_reward_coef() > 0.0
    }

    /// Whether the loss reads log-probabilities from before the batch's first optimiser step.
    pub fn needs_old_logprob(&self) -> bool {
        self.loss.surrogate.has_ratio() || self.kl_reward_coef() > 0.0
    }

    /// Whether it learns from what it samples, rather than from demonstrations.
    pub fn needs_rollouts(&self) -> bool {
        !self.method.is_supervised()
    }

    /// What of an optimiser step the loss must see at once.
    pub fn scope(&self) -> Scope {
        self.loss.scope()
    }

    /// Weight of the KL in the reward, 0 for none.
    fn kl_reward_coef(&self) -> f64 {
        self.advantage.map_or(0.0, |a| a.kl_coef)
    }

    /// The settings that give this algorithm again: every key that its method reads, and no other.
    pub fn to_settings(&self) -> AlgorithmSettings {
        let mut settings = AlgorithmSettings::default();
        let per_token_terms =
            self.scope() == Scope::Token || self.loss.kl.is_some() || self.loss.entropy_coef != 0.0;
        settings.loss_aggregation = per_token_terms.then_some(self.loss.aggregation);
        let Some(advantage) = self.advantage else { return settings };
        settings.group_size = Some(self.group_size);
        settings.advantage = Some(advantage.kind());
        match advantage.estimator {
            Estimator::Group { std_epsilon } => settings.std_epsilon = Some(std_epsilon),
            Estimator::ReinforcePp { gamma } => settings.gamma = Some(gamma),
            Estimator::GroupMean | Estimator::Rloo => {}
        }
        settings.whiten = Some(advantage.whiten);
        match self.loss.surrogate {
            Surrogate::PpoClip(clip) => {
                settings.loss = Some(LossKind::PpoClip);
                settings.clip_low = Some(clip.clip_low);
                settings.clip_high = Some(clip.clip_high);
                settings.dual_clip = clip.dual_clip;
            }
            Surrogate::Reinforce(loss) => {
                settings.loss = Some(LossKind::Reinforce);
                settings.level = Some(loss.level);
            }
            Surrogate::Sft(_) => {}
        }
        settings.entropy_coef = Some(self.loss.entropy_coef);
        settings.epochs = Some(self.epochs);
        settings.minibatches = Some(self.minibatches);
        settings.kl = Some(match (self.loss.kl, advantage.kl_coef) {
            (Some(kl), _) => KlSettings {
                coef: Some(kl.coef),
                estimator: Some(kl.estimator),
                placement: Some(KlPlacement::Loss),
            },
            (None, coef) if coef > 0.0 => KlSettings {
                coef: Some(coef),
                estimator: Some(KlEstimator::K1),
                placement: Some(KlPlacement::Reward),
            },
            (None, _) => KlSettings { coef: Some(0.0), ..KlSettings::default() },
        });
        settings
    }

    /// The level at which the surrogate acts.
    pub fn level(&self) -> Level {
        match self.loss.surrogate {
            Surrogate::Reinforce(loss) => loss.level,
            Surrogate::PpoClip(_) | Surrogate::Sft(_) => Level::Token,
        }
    }
}

impl AdvantageSpec {
    /// The kind that a recipe names. `group_mean` with whitening and `reinforce_pp_baseline` are one thing.
    pub fn kind(&self) -> AdvantageKind {
        match self.estimator {
            Estimator::Group { .. } => AdvantageKind::Group,
            Estimator::GroupMean if self.whiten => AdvantageKind::ReinforcePpBaseline,
            Estimator::GroupMean => AdvantageKind::GroupMean,
            Estimator::Rloo => AdvantageKind::Rloo,
            Estimator::ReinforcePp { .. } => AdvantageKind::ReinforcePp,
        }
    }
}
