use std::collections::BTreeMap;

use super::agents::{AgentPart, parts};
use super::estimator::{Batch, Estimate, Reads};
use super::moments::RunningMoments;
use super::normalize::{STD_EPSILON, check_gamma, check_std_epsilon};
use super::returns::accumulate;
use super::view::{GroupView, Raw};
use super::{AdvantageReport, EpisodeRewards, StepReward};
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// `group` of the episode + ω·(return from the step − mean over the group's steps with its state): GiGPO (arXiv
    /// 2505.10978). Episodes are compared within their group, steps with those that began in the same state; all tokens
    /// of a step share its advantage. Of several agents each is compared with itself, by its own reward and steps.
    Gigpo {
        /// Also divide by the standard deviations, of episodes and of steps.
        divide_by_std: bool = true,
        /// Added to a standard deviation before it divides.
        std_epsilon: f64 = STD_EPSILON,
        /// Discount per step.
        gamma: f64 = 0.95,
        /// ω: weight of the advantage of steps.
        step_weight: f64 = 1.0,
    }
}

impl Gigpo {
    fn against(self, of: &RunningMoments, value: f64) -> f64 {
        if of.no_spread() {
            return 0.0;
        }
        (value - of.mean) / if self.divide_by_std { of.std() + self.std_epsilon } else { 1.0 }
    }

    /// The agents of an episode, each with its steps and the returns from them. An agent's steps are followed by its own alone.
    fn parts<'a>(self, e: &EpisodeRewards<'a>) -> Vec<(AgentPart<'a>, Vec<(StepReward<'a>, f64)>)> {
        let with_steps = |part: AgentPart<'a>| {
            let (start, end) = part.tokens;
            let is_own = |step: &&StepReward<'_>| start <= step.tokens.0 && step.tokens.1 <= end;
            let steps: Vec<StepReward<'_>> = e.steps.iter().filter(is_own).copied().collect();
            let mut returns: Vec<f64> = steps.iter().map(|step| step.reward).collect();
            accumulate(&mut returns, self.gamma);
            (part, steps.into_iter().zip(returns).collect())
        };
        parts(e).into_iter().map(with_steps).collect()
    }

    /// Tokens outside any step only have the episode's advantage.
    fn group(self, group: &GroupView<'_>, report: &mut AdvantageReport) -> Vec<Raw> {
        let mut of_agent: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        let mut from_state: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (_, e, shared) in group.members() {
            for (part, steps) in self.parts(e) {
                of_agent.entry(part.name).or_default().push(part.reward.unwrap_or(shared));
                report.steps += steps.len();
                for (step, value) in steps {
                    if let Some(state) = step.state {
                        from_state.entry(state).or_default().push(value);
                    }
                }
            }
        }
        report.states_seen_once += from_state.values().filter(|values| values.len() == 1).count();
        let moments = |(key, values): (_, Vec<f64>)| (key, RunningMoments::of(values.into_iter()));
        let of_agent: BTreeMap<&str, RunningMoments> = of_agent.into_iter().map(moments).collect();
        let of_state: BTreeMap<&str, RunningMoments> = from_state.into_iter().map(moments).collect();
        group.each(|_, e, shared| {
            let mut advantage = vec![0.0; e.tokens];
            for (part, steps) in self.parts(e) {
                let reward = part.reward.unwrap_or(shared);
                let of_episode = of_agent.get(part.name).map_or(0.0, |of| self.against(of, reward));
                advantage[part.tokens.0..part.tokens.1].fill(of_episode);
                for (step, value) in steps {
                    let Some(of) = step.state.and_then(|state| of_state.get(state)) else { continue };
                    let of_step = self.step_weight * self.against(of, value);
                    for a in &mut advantage[step.tokens.0..step.tokens.1] {
                        *a += of_step;
                    }
                }
            }
            Raw::PerToken(advantage)
        })
    }
}

impl Estimate for Gigpo {
    fn check(&self) -> Result<(), OutOfRange> {
        check_gamma(self.gamma)?;
        let fits = self.step_weight >= 0.0;
        check("step_weight", self.step_weight, fits, "0 or more", "1 weighs steps like episodes")?;
        check_std_epsilon(self.std_epsilon)
    }

    fn ignored(&self) -> &'static [&'static str] {
        if self.divide_by_std { &[] } else { &["std_epsilon"] }
    }

    fn is_per_episode(&self) -> bool {
        false
    }

    fn reads(&self) -> Reads {
        Reads { steps: true, ..Reads::default() }
    }

    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        batch.each(|group, report| self.group(group, report))
    }
}
