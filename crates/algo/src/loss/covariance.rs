//! Covariance of advantage and log-probability over the optimiser step (arXiv 2505.22617), shared by `clip_cov` and
//! `kl_cov`. The few tokens of high covariance reduce the entropy; both losses select them.

use super::kernel::{Row, StepToken};
use crate::ExactSum;
use crate::settings::keys::{OutOfRange, check};

pub(super) fn check_share(share: f64) -> Result<(), OutOfRange> {
    check("cov_share", share, share > 0.0 && share < 1.0, "between 0 and 1", "2e-4 is the paper's")
}

pub(super) fn is_picked(row: &Row<'_>, t: usize) -> bool {
    row.picked.get(t).copied().unwrap_or(false)
}

/// c_t = (A_t − mean A)(old_t − mean old) of each token. The means are exact, so they do not depend on order or split.
pub(super) fn covariances(tokens: &[StepToken]) -> Vec<f64> {
    let mean = |of: fn(&StepToken) -> f64| {
        let mut sum = ExactSum::new();
        sum.extend(tokens.iter().map(of));
        sum.value() / tokens.len() as f64
    };
    let (advantage, old) = (mean(|t| t.advantage), mean(|t| t.old));
    tokens.iter().map(|t| (t.advantage - advantage) * (t.old - old)).collect()
}

/// Number of tokens in a fraction of `tokens`: rounded down, but at least one, as in the paper's code.
pub(super) fn count(share: f64, tokens: usize) -> usize {
    ((share * tokens as f64) as usize).max(1)
}

/// Positions of the first `count` candidates in the order of their keys.
pub(super) fn first<K: Ord>(mut candidates: Vec<(K, u64)>, count: usize) -> Vec<u64> {
    if count < candidates.len() {
        candidates.select_nth_unstable(count);
        candidates.truncate(count);
    }
    candidates.into_iter().map(|(_, position)| position).collect()
}
