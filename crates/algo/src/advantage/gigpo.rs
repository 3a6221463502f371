//! GiGPO: episodes are compared within their group, and steps with those that began in the same state.

use std::collections::BTreeMap;

use super::AdvantageReport;
use super::group::{Group, Raw};
use super::moments::RunningMoments;
use super::returns::accumulate;

/// Knobs of [`Estimator::Gigpo`](super::Estimator::Gigpo).
#[derive(Debug, Clone, Copy)]
pub(super) struct Gigpo {
    pub(super) gamma: f64,
    pub(super) step_weight: f64,
    pub(super) std_epsilon: Option<f64>,
}

impl Gigpo {
    fn against(self, of: &RunningMoments, value: f64) -> f64 {
        if of.no_spread() {
            return 0.0;
        }
        (value - of.mean) / self.std_epsilon.map_or(1.0, |epsilon| of.std() + epsilon)
    }

    /// Tokens outside any step have the episode's advantage alone.
    pub(super) fn group(self, group: &Group<'_>, report: &mut AdvantageReport) -> Vec<Raw> {
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
