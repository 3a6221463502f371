use super::Estimator;

/// An advantage: estimator, KL in the reward, whitening.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdvantageSpec {
    /// The estimator.
    pub estimator: Estimator,
    /// Weight of k1 = old − ref in the reward, 0 for none. [`Estimator::ReinforcePp`] and [`Estimator::Gae`] subtract
    /// it per token; the others subtract its sum over the episode before the baseline. [`Estimator::Gdpo`], which reads
    /// named rewards, and the steps of [`Estimator::Gigpo`] subtract none.
    pub kl_coef: f64,
    /// Applies (A − mean)/sqrt(max(population variance, 1e-8)) over the policy tokens of the batch afterwards.
    pub whiten: bool,
}
