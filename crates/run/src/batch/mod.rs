//! From scored groups to optimiser steps: what must be known of the tokens, advantages, minibatches.

mod engines;
mod of_stage;
mod rewards;
mod rows;
#[cfg(test)]
mod sampler_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use rloom_algo::{
    Advantages, Algorithm, AlgorithmState, GlobalCounts, ImplicitReward, LossInputs, LossMetrics, LossStep,
    Mismatch, Objective, PolicyLoss, PolicyObjective, Proximal, Surrogate, TokenScores, interpolation,
};
use rloom_core::{Group, PolicyVersion, Purpose, RandomKey, Trajectory, metric};
use rloom_engine::{LossReport, OptimStep, PackedBatch, TrainEngine, TrainError, Which, pack, pack_unshared};

use crate::outcome::OutcomeRule;
pub(crate) use of_stage::optimizer_steps;
use rows::{Known, Member, apart, inputs, is_of_version, members, outcome_inputs, split};

/// What training on a batch did.
#[derive(Debug, Clone, Default)]
pub(crate) struct BatchReport {
    /// Under the field's names: means over the optimiser steps.
    pub(crate) metrics: BTreeMap<String, f64>,
    /// Norm of the policy's gradient before clipping, mean over the optimiser steps that it took.
    pub(crate) grad_norm: Option<f64>,
    /// Learning rate of the last optimiser step.
    pub(crate) learning_rate: f64,
    /// Optimiser steps by the schedule: those in which the critic alone was trained count too.
    pub(crate) optimizer_steps: u64,
    /// Tokens through forward and backward, of all models.
    pub(crate) tokens: u64,
    /// Tokens of sequences without any coefficient, which were scored alone, and of prompts that were not computed again.
    skipped: u64,
    shared: u64,
    /// The advantage of each episode's first token, `[group][episode]`; empty for supervised methods.
    pub(crate) advantages: Vec<Vec<f64>>,
    /// What the algorithm carries on to the next batch.
    pub(crate) state: AlgorithmState,
}

impl BatchReport {
    fn count(&mut self, accumulated: &LossReport) {
        self.tokens += accumulated.tokens;
        self.skipped += accumulated.skipped;
        self.shared += accumulated.shared;
    }
}

/// The models that a batch trains.
#[derive(Debug)]
pub(crate) struct Engines<E> {
    pub(crate) policy: E,
    /// The learned value, where it has a backbone of its own.
    pub(crate) critic: Option<E>,
    /// The implicit process-reward model, whose reference is what it started from.
    pub(crate) prm: Option<E>,
}

/// How a stage trains on batches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchTraining {
    pub(crate) algorithm: Algorithm,
    /// Most policy tokens of a completion.
    pub(crate) completion_limit: u64,
    /// Most tokens of a micro-batch.
    pub(crate) micro_batch_tokens: usize,
    /// Whether a group's prompt is computed once.
    pub(crate) share_prompts: bool,
    /// Whether the log-probabilities of what one version sampled are, to the bit, those that its weights give in training.
    pub(crate) is_sampler_exact: bool,
    /// The run's seed and the stage's place: the key of what the algorithm draws.
    pub(crate) seed: u64,
    pub(crate) stage: u32,
    /// What of the rewards is the outcome.
    pub(crate) outcome: OutcomeRule,
    /// Weight of the environment's step rewards in the reward.
    pub(crate) step_reward_weight: f64,
}

/// Where a batch stands in its stage.
pub(crate) struct Moment<'a> {
    /// Batches trained before.
    pub(crate) version: PolicyVersion,
    /// What the algorithm carried on from the batch before.
    pub(crate) state: AlgorithmState,
    /// The rate of the n-th optimiser step of this batch.
    pub(crate) learning_rate: &'a dyn Fn(u64) -> f64,
}

/// Means over optimiser steps.
#[derive(Debug, Default)]
struct Measured {
    policy: Vec<LossMetrics>,
    critic: Vec<LossMetrics>,
    grad_norm: Vec<f64>,
    critic_grad_norm: Vec<f64>,
}

