use std::fmt;
use std::ops::Add;
use std::time::Duration;

use crate::PolicyLabel;

/// Activity of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerActivity {
    /// Waits for requests or weights.
    Idle,
    /// Computes a step.
    Step,
    /// Loads or releases weights.
    LoadWeights,
    /// Restarts after a failure.
    Restart,
    /// Has ended.
    Ended,
}

/// Last known state of a worker (a lane or a replica). It is updated at the latest when the worker begins its current
/// [`activity`](Self::activity).
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerStatus {
    /// Name of the worker within its engine, such as `lane 0`.
    pub worker: String,
    /// Loaded weights, one entry per policy.
    pub loaded: Vec<PolicyLabel>,
    /// Sequences in its batch.
    pub running: usize,
    /// Sequences that it has accepted and that wait for blocks or for a place in the batch.
    pub waiting: usize,
    /// Requests queued for it that another worker may still take.
    pub queued: usize,
    /// Current activity.
    pub activity: WorkerActivity,
    /// Time since the activity began.
    pub since: Duration,
    /// Time spent in steps since the engine started, the current step included.
    pub busy: Duration,
    /// Tokens sampled since the engine started.
    pub sampled_tokens: u64,
    /// Restarts after failures.
    pub restarts: u32,
}

impl fmt::Display for WorkerStatus {
    /// One line, as for a stall report.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let activity = match self.activity {
            WorkerActivity::Idle if self.loaded.is_empty() => "without weights",
            WorkerActivity::Idle => "idle",
            WorkerActivity::Step => "in a step",
            WorkerActivity::LoadWeights => "loading weights",
            WorkerActivity::Restart => "restarting",
            WorkerActivity::Ended => "ended",
        };
        write!(f, "rollout {}: {activity} for {:.1} s", self.worker, self.since.as_secs_f64())?;
        match self.loaded[..] {
            [] => {}
            [label] => write!(f, ", policy version {}", label.version.0)?,
            _ => {
                for label in &self.loaded {
                    write!(f, ", policy {} version {}", label.policy, label.version.0)?;
                }
            }
        }
        let Self { running, waiting, queued, sampled_tokens, .. } = self;
        write!(
            f,
            ", {running} running, {waiting} waiting, {queued} queued, {sampled_tokens} tokens sampled"
        )?;
        match self.restarts {
            0 => Ok(()),
            1 => write!(f, ", restarted once"),
            times => write!(f, ", restarted {times} times"),
        }
    }
}

/// Totals of a rollout engine. Engines that cannot count something report 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RolloutStatistics {
    /// Batched steps of all workers.
    pub steps: u64,
    /// Tokens whose keys and values were computed, recomputed ones and drafts included.
    pub computed_tokens: u64,
    /// Tokens whose keys and values were in the cache already when their sequence started.
    pub reused_tokens: u64,
    /// Tokens sampled.
    pub sampled_tokens: u64,
    /// Sequences preempted because blocks ran out.
    pub preempted: u64,
    /// Sequences moved from a busy worker to an idle one.
    pub migrated: u64,
    /// Drafted tokens; `None` if the engine does not draft.
    pub drafts: Option<DraftStatistics>,
}

/// Totals of speculative decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DraftStatistics {
    /// Tokens drafted and computed before they were sampled.
    pub drafted_tokens: u64,
    /// Drafted tokens that were then sampled.
    pub accepted_tokens: u64,
}

impl Add for RolloutStatistics {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let drafts = match (self.drafts, other.drafts) {
            (Some(a), Some(b)) => Some(DraftStatistics {
                drafted_tokens: a.drafted_tokens + b.drafted_tokens,
                accepted_tokens: a.accepted_tokens + b.accepted_tokens,
            }),
            (one, None) | (None, one) => one,
        };
        Self {
            steps: self.steps + other.steps,
            computed_tokens: self.computed_tokens + other.computed_tokens,
            reused_tokens: self.reused_tokens + other.reused_tokens,
            sampled_tokens: self.sampled_tokens + other.sampled_tokens,
            preempted: self.preempted + other.preempted,
            migrated: self.migrated + other.migrated,
            drafts,
        }
    }
}

/// Times of requests that inference servers answered, for models of their speed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RequestTimes {
    /// Number of servers that serve requests.
    pub replicas: usize,
    /// Maximum number of requests that a server computes at a time.
    pub max_requests: usize,
    /// Number of requests answered.
    pub answered: u64,
    /// Requests in the order of their answers; an even selection of them if there were many.
    pub requests: Vec<RequestTime>,
    /// Durations of the weight updates of single servers, without the time in which requests in flight finish.
    pub updates: Vec<Duration>,
}

/// Times of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RequestTime {
    /// Tokens generated.
    pub tokens: usize,
    /// Time between the request to the server and its answer.
    pub service: Duration,
    /// Time before, in which the request waited for a server with room.
    pub waited: Duration,
    /// Mean number of requests at the server during `service`, this one included.
    pub concurrency: f64,
}

#[cfg(test)]
mod tests {
    use rloom_core::{PolicyId, PolicyVersion};

    use super::*;

    #[test]
    fn a_status_is_one_line() {
        let label = PolicyLabel { policy: PolicyId::MAIN, version: PolicyVersion(7), digest: 1 };
        let mut status = WorkerStatus {
            worker: "lane 2".to_owned(),
            loaded: vec![label],
            running: 12,
            waiting: 1,
            queued: 30,
            activity: WorkerActivity::Step,
            since: Duration::from_millis(31_240),
            busy: Duration::from_secs(90),
            sampled_tokens: 1834,
            restarts: 0,
        };
        assert_eq!(
            status.to_string(),
            "rollout lane 2: in a step for 31.2 s, policy version 7, 12 running, 1 waiting, 30 queued, 1834 tokens \
             sampled"
        );
        let other = PolicyLabel { policy: PolicyId(3), ..label };
        status.loaded.push(other);
        assert!(
            status.to_string().contains(", policy 0 version 7, policy 3 version 7, 12 running"),
            "{status}"
        );
        status = WorkerStatus { activity: WorkerActivity::Idle, loaded: vec![], restarts: 3, ..status };
        let text = status.to_string();
        assert!(text.starts_with("rollout lane 2: without weights for 31.2 s, 12 running"), "{text}");
        assert!(text.ends_with("tokens sampled, restarted 3 times"), "{text}");
    }

    #[test]
    fn drafts_are_counted_where_there_are_any() {
        let plain = RolloutStatistics { steps: 2, ..RolloutStatistics::default() };
        let drafts = Some(DraftStatistics { drafted_tokens: 5, accepted_tokens: 3 });
        let drafting = RolloutStatistics { drafts, ..plain };
        assert_eq!((plain + plain).drafts, None);
        assert_eq!((plain + drafting).drafts, drafts);
        let both = (drafting + drafting).drafts.unwrap();
        assert_eq!((both.drafted_tokens, both.accepted_tokens), (10, 6));
    }
}
