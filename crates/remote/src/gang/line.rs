//! The ranks of a gang, shared by the engine and by what sends its publications.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rloom_wire::Frame;
use serde_json::json;

use super::error::GangError;
use super::exchange::{Job, RankFailure};
use super::ranks::Ranks;

/// The ranks; one job at a time.
#[derive(Debug)]
pub(crate) struct Line(Mutex<Open>);

/// The ranks and the state of their jobs.
#[derive(Debug)]
pub(crate) struct Open {
    ranks: Result<Ranks, GangError>,
    job: u64,
    /// Number of times that the weights have changed.
    pub(crate) changes: u64,
    /// Servers that rank 0 has a communicator with, and their incarnations.
    pub(crate) joined: BTreeMap<String, u32>,
}

impl Line {
    pub(crate) fn new(ranks: Ranks) -> Self {
        Self(Mutex::new(Open { ranks: Ok(ranks), job: 0, changes: 0, joined: BTreeMap::new() }))
    }

    /// Waits for the end of the job under way, which has a deadline of its own.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Runs a job on all ranks.
    pub(crate) fn run(&mut self, job: Job<'_>) -> Result<Vec<Frame>, Box<RankFailure>> {
        self.job += 1;
        match &mut self.ranks {
            Ok(ranks) => ranks.run(self.job, job),
            Err(error) => Err(error.clone().into()),
        }
    }

    /// True until the gang has ended.
    pub(crate) fn is_open(&self) -> bool {
        self.ranks.is_ok()
    }

    /// Kills the ranks.
    pub(crate) fn end(&mut self, error: GangError) {
        self.ranks = Err(error);
    }

    /// Asks the ranks to end, and kills those that do not.
    pub(crate) fn shut_down(&mut self) {
        if let Ok(ranks) = &self.ranks {
            let message = json!({ "job": "shutdown" }).to_string();
            for connection in &ranks.connections {
                let frame = Frame::new(ranks.epoch, self.job + 1, message.clone());
                // Ending the gang kills those that did not end by themselves.
                let _ = connection.send(&frame, Instant::now() + Duration::from_secs(1));
            }
        }
        self.end(GangError::ShutDown);
    }
}
