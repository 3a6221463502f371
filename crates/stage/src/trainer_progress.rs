//! Progress of the training thread, written by it and its engines and read by the driver.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rloom_engine::{ProgressObserver, TrainEngine, TrainProgress};
use rloom_learn::Models;

/// Progress of the current job.
#[derive(Debug, Default)]
pub(crate) struct TrainerProgress {
    /// Optimiser steps of the batch that are taken, and their total.
    done: AtomicU64,
    total: AtomicU64,
    /// Reports of all jobs.
    reports: AtomicU64,
    /// Last report of an engine in this job, with the name of its model.
    work: Mutex<Option<(&'static str, TrainProgress)>>,
    /// True once the results of further jobs are not needed.
    abandoned: AtomicBool,
}

impl TrainerProgress {
    /// Has the engines report here.
    pub(crate) fn observe<T: TrainEngine>(self: &Arc<Self>, models: &mut Models<T>) {
        let Models { policy, critic, prm, further } = models;
        policy.observe(self.observer("policy"));
        for (name, engine) in [("critic", critic), ("process-reward model", prm)] {
            if let Some(engine) = engine {
                engine.observe(self.observer(name));
            }
        }
        for policy in further {
            policy.engine.observe(self.observer("further policy"));
        }
    }

    fn observer(self: &Arc<Self>, model: &'static str) -> ProgressObserver {
        let shared = Arc::clone(self);
        ProgressObserver::new(move |progress| {
            *shared.work() = Some((model, progress));
            shared.reports.fetch_add(1, Ordering::Relaxed);
        })
    }

    fn work(&self) -> MutexGuard<'_, Option<(&'static str, TrainProgress)>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a job starts.
    pub(crate) fn start_job(&self) {
        *self.work() = None;
        self.set_steps(0, 0);
    }

    /// Notes the optimiser steps taken and their total.
    pub(crate) fn set_steps(&self, done: u64, total: u64) {
        self.done.store(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        self.reports.fetch_add(1, Ordering::Relaxed);
    }

    /// Optimiser steps taken for the current batch and their total; 0 of 0 if no batch is trained.
    pub(crate) fn steps(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }

    /// Number of reports, which grows while the thread works.
    pub(crate) fn reports(&self) -> u64 {
        self.reports.load(Ordering::Relaxed)
    }

    /// Describes the work of the job's engines, such as "training micro-batch 3 of 8"; `None` before their first report.
    pub(crate) fn describe_work(&self) -> Option<String> {
        let (model, progress) = (*self.work())?;
        Some(if model == "policy" { progress.to_string() } else { format!("{model}: {progress}") })
    }

    /// Keeps the thread from starting another job.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}
