//! One advantage per token: the discounted sum of what follows.

use super::{GroupRewards, Raw, k1, takes_part};

/// Returns of each policy token. The discount counts policy tokens; what the environment wrote between them
/// carries the return through unchanged.
pub(super) fn group(group: &GroupRewards<'_>, kl_coef: f64, gamma: f64) -> Vec<Raw> {
    group
        .episodes
        .iter()
        .map(|e| {
            let Some(reward) = e.reward.filter(|_| takes_part(e)) else { return Raw::Out };
            let mut returns = vec![0.0; e.tokens];
            if kl_coef != 0.0 {
                for (r, kl) in returns.iter_mut().zip(k1(e)) {
                    *r = -kl_coef * kl;
                }
            }
            if let Some(last) = returns.last_mut() {
                *last += reward;
            }
            let mut following = 0.0;
            for r in returns.iter_mut().rev() {
                *r += gamma * following;
                following = *r;
            }
            Raw::PerToken(returns)
        })
        .collect()
}
