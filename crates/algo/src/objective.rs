//! A loss as data: everything that a training engine needs to evaluate one optimiser step, in this process or another.

use std::{borrow::Cow, ops::Range};

use rloom_core::{RandomKey, RandomStream};
use serde::{Deserialize, Serialize};

use crate::{
    AlgoError, DistillationLoss, EmbeddingNoise, GivenLoss, GlobalCounts, LossBatch, LossGrad, Mismatch,
    PolicyLoss, PreferenceLoss, RewardLoss, Scope, StepLabel, TeacherTop, TokenScores, ValueLoss,
    distillation_loss, policy_loss, preference_loss, preference_step, reward_loss, step_loss, value_loss,
};

/// Inputs of a loss for one micro-batch, without the scores. The owned form of [`LossBatch`].
///
/// Per-token arrays are flat over the rows' policy tokens. An array that the objective does not read may be `None`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LossInputs {
    /// Policy tokens of each sequence in the flat arrays: in order, without gaps.
    pub rows: Vec<Range<usize>>,
    /// Rows excluded from training; empty if none are.
    pub masked: Vec<bool>,
    /// Policy tokens of the whole episode of each row; empty if each row is an episode of its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub episode_tokens: Vec<usize>,
    /// Advantage of each token.
    pub advantage: Option<Vec<f32>>,
    /// The sampler's log-probabilities.
    pub behavior: Option<Vec<f32>>,
    /// Recomputed log-probabilities of the proximal policy; `None` if the sampler's are used.
    pub old: Option<Vec<f32>>,
    /// α of each token for an interpolated proximal policy ([`LossBatch::interpolation`]).
    pub interpolation: Option<Vec<f32>>,
    /// The reference model's log-probabilities.
    pub reference: Option<Vec<f32>>,
    /// The policy's log-probabilities at half the temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharpened: Option<Vec<f32>>,
    /// Target of each token's value.
    pub returns: Option<Vec<f32>>,
    /// Value of each token before the batch's first optimiser step.
    pub old_value: Option<Vec<f32>>,
    /// Outcome of each row, from 0 to 1.
    pub outcome: Option<Vec<f32>>,
    /// Margin of each pair, on its chosen row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub margin: Option<Vec<f32>>,
    /// Labelled steps of each row.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Vec<StepLabel>>,
    /// The teacher's log-probabilities of the batch's candidates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub teacher: Option<TeacherTop>,
    /// Value and coefficients of a surrogate that is computed elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub given: Option<GivenLoss>,
    /// Log-probabilities that are compared with the sampler's for the mismatch metrics.
    pub mismatch: Mismatch,
}

impl LossInputs {
    /// Borrows the inputs in the form that the loss functions take.
    ///
    /// Without recomputed log-probabilities the sampler's are those of the proximal policy.
    pub fn batch(&self) -> LossBatch<'_> {
        LossBatch {
            rows: &self.rows,
            masked: &self.masked,
            episode_tokens: &self.episode_tokens,
            advantage: self.advantage.as_deref(),
            old_logprob: self.old.as_deref().or(self.behavior.as_deref()),
            behavior_logprob: self.behavior.as_deref(),
            reference_logprob: self.reference.as_deref(),
            sharpened_logprob: self.sharpened.as_deref(),
            interpolation: self.interpolation.as_deref(),
            returns: self.returns.as_deref(),
            old_value: self.old_value.as_deref(),
            outcome: self.outcome.as_deref(),
            margin: self.margin.as_deref(),
            steps: &self.steps,
            teacher: self.teacher.as_ref(),
            given: self.given.as_ref(),
            mismatch: self.mismatch,
        }
    }
}

/// Objective of a policy or of a process-reward model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PolicyObjective {
    /// The loss.
    pub loss: PolicyLoss,
    /// Key of the random stream for losses that draw tokens. Each optimiser step has its own.
    pub draws: RandomKey,
}

/// The function that an optimiser step minimises.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// Trains a policy or a process-reward model; reads log-probabilities.
    Policy(PolicyObjective),
    /// Trains a policy on preferences; reads log-probabilities.
    Preference(PreferenceLoss),
    /// Trains a separate critic; reads values.
    Value(ValueLoss),
    /// Trains a reward model; reads values.
    Reward(RewardLoss),
    /// Trains a student; reads its divergences from a teacher, or log-probabilities of candidates.
    Distillation(DistillationLoss),
}

impl Objective {
    /// Part of an optimiser step that the objective must see at once.
    pub fn scope(&self) -> Scope {
        match self {
            Self::Policy(policy) => policy.loss.scope(),
            Self::Preference(loss) => loss.preference.scope(),
            Self::Value(_) | Self::Distillation(_) => Scope::Token,
            Self::Reward(RewardLoss::Pairs { .. }) => Scope::Pair,
            Self::Reward(RewardLoss::Steps { .. }) => Scope::Sequence,
        }
    }

