//! Scores of a batch before its first optimiser step.

use rloom_algo::{Proximal, StepLabel, TokenScores, interpolation};
use rloom_core::{Group, PolicyId, PolicyVersion, Trajectory};
use rloom_engine::{PackedBatch, TrainEngine, TrainError, Which};

use crate::rows::{Member, is_of_version, members, of_policy, split_scores};
use crate::{BatchTrainer, Models};

/// Per-token numbers of each trained trajectory of a batch, computed before the first optimiser step: a list per
/// trajectory, with one number per policy token. Lists that the algorithm does not use are empty.
#[derive(Debug, Default)]
pub struct BatchScores {
    /// Log-probabilities of the reference policy.
    pub reference: Vec<Vec<f32>>,
    /// Log-probabilities of the policy before the first optimiser step; empty if the sampler's are used.
    pub old: Vec<Vec<f32>>,
    /// Interpolation factor α of each token ([`LossInputs::interpolation`](rloom_algo::LossInputs)).
    pub(crate) interpolation: Vec<Vec<f32>>,
    /// Values before the first optimiser step: of each token, and after the last one.
    pub(crate) values: Vec<Vec<f32>>,
    pub(crate) last_values: Vec<f32>,
    /// Targets of the values.
    pub(crate) returns: Vec<Vec<f32>>,
    /// Values before each round of the trained episodes, and their targets.
    pub(crate) round_values: Vec<Vec<f32>>,
    pub(crate) round_returns: Vec<Vec<f32>>,
    /// Log-probabilities of the process-reward model and of its reference.
    pub(crate) prm: Vec<Vec<f32>>,
    pub(crate) prm_reference: Vec<Vec<f32>>,
    /// Label of each trajectory, for a method that learns from preferences: 1 for a chosen or desirable completion.
    pub(crate) labels: Vec<f32>,
    /// Margin of each trajectory, for a reward model.
    pub(crate) margins: Vec<f32>,
    /// Labelled steps of each trajectory, for a process-reward model.
    pub(crate) steps: Vec<Vec<StepLabel>>,
    /// True for trajectories that are excluded from training.
    pub(crate) masked: Vec<bool>,
}

impl BatchTrainer {
    /// Scores the batch trained from `version` with every model that the algorithm uses, as
    /// [`train`](Self::train) does before it updates any of them. Log-probabilities that an exact sampler has recorded
    /// are taken from the trajectories instead of being computed.
    pub fn batch_scores<E: TrainEngine>(
        &self,
        models: &mut Models<E>,
        groups: &[Group],
        version: PolicyVersion,
    ) -> Result<BatchScores, TrainError> {
        self.scores(models, &members(groups), version)
    }

