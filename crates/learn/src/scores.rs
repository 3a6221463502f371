//! Scores of a batch before its first optimiser step.

use rloom_algo::{Proximal, TokenScores, interpolation};
use rloom_core::{PolicyVersion, Trajectory};
use rloom_engine::{PackedBatch, TrainEngine, TrainError, Which};

use crate::rows::{BatchScores, Member, is_of_version, split_scores};
use crate::{BatchTrainer, Models};

impl BatchTrainer {
    /// Scores the batch under every model that the algorithm reads, before any of them is updated.
    pub(crate) fn scores<E: TrainEngine>(
        &self,
        models: &mut Models<E>,
        members: &[Member<'_>],
        version: PolicyVersion,
    ) -> Result<BatchScores, TrainError> {
        let mut known = BatchScores::default();
        let algorithm = &self.algorithm;
        if algorithm.needs_reference() {
            // The reference is the policy that the stage started from.
            known.reference = self.logprobs_of(PolicyVersion(0), members, |packed| {
                models.policy.score(Which::Reference, packed)
            })?;
        }
        let shared_value = algorithm.critic.is_some_and(|c| c.is_shared());
        let value_engine = if shared_value { Some(&mut models.policy) } else { models.critic.as_mut() };
        if let Some(engine) = value_engine {
            let packed = self.pack(members)?;
            let scores = split_scores(&packed, &engine.score(Which::Policy, &packed)?);
            (known.values, known.last_values) = (scores.value, scores.last_value);
            if shared_value && algorithm.recomputes_old() {
                known.old = scores.logprob;
            }
        }
        if algorithm.recomputes_old() && !shared_value {
            known.old =
                self.logprobs_of(version, members, |packed| models.policy.score(Which::Policy, packed))?;
        }
        if let Some(prm) = &mut models.prm {
            // It started from the policy that the stage started from, too.
            known.prm_reference =
                self.logprobs_of(PolicyVersion(0), members, |packed| prm.score(Which::Reference, packed))?;
        }
        if algorithm.proximal == Proximal::LogLinear {
            known.interpolation = members.iter().map(|m| interpolations(m.trajectory, version)).collect();
        }
        Ok(known)
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
        let unknown: Vec<Member<'_>> = members.iter().filter(|m| !is_known(m)).copied().collect();
        let packed = self.pack(&unknown)?;
        let scores = if packed.is_empty() { Vec::new() } else { score(&packed)? };
        let mut computed = split_scores(&packed, &scores).logprob.into_iter();
        let of = |m: &Member<'_>| {
            if is_known(m) { m.trajectory.logprobs.clone() } else { computed.next().unwrap_or_default() }
        };
        Ok(members.iter().map(of).collect())
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
