use super::agents::{Compared, by_range, parts};
use super::estimator::{Batch, Estimate};
use super::normalize::{STD_EPSILON, check_std_epsilon};
use super::view::{GroupView, Raw};
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// (R_k − mean_k)/(std_k + ε) for each agent k over the group, std with n − 1: Dr. MAS (arXiv 2602.08847). Each agent is
    /// compared with itself in the other episodes of the task.
    PerAgent {
        /// Compare the rewards of the agents; otherwise those of the episodes, also where agents have rewards of their own.
        own_reward: bool = true,
        /// Also divide by the standard deviation.
        divide_by_std: bool = true,
        /// Added to the standard deviation before it divides.
        std_epsilon: f64 = STD_EPSILON,
    }
}

impl PerAgent {
    fn group(self, group: &GroupView<'_>) -> Vec<Raw> {
        let of = |own: Option<f64>, shared: f64| own.filter(|_| self.own_reward).unwrap_or(shared);
        let rewards = group.members().flat_map(|(_, e, shared)| {
            parts(e).into_iter().map(move |part| (part.name, of(part.reward, shared)))
        });
        let compared = Compared::of(rewards);
        let epsilon = self.divide_by_std.then_some(self.std_epsilon);
        by_range(group, |e, shared| {
            let advantage = |name, reward| compared.advantage(&name, of(reward, shared), epsilon);
            parts(e).into_iter().map(|part| (part.tokens, advantage(part.name, part.reward))).collect()
        })
    }
}

impl Estimate for PerAgent {
    fn check(&self) -> Result<(), OutOfRange> {
        check_std_epsilon(self.std_epsilon)
    }

    fn ignored(&self) -> &'static [&'static str] {
        if self.divide_by_std { &[] } else { &["std_epsilon"] }
    }

    fn is_per_episode(&self) -> bool {
        false
    }

    fn takes_kl(&self) -> bool {
        false
    }

    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        batch.each(|group, _| self.group(group))
    }
}
