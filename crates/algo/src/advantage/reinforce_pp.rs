use super::estimator::{Batch, Estimate, Whitening};
use super::normalize::check_gamma;
use super::returns::{accumulate, token_rewards};
use super::view::Raw;
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// Σ_{s≥t} γ^{s−t} r_s with r_s = −coef·(old − ref)_s and R added at the last token: REINFORCE++
    /// (arXiv 2501.03262). Needs no group.
    ReinforcePp {
        /// Discount per policy token.
        gamma: f64 = 1.0,
    }
}

impl Estimate for ReinforcePp {
    fn check(&self) -> Result<(), OutOfRange> {
        check_gamma(self.gamma)
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

    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        let kl_coef = batch.kl_coef;
        batch.each(|group, _| {
            group.each(|_, e, reward| {
                let mut returns = token_rewards(e, reward, kl_coef);
                accumulate(&mut returns, self.gamma);
                Raw::PerToken(returns)
            })
        })
    }
}
