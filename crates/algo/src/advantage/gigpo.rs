use std::collections::BTreeMap;

use super::AdvantageReport;
use super::estimator::{Batch, Estimate, Reads};
use super::moments::RunningMoments;
use super::normalize::{STD_EPSILON, check_gamma, check_std_epsilon};
use super::returns::accumulate;
use super::view::{GroupView, Raw};
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// `group` of the episode + ω·(return from the step − mean over the group's steps with its state): GiGPO (arXiv
    /// 2505.10978). Episodes are compared within their group, steps with those that began in the same state; all tokens
    /// of a step share its advantage.
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

    /// Tokens outside any step only have the episode's advantage.
    fn group(self, group: &GroupView<'_>, report: &mut AdvantageReport) -> Vec<Raw> {
        let of_group = group.moments();
        let returns: Vec<Vec<f64>> = group
            .members()
            .map(|(_, e, _)| {
                let mut returns: Vec<f64> = e.steps.iter().map(|s| s.reward).collect();
                accumulate(&mut returns, self.gamma);
                returns
            })
            .collect();
        let mut from_state: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for ((_, e, _), returns) in group.members().zip(&returns) {
            for (step, &value) in e.steps.iter().zip(returns) {
                if let Some(state) = step.state {
                    from_state.entry(state).or_default().push(value);
                }
            }
        }
        report.steps += returns.iter().map(Vec::len).sum::<usize>();
        report.states_seen_once += from_state.values().filter(|values| values.len() == 1).count();
        let of_state: BTreeMap<&str, RunningMoments> = from_state
            .into_iter()
            .map(|(state, values)| (state, RunningMoments::of(values.into_iter())))
            .collect();
        let mut returns = returns.iter();
        group.each(|_, e, reward| {
            let mut advantage = vec![self.against(&of_group, reward); e.tokens];
            for (step, &value) in e.steps.iter().zip(returns.by_ref().next().into_iter().flatten()) {
                let Some(of) = step.state.and_then(|state| of_state.get(state)) else { continue };
                let of_step = self.step_weight * self.against(of, value);
                for a in &mut advantage[step.tokens.0..step.tokens.1] {
                    *a += of_step;
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
