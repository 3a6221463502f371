use crate::{
    AdvantageSpec, AlgorithmSettings, CriticSpec, Distillation, EntropyControl, Filters, KlControl, Method,
    Overlong, PolicyLoss, Preference, PrmSpec, Proximal, Recombination, RewardModelSpec, Scope,
};

/// A method with all its settings resolved: the algorithm of a stage. Created by [`Algorithm::resolve`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Algorithm {
    /// Method whose preset was used.
    pub method: Method,
    /// Episodes per task; 1 for supervised methods.
    pub group_size: u32,
    /// Advantage; `None` for supervised methods.
    pub advantage: Option<AdvantageSpec>,
    /// The loss; that of preferences replaces it.
    pub loss: PolicyLoss,
    /// The loss of a method that learns from preferences.
    pub preference: Option<Preference>,
    /// The reward model that is trained instead of a policy.
    pub reward_model: Option<RewardModelSpec>,
    /// The loss of a method that learns from a teacher.
    pub distillation: Option<Distillation>,
    /// Source of the `old` log-probabilities.
    pub proximal: Proximal,
    /// Controller of the weight of the KL in the reward; `None` for a fixed weight.
    pub kl_control: Option<KlControl>,
    /// Controller of the weight of the entropy bonus; `None` for a fixed weight.
    pub entropy_control: Option<EntropyControl>,
    /// Groups and episodes that are not trained on.
    pub filters: Filters,
    /// The penalty on completions near their limit.
    pub overlong: Option<Overlong>,
    /// The learned value, if the advantage uses one.
    pub critic: Option<CriticSpec>,
    /// The process-reward model, if the advantage uses one.
    pub prm: Option<PrmSpec>,
    /// Passes over each batch.
    pub epochs: u32,
    /// Optimiser steps per pass.
    pub minibatches: u32,
    /// Scale α of the noise on the embeddings in training; `None` for no noise.
    pub neftune_noise_alpha: Option<f64>,
    /// The settings that were used.
    pub(crate) settings: AlgorithmSettings,
}

impl Algorithm {
    /// True if a reference model must be loaded.
    pub fn needs_reference(&self) -> bool {
        self.loss.reads_reference()
            || self.preference.is_some_and(|preference| preference.reads_reference())
            || self.needs_reference_for_advantages()
    }

    /// True if the advantages use the reference's log-probabilities, so that it scores first.
    pub fn needs_reference_for_advantages(&self) -> bool {
        self.advantage.is_some_and(|a| a.kl_coef > 0.0)
    }

    /// True if each group has a greedy episode for comparison, which is not trained on.
    pub fn needs_baseline_episode(&self) -> bool {
        self.advantage.is_some_and(|a| a.estimator.reads_greedy_episode())
    }

    /// True if the trainer scores each batch for `old` before its first optimiser step.
    pub fn recomputes_old(&self) -> bool {
        self.proximal == Proximal::Recompute
    }

    /// The combinations of turns from different episodes whose rewards the advantage reads.
    pub fn recombination(&self) -> Option<Recombination> {
        self.advantage.and_then(|advantage| advantage.estimator.recombination())
    }

    /// True if the algorithm learns from rollouts, not from demonstrations alone.
    pub fn needs_rollouts(&self) -> bool {
        self.method.samples(&self.settings)
    }

    /// True if the best and the worst sample of each group are trained on as a preference pair.
    pub fn samples_pairs(&self) -> bool {
        self.preference.is_some() && self.needs_rollouts()
    }

    /// Part of an optimiser step that the loss must see at once.
    pub fn scope(&self) -> Scope {
        match (self.preference, self.reward_model) {
            (Some(preference), _) => preference.scope(),
            (None, Some(RewardModelSpec::Sequence { .. })) => Scope::Pair,
            (None, Some(RewardModelSpec::Process)) => Scope::Sequence,
            (None, None) => self.loss.scope(),
        }
    }

    /// Settings that resolve to this algorithm, with exactly the keys that have an effect.
    pub fn to_settings(&self) -> AlgorithmSettings {
        self.settings
    }
}