    /// Value and coefficients of one micro-batch.
    fn evaluate(
        &self,
        batch: &LossBatch<'_>,
        scores: &TokenScores,
        counts: &GlobalCounts,
    ) -> Result<LossGrad, AlgoError> {
        match self {
            Self::Policy(policy) => policy_loss(&policy.loss, batch, scores, counts),
            Self::Preference(loss) => preference_loss(loss, batch, scores, counts),
            Self::Value(value) => value_loss(value, batch, scores, counts),
            Self::Reward(loss) => reward_loss(loss, batch, scores, counts),
            Self::Distillation(loss) => distillation_loss(loss, batch, scores, counts),
        }
    }

    /// Marks the rows whose coefficients are 0 for any scores. A value error is known only from the scores, so for a
    /// critic these are the masked rows.
    fn inert(&self, batch: &LossBatch<'_>) -> Vec<bool> {
        match self {
            Self::Policy(policy) => policy.loss.inert(batch),
            Self::Preference(_) | Self::Value(_) | Self::Reward(_) => batch.masked.to_vec(),
            // Divergences are computed with the activations of the backward pass.
            Self::Distillation(_) => Vec::new(),
        }
    }
}

/// The loss of one optimiser step: objective, counts and the inputs of every micro-batch.
///
/// Serializable, so that a remote engine evaluates the same function on its own side: every number survives a round
/// trip through JSON with the same bits. Deserializing gives a `LossStep<'static>`, which owns its inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LossStep<'a> {
    /// The function to minimise.
    pub objective: Objective,
    /// Counts over the whole optimiser step, over all ranks.
    pub counts: GlobalCounts,
    /// Inputs of each micro-batch, in order.
    pub inputs: Cow<'a, [LossInputs]>,
    /// Noise on the embeddings of the tokens; scores without a gradient have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<EmbeddingNoise>,
}

impl<'a> LossStep<'a> {
    /// A step over borrowed inputs.
    pub fn new(objective: Objective, counts: GlobalCounts, inputs: &'a [LossInputs]) -> Self {
        Self { objective, counts, inputs: Cow::Borrowed(inputs), noise: None }
    }

    /// The same step with its own copy of the inputs.
    #[must_use]
    pub fn into_owned(self) -> LossStep<'static> {
        LossStep {
            objective: self.objective,
            counts: self.counts,
            inputs: Cow::Owned(self.inputs.into_owned()),
            noise: self.noise,
        }
    }

    /// Part of the optimiser step that the loss must see at once. For [`Scope::Step`] the engine scores all
    /// micro-batches and calls [`evaluate_step`](Self::evaluate_step); otherwise it may call
    /// [`evaluate`](Self::evaluate) for each.
    pub fn scope(&self) -> Scope {
        self.objective.scope()
    }

    /// Loss and derivatives of micro-batch number `micro_batch`.
    ///
    /// The coefficients have one entry per scored token for every head of the model: a policy without a value head gets
    /// no `d_value`, a critic gets nothing else, a reward model also `d_last_value`.
    ///
    /// # Errors
    ///
    /// [`AlgoError::NoMicroBatch`], and the errors of [`policy_loss`], [`value_loss`] and [`reward_loss`].
    pub fn evaluate(&self, micro_batch: usize, scores: &TokenScores) -> Result<LossGrad, AlgoError> {
        let inputs = self
            .inputs
            .get(micro_batch)
            .ok_or(AlgoError::NoMicroBatch { micro_batch, micro_batches: self.inputs.len() })?;
        self.objective.evaluate(&inputs.batch(), scores, &self.counts)
    }

    /// Losses and derivatives of all micro-batches, in order; for any scope.
    ///
    /// # Errors
    ///
    /// [`AlgoError::MicroBatches`], and the errors of [`step_loss`] and [`value_loss`].
    pub fn evaluate_step(&self, scores: &[TokenScores]) -> Result<Vec<LossGrad>, AlgoError> {
        if scores.len() != self.inputs.len() {
            return Err(AlgoError::MicroBatches { batches: self.inputs.len(), scores: scores.len() });
        }
        match &self.objective {
            Objective::Policy(policy) => {
                let batches = self.batches();
                let draws: RandomStream = policy.draws.stream();
                step_loss(&policy.loss, &batches, scores, &self.counts, &|position| draws.bits(position))
            }
            Objective::Preference(loss) => preference_step(loss, &self.batches(), scores, &self.counts),
            Objective::Value(_) | Objective::Reward(_) | Objective::Distillation(_) => {
                scores.iter().enumerate().map(|(i, s)| self.evaluate(i, s)).collect()
            }
        }
    }

    fn batches(&self) -> Vec<LossBatch<'_>> {
        self.inputs.iter().map(LossInputs::batch).collect()
    }

    /// Marks the sequences of micro-batch number `micro_batch` whose coefficients are all 0 for any scores: they are
    /// scored but need no backward pass. The loss still takes their scores and counts them. Empty if there is no such
    /// micro-batch.
    pub fn inert(&self, micro_batch: usize) -> Vec<bool> {
        self.inputs.get(micro_batch).map(|inputs| self.objective.inert(&inputs.batch())).unwrap_or_default()
    }
}
