//! State of a lane as other threads see it.

use std::time::{Duration, Instant};

use rloom_engine::{PolicyLabel, RolloutStatistics, WorkerActivity, WorkerFailure, WorkerStatus};

/// Name of a lane in messages.
pub(crate) fn lane_name(lane: usize) -> String {
    format!("lane {lane}")
}

/// Last reported state of a lane. The lane updates it whenever it begins another activity.
#[derive(Debug)]
pub(crate) struct LaneStatus {
    pub(crate) loaded: Option<PolicyLabel>,
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    pub(crate) statistics: RolloutStatistics,
    activity: WorkerActivity,
    since: Instant,
    /// Time in completed steps.
    busy: Duration,
    pub(crate) restarts: u32,
    /// Cause of the last restart.
    pub(crate) failure: Option<WorkerFailure>,
}

impl LaneStatus {
    pub(crate) fn new() -> Self {
        Self {
            loaded: None,
            running: 0,
            waiting: 0,
            statistics: RolloutStatistics::default(),
            activity: WorkerActivity::Idle,
            since: Instant::now(),
            busy: Duration::ZERO,
            restarts: 0,
            failure: None,
        }
    }

    pub(crate) fn activity(&self) -> WorkerActivity {
        self.activity
    }

    /// Begins an activity. Each step is a new one; any other activity continues if it is begun again.
    pub(crate) fn begin(&mut self, activity: WorkerActivity) {
        let now = Instant::now();
        if self.activity == WorkerActivity::Step {
            self.busy += now - self.since;
        } else if self.activity == activity {
            return;
        }
        self.activity = activity;
        self.since = now;
    }

    pub(crate) fn report(&self, lane: usize, queued: usize) -> WorkerStatus {
        let since = self.since.elapsed();
        let is_in_step = self.activity == WorkerActivity::Step;
        WorkerStatus {
            worker: lane_name(lane),
            loaded: self.loaded.into_iter().collect(),
            running: self.running,
            waiting: self.waiting,
            queued,
            activity: self.activity,
            since,
            busy: self.busy + if is_in_step { since } else { Duration::ZERO },
            sampled_tokens: self.statistics.sampled_tokens,
            restarts: self.restarts,
        }
    }
}
