//! The probe of an update: log-probabilities by which a rollout engine shows that it has the trainer's weights.

use std::sync::Arc;

use rloom_core::{
    Author, PolicyId, PolicyVersion, SampleKey, Span, StopReason, Ticket, Trajectory, VersionSpan,
};
use rloom_engine::{Probe, PublishedPolicy, TrainEngine, TrainError, Which, pack_unshared};

/// Tokens of the probe.
const TOKENS: usize = 64;

/// A fixed sequence of tokens that is scored with every version of the policy.
#[derive(Debug, Clone)]
pub struct WeightProbe {
    tokens: Vec<u32>,
}

impl WeightProbe {
    /// A sequence for a model with this vocabulary and context.
    pub fn new(vocabulary: usize, context: usize) -> Self {
        // Spread over the vocabulary; 0x9E37_79B1 is close to 2³² / φ.
        let token = |i: u32| ((u64::from(i.wrapping_mul(0x9E37_79B1)) * vocabulary as u64) >> 32) as u32;
        // Servers score a prompt only if it leaves room for one more token.
        let count = TOKENS.min(context.saturating_sub(1)) as u32;
        Self { tokens: (1..=count).map(token).collect() }
    }

    /// Adds the log-probabilities of the trainer's weights to their publication.
    pub(crate) fn add_to<T: TrainEngine>(
        &self,
        published: &mut PublishedPolicy,
        trainer: &mut T,
    ) -> Result<(), TrainError> {
        let batches = pack_unshared([&self.trajectory()], self.tokens.len())?;
        let scores = trainer.score(Which::Policy, &batches)?;
        let logprobs = scores.into_iter().flat_map(|scores| scores.logprob).collect();
        published.probe = Some(Arc::new(Probe { tokens: self.tokens.clone(), logprobs }));
        Ok(())
    }

    /// The sequence as a trajectory of which all but the first token are scored.
    fn trajectory(&self) -> Trajectory {
        let scored = 1..self.tokens.len();
        Trajectory {
            key: SampleKey { ticket: Ticket(0), sample: 0, segment: 0 },
            agent: None,
            tokens: self.tokens.clone(),
            spans: vec![
                Span::new(Author::Prompt, 0..1),
                Span::new(Author::Policy, scored.clone()).with_temperature(1.0),
            ],
            logprobs: vec![0.0; scored.len()],
            versions: vec![VersionSpan { policy: PolicyId::MAIN, version: PolicyVersion(0), range: scored }],
            stop: StopReason::Length,
            attachments: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_of_the_vocabulary_and_differ() {
        let probe = WeightProbe::new(1000, 4096);
        let distinct: std::collections::BTreeSet<&u32> = probe.tokens.iter().collect();
        assert_eq!((probe.tokens.len(), distinct.len()), (TOKENS, TOKENS));
        assert!(probe.tokens.iter().all(|&token| token < 1000));
        let short = WeightProbe::new(5, 8);
        assert!(short.tokens.len() == 7 && short.tokens.iter().all(|&token| token < 5));
        short.trajectory().validate().unwrap();
    }
}
