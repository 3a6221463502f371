//! Losses that hold the entropy up by treating the few tokens of high covariance between advantage and log-probability
//! apart (arXiv 2505.22617). Which those are is known only over the whole optimiser step.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::kernel::{Bounds, Clipped, Kernel, Reads, Row, Scope, StepToken, TokenTerm, each, ratio};
use super::ppo_clip::PpoClip;
use crate::ExactSum;

/// Clip-Cov: `PpoClip`, but tokens drawn among those with low < c_t < high that are not clipped anyway have no part in
/// the loss, c_t = (A_t − mean A)(old_t − mean old) over the step.
///
/// `old` is what the ratio is taken to. (verl takes c_t with the current log-probability, over each micro-batch alone.)
/// Of N tokens ⌊share·N⌋ are drawn, at least one where any may be, and all of them where fewer may be: those with the
/// smallest random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClipCov {
    /// The clip of all tokens.
    pub clip: PpoClip,
    /// Share of the step's tokens that are drawn, in (0, 1).
    pub share: f64,
    /// Covariance above which a token may be drawn.
    pub low: f64,
    /// Covariance below which a token may be drawn.
    pub high: f64,
}

/// KL-Cov: ℓ = −ρA, and + k·|lp − old| on the ⌊share·N⌋ tokens, at least one, of the largest c_t; of equals the first.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct KlCov {
    /// Share of the step's tokens with the penalty, in (0, 1).
    pub share: f64,
    /// k.
    pub coef: f64,
}

fn is_picked(row: &Row<'_>, t: usize) -> bool {
    row.picked.get(t).copied().unwrap_or(false)
}

/// c_t of each token. The means are exact, so neither order nor split of the step changes a bit of them.
fn covariances(tokens: &[StepToken]) -> Vec<f64> {
    let mean = |of: fn(&StepToken) -> f64| {
        let mut sum = ExactSum::new();
        sum.extend(tokens.iter().map(of));
        sum.value() / tokens.len() as f64
    };
    let (advantage, old) = (mean(|t| t.advantage), mean(|t| t.old));
    tokens.iter().map(|t| (t.advantage - advantage) * (t.old - old)).collect()
}

/// How many of `tokens` a share is: rounded down, and at least one, as in the paper's code.
fn count(share: f64, tokens: usize) -> usize {
    ((share * tokens as f64) as usize).max(1)
}

/// Largest first.
#[derive(PartialEq)]
struct Descending(f64);

impl Eq for Descending {}

impl Ord for Descending {
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.total_cmp(&self.0)
    }
}

impl PartialOrd for Descending {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The first `count` of `candidates` in the order of their keys.
fn first<K: Ord>(mut candidates: Vec<(K, u64)>, count: usize) -> Vec<u64> {
    if count < candidates.len() {
        candidates.select_nth_unstable(count);
        candidates.truncate(count);
    }
    candidates.into_iter().map(|(_, position)| position).collect()
}

impl Kernel for ClipCov {
    fn scope(&self) -> Scope {
        Scope::Step
    }

    fn reads(&self) -> Reads {
        Reads::RATIO
    }

    fn bounds(&self) -> Bounds {
        self.clip.bounds()
    }

    fn pick(&self, tokens: &[StepToken], draw: &dyn Fn(u64) -> u64) -> Vec<u64> {
        let is_clipped = |t: &StepToken| self.clip.term(t.log_ratio, t.advantage).clipped != Clipped::No;
        let candidates = covariances(tokens)
            .iter()
            .zip(tokens)
            .filter(|&(&c, t)| c > self.low && c < self.high && !is_clipped(t))
            .map(|(_, t)| (draw(t.position), t.position))
            .collect();
        first(candidates, count(self.share, tokens.len()))
    }

    fn scales_with_advantage(&self) -> bool {
        true
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        each(row, terms, |t| {
            if is_picked(row, t) {
                return TokenTerm::default();
            }
            self.clip.term(row.log_ratio(t), row.advantage[t])
        });
    }
}

impl Kernel for KlCov {
    fn scope(&self) -> Scope {
        Scope::Step
    }

    fn reads(&self) -> Reads {
        Reads::RATIO
    }

    fn pick(&self, tokens: &[StepToken], _draw: &dyn Fn(u64) -> u64) -> Vec<u64> {
        let candidates =
            covariances(tokens).iter().zip(tokens).map(|(&c, t)| (Descending(c), t.position)).collect();
        first(candidates, count(self.share, tokens.len()))
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        each(row, terms, |t| {
            let (log_ratio, a) = (row.log_ratio(t), row.advantage[t]);
            let (ratio, slope) = ratio(log_ratio);
            // f64::signum is ±1 at ±0; the subgradient there is 0.
            let sign = if log_ratio == 0.0 { 0.0 } else { log_ratio.signum() };
            let k = if is_picked(row, t) { self.coef } else { 0.0 };
            TokenTerm {
                value: -ratio * a + k * log_ratio.abs(),
                d_logprob: -slope * a + k * sign,
                clipped: Clipped::No,
            }
        });
    }
}
