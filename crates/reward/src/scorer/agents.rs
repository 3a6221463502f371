//! Components that judge each agent of an episode.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use rloom_core::{Rewards, Verdict};

use super::{Component, CurrentComponent, Judged, Parts, Scorer};
use crate::retries::Retries;
use crate::{AgentText, Completion, RewardError};

impl Scorer {
    /// True if a component judges each agent of an episode.
    pub fn judges_agents(&self) -> bool {
        self.components.iter().any(|component| component.reward.judges_agents())
    }

    /// Judges the agents of an episode with the components that judge them one by one, and completes its rewards: the value of
    /// such a component is the mean over the agents, and an agent's own reward that of the episode with its value instead.
    ///
    /// # Errors
    ///
    /// As for [`judge`](Self::judge).
    pub fn score_agents(
        &self,
        judged: &Judged<'_>,
        agents: &[AgentText],
        rewards: &mut Rewards,
        current: &CurrentComponent,
    ) -> Result<(), RewardError> {
        let parts = Parts::of(judged);
        let completion = self.completion(judged, &parts);
        let domain = judged.task.domain.as_str();
        let mut own: Vec<f64> = vec![0.0; agents.len()];
        let mut applies = false;
        for (index, component) in self.components.iter().enumerate() {
            if agents.is_empty() || !component.reward.judges_agents() || !component.domains.contains(domain) {
                continue;
            }
            current.0.store(index, Ordering::Relaxed);
            let verdict = match component.judge_agents(&completion, agents, &self.retries) {
                Ok(values) => {
                    let mean = values.iter().sum::<f64>() / values.len() as f64;
                    own.iter_mut()
                        .zip(&values)
                        .for_each(|(own, value)| *own += component.weight * (value - mean));
                    Verdict::of(Some(mean))
                }
                Err(error) => Verdict::Failed(self.dropped(component, 1, error)?),
            };
            applies = true;
            if let Some(component) = rewards.components.get_mut(index) {
                component.verdict = verdict;
            }
        }
        if let Some(total) = rewards.total().filter(|_| applies) {
            let of_agent = |(agent, own): (&AgentText, f64)| (agent.name.clone(), total + own);
            rewards.agents = agents.iter().zip(own).map(of_agent).collect::<BTreeMap<_, _>>();
        }
        Ok(())
    }
}

impl Component {
    fn judge_agents(
        &self,
        completion: &Completion<'_>,
        agents: &[AgentText],
        retries: &Retries,
    ) -> Result<Vec<f64>, RewardError> {
        let values =
            self.attempts(completion.key, retries, || self.reward.judge_agents(completion, agents))?;
        let missing = (values.len() != agents.len()).then_some(f64::NAN);
        match values.iter().copied().chain(missing).find(|value| !value.is_finite()) {
            Some(value) => {
                Err(RewardError::NotFinite { component: self.name.clone(), sample: completion.key, value })
            }
            None => Ok(values),
        }
    }
}
