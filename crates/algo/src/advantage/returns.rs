//! Rewards and discounted sums per token. Discounts apply per policy token; environment tokens between them have no
//! effect.

use super::EpisodeRewards;

/// Reward of each token: its KL penalty, and the episode's reward at the last one.
pub(super) fn token_rewards(episode: &EpisodeRewards<'_>, reward: f64, kl_coef: f64) -> Vec<f64> {
    let mut rewards = vec![0.0; episode.tokens];
    if kl_coef != 0.0 {
        for (r, kl) in rewards.iter_mut().zip(episode.k1()) {
            *r = -kl_coef * kl;
        }
    }
    if let Some(last) = rewards.last_mut() {
        *last += reward;
    }
    rewards
}

/// Replaces x_t by Σ_{s≥t} d^{s−t} x_s.
pub(super) fn accumulate(values: &mut [f64], discount: f64) {
    let mut following = 0.0;
    for value in values.iter_mut().rev() {
        *value += discount * following;
        following = *value;
    }
}
