//! What a lane last said of itself.

use std::fmt;
use std::time::{Duration, Instant};

use rloom_core::PolicyVersion;

use crate::Statistics;

/// What a lane's thread is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// It sleeps: nothing that it may compute is there.
    Nothing,
    /// It computes a step.
    Step,
    /// It changes over to other weights.
    ChangeOver,
    /// It makes a new decoder in place of one that failed.
    Restart,
    /// It has ended.
    Ended,
}

/// What a lane last said of itself, at the latest when it began what it is [`doing`](Self::doing). Read from the board:
/// a lane that hangs inside a step needs not be asked.
#[derive(Debug, Clone, PartialEq)]
pub struct LaneReport {
    /// The lane.
    pub lane: usize,
    /// The weights it has.
    pub version: Option<PolicyVersion>,
    /// Sequences in its batch.
    pub running: usize,
    /// Sequences that it has taken and that wait for blocks or for a place in the batch.
    pub waiting: usize,
    /// Requests that are queued for it, and that another lane may still take.
    pub queued: usize,
    /// What it is doing.
    pub doing: Doing,
    /// For how long.
    pub since: Duration,
    /// Time spent in steps since the engine was made, the one under way included.
    pub busy: Duration,
    /// Tokens it has chosen since the engine was made.
    pub tokens_sampled: u64,
    /// Times that it was started again after a failure.
    pub restarts: u32,
}

impl fmt::Display for LaneReport {
    /// One line, as for a stall report.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let doing = match (self.doing, self.version) {
            (Doing::Nothing, None) => "without weights",
            (Doing::Nothing, Some(_)) => "idle",
            (Doing::Step, _) => "in a step",
            (Doing::ChangeOver, _) => "changing over to other weights",
            (Doing::Restart, _) => "restarting",
            (Doing::Ended, _) => "ended",
        };
        write!(f, "rollout lane {}: {doing} for {:.1} s", self.lane, self.since.as_secs_f64())?;
        if let Some(PolicyVersion(version)) = self.version {
            write!(f, ", policy version {version}")?;
        }
        let Self { running, waiting, queued, tokens_sampled, .. } = self;
        write!(
            f,
            ", {running} running, {waiting} waiting, {queued} queued, {tokens_sampled} tokens sampled"
        )?;
        match self.restarts {
            0 => Ok(()),
            1 => write!(f, ", restarted once"),
            times => write!(f, ", restarted {times} times"),
        }
    }
}

/// What a lane says of itself whenever it begins something else; kept on the board.
#[derive(Debug)]
pub(crate) struct Notes {
    pub(crate) version: Option<PolicyVersion>,
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    pub(crate) statistics: Statistics,
    doing: Doing,
    since: Instant,
    /// In steps that are over.
    busy: Duration,
    pub(crate) restarts: u32,
    /// What the last restart was for.
    pub(crate) failure: Option<String>,
}

impl Notes {
    pub(crate) fn new() -> Self {
        Self {
            version: None,
            running: 0,
            waiting: 0,
            statistics: Statistics::default(),
            doing: Doing::Nothing,
            since: Instant::now(),
            busy: Duration::ZERO,
            restarts: 0,
            failure: None,
        }
    }

    pub(crate) fn doing(&self) -> Doing {
        self.doing
    }

    /// Notes what the lane does from now on. Who goes on sleeping has slept all the time; a step is always a new one.
    pub(crate) fn turn_to(&mut self, doing: Doing) {
        let now = Instant::now();
        if self.doing == Doing::Step {
            self.busy += now - self.since;
        } else if self.doing == doing {
            return;
        }
        self.doing = doing;
        self.since = now;
    }

    pub(crate) fn report(&self, lane: usize, queued: usize) -> LaneReport {
        let since = self.since.elapsed();
        LaneReport {
            lane,
            version: self.version,
            running: self.running,
            waiting: self.waiting,
            queued,
            doing: self.doing,
            since,
            busy: self.busy + if self.doing == Doing::Step { since } else { Duration::ZERO },
            tokens_sampled: self.statistics.sampled_tokens,
            restarts: self.restarts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_one_line() {
        let mut report = LaneReport {
            lane: 2,
            version: Some(PolicyVersion(7)),
            running: 12,
            waiting: 1,
            queued: 30,
            doing: Doing::Step,
            since: Duration::from_millis(31_240),
            busy: Duration::from_secs(90),
            tokens_sampled: 1834,
            restarts: 0,
        };
        assert_eq!(
            report.to_string(),
            "rollout lane 2: in a step for 31.2 s, policy version 7, 12 running, 1 waiting, 30 queued, 1834 tokens \
             sampled"
        );
        report = LaneReport { doing: Doing::Nothing, version: None, restarts: 3, ..report };
        let text = report.to_string();
        assert!(text.starts_with("rollout lane 2: without weights for 31.2 s, 12 running"), "{text}");
        assert!(text.ends_with("tokens sampled, restarted 3 times"), "{text}");
    }
}
