use super::agents::{by_range, parts};
use super::estimator::{Batch, Estimate};
use super::view::Raw;
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// R_k − b_k for each agent k, with a moving average b_k ← d·b_k + (1 − d)·R_k of the agent's rewards: the role baseline
    /// of SPIRAL (arXiv 2506.24119). It starts at 0, is read before the episode's reward updates it, and lasts as long as
    /// the stage.
    RoleBaseline {
        /// d: weight of the average so far.
        decay: f64 = 0.95,
    }
}

impl Estimate for RoleBaseline {
    fn check(&self) -> Result<(), OutOfRange> {
        let fits = (0.0..1.0).contains(&self.decay);
        check("decay", self.decay, fits, "0 or more and below 1", "0.95 is usual")
    }

    fn needs_group(&self) -> bool {
        false
    }

    fn is_per_episode(&self) -> bool {
        false
    }

    fn takes_kl(&self) -> bool {
        false
    }

    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        let roles = &mut *batch.roles;
        let of_group = |group| {
            by_range(group, |e, shared| {
                let advantage = |part: super::AgentPart<'_>| {
                    let reward = part.reward.unwrap_or(shared);
                    let baseline = roles.entry(part.name.to_owned()).or_insert(0.0);
                    let advantage = reward - *baseline;
                    *baseline = self.decay * *baseline + (1.0 - self.decay) * reward;
                    (part.tokens, advantage)
                };
                parts(e).into_iter().map(advantage).collect()
            })
        };
        batch.groups.iter().map(of_group).collect()
    }
}
