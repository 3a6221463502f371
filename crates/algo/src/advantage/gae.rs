use super::estimator::{Batch, Estimate, Reads, Whitening};
use super::normalize::check_gamma;
use super::returns::{accumulate, token_rewards};
use super::view::Raw;
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// Generalised advantage estimation: δ_t = r_t + γV_{t+1} − V_t, A_t = δ_t + γλA_{t+1} (arXiv 1506.02438), r as in
    /// `reinforce_pp`; beyond the last token V is 0, or the value there if the episode was truncated.
    Gae {
        /// Discount per policy token.
        gamma: f64 = 1.0,
        /// λ: 1 for Monte Carlo returns, 0 for one-step differences.
        lambda: f64 = 0.95,
    }
}

impl Estimate for Gae {
    fn check(&self) -> Result<(), OutOfRange> {
        check_gamma(self.gamma)?;
        let fits = (0.0..=1.0).contains(&self.lambda);
        check("lambda", self.lambda, fits, "between 0 and 1", "0.95 is usual")
    }

    fn needs_group(&self) -> bool {
        false
    }

    fn is_per_episode(&self) -> bool {
        false
    }

    fn pays_kl_by_token(&self) -> bool {
        true
    }

    fn whitening(&self) -> Whitening {
        Whitening::On
    }

    fn reads(&self) -> Reads {
        Reads { values: true, ..Reads::default() }
    }

    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        let kl_coef = batch.kl_coef;
        batch.each(|group, _| {
            group.each(|_, e, reward| {
                let mut deltas = token_rewards(e, reward, kl_coef);
                // Nothing follows the end of an episode; a truncated one would have continued.
                let mut next = e.last_value.map_or(0.0, f64::from);
                for (delta, &value) in deltas.iter_mut().zip(e.values).rev() {
                    *delta += self.gamma * next - f64::from(value);
                    next = f64::from(value);
                }
                accumulate(&mut deltas, self.gamma * self.lambda);
                Raw::PerToken(deltas)
            })
        })
    }
}
