//! One advantage per token from what follows it: REINFORCE++ and generalised advantage estimation. Discounts count
//! policy tokens; what the environment wrote between them carries everything through unchanged.

use super::EpisodeRewards;
use super::group::{Group, Raw};

/// What each token earns: its KL penalty, and the episode's reward at the last one.
fn token_rewards(episode: &EpisodeRewards<'_>, reward: f64, kl_coef: f64) -> Vec<f64> {
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

/// Turns x_t into Σ_{s≥t} d^{s−t} x_s.
pub(super) fn accumulate(values: &mut [f64], discount: f64) {
    let mut following = 0.0;
    for value in values.iter_mut().rev() {
        *value += discount * following;
        following = *value;
    }
}

/// Discounted returns.
pub(super) fn reinforce_pp(group: &Group<'_>, kl_coef: f64, gamma: f64) -> Vec<Raw> {
    group.each(|_, e, reward| {
        let mut returns = token_rewards(e, reward, kl_coef);
        accumulate(&mut returns, gamma);
        Raw::PerToken(returns)
    })
}

/// Discounted sums of temporal differences.
pub(super) fn gae(group: &Group<'_>, kl_coef: f64, gamma: f64, lambda: f64) -> Vec<Raw> {
    group.each(|_, e, reward| {
        let mut deltas = token_rewards(e, reward, kl_coef);
        // An episode that ended has nothing after its last token; one that was cut off would have gone on.
        let mut next = e.last_value.map_or(0.0, f64::from);
        for (delta, &value) in deltas.iter_mut().zip(e.values).rev() {
            *delta += gamma * next - f64::from(value);
            next = f64::from(value);
        }
        accumulate(&mut deltas, gamma * lambda);
        Raw::PerToken(deltas)
    })
}
