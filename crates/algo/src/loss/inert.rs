use super::{LossBatch, PolicyLoss};

impl PolicyLoss {
    /// Per row: whether all its coefficients are 0 whatever the scores are, so that nothing of it need be
    /// back-propagated. It stays in every count and metric: the loss is asked about it as about any other.
    ///
    /// That is so of a masked row; and of one whose advantages are all 0, where the surrogate's derivative is a multiple
    /// of the advantage and nothing but the surrogate has one: no KL, no bonus on the entropy, no value.
    pub fn inert(&self, batch: &LossBatch<'_>) -> Vec<bool> {
        let by_advantage = self.surrogate.kernel().scales_with_advantage()
            && self.kl.is_none()
            && self.entropy_coef == 0.0
            && self.value.is_none();
        let advantage = batch.advantage.filter(|_| by_advantage);
        let is_zero = |range| {
            let own = advantage.and_then(|advantage| advantage.get(std::ops::Range::clone(range)));
            own.is_some_and(|own| own.iter().all(|&a| a == 0.0))
        };
        let masked = |row: usize| batch.masked.get(row).copied().unwrap_or(false);
        batch.rows.iter().enumerate().map(|(row, range)| masked(row) || is_zero(range)).collect()
    }
}
