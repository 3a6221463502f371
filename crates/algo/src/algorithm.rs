use crate::{
    AdvantageSpec, AlgorithmSettings, CriticSpec, EntropyControl, Filters, KlControl, Method, Overlong,
    PolicyLoss, PrmSpec, Proximal, Scope,
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
    /// Where `old` log-probabilities come from.
    pub proximal: Proximal,
    /// Steers the weight of the KL in the reward; `None` for a fixed one.
    pub kl_control: Option<KlControl>,
    /// Steers the weight of the entropy bonus; `None` for a fixed one.
    pub entropy_control: Option<EntropyControl>,
    /// Which groups and episodes are not trained on.
    pub filters: Filters,
    /// The penalty on completions near their limit.
    pub overlong: Option<Overlong>,
    /// The learned value, where the advantage reads one.
    pub critic: Option<CriticSpec>,
    /// The process-reward model, where the advantage reads one.
    pub prm: Option<PrmSpec>,
    /// Passes over each batch.
    pub epochs: u32,
    /// Optimiser steps per pass.
    pub minibatches: u32,
    /// What was read to make it.
    pub(crate) settings: AlgorithmSettings,
}

impl Algorithm {
    /// Whether a reference model must be loaded.
    pub fn needs_reference(&self) -> bool {
        self.loss.kl.is_some() || self.needs_reference_for_advantages()
    }

    /// Whether the reference's log-probabilities enter the advantages: then it scores before they are made.
    pub fn needs_reference_for_advantages(&self) -> bool {
        self.advantage.is_some_and(|a| a.kl_coef > 0.0)
    }

    /// Whether each group has a greedy episode to compare with, which is not trained on.
    pub fn needs_baseline_episode(&self) -> bool {
        self.advantage.is_some_and(|a| a.estimator.reads_greedy_episode())
    }

    /// Whether the trainer scores each batch before its first optimiser step to know `old`.
    pub fn recomputes_old(&self) -> bool {
        self.proximal == Proximal::Recompute
    }

    /// Whether it learns from what it samples, rather than from demonstrations.
    pub fn needs_rollouts(&self) -> bool {
        !self.method.is_supervised()
    }

    /// What of an optimiser step the loss must see at once.
    pub fn scope(&self) -> Scope {
        self.loss.scope()
    }

    /// The settings that give this algorithm again: every key that is read, and no other.
    pub fn to_settings(&self) -> AlgorithmSettings {
        self.settings
    }
}
