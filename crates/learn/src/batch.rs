//! Training on one batch: scores, advantages, epochs and minibatches.

use std::borrow::Cow;

use rloom_algo::{
    Advantages, Algorithm, AlgorithmState, DataKind, Distillation, DistillationLoss, EmbeddingNoise,
    GlobalCounts, ImplicitReward, LossInputs, LossMetrics, LossStep, Mismatch, Objective, PolicyLoss,
    PolicyObjective, PreferenceLoss, Surrogate, TeacherTop,
};
use rloom_collect::OutcomeRule;
use rloom_core::{Group, PolicyId, PolicyVersion, Purpose, RandomKey, Role, metric};
use rloom_engine::{
    OptimStep, PackedBatch, TrainEngine, TrainError, Which, pack, pack_groups, pack_unshared,
};

use crate::preference::{labels, pairs};
use crate::reference::ReferenceUse;
use crate::report::StepMeasurements;
use crate::rows::{
    Member, counts, loss_inputs, members, of_policy, outcome_inputs, split_groups, split_scores,
};
use crate::{BatchReport, BatchScores, FurtherPolicy, GivenAdvantages, MethodFunctions, Models, advantages};

/// Trains on the batches of a stage.
#[derive(Debug, Clone)]
pub struct BatchTrainer {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Its Python functions.
    pub functions: MethodFunctions,
    /// Maximum number of policy tokens of a completion.
    pub completion_limit: u64,
    /// Maximum number of tokens of a micro-batch.
    pub micro_batch_tokens: usize,
    /// Optimiser steps of a stage that may be skipped because a number is not finite.
    pub max_skipped_steps: u64,
    /// Computes the prompt of a group once.
    pub share_prompts: bool,
    /// True if the sampler's log-probabilities are bitwise identical to those of the trainer with the same weights.
    pub is_sampler_exact: bool,
    /// Seed of the run, part of the key of the algorithm's random draws.
    pub seed: u64,
    /// Index of the stage, part of the key of the algorithm's random draws.
    pub stage: u32,
    /// Use of the reference.
    pub reference: ReferenceUse,
    /// Derives outcomes from rewards.
    pub outcome: OutcomeRule,
    /// Weight of the environment's step rewards in the reward.
    pub step_reward_weight: f64,
    /// True if a KL is measured to a teacher instead of the policy at the start of the stage.
    pub has_teacher: bool,
    /// The main policy of a run with several: it is trained on the segments that it has sampled, and each of
    /// [`Models::further`] on its own. Segments of other policies, which are frozen, carry no loss. `None`: all segments are
    /// those of the only policy.
    pub main: Option<PolicyId>,
}

/// Position of a batch in its stage.
pub struct BatchPosition<'a> {
    /// Number of batches trained before.
    pub version: PolicyVersion,
    /// State of the algorithm after the previous batch.
    pub state: AlgorithmState,
    /// Optimiser steps of the stage that were skipped before.
    pub skipped_steps: u64,
    /// Advantages that a Python function has computed; without them the function is called.
    pub given_advantages: Option<&'a GivenAdvantages>,
    /// Learning rate of the n-th optimiser step of this batch.
    pub learning_rate: &'a dyn Fn(u64) -> f64,
}

impl std::fmt::Debug for BatchPosition<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchPosition").field("version", &self.version).finish_non_exhaustive()
    }
}

/// The part of a batch that one optimiser step trains on.
pub(crate) struct Minibatch<'a> {
    pub(crate) members: &'a [Member<'a>],
    pub(crate) known: &'a BatchScores,
    pub(crate) packed: &'a [PackedBatch],
    pub(crate) inputs: &'a [LossInputs],
    pub(crate) counts: GlobalCounts,
}

