use std::ops::Range;

use super::{LossBatch, PolicyLoss};

impl PolicyLoss {
    /// Flags the rows whose coefficients are 0 for any scores, so that they need no backward pass. They still count in
    /// every normaliser and metric.
    ///
    /// These are masked rows, rows whose given coefficients are all 0, and rows whose advantages are all 0 if the surrogate's derivative is a multiple of the
    /// advantage and nothing else has a derivative: no KL, no entropy bonus, no value.
    pub fn inert(&self, batch: &LossBatch<'_>) -> Vec<bool> {
        let kernel = self.surrogate.kernel();
        let is_alone = self.kl.is_none() && self.entropy_coef == 0.0 && self.value.is_none();
        let advantage = batch.advantage.filter(|_| is_alone && kernel.scales_with_advantage());
        let given = batch.given.filter(|_| is_alone && kernel.is_given());
        let is_zero = |range: &Range<usize>| {
            let own = advantage.and_then(|advantage| advantage.get(range.clone()));
            own.is_some_and(|own| own.iter().all(|&a| a == 0.0))
                || given.is_some_and(|given| given.is_zero(range))
        };
        let masked = |row: usize| batch.masked.get(row).copied().unwrap_or(false);
        batch.rows.iter().enumerate().map(|(row, range)| masked(row) || is_zero(range)).collect()
    }
}
