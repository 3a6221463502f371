use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Failure, FailureKind, PolicyVersion, Task, Ticket, Trajectory, Verdict};

/// Use of an episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Trained on.
    Train,
    /// Provides a baseline for the advantage; never trained on.
    Baseline,
}

/// One named component of a reward. Its record has `value`, and `failure` if it failed; records of earlier versions have the
/// message alone as `failure`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "RecordedComponent", into = "RecordedComponent")]
pub struct RewardComponent {
    /// Name, as in the metric `reward/<name>`.
    pub name: String,
    /// Weight in the sum.
    pub weight: f64,
    /// Verdict, before weighting.
    pub verdict: Verdict,
}

/// A component as it is recorded.
#[derive(Serialize, Deserialize)]
struct RecordedComponent {
    name: String,
    weight: f64,
    value: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<RecordedFailure>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum RecordedFailure {
    Typed(Failure),
    Message(String),
}

impl From<RecordedComponent> for RewardComponent {
    fn from(recorded: RecordedComponent) -> Self {
        let RecordedComponent { name, weight, value, failure } = recorded;
        let failed = failure.map(|failure| match failure {
            RecordedFailure::Typed(failure) => failure,
            RecordedFailure::Message(message) => {
                Failure { kind: FailureKind::Component, retryable: false, message }
            }
        });
        Self { name, weight, verdict: failed.map_or_else(|| Verdict::of(value), Verdict::Failed) }
    }
}

impl From<RewardComponent> for RecordedComponent {
    fn from(component: RewardComponent) -> Self {
        let RewardComponent { name, weight, verdict } = component;
        let value = verdict.value();
        let failure = match verdict {
            Verdict::Failed(failure) => Some(RecordedFailure::Typed(failure)),
            Verdict::Value(_) | Verdict::NotApplicable => None,
        };
        Self { name, weight, value, failure }
    }
}

impl RewardComponent {
    /// A component that judged: with its value, or `None` if it does not apply.
    pub fn new(name: impl Into<String>, weight: f64, value: Option<f64>) -> Self {
        Self { name: name.into(), weight, verdict: Verdict::of(value) }
    }

    /// The value, if there is one.
    pub fn value(&self) -> Option<f64> {
        self.verdict.value()
    }

    /// The failure, if the component failed.
    pub fn failure(&self) -> Option<&Failure> {
        self.verdict.failure()
    }
}

/// The rewards of an episode.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Rewards {
    /// Named components, in configuration order.
    pub components: Vec<RewardComponent>,
    /// True if the outcome verifier (the one that evaluation counts) accepts the episode.
    pub solved: Option<bool>,
    /// True if an answer could be read from the completion.
    pub parsed: Option<bool>,
    /// True until the components that judge whole groups have judged the episode's.
    #[serde(default, skip_serializing_if = "is_false")]
    pub pending: bool,
    /// Reward of each agent by name; empty if the agents share that of the episode.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub agents: BTreeMap<String, f64>,
    /// Mean reward of each agent's turn in combination with turns of other episodes of the group, by name; empty unless the
    /// advantage reads it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub recombined: BTreeMap<String, f64>,
    /// What the agents answered together, which the components judged; `None` for the text that the policy wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Further numbers from the environment, for metrics.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_false(value: &bool) -> bool {
    !value
}

impl Rewards {
    /// Values by the name of their component; `None` where one does not apply or has failed.
    pub fn values(&self) -> BTreeMap<String, Option<f64>> {
        self.components.iter().map(|c| (c.name.clone(), c.value())).collect()
    }

    /// Failures by the name of their component.
    pub fn failures(&self) -> BTreeMap<String, Failure> {
        self.components.iter().filter_map(|c| Some((c.name.clone(), c.failure()?.clone()))).collect()
    }

    /// The failure of a component that counts. Such an episode has no reward: that of the other components would treat the
    /// failure as a value of 0.
    pub fn failure(&self) -> Option<&Failure> {
        self.components.iter().filter(|c| c.weight != 0.0).find_map(RewardComponent::failure)
    }

    /// The weighted sum of the components that apply; `None` if none does or one has failed.
    pub fn total(&self) -> Option<f64> {
        if self.failure().is_some() {
            return None;
        }
        let mut applies = false;
        let mut sum = 0.0;
        for c in &self.components {
            if let Some(v) = c.value() {
                applies = true;
                sum += c.weight * v;
            }
        }
        applies.then_some(sum)
    }
}

/// One attempt at a task: one or more segments that share an outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// Use of the episode.
    pub role: Role,
    /// Trajectories of the episode; a single-turn episode has one.
    pub segments: Vec<Trajectory>,
    /// Rewards of the episode.
    pub rewards: Rewards,
}

impl Episode {
    /// Number of policy tokens over all segments.
    pub fn policy_tokens(&self) -> usize {
        self.segments.iter().map(Trajectory::policy_tokens).sum()
    }

    /// True if generation was cut off before an agent ended its last turn, or an agent had no room for another one.
    pub fn is_truncated(&self) -> bool {
        let by_agent = self.segments.chunk_by(|a, b| a.agent == b.agent);
        by_agent.filter_map(<[_]>::last).any(|last| last.stop.is_truncated())
    }
}

/// The episodes of one task, compared with each other by the advantage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Unique number of the group within its stage.
    pub ticket: Ticket,
    /// The task.
    pub task: Task,
    /// The attempts at it.
    pub episodes: Vec<Episode>,
}

impl Group {
    /// Oldest policy version among the policy tokens.
    pub fn oldest_version(&self) -> Option<PolicyVersion> {
        self.episodes.iter().flat_map(|e| &e.segments).filter_map(Trajectory::oldest_version).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(record: &str) -> RewardComponent {
        serde_json::from_str(record).unwrap()
    }

    #[test]
    fn records_of_verdicts_are_read_as_they_were_written() {
        let failure =
            Failure { kind: FailureKind::Infrastructure, retryable: true, message: "no answer".into() };
        for verdict in [Verdict::Value(0.5), Verdict::NotApplicable, Verdict::Failed(failure)] {
            let component = RewardComponent { name: "judge".into(), weight: 2.0, verdict };
            assert_eq!(read(&serde_json::to_string(&component).unwrap()), component);
        }
    }

    #[test]
    fn records_without_a_kind_are_failures_of_the_component() {
        let old = read(r#"{"name":"judge","weight":1.0,"value":null,"failure":"no answer"}"#);
        let failure = old.failure().unwrap();
        assert_eq!((failure.kind, failure.message.as_str()), (FailureKind::Component, "no answer"));
        assert_eq!(read(r#"{"name":"a","weight":1.0,"value":null}"#).verdict, Verdict::NotApplicable);
        assert_eq!(read(r#"{"name":"a","weight":1.0,"value":0.25}"#).verdict, Verdict::Value(0.25));
    }
}