impl BatchTraining {
    /// Trains on a batch: `epochs` passes of `minibatches` optimiser steps each. `progress` is told of optimiser steps
    /// taken and their total.
    pub(crate) fn train<E: TrainEngine>(
        &self,
        engines: &mut Engines<E>,
        groups: &[Group],
        moment: &Moment<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<BatchReport, TrainError> {
        let mut report = BatchReport { state: moment.state, ..BatchReport::default() };
        let all = members(groups);
        let mut known = self.scores(engines, &all, moment.version)?;
        self.prm(engines, groups, &all, &mut known, moment, &mut report)?;
        known.masked = self.masks(groups, &mut report);
        let advantages = self.advantages(groups, &all, &mut known, &mut report)?;
        let parts = split(groups.len(), self.algorithm.minibatches as usize);
        let steps = u64::from(self.algorithm.epochs) * parts.len() as u64;
        let mut measured = Measured::default();
        let critic_alone = self.algorithm.critic.is_some_and(|c| moment.version.0 < c.warmup_batches);
        for _ in 0..self.algorithm.epochs {
            for part in &parts {
                let own: Vec<Member<'_>> = all.iter().filter(|m| part.contains(&m.group)).copied().collect();
                let packed = self.pack(&own)?;
                report.learning_rate = (moment.learning_rate)(report.optimizer_steps);
                // In later steps the weights differ from those that the sampler had.
                let mismatch = if report.optimizer_steps == 0 && self.algorithm.needs_rollouts() {
                    Mismatch::Scores
                } else {
                    Mismatch::Unmeasured
                };
                let inputs = inputs(&packed, &own, &known, advantages.as_ref(), mismatch);
                let step = Step { packed: &packed, inputs: &inputs, counts: self.counts(&own) };
                self.critic_step(engines, &step, &mut measured, &mut report)?;
                if !critic_alone {
                    self.policy_step(engines, &step, moment.version, &mut measured, &mut report)?;
                }
                report.optimizer_steps += 1;
                progress(report.optimizer_steps, steps);
            }
        }
        measured.tell(&mut report);
        for (name, tokens) in [
            (metric::TOKENS_TRAINED, report.tokens),
            (metric::TOKENS_SKIPPED, report.skipped),
            (metric::TOKENS_SHARED, report.shared),
        ] {
            report.metrics.insert(name.to_owned(), tokens as f64);
        }
        if let Some(advantages) = &advantages {
            report.state = report.state.after_batch(&self.algorithm, advantages);
        }
        Ok(report)
    }

    fn counts(&self, members: &[Member<'_>]) -> GlobalCounts {
        let lengths = members.iter().map(|m| m.trajectory.policy_tokens());
        GlobalCounts::of_lengths(lengths, self.completion_limit)
    }

    fn pack(&self, members: &[Member<'_>]) -> Result<Vec<PackedBatch>, TrainError> {
        let pack = if self.share_prompts { pack } else { pack_unshared };
        Ok(pack(members.iter().map(|m| m.trajectory), self.micro_batch_tokens)?)
    }

    /// What the models say of the batch before it changes them.
    fn scores<E: TrainEngine>(
        &self,
        engines: &mut Engines<E>,
        members: &[Member<'_>],
        version: PolicyVersion,
    ) -> Result<Known, TrainError> {
        let mut known = Known::default();
        let algorithm = &self.algorithm;
        if algorithm.needs_reference() {
            // What KL is measured against is what the stage began with.
            known.reference = self.logprobs_of(PolicyVersion(0), members, |packed| {
                engines.policy.score(Which::Reference, packed)
            })?;
        }
        let shared_value = algorithm.critic.is_some_and(|c| c.is_shared());
        let of_values = if shared_value { Some(&mut engines.policy) } else { engines.critic.as_mut() };
        if let Some(engine) = of_values {
            let packed = self.pack(members)?;
            let scores = apart(&packed, &engine.score(Which::Policy, &packed)?);
            (known.values, known.last_values) = (scores.value, scores.last_value);
            if shared_value && algorithm.recomputes_old() {
                known.old = scores.logprob;
            }
        }
        if algorithm.recomputes_old() && !shared_value {
            known.old =
                self.logprobs_of(version, members, |packed| engines.policy.score(Which::Policy, packed))?;
        }
        if let Some(prm) = &mut engines.prm {
            // It began with the policy that the stage began with, too.
            known.prm_reference =
                self.logprobs_of(PolicyVersion(0), members, |packed| prm.score(Which::Reference, packed))?;
        }
        if algorithm.proximal == Proximal::LogLinear {
            known.interpolation = members.iter().map(|m| interpolations(m.trajectory, version)).collect();
        }
        Ok(known)
    }

    /// Each trajectory's log-probabilities under the policy of a version: the sampler's, where that version sampled all of
    /// it and the sampler computes what training does, and those that `score` gives for the others.
    fn logprobs_of(
        &self,
        version: PolicyVersion,
        members: &[Member<'_>],
        score: impl FnOnce(&[PackedBatch]) -> Result<Vec<TokenScores>, TrainError>,
    ) -> Result<Vec<Vec<f32>>, TrainError> {
        let is_known = |m: &Member<'_>| self.is_sampler_exact && is_of_version(m.trajectory, version);
        let unknown: Vec<Member<'_>> = members.iter().filter(|m| !is_known(m)).copied().collect();
        let packed = self.pack(&unknown)?;
        let scores = if packed.is_empty() { Vec::new() } else { score(&packed)? };
        let mut computed = apart(&packed, &scores).logprob.into_iter();
        let of = |m: &Member<'_>| {
            if is_known(m) { m.trajectory.logprobs.clone() } else { computed.next().unwrap_or_default() }
        };
        Ok(members.iter().map(of).collect())
    }

    /// Trains the process-reward model on the batch, then lets it score it.
    fn prm<E: TrainEngine>(
        &self,
        engines: &mut Engines<E>,
        groups: &[Group],
        members: &[Member<'_>],
        known: &mut Known,
        moment: &Moment<'_>,
        report: &mut BatchReport,
    ) -> Result<(), TrainError> {
        let (Some(spec), Some(engine)) = (self.algorithm.prm, &mut engines.prm) else { return Ok(()) };
        let packed = self.pack(members)?;
        let loss = PolicyLoss::new(
            Surrogate::ImplicitReward(ImplicitReward { beta: spec.beta }),
            self.algorithm.loss.aggregation,
        );
        let inputs = outcome_inputs(&packed, members, known, &rewards::outcomes(self.outcome, groups));
        let objective = Objective::Policy(PolicyObjective { loss, draws: self.draws(moment.version, 0) });
        let loss = LossStep::new(objective, self.counts(members), &inputs);
        let accumulated = engine.accumulate(&packed, &loss)?;
        report.count(&accumulated);
        let metrics = accumulated.terms.finish(&loss.counts)?;
        report.metrics.insert(metric::PRM_LOSS.into(), metrics.loss);
        let learning_rate = (moment.learning_rate)(0) * spec.learning_rate_scale;
        engine.step(&OptimStep { learning_rate })?;
        known.prm = apart(&packed, &engine.score(Which::Policy, &packed)?).logprob;
        Ok(())
    }

    /// Which trajectories are trained on by none of their tokens; empty for none.
    fn masks(&self, groups: &[Group], report: &mut BatchReport) -> Vec<bool> {
        if !self.algorithm.filters.masks_episodes() {
            return Vec::new();
        }
        let reasons = rewards::masks(&self.algorithm.filters, groups);
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
        known: &mut Known,
        report: &mut BatchReport,
    ) -> Result<Option<Advantages>, TrainError> {
        let Some(spec) = self.algorithm.advantage_at(&report.state) else { return Ok(None) };
        if self.algorithm.kl_control.is_some() {
            report.metrics.insert(metric::REWARD_KL_PENALTY_COEFF.into(), spec.kl_coef);
        }
        let advantages =
            rewards::batch_advantages(&spec, &report.state.rewards, groups, known, self.step_reward_weight)?;
        report.advantages =
            advantages.episodes.iter().map(|row| row.iter().map(|a| f64::from(a.at(0))).collect()).collect();
        if !advantages.returns.is_empty() {
            let of = |m: &Member<'_>| {
                advantages.returns[m.group][m.episode][m.offset..m.offset + m.trajectory.policy_tokens()]
                    .to_vec()
            };
            known.returns = members.iter().map(of).collect();
        }
        report
            .metrics
            .extend(advantages.report.named().into_iter().map(|(name, value)| (name.to_owned(), value)));
        Ok(Some(advantages))
    }

    fn draws(&self, version: PolicyVersion, step: u64) -> RandomKey {
        RandomKey {
            sample: step as u32,
            ..RandomKey::new(self.seed, self.stage, Purpose::Algorithm, version.0)
        }
    }

    fn critic_step<E: TrainEngine>(
        &self,
        engines: &mut Engines<E>,
        step: &Step<'_>,
        measured: &mut Measured,
        report: &mut BatchReport,
    ) -> Result<(), TrainError> {
        let (Some(spec), Some(critic)) = (self.algorithm.critic, &mut engines.critic) else { return Ok(()) };
        let loss = LossStep::new(Objective::Value(spec.value), step.counts, step.inputs);
        let accumulated = critic.accumulate(step.packed, &loss)?;
        measured.critic.push(accumulated.terms.finish(&loss.counts)?);
        report.count(&accumulated);
        let learning_rate = report.learning_rate * spec.learning_rate_scale;
        measured.critic_grad_norm.push(critic.step(&OptimStep { learning_rate })?.grad_norm);
        Ok(())
    }

    fn policy_step<E: TrainEngine>(
        &self,
        engines: &mut Engines<E>,
        step: &Step<'_>,
        version: PolicyVersion,
        measured: &mut Measured,
        report: &mut BatchReport,
    ) -> Result<(), TrainError> {
        let loss = self.algorithm.loss_at(&report.state);
        if self.algorithm.entropy_control.is_some() {
            report.metrics.insert(metric::ENTROPY_COEF.into(), loss.entropy_coef);
        }
        let objective =
            Objective::Policy(PolicyObjective { loss, draws: self.draws(version, report.optimizer_steps) });
        let loss = LossStep::new(objective, step.counts, step.inputs);
        let accumulated = engines.policy.accumulate(step.packed, &loss)?;
        let metrics = accumulated.terms.finish(&loss.counts)?;
        report.state = report.state.after_step(&self.algorithm, &metrics);
        measured.policy.push(metrics);
        report.count(&accumulated);
        let taken = engines.policy.step(&OptimStep { learning_rate: report.learning_rate })?;
        measured.grad_norm.push(taken.grad_norm);
        Ok(())
    }
}

/// One optimiser step's share of a batch.
struct Step<'a> {
    packed: &'a [PackedBatch],
    inputs: &'a [LossInputs],
    counts: GlobalCounts,
}

/// α of each policy token by the version that sampled it.
fn interpolations(trajectory: &Trajectory, version: PolicyVersion) -> Vec<f32> {
    let of_position = |i: usize| {
        let span = trajectory.versions.iter().find(|span| span.range.contains(&i));
        let sampled = span.map_or(version, |span| span.version);
        interpolation(version.0 as f64, sampled.0 as f64, version.0 as f64 + 1.0) as f32
    };
    trajectory.policy_ranges().flatten().map(of_position).collect()
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

impl Measured {
    fn tell(&self, report: &mut BatchReport) {
        let named =
            |metrics: &[LossMetrics]| LossMetrics::over_steps(metrics).map(|m| m.named()).unwrap_or_default();
        for (name, value) in named(&self.policy) {
            report.metrics.insert(name.to_owned(), value);
        }
        for (name, value) in
            named(&self.critic).into_iter().filter(|(name, _)| name.starts_with(metric::VALUE_PREFIX))
        {
            report.metrics.insert(name.to_owned(), value);
        }
        report.grad_norm = mean(&self.grad_norm);
        if let Some(norm) = mean(&self.critic_grad_norm) {
            report.metrics.insert(metric::VALUE_GRAD_NORM.into(), norm);
        }
    }
}
