//! Losses of episodes that are divided into segments.

use std::ops::Range;

use proptest::prelude::*;
use rloom_algo::{
    Aggregation, GlobalCounts, KlEstimator, KlLoss, LossBatch, LossGrad, PolicyLoss, Scope, Surrogate,
    TokenScores, policy_loss,
};

use crate::losses::surrogates;

/// Per-token numbers of two episodes, one after the other.
#[derive(Debug, Clone)]
struct Numbers {
    first: usize,
    logprob: Vec<f32>,
    old: Vec<f32>,
    reference: Vec<f32>,
}

impl Numbers {
    /// Each episode has one advantage and one outcome.
    fn of_episode(&self, first: f32, second: f32) -> Vec<f32> {
        (0..self.logprob.len()).map(|t| if t < self.first { first } else { second }).collect()
    }

    /// The loss if the first episode ends in segments at `cuts`.
    fn loss(&self, loss: &PolicyLoss, cuts: &[usize]) -> LossGrad {
        let total = self.logprob.len();
        let ends = cuts.iter().copied().chain([self.first, total]);
        let mut start = 0;
        let rows: Vec<Range<usize>> = ends
            .map(|end| {
                let row = start..end;
                start = end;
                row
            })
            .collect();
        let episode_tokens: Vec<usize> = rows
            .iter()
            .map(|row| if row.end <= self.first { self.first } else { total - self.first })
            .collect();
        let advantage = self.of_episode(0.75, -1.25);
        let outcome: Vec<f32> = rows.iter().map(|row| f32::from(u8::from(row.end <= self.first))).collect();
        let scores = TokenScores {
            logprob: self.logprob.clone(),
            entropy: vec![0.5; total],
            ..TokenScores::default()
        };
        let batch = LossBatch {
            rows: &rows,
            episode_tokens: if cuts.is_empty() { &[] } else { &episode_tokens },
            advantage: Some(&advantage),
            old_logprob: Some(&self.old),
            behavior_logprob: Some(&self.old),
            reference_logprob: Some(&self.reference),
            outcome: Some(&outcome),
            ..LossBatch::default()
        };
        let counts = GlobalCounts {
            further_segments: cuts.len() as u64,
            ..GlobalCounts::of_lengths(rows.iter().map(Range::len), 16)
        };
        let grad = policy_loss(loss, &batch, &scores, &counts).unwrap();
        grad.terms.finish(&counts).unwrap();
        grad
    }
}

/// Numbers and the ends of segments within the first episode.
fn divided(is_on_policy: bool) -> impl Strategy<Value = (Numbers, Vec<usize>)> {
    (2usize..9, 1usize..6).prop_flat_map(move |(first, second)| {
        let n = first + second;
        let numbers = |range: Range<f32>| prop::collection::vec(range, n);
        let cuts = prop::collection::btree_set(1..first, 1..first.max(2));
        (numbers(-3.0..-0.1), numbers(-0.3..0.3), numbers(-3.0..-0.1), cuts).prop_map(
            move |(logprob, moved, reference, cuts)| {
                let moved =
                    logprob.iter().zip(moved).map(|(lp, by)| lp + if is_on_policy { 0.0 } else { by });
                let old = moved.collect();
                (Numbers { first, logprob, old, reference }, cuts.into_iter().collect())
            },
        )
    })
}

fn assert_same(divided: &LossGrad, whole: &LossGrad, what: &str) {
    for (t, (a, b)) in divided.d_logprob.iter().zip(&whole.d_logprob).enumerate() {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1e-2), "{what}, token {t}: {a}, whole {b}");
    }
    for (a, b) in divided.d_entropy.iter().zip(&whole.d_entropy) {
        assert!((a - b).abs() <= 1e-6, "{what}: {a}, whole {b}");
    }
    let (a, b) = (divided.terms.loss(), whole.terms.loss());
    assert!((a - b).abs() <= 1e-6 * b.abs().max(1.0), "{what}: loss {a}, whole {b}");
}

fn with_everything(surrogate: Surrogate, aggregation: Aggregation) -> PolicyLoss {
    PolicyLoss {
        kl: Some(KlLoss { estimator: KlEstimator::K3, coef: 0.2, ratio: false }),
        entropy_coef: 0.1,
        ..PolicyLoss::new(surrogate, aggregation)
    }
}

proptest! {
    /// Terms of tokens do not depend on the sequence that they are in.
    #[test]
    fn a_divided_episode_has_the_token_terms_of_the_whole((numbers, cuts) in divided(false)) {
        let by_token = |s: &Surrogate| {
            PolicyLoss::new(*s, Aggregation::TokenMean).scope() == Scope::Token && !s.is_per_sequence()
        };
        for surrogate in surrogates().into_iter().filter(by_token) {
            for aggregation in Aggregation::ALL {
                let loss = with_everything(surrogate, aggregation);
                let what = format!("{surrogate:?}, {aggregation:?}");
                assert_same(&numbers.loss(&loss, &cuts), &numbers.loss(&loss, &[]), &what);
            }
        }
    }

    /// While every ratio is 1, so do losses with one term per sequence: the segments share the weight of the episode.
    #[test]
    fn a_divided_episode_has_the_weight_of_the_whole((numbers, cuts) in divided(true)) {
        let by_advantage = |s: &Surrogate| s.scope() != Scope::Step && s.reads_advantage();
        for surrogate in surrogates().into_iter().filter(by_advantage) {
            let loss = with_everything(surrogate, Aggregation::SequenceMean);
            let what = format!("{surrogate:?}");
            assert_same(&numbers.loss(&loss, &cuts), &numbers.loss(&loss, &[]), &what);
        }
    }
}