impl BatchTrainer {
    /// Trains on a batch: `epochs` passes of `minibatches` optimiser steps each. Calls `progress` with the number of
    /// optimiser steps taken and their total, first with 0.
    ///
    /// An optimiser step with a score, a loss or a gradient that is not finite is skipped, within the limit: it counts for
    /// the learning-rate schedule and leaves the policy unchanged. The critic steps first and keeps its step if the
    /// policy's is skipped. All steps are skipped if the scores that precede them, or the process-reward model's step,
    /// are not finite.
    pub fn train<E: TrainEngine>(
        &self,
        models: &mut Models<E>,
        groups: &[Group],
        position: &BatchPosition<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<BatchReport, TrainError> {
        let filters = &self.algorithm.filters;
        let sampled = if self.algorithm.samples_pairs() { Some(pairs(filters, groups)?) } else { None };
        let groups = sampled.as_deref().unwrap_or(groups);
        let mut report = BatchReport { state: position.state.clone(), ..BatchReport::default() };
        let parts = split_groups(groups.len(), self.algorithm.minibatches as usize);
        let optimizer_steps = u64::from(self.algorithm.epochs) * parts.len() as u64;
        progress(0, optimizer_steps);
        let all = members(groups);
        let limit = self.max_skipped_steps.saturating_sub(position.skipped_steps);
        let (known, advantages) = match self.prepare(models, groups, &all, position, &mut report) {
            Ok(prepared) => prepared,
            Err(error) => {
                report.skip(optimizer_steps, error, limit)?;
                report.optimizer_steps = optimizer_steps;
                report.learning_rate = (position.learning_rate)(optimizer_steps.saturating_sub(1));
                report.add_token_counts();
                progress(optimizer_steps, optimizer_steps);
                return Ok(report);
            }
        };
        let mut measured = StepMeasurements::default();
        let mut measured_further: Vec<StepMeasurements> = Vec::new();
        measured_further.resize_with(models.further.len(), StepMeasurements::default);
        let joint = self.joint_sequences(groups);
        let critic_alone = self.algorithm.critic.is_some_and(|c| position.version.0 < c.warmup_batches);
        for _ in 0..self.algorithm.epochs {
            for part in &parts {
                let of_part: Vec<Member<'_>> =
                    all.iter().filter(|m| part.contains(&m.group)).copied().collect();
                report.learning_rate = (position.learning_rate)(report.optimizer_steps);
                // Later optimiser steps have other weights than the sampler had.
                let is_first = report.optimizer_steps == 0 && self.algorithm.needs_rollouts();
                let mismatch = if is_first { Mismatch::Scores } else { Mismatch::Unmeasured };
                if let Some(joint) = &joint {
                    let taken =
                        self.joint_critic_step(models, joint, part, &known, &mut measured, &mut report);
                    if let Err(error) = taken {
                        report.skip(1, error, limit)?;
                        report.optimizer_steps += 1;
                        progress(report.optimizer_steps, optimizer_steps);
                        continue;
                    }
                }
                let own = self.main.map_or_else(|| of_part.clone(), |main| of_policy(&of_part, main));
                if self.main.is_none() || !own.is_empty() {
                    let packed = self.pack(&own)?;
                    let inputs = loss_inputs(&packed, &own, &known, advantages.as_ref(), mismatch);
                    let minibatch = Minibatch {
                        members: &own,
                        known: &known,
                        packed: &packed,
                        inputs: &inputs,
                        counts: self.counts(&own),
                    };
                    let mut taken = match &joint {
                        Some(_) => Ok(()),
                        None => self.critic_step(models, &minibatch, &mut measured, &mut report),
                    };
                    if taken.is_ok() && !critic_alone {
                        taken =
                            self.main_step(models, &minibatch, position.version, &mut measured, &mut report);
                    }
                    if let Err(error) = taken {
                        report.skip(1, error, limit)?;
                    }
                }
                let further = models.further.iter_mut().zip(&mut measured_further);
                for (policy, measured) in further.filter(|_| !critic_alone) {
                    let own = of_policy(&of_part, policy.id);
                    let packed = self.pack(&own)?;
                    let inputs = loss_inputs(&packed, &own, &known, advantages.as_ref(), mismatch);
                    let minibatch = Minibatch {
                        members: &own,
                        known: &known,
                        packed: &packed,
                        inputs: &inputs,
                        counts: self.counts(&own),
                    };
                    if let Err(error) =
                        self.further_step(policy, &minibatch, position.version, measured, &mut report)
                    {
                        report.skip(1, error, limit)?;
                    }
                }
                report.optimizer_steps += 1;
                progress(report.optimizer_steps, optimizer_steps);
            }
        }
        self.reference.after_batch(&mut models.policy, position.version)?;
        measured.summarize(&mut report);
        for (policy, measured) in models.further.iter().zip(&measured_further) {
            report.metrics.extend(measured.of_policy(&policy.name));
        }
        report.add_token_counts();
        if self.algorithm.distillation.is_some() {
            report.metrics.insert(metric::TEACHER_ON_POLICY.into(), sampled_share(&all));
        }
        if let Some(advantages) = &advantages {
            report.state = report.state.after_batch(&self.algorithm, advantages);
        }
        Ok(report)
    }

    /// The scores of a batch, with what is derived from them before the first optimiser step of the policy.
    fn prepare<E: TrainEngine>(
        &self,
        models: &mut Models<E>,
        groups: &[Group],
        members: &[Member<'_>],
        position: &BatchPosition<'_>,
        report: &mut BatchReport,
    ) -> Result<(BatchScores, Option<Advantages>), TrainError> {
        let mut known = self.scores(models, members, position.version)?;
        if let Some(joint) = self.joint_sequences(groups) {
            known.round_values = self.round_values(models, &joint)?;
        }
        self.train_prm(models, groups, members, &mut known, position, report)?;
        known.masked = self.masks(groups, report);
        if self.algorithm.preference.is_some() {
            known.labels = labels(groups)?;
        }
        self.add_reward_labels(groups, &mut known)?;
        let advantages = self.advantages(groups, members, position, &mut known, report)?;
        Ok((known, advantages))
    }

    pub(crate) fn counts(&self, members: &[Member<'_>]) -> GlobalCounts {
        counts(members, self.completion_limit)
    }

    pub(crate) fn pack(&self, members: &[Member<'_>]) -> Result<Vec<PackedBatch>, TrainError> {
        let (trajectories, budget) = (members.iter().map(|m| m.trajectory), self.micro_batch_tokens);
        let in_pairs = self.algorithm.method.data() == Some(DataKind::Pairs)
            || self.algorithm.preference.is_some_and(|loss| loss.data() == DataKind::Pairs);
        // The noise of a prompt is that of its sequence.
        let share_prompts = self.share_prompts && self.algorithm.neftune_noise_alpha.is_none();
        Ok(match (in_pairs, share_prompts) {
            (true, share_prompts) => pack_groups(trajectories, budget, share_prompts)?,
            (false, true) => pack(trajectories, budget)?,
            (false, false) => pack_unshared(trajectories, budget)?,
        })
    }

    /// Trains the process-reward model on the batch, then scores the batch with it.
    fn train_prm<E: TrainEngine>(
        &self,
        models: &mut Models<E>,
        groups: &[Group],
        members: &[Member<'_>],
        known: &mut BatchScores,
        position: &BatchPosition<'_>,
        report: &mut BatchReport,
    ) -> Result<(), TrainError> {
        let (Some(spec), Some(engine)) = (self.algorithm.prm, &mut models.prm) else { return Ok(()) };
        let packed = self.pack(members)?;
        let loss = PolicyLoss::new(
            Surrogate::ImplicitReward(ImplicitReward { beta: spec.beta }),
            self.algorithm.loss.aggregation,
        );
        let inputs = outcome_inputs(&packed, members, known, &advantages::outcomes(&self.outcome, groups));
        let objective = PolicyObjective { loss, draws: self.draws(position.version, 0) };
        let step = LossStep::new(Objective::Policy(objective), self.counts(members), &inputs);
        let accumulated = engine.accumulate(&packed, &step)?;
        report.count(&accumulated);
        let metrics = accumulated.terms.finish(&step.counts)?;
        report.metrics.insert(metric::PRM_LOSS.into(), metrics.loss);
        let learning_rate = (position.learning_rate)(0) * spec.learning_rate_scale;
        engine.step(&OptimStep { learning_rate })?;
        known.prm = split_scores(&packed, &engine.score(Which::Policy, &packed)?).logprob;
        Ok(())
    }

    /// Flags the trajectories excluded from training; empty if no filter can exclude any.
    fn masks(&self, groups: &[Group], report: &mut BatchReport) -> Vec<bool> {
        if !self.algorithm.filters.masks_episodes() {
            return Vec::new();
        }
        let reasons = advantages::masks(&self.algorithm.filters, groups);
        for reason in reasons.iter().flatten() {
            let name = format!("{}{}", metric::MASKED_PREFIX, reason.name());
            *report.metrics.entry(name).or_default() += 1.0;
        }
        reasons.iter().map(Option::is_some).collect()
    }

    fn advantages(
        &self,
        groups: &[Group],
        members: &[Member<'_>],
        position: &BatchPosition<'_>,
        known: &mut BatchScores,
        report: &mut BatchReport,
    ) -> Result<Option<Advantages>, TrainError> {
        let Some(spec) = self.algorithm.advantage_at(&report.state) else { return Ok(None) };
        if self.algorithm.kl_control.is_some() {
            report.metrics.insert(metric::REWARD_KL_PENALTY_COEFF.into(), spec.kl_coef);
        }
        report.given_advantages = match position.given_advantages {
            Some(given) => Some(given.clone()),
            None => self.functions.advantages(position.version, groups).map_err(function_failed)?,
        };
        let advantages = advantages::batch_advantages(
            &spec,
            &report.state,
            groups,
            known,
            report.given_advantages.as_ref(),
            self.step_reward_weight,
        )?;
        report.advantages =
            advantages.episodes.iter().map(|row| row.iter().map(|a| f64::from(a.at(0))).collect()).collect();
        if !advantages.returns.is_empty() {
            let of = |m: &Member<'_>| {
                advantages.returns[m.group][m.episode][m.offset..m.offset + m.trajectory.policy_tokens()]
                    .to_vec()
            };
            known.returns = members.iter().map(of).collect();
        }
        let trained = groups.iter().zip(&advantages.round_returns).flat_map(|(group, returns)| {
            let both = group.episodes.iter().zip(returns);
            both.filter(|(episode, _)| episode.role == Role::Train).map(|(_, returns)| returns.clone())
        });
        known.round_returns = trained.collect();
        let metrics = advantages.report.named().into_iter().map(|(name, value)| (name.to_owned(), value));
        report.metrics.extend(metrics);
        Ok(Some(advantages))
    }

    /// Key of the algorithm's random draws in an optimiser step.
    pub(crate) fn draws(&self, version: PolicyVersion, optimizer_step: u64) -> RandomKey {
        RandomKey {
            sample: optimizer_step as u32,
            ..RandomKey::new(self.seed, self.stage, Purpose::Algorithm, version.0)
        }
    }

    /// Noise on the embeddings in an optimiser step of a batch. Tickets tell the batches apart.
    fn noise(&self, optimizer_step: u64) -> Option<EmbeddingNoise> {
        let (seed, stage, step) = (self.seed, self.stage, optimizer_step as u32);
        self.algorithm.neftune_noise_alpha.map(|alpha| EmbeddingNoise { alpha, seed, stage, step })
    }

    pub(crate) fn critic_step<E: TrainEngine>(
        &self,
        models: &mut Models<E>,
        minibatch: &Minibatch<'_>,
        measured: &mut StepMeasurements,
        report: &mut BatchReport,
    ) -> Result<(), TrainError> {
        let (Some(spec), Some(critic)) = (self.algorithm.critic, &mut models.critic) else { return Ok(()) };
        let loss = LossStep::new(Objective::Value(spec.value), minibatch.counts, minibatch.inputs);
        let accumulated = critic.accumulate(minibatch.packed, &loss)?;
        let metrics = accumulated.terms.finish(&loss.counts)?;
        report.count(&accumulated);
        let learning_rate = report.learning_rate * spec.learning_rate_scale;
        measured.critic_grad_norm.push(critic.step(&OptimStep { learning_rate })?.grad_norm);
        measured.critic.push(metrics);
        Ok(())
    }

    /// The inputs of the policy's loss. A Python function computes its part from the scores of a pass of its own.
    fn policy_inputs<'m, E: TrainEngine>(
        &self,
        engine: &mut E,
        minibatch: &Minibatch<'m>,
        version: PolicyVersion,
        loss: &PolicyLoss,
    ) -> Result<Cow<'m, [LossInputs]>, TrainError> {
        if !self.functions.computes_loss() {
            return Ok(Cow::Borrowed(minibatch.inputs));
        }
        let scores = engine.score(Which::Policy, minibatch.packed)?;
        let mut inputs = minibatch.inputs.to_vec();
        self.functions
            .add_losses(loss, version, &minibatch.counts, &scores, &mut inputs)
            .map_err(function_failed)?;
        Ok(Cow::Owned(inputs))
    }

    /// An optimiser step of the main policy, whose measurements also drive adaptive coefficients.
    fn main_step<E: TrainEngine>(
        &self,
        models: &mut Models<E>,
        minibatch: &Minibatch<'_>,
        version: PolicyVersion,
        measured: &mut StepMeasurements,
        report: &mut BatchReport,
    ) -> Result<(), TrainError> {
        let draws = self.draws(version, report.optimizer_steps);
        let rate = report.learning_rate;
        let metrics =
            self.policy_step(&mut models.policy, minibatch, (version, draws, rate), measured, report)?;
        report.state = report.state.after_step(&self.algorithm, &metrics);
        Ok(())
    }

    /// An optimiser step of a further policy. Without segments of its own it keeps its weights.
    fn further_step<E: TrainEngine>(
        &self,
        policy: &mut FurtherPolicy<E>,
        minibatch: &Minibatch<'_>,
        version: PolicyVersion,
        measured: &mut StepMeasurements,
        report: &mut BatchReport,
    ) -> Result<(), TrainError> {
        if minibatch.packed.is_empty() {
            return Ok(());
        }
        let draws = RandomKey { segment: policy.id.0, ..self.draws(version, report.optimizer_steps) };
        let rate = report.learning_rate * policy.learning_rate_scale;
        self.policy_step(&mut policy.engine, minibatch, (version, draws, rate), measured, report).map(drop)
    }

    /// The objective of an optimiser step on a packed batch. The log-probabilities of the reference are indexed by trajectory.
    pub(crate) fn objective<E: TrainEngine>(
        &self,
        engine: &mut E,
        loss: PolicyLoss,
        batch: (&[Member<'_>], &[PackedBatch]),
        reference: &[Vec<f32>],
        state: &mut AlgorithmState,
        draws: RandomKey,
    ) -> Result<Objective, TrainError> {
        let Some(preference) = self.algorithm.preference else {
            return Ok(Objective::Policy(PolicyObjective { loss, draws }));
        };
        let anchor = self.anchor(engine, &preference, batch, reference, state)?;
        Ok(Objective::Preference(PreferenceLoss { preference, anchor }))
    }

    /// An optimiser step of one policy, at a learning rate and with the key of the loss's random draws.
    fn policy_step<E: TrainEngine>(
        &self,
        engine: &mut E,
        minibatch: &Minibatch<'_>,
        (version, draws, learning_rate): (PolicyVersion, RandomKey, f64),
        measured: &mut StepMeasurements,
        report: &mut BatchReport,
    ) -> Result<LossMetrics, TrainError> {
        let loss = self.algorithm.loss_at(&report.state);
        if self.algorithm.entropy_control.is_some() {
            report.metrics.insert(metric::ENTROPY_COEF.into(), loss.entropy_coef);
        }
        let objective = match (self.algorithm.reward_model, self.algorithm.distillation) {
            (Some(spec), _) => Objective::Reward(Self::reward_loss(spec, minibatch.members)),
            (None, Some(distillation)) => {
                let aggregation = self.algorithm.loss.aggregation;
                Objective::Distillation(DistillationLoss { distillation, aggregation })
            }
            (None, None) => {
                let batch = (minibatch.members, minibatch.packed);
                let reference = &minibatch.known.reference;
                self.objective(engine, loss, batch, reference, &mut report.state, draws)?
            }
        };
        let mut inputs = self.policy_inputs(engine, minibatch, version, &loss)?;
        self.add_sharpened(engine, minibatch.packed, &mut inputs)?;
        let mut packed = Cow::Borrowed(minibatch.packed);
        if let Some(distillation) = self.algorithm.distillation {
            add_top(engine, &distillation, &mut packed, &mut inputs)?;
        }
        let step = LossStep {
            noise: self.noise(report.optimizer_steps),
            ..LossStep::new(objective, minibatch.counts, &inputs)
        };
        let accumulated = engine.accumulate(&packed, &step)?;
        let metrics = accumulated.terms.finish(&step.counts)?;
        report.count(&accumulated);
        let taken = engine.step(&OptimStep { learning_rate })?;
        measured.policy.push(metrics);
        measured.grad_norm.push(taken.grad_norm);
        Ok(metrics)
    }
}

/// Adds the teacher's most probable tokens to the batches of a distillation that compares these alone.
fn add_top<E: TrainEngine>(
    engine: &mut E,
    distillation: &Distillation,
    packed: &mut Cow<'_, [PackedBatch]>,
    inputs: &mut Cow<'_, [LossInputs]>,
) -> Result<(), TrainError> {
    let Some(k) = distillation.top_k() else { return Ok(()) };
    let found = engine.teacher_top(packed, k, distillation.temperature())?;
    for ((batch, inputs), top) in packed.to_mut().iter_mut().zip(inputs.to_mut()).zip(found) {
        inputs.teacher = Some(TeacherTop { k: top.candidates.k(), logprob: top.logprob });
        *batch = std::mem::take(batch).with_candidates(top.candidates)?;
    }
    Ok(())
}

/// Fraction of the trajectories that the policy has sampled.
fn sampled_share(members: &[Member<'_>]) -> f64 {
    let sampled = members.iter().filter(|m| !m.trajectory.versions.is_empty()).count();
    sampled as f64 / members.len().max(1) as f64
}

fn function_failed(error: impl miette::Diagnostic + Send + Sync + 'static) -> TrainError {
    TrainError::Function(Box::new(error))
}