    /// Scores the trained trajectories of a batch.
    pub(crate) fn scores<E: TrainEngine>(
        &self,
        models: &mut Models<E>,
        members: &[Member<'_>],
        version: PolicyVersion,
    ) -> Result<BatchScores, TrainError> {
        let mut known = BatchScores::default();
        let algorithm = &self.algorithm;
        if let Some(main) = self.main {
            return self.scores_of_policies(models, main, members, version);
        }
        if algorithm.needs_reference() {
            known.reference = self.reference(&mut models.policy, members)?;
        }
        let is_joint = algorithm.critic.is_some_and(|c| c.is_joint);
        let shared_value = algorithm.critic.is_some_and(|c| c.is_shared());
        let value_engine = if shared_value { Some(&mut models.policy) } else { models.critic.as_mut() };
        if let Some(engine) = value_engine.filter(|_| !is_joint) {
            let packed = self.pack(members)?;
            let scores = split_scores(&packed, &engine.score(Which::Policy, &packed)?);
            (known.values, known.last_values) = (scores.value, scores.last_value);
            if shared_value && algorithm.recomputes_old() {
                known.old = scores.logprob;
            }
        }
        if algorithm.recomputes_old() && !shared_value {
            known.old = self.old(&mut models.policy, members, version)?;
        }
        if let Some(prm) = &mut models.prm {
            // Its reference is also the policy at the start of the stage.
            known.prm_reference =
                self.logprobs_of(PolicyVersion(0), members, |packed| prm.score(Which::Reference, packed))?;
        }
        if algorithm.proximal == Proximal::LogLinear {
            known.interpolation = members.iter().map(|m| interpolations(m.trajectory, version)).collect();
        }
        Ok(known)
    }

    /// Scores the trajectories of each trained policy with its own engine. Those of frozen policies keep the
    /// log-probabilities with which they were sampled.
    fn scores_of_policies<E: TrainEngine>(
        &self,
        models: &mut Models<E>,
        main: PolicyId,
        members: &[Member<'_>],
        version: PolicyVersion,
    ) -> Result<BatchScores, TrainError> {
        let mut known = BatchScores::default();
        let algorithm = &self.algorithm;
        let sampled = || members.iter().map(|m| m.trajectory.logprobs.clone()).collect();
        if algorithm.needs_reference() {
            known.reference = sampled();
        }
        if algorithm.recomputes_old() {
            known.old = sampled();
        }
        let further = models.further.iter_mut().map(|policy| (policy.id, &mut policy.engine));
        for (id, engine) in std::iter::once((main, &mut models.policy)).chain(further) {
            let own = of_policy(members, id);
            if algorithm.needs_reference() {
                place(&own, self.reference(engine, &own)?, &mut known.reference);
            }
            if algorithm.recomputes_old() {
                place(&own, self.old(engine, &own, version)?, &mut known.old);
            }
        }
        if algorithm.proximal == Proximal::LogLinear {
            known.interpolation = members.iter().map(|m| interpolations(m.trajectory, version)).collect();
        }
        Ok(known)
    }

    /// Log-probabilities of the reference, or of a teacher in its place. The policy at the start of the stage has sampled its own.
    pub(crate) fn reference<E: TrainEngine>(
        &self,
        engine: &mut E,
        members: &[Member<'_>],
    ) -> Result<Vec<Vec<f32>>, TrainError> {
        if self.has_teacher {
            let packed = self.pack(members)?;
            return Ok(split_scores(&packed, &engine.score(Which::Teacher, &packed)?).logprob);
        }
        let score = |packed: &[PackedBatch]| engine.score(Which::Reference, packed);
        if self.reference.is_other || self.reference.scores.is_some() {
            return self.logprobs(members, |m| self.reference.known(m.trajectory), score);
        }
        self.logprobs_of(PolicyVersion(0), members, score)
    }

    /// Log-probabilities of the policy before the first optimiser step.
    fn old<E: TrainEngine>(
        &self,
        engine: &mut E,
        members: &[Member<'_>],
        version: PolicyVersion,
    ) -> Result<Vec<Vec<f32>>, TrainError> {
        self.logprobs_of(version, members, |packed| engine.score(Which::Policy, packed))
    }

    /// Returns each trajectory's log-probabilities under the policy of a version. Those that this version sampled on an
    /// exact engine are known; `score` computes the others.
    fn logprobs_of(
        &self,
        version: PolicyVersion,
        members: &[Member<'_>],
        score: impl FnOnce(&[PackedBatch]) -> Result<Vec<TokenScores>, TrainError>,
    ) -> Result<Vec<Vec<f32>>, TrainError> {
        let is_known = |m: &Member<'_>| self.is_sampler_exact && is_of_version(m.trajectory, version);
        self.logprobs(members, |m| is_known(m).then(|| m.trajectory.logprobs.clone()), score)
    }

    /// Returns each trajectory's log-probabilities: the `known` ones, and those that `score` computes.
    fn logprobs(
        &self,
        members: &[Member<'_>],
        known: impl Fn(&Member<'_>) -> Option<Vec<f32>>,
        score: impl FnOnce(&[PackedBatch]) -> Result<Vec<TokenScores>, TrainError>,
    ) -> Result<Vec<Vec<f32>>, TrainError> {
        let known: Vec<Option<Vec<f32>>> = members.iter().map(known).collect();
        let unknown = members.iter().zip(&known).filter(|(_, known)| known.is_none());
        let unknown: Vec<Member<'_>> = unknown.map(|(member, _)| *member).collect();
        let packed = self.pack(&unknown)?;
        let scores = if packed.is_empty() { Vec::new() } else { score(&packed)? };
        let mut computed = split_scores(&packed, &scores).logprob.into_iter();
        Ok(known.into_iter().map(|known| known.or_else(|| computed.next()).unwrap_or_default()).collect())
    }
}

/// Puts the numbers of `members` in their places among those of all trajectories.
pub(crate) fn place(members: &[Member<'_>], numbers: Vec<Vec<f32>>, all: &mut [Vec<f32>]) {
    for (member, own) in members.iter().zip(numbers) {
        all[member.place] = own;
    }
}

/// Returns α of each policy token by the version that sampled it.
fn interpolations(trajectory: &Trajectory, version: PolicyVersion) -> Vec<f32> {
    let of_position = |i: usize| {
        let span = trajectory.versions.iter().find(|span| span.range.contains(&i));
        let sampled = span.map_or(version, |span| span.version);
        interpolation(version.0 as f64, sampled.0 as f64, version.0 as f64 + 1.0) as f32
    };
    trajectory.policy_ranges().flatten().map(of_position).collect()
}
