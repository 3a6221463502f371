use std::collections::BTreeMap;

use super::agents::{AgentPart, parts};
use super::estimator::{Batch, Estimate, Reads};
use super::moments::RunningMoments;
use super::normalize::{STD_EPSILON, check_gamma, check_std_epsilon};
use super::returns::accumulate;
use super::view::{GroupView, Raw};
use super::{AdvantageReport, EpisodeRewards, StepReward};
use crate::settings::choices::choices;
use crate::settings::keys::{OutOfRange, check, settings};

choices! {
    /// The steps among which those from the same state are compared.
    StatesFrom {
        /// Those of the group. Right for any key, as the episodes of a group have one task.
        Group = "group",
        /// Those of all groups of the batch: for keys that describe the state completely, whatever the task.
        Batch = "batch",
        /// As `batch`, but without the step itself, whose place the mean over all steps of its agent takes: also states that occur
        /// once teach something. Standard deviations are those over all steps of the agent.
        BatchOthers = "batch_others",
    }
}

settings! {
    /// υ·`group` of the episode + ω·(return from the step − mean over the steps with its state): GiGPO (arXiv 2505.10978).
    /// Episodes are compared within their group, steps with those that began in the same state; all tokens of a step share its
    /// advantage. Of several agents each is compared with itself, by its own reward and steps.
    Gigpo {
        /// Also divide by the standard deviations, of episodes and of steps.
        divide_by_std: bool = true,
        /// Added to a standard deviation before it divides.
        std_epsilon: f64 = STD_EPSILON,
        /// Discount per step.
        gamma: f64 = 0.95,
        /// υ: weight of the advantage of episodes.
        episode_weight: f64 = 1.0,
        /// ω: weight of the advantage of steps.
        step_weight: f64 = 1.0,
        /// Steps that are compared if their states are equal: those of the group, of the batch, or the others of the batch.
        states_from: StatesFrom = StatesFrom::Group,
    }
}

/// Returns from steps, by their state and by the agent that took them.
struct Returns<'a> {
    of_state: BTreeMap<&'a str, RunningMoments>,
    of_agent: BTreeMap<&'a str, RunningMoments>,
}

/// Moments of the values of each key.
fn moments(by_key: BTreeMap<&str, Vec<f64>>) -> BTreeMap<&str, RunningMoments> {
    by_key.into_iter().map(|(key, values)| (key, RunningMoments::of(values.into_iter()))).collect()
}

impl Gigpo {
    fn divided(self, difference: f64, of: &RunningMoments) -> f64 {
        if of.no_spread() {
            return 0.0;
        }
        difference / if self.divide_by_std { of.std() + self.std_epsilon } else { 1.0 }
    }

    fn against(self, of: &RunningMoments, value: f64) -> f64 {
        self.divided(value - of.mean, of)
    }

    /// The advantage of a step of an agent from a state.
    fn of_step(self, returns: &Returns<'_>, agent: &str, state: &str, value: f64) -> f64 {
        let (Some(of_state), Some(of_agent)) = (returns.of_state.get(state), returns.of_agent.get(agent))
        else {
            return 0.0;
        };
        if self.states_from != StatesFrom::BatchOthers {
            return self.against(of_state, value);
        }
        // value − (n·mean − value + mean of the agent)/n
        let difference = value - of_state.mean + (value - of_agent.mean) / of_state.count as f64;
        self.divided(difference, of_agent)
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

    /// Returns from the groups' steps that have a state.
    fn returns<'a>(self, groups: &[GroupView<'a>], report: &mut AdvantageReport) -> Returns<'a> {
        let mut of_state: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        let mut of_agent: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (_, e, _) in groups.iter().flat_map(GroupView::members) {
            for (part, steps) in self.parts(e) {
                report.steps += steps.len();
                for (state, value) in steps.into_iter().filter_map(|(step, value)| Some((step.state?, value)))
                {
                    of_state.entry(state).or_default().push(value);
                    of_agent.entry(part.name).or_default().push(value);
                }
            }
        }
        report.states_seen_once += of_state.values().filter(|values| values.len() == 1).count();
        Returns { of_state: moments(of_state), of_agent: moments(of_agent) }
    }

    /// Tokens outside any step only have the episode's advantage.
    fn group(self, group: &GroupView<'_>, returns: &Returns<'_>) -> Vec<Raw> {
        let mut of_agent: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (_, e, shared) in group.members() {
            for part in parts(e) {
                of_agent.entry(part.name).or_default().push(part.reward.unwrap_or(shared));
            }
        }
        let of_agent = moments(of_agent);
        group.each(|_, e, shared| {
            let mut advantage = vec![0.0; e.tokens];
            for (part, steps) in self.parts(e) {
                let reward = part.reward.unwrap_or(shared);
                let of_episode = of_agent.get(part.name).map_or(0.0, |of| self.against(of, reward));
                advantage[part.tokens.0..part.tokens.1].fill(self.episode_weight * of_episode);
                for (step, value) in steps {
                    let Some(state) = step.state else { continue };
                    let of_step = self.step_weight * self.of_step(returns, part.name, state, value);
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
        let (episode, step) = (self.episode_weight, self.step_weight);
        check("episode_weight", episode, episode >= 0.0, "0 or more", "0 compares steps alone")?;
        check("step_weight", step, step >= 0.0, "0 or more", "1 weighs steps like episodes")?;
        check_std_epsilon(self.std_epsilon)
    }

    fn ignored(&self) -> &'static [&'static str] {
        if self.divide_by_std { &[] } else { &["std_epsilon"] }
    }

    /// Steps alone may be compared with those of other groups.
    fn needs_group(&self) -> bool {
        self.episode_weight != 0.0 || self.states_from == StatesFrom::Group
    }

    fn is_per_episode(&self) -> bool {
        false
    }

    fn reads(&self) -> Reads {
        Reads { steps: true, ..Reads::default() }
    }

    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        let of_batch = match self.states_from {
            StatesFrom::Group => None,
            StatesFrom::Batch | StatesFrom::BatchOthers => Some(self.returns(batch.groups, batch.report)),
        };
        batch.each(|group, report| match &of_batch {
            Some(returns) => self.group(group, returns),
            None => self.group(group, &self.returns(std::slice::from_ref(group), report)),
        })
    }
}
