use std::ops::Range;

use rloom_core::{Author, SampleKey, Trajectory};

use crate::TrainError;

/// A micro-batch: whole sequences side by side, without padding.
///
/// Scores and coefficients are flat over its scored tokens (the policy's), in packed order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PackedBatch {
    /// Token ids of all sequences, one after the other: `[T]`.
    pub tokens: Vec<u32>,
    /// Where each sequence starts, and `T` at the end: `[sequences + 1]`.
    pub seq_starts: Vec<usize>,
    /// Packed index of each scored token.
    pub rows: Vec<u32>,
    /// One over the temperature at which each scored token was sampled.
    pub inv_temperature: Vec<f32>,
    /// Each sequence's range in `rows`.
    pub sequences: Vec<Range<usize>>,
    /// Each sequence's name.
    pub keys: Vec<SampleKey>,
    /// Log-probability of each scored token when it was sampled; empty for demonstrations.
    pub behavior_logprob: Vec<f32>,
}

impl PackedBatch {
    fn push(&mut self, trajectory: &Trajectory) {
        if self.seq_starts.is_empty() {
            self.seq_starts.push(0);
        }
        let base = self.tokens.len();
        let first_row = self.rows.len();
        for span in trajectory.spans.iter().filter(|span| span.author == Author::Policy) {
            let inv_temperature = 1.0 / span.temperature;
            self.rows.extend(span.range.clone().map(|i| (base + i) as u32));
            self.inv_temperature.resize(self.rows.len(), inv_temperature);
        }
        self.tokens.extend_from_slice(&trajectory.tokens);
        self.seq_starts.push(self.tokens.len());
        self.sequences.push(first_row..self.rows.len());
        self.keys.push(trajectory.key);
        self.behavior_logprob.extend_from_slice(&trajectory.logprobs);
    }
}

/// Packs trajectories in their order into micro-batches of at most `budget` tokens each.
///
/// First fit in order: the packing is a function of the data alone. A sequence longer than the budget is a
/// micro-batch of its own.
pub fn pack<'a>(
    trajectories: impl IntoIterator<Item = &'a Trajectory>,
    budget: usize,
) -> Result<Vec<PackedBatch>, TrainError> {
    let mut batches: Vec<PackedBatch> = Vec::new();
    for trajectory in trajectories {
        trajectory.validate()?;
        if trajectory.policy_tokens() == 0 {
            return Err(TrainError::NothingToScore { key: trajectory.key });
        }
        let fits = batches.last().is_some_and(|b| b.tokens.len() + trajectory.tokens.len() <= budget);
        if !fits {
            batches.push(PackedBatch::default());
        }
        if let Some(batch) = batches.last_mut() {
            batch.push(trajectory);
        }
    }
    Ok(batches)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rloom_core::{Span, StopReason, Ticket};

    fn trajectory(ticket: u64, prompt: usize, policy: usize, temperature: f32) -> Trajectory {
        let n = prompt + policy;
        Trajectory {
            key: SampleKey { ticket: Ticket(ticket), sample: 0, segment: 0 },
            tokens: (0..n as u32).map(|i| i + 100 * ticket as u32).collect(),
            spans: vec![
                Span::new(Author::Prompt, 0..prompt),
                Span::new(Author::Policy, prompt..n).at(temperature),
            ],
            logprobs: (0..policy).map(|i| -(i as f32) - ticket as f32).collect(),
            versions: vec![],
            stop: StopReason::StopToken,
        }
    }

    proptest! {
        /// Unpacking gives back every token, every scored row and every log-probability, whatever the budget.
        #[test]
        fn packing_loses_nothing(shapes in prop::collection::vec((1usize..9, 1usize..9), 1..20), budget in 1usize..60) {
            let all: Vec<Trajectory> = shapes.iter().enumerate()
                .map(|(i, &(p, c))| trajectory(i as u64, p, c, 0.5)).collect();
            let batches = pack(&all, budget).unwrap();
            let mut seen = 0;
            for b in &batches {
                prop_assert!(b.tokens.len() <= budget || b.keys.len() == 1);
                prop_assert_eq!(b.seq_starts.len(), b.keys.len() + 1);
                for (s, key) in b.keys.iter().enumerate() {
                    let t = &all[seen];
                    prop_assert_eq!(*key, t.key);
                    prop_assert_eq!(&b.tokens[b.seq_starts[s]..b.seq_starts[s + 1]], &t.tokens[..]);
                    let rows = b.sequences[s].clone();
                    prop_assert_eq!(&b.behavior_logprob[rows.clone()], &t.logprobs[..]);
                    let scored: Vec<u32> = b.rows[rows.clone()].iter().map(|&r| b.tokens[r as usize]).collect();
                    prop_assert_eq!(&scored[..], &t.tokens[t.prompt_tokens()..]);
                    prop_assert!(b.inv_temperature[rows].iter().all(|&x| x == 2.0));
                    seen += 1;
                }
            }
            prop_assert_eq!(seen, all.len());
        }
    }

    #[test]
    fn observations_are_read_and_not_scored() {
        let mut game = trajectory(0, 2, 6, 1.0);
        game.spans.truncate(1);
        game.spans.extend([
            Span::new(Author::Policy, 2..4).at(0.5),
            Span::new(Author::Environment, 4..7),
            Span::new(Author::Policy, 7..8).at(0.5),
        ]);
        game.logprobs = vec![-1.0, -2.0, -3.0];
        let packed = pack([&trajectory(1, 1, 1, 1.0), &game], 100).unwrap().remove(0);
        assert_eq!(packed.tokens.len(), 2 + 8);
        assert_eq!(packed.rows, [1, 2 + 2, 2 + 3, 2 + 7]);
        assert_eq!(packed.behavior_logprob[1..], [-1.0, -2.0, -3.0]);
        assert_eq!(packed.inv_temperature, [1.0, 2.0, 2.0, 2.0]);
    }

    #[test]
    fn what_cannot_be_trained_is_refused() {
        let mut broken = trajectory(0, 2, 2, 1.0);
        broken.logprobs.pop();
        assert!(matches!(pack([&broken], 10), Err(TrainError::Trajectory(_))));
        assert!(matches!(pack([&trajectory(0, 2, 0, 1.0)], 10), Err(TrainError::NothingToScore { .. })));
    }
}
